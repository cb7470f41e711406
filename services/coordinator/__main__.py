"""`python -m services.coordinator`: a coordinator, leader or standby. Settings come from the environment (shared/process)."""

import sys

from services.coordinator.service import build
from shared.process.host import serve

sys.exit(serve(build))
