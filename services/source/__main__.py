"""`python -m services.source`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from services.source.service import build
from shared.process.host import serve

sys.exit(serve(build))
