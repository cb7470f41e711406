"""Where the modules of a user lie: in the folder in which a command was started."""

import sys
from pathlib import Path


def look_here() -> None:
    """Modules are looked for in this folder, too: behind Python's own and installed ones, and what PYTHONPATH names.

    In front of them, a `queue.py` or `types.py` beside a document would take the place of Python's, in each process.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
