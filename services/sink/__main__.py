"""`python -m tidemark.services.sink`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from tidemark.services.sink.service import build
from tidemark.shared.process.host import serve

sys.exit(serve(build))
