"""`python -m services.spark`: a worker of this service. Settings come from the environment (shared/process)."""

import sys

from services.spark.service import build
from shared.process.host import serve

sys.exit(serve(build))
