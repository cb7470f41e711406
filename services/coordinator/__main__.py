"""`python -m tidemark.services.coordinator`: a coordinator, leader or standby. Settings come from the environment (shared/process)."""

import sys

from tidemark.services.coordinator.service import build
from tidemark.shared.process.host import serve

sys.exit(serve(build))
