"""`python -m services.gateway`: HTTP ingest. Settings come from the environment (shared/process, settings.py)."""

import sys

from services.gateway.service import build
from shared.process.host import serve

sys.exit(serve(build))
