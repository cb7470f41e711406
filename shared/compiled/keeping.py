"""Where machine code of this room is kept, and whether it is there: rule CC2. Numba is not needed to ask."""

import functools
import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOM: Final = Path(__file__).parent
CACHE_VARIABLE: Final = "TIDEMARK_CACHE"


@functools.lru_cache(maxsize=1)
def stamp() -> str:
    """A digest of the texts of this room."""
    found = hashlib.sha256()
    for path in sorted(ROOM.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def folder() -> Path:
    """Beside the source where it is whole there or can be written, else in the user's cache (`$TIDEMARK_CACHE`, `~/.cache/tidemark`)."""
    beside = ROOM / "__pycache__"
    if _mark(beside).exists() or os.access(beside if beside.exists() else ROOM, os.W_OK):
        return beside
    named = os.environ.get(CACHE_VARIABLE)
    return (Path(named) if named else Path.home() / ".cache" / "tidemark") / "compiled"


def is_kept() -> bool:
    """Whether all of this room has been compiled for this Python, from these texts."""
    return _mark(folder()).exists()


def mark_kept() -> None:
    """Say that all of it has been compiled."""
    with suppress(OSError):  # nothing can be kept: each process compiles for itself (CC3)
        _mark(folder()).touch()


def _mark(place: Path) -> Path:
    return place / f"{sys.implementation.cache_tag}-{stamp()[:16]}.whole"
