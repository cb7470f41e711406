"""Where the modules of a user lie: in the folder in which a command was started."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def look_here() -> None:
    """Modules are looked for in this folder, too: behind Python's own and installed ones, and what PYTHONPATH names.

    In front of them, a `queue.py` or `types.py` beside a document would take the place of Python's, in each process.
    """
    with suppress(FileNotFoundError):  # the folder was removed, with what lay in it
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)


def import_path() -> str:
    """Where this process looks for modules, as the PYTHONPATH of another."""
    return os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
