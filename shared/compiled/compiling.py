"""Compilation of this package's functions, and the place of their machine code.

- CC1 A function is compiled when its module is imported, for the types that it names; nothing is compiled while data flows.
- CC2 Machine code lies beside the source (`__pycache__`), or in the user's cache where that folder cannot be written, made by
  `python -m tidemark.shared.compiled`: `make setup`, the images and the first local installation run it. It is for any processor of the
  architecture, and fits the text of the whole package: a change in one file makes all of it stale.
- CC3 Missing or stale code is compiled anew, and kept if the folder can be written; if not, only this process uses it.
- CC4 Compiled functions release the interpreter's lock. They raise nothing: findings are data.
- CC5 They make no arrays: `borrowed` counts no holder, so it may only lend arrays of the caller. An array of their own would not be known
  to be in use, and another thread would get its memory.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba
from numba.core import caching

from tidemark.shared.compiled.keeping import folder, stamp

F = TypeVar("F", bound=Callable[..., Any])

# Machine code that is made on one machine is read on another, whose processor may lack features of this one.
_CONFIG: Any = numba.config
_CONFIG.CPU_NAME = "generic"
_CONFIG.CPU_FEATURES = ""


class _Folder(caching.InTreeCacheLocator):
    """The folder of CC2, whether or not this process may write there."""

    def get_cache_path(self) -> str:
        return str(folder())

    def get_source_stamp(self) -> str:
        return stamp()

    @classmethod
    def from_function(cls, function: Any, file: str) -> "_Folder":
        return cls(function, file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Folder]  # noqa: RUF012 - the library's form


class _Kept(caching.FunctionCache):
    _impl_class = _Implementation

    def load_overload(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except Exception:  # noqa: BLE001 - torn, or of a version whose modules had other names: it is compiled anew
            with suppress(OSError):
                self._cache_file.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):  # CC3
            super().save_overload(signature, data)


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for these types now, or load its machine code (CC1, CC2)."""

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
