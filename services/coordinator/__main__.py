"""`python -m tidemark.services.coordinator`: a coordinator, leader or standby. Settings come from the environment (shared/process)."""

import sys

from tidemark.shared.process.host import serve_without_pandas

sys.exit(serve_without_pandas("tidemark.services.coordinator.service"))
