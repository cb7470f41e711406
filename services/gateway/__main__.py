"""`python -m tidemark.services.gateway`: HTTP ingest. Settings come from the environment (shared/process, settings.py)."""

import sys

from tidemark.services.gateway.service import build
from tidemark.shared.process.host import serve

sys.exit(serve(build))
