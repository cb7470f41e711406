"""`python -m tidemark.services.spark`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from tidemark.services.spark.service import build
from tidemark.shared.process.host import serve

sys.exit(serve(build))
