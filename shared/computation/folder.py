"""Where the modules of a user lie: in the folder in which a command was started."""

import os
import sys
from pathlib import Path


def look_here() -> None:
    """Modules are looked for in this folder, too: behind Python's own and installed ones, and what PYTHONPATH names.

    In front of them, a `queue.py` or `types.py` beside a document would take the place of Python's, in each process.
    """
    if not is_gone() and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def import_path() -> str:
    """Where this process looks for modules, as the PYTHONPATH of another."""
    here = "" if is_gone() else str(Path.cwd())
    return os.pathsep.join(found for each in sys.path if (found := each or here))


def is_gone() -> bool:
    """Whether the folder in which this process runs was removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
