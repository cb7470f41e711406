"""`python -m tidemark.services.source`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from tidemark.shared.process.host import serve_without_pandas

sys.exit(serve_without_pandas("tidemark.services.source.service"))
