"""`python -m tidemark.services.control`: REST, web page, agents. Settings come from the environment (shared/process, settings.py)."""

import sys

from tidemark.services.control.service import build
from tidemark.shared.process.host import serve

sys.exit(serve(build))
