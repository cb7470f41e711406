"""`python -m services.operator`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from services.operator.service import build
from shared.process.host import serve

sys.exit(serve(build))
