"""Where machine code of this room is kept, and whether it is there: rule CC2. Numba is not needed to ask."""

import functools
import hashlib
import os
import platform
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOM: Final = Path(__file__).parent
CACHE_VARIABLE: Final = "TIDEMARK_CACHE"
_DIGEST_BYTES: Final = 32
"""Of SHA-256, as stands in front of the code."""


@functools.lru_cache(maxsize=1)
def stamp() -> str:
    """A digest of the texts of this room, and of what compiled code is bound to: the interpreter's and numpy's objects, the compiler."""
    made_by = [f"{name} {version(name)}" for name in ("numpy", "numba", "llvmlite")]
    found = hashlib.sha256(
        "\0".join([sys.platform, f"{sys.implementation.cache_tag}{sys.abiflags}", *made_by]).encode()
    )
    for path in sorted(ROOM.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def folder() -> Path:
    """Beside the source where it is kept there or can be, else in the user's cache (`$TIDEMARK_CACHE`, `~/.cache/tidemark`)."""
    beside = ROOM / "__pycache__"
    if _read(beside) is not None or os.access(beside if beside.exists() else ROOM, os.W_OK):
        return beside
    named = os.environ.get(CACHE_VARIABLE)
    return (Path(named) if named else Path.home() / ".cache" / "tidemark") / "compiled"


def is_kept() -> bool:
    """Whether all of this room has been compiled, from these texts."""
    return kept() is not None


def kept() -> bytes | None:
    """The machine code; None where there is none, or what lies there was damaged."""
    return _read(folder())


def _read(place: Path) -> bytes | None:
    with suppress(OSError):
        found = _file(place).read_bytes()
        digest, code = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        return code if hashlib.sha256(code).digest() == digest else None
    return None


def keep(code: bytes) -> None:
    """Leave the machine code to all processes; where nothing can be written, each compiles for itself (CC3)."""
    with suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as made:  # on a full disk nothing of it stays
            whole = Path(made) / "code"
            whole.write_bytes(hashlib.sha256(code).digest() + code)
            whole.chmod(0o644)
            whole.replace(_file(place))


def _file(place: Path) -> Path:
    return place / f"{platform.machine()}-{stamp()[:16]}.code"
