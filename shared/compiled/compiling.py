"""How functions of this room are compiled, and where their machine code is kept.

- CC1 A function is compiled when its module is imported, for the types that it names; nothing is compiled while data flows.
- CC2 Machine code lies beside the source (`__pycache__`), written by `python -m tidemark.shared.compiled`, which `make setup` and the
  images run. It is for any processor of the architecture, and fits the text of this whole room: a file that changes makes all of it stale.
- CC3 Where it is not there, or stale, it is compiled anew and kept if the folder can be written; if not, the process uses what it compiled.
- CC4 Compiled functions release the interpreter's lock. They raise nothing: what they find is data.
- CC5 They make no arrays: `borrowed` counts no holder, so what it lends has to be their caller's. Of an array of their own nobody would
  know that it is still in use, and another thread would get its memory.
"""

import functools
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
from numba.core import caching

F = TypeVar("F", bound=Callable[..., Any])
ROOM: Final = Path(__file__).parent

# Machine code that is made on one machine is read on another, whose processor may lack what this one has.
_CONFIG: Any = numba.config
_CONFIG.CPU_NAME = "generic"
_CONFIG.CPU_FEATURES = ""


@functools.lru_cache(maxsize=1)
def _stamp() -> str:
    """A digest of the texts of this room."""
    found = hashlib.sha256()
    for path in sorted(ROOM.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


class _Beside(caching.InTreeCacheLocator):
    """Machine code lies beside the source, whether or not this process may write there."""

    def get_source_stamp(self) -> str:
        return _stamp()

    @classmethod
    def from_function(cls, function: Any, file: str) -> "_Beside":
        return cls(function, file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Beside]  # noqa: RUF012 - the library's form


class _Kept(caching.FunctionCache):
    _impl_class = _Implementation

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):  # CC3
            super().save_overload(signature, data)


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for these types now, or load what was compiled (CC1, CC2)."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
        dispatcher._cache = _Kept(function)  # noqa: SLF001 - where to keep code is no option of the library's
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher  # type: ignore[no-any-return]

    return decorate


def part(function: F) -> F:
    """A function that only compiled ones call: it becomes a part of each, without a call."""
    inlined: Any = numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return inlined  # type: ignore[no-any-return]


def rare(function: F) -> F:
    """A function that only compiled ones call, and seldom: it stays one, so that the others stay small."""
    called: Any = numba.njit(nogil=True, error_model="numpy")(function)
    return called  # type: ignore[no-any-return]
