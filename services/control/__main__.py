"""`python -m services.control`: REST, web page, agents. Settings come from the environment (shared/process, settings.py)."""

import sys

from services.control.service import build
from shared.process.host import serve

sys.exit(serve(build))
