"""`python -m tests.harness.mutants`."""

import sys

from tests.harness.mutants.run import main

sys.exit(main())
