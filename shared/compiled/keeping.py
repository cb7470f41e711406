"""Where machine code of this room is kept, and whether it is there: rule CC2. Numba is not needed to ask."""

import functools
import hashlib
import os
import platform
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOM: Final = Path(__file__).parent
CACHE_VARIABLE: Final = "TIDEMARK_CACHE"
_DIGEST_BYTES: Final = 32
"""Of SHA-256, as stands in front of the code."""


@functools.lru_cache(maxsize=1)
def stamp() -> str:
    """A digest of the texts of this room."""
    found = hashlib.sha256()
    for path in sorted(ROOM.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def folder() -> Path:
    """Beside the source where it is kept there or can be, else in the user's cache (`$TIDEMARK_CACHE`, `~/.cache/tidemark`)."""
    beside = ROOM / "__pycache__"
    if _file(beside).exists() or os.access(beside if beside.exists() else ROOM, os.W_OK):
        return beside
    named = os.environ.get(CACHE_VARIABLE)
    return (Path(named) if named else Path.home() / ".cache" / "tidemark") / "compiled"


def is_kept() -> bool:
    """Whether all of this room has been compiled, from these texts."""
    return _file(folder()).exists()


def kept() -> bytes | None:
    """The machine code; None where there is none, or what lies there was damaged."""
    with suppress(OSError):
        found = _file(folder()).read_bytes()
        digest, code = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        return code if hashlib.sha256(code).digest() == digest else None
    return None


def keep(code: bytes) -> None:
    """Leave the machine code to all processes; where nothing can be written, each compiles for itself (CC3)."""
    with suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(_file(place))


def _file(place: Path) -> Path:
    return place / f"{platform.machine()}-{stamp()[:16]}.code"
