"""`python -m tidemark.services.operator`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from tidemark.services.operator.service import build
from tidemark.shared.process.host import serve

sys.exit(serve(build))
