"""Which functions of this package are machine code, and how Python calls them.

- CC1 Functions are compiled ahead, for the types that they name; nothing is compiled while data flows. A process that will call them
  calls `load` when it starts; else the first call loads.
- CC2 Machine code lies beside the source (`__pycache__`), or in the user's cache where that folder cannot be written, made by
  `python -m tidemark.shared.compiled`: `make setup`, the images and the first local installation run it. It is for any processor of the
  architecture, and fits the text of the whole package: a change in one file makes all of it stale.
- CC3 Missing, damaged or stale code is compiled anew, and kept if the folder can be written; if not, only this process uses it.
- CC4 Compiled functions release the interpreter's lock. They raise nothing: findings are data. A call with other arrays than a function
  names is refused before it runs.
- CC5 They make no arrays: `borrowed` counts no holder, so it may only lend arrays of the caller. An array of their own would not be known
  to be in use, and another thread would get its memory.
- CC6 Compilers work in processes of their own (`__main__.py`), as many as there are cores: none is ever in a process that carries data.

To compile takes numba, to call takes LLVM's linker alone (`linking.py`): numba, its types and its copies of the code would be 100 MiB
and most of a second of each process.
"""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
_ROOM: Final = "tidemark.shared.compiled."


@dataclass(frozen=True, slots=True)
class Array:
    """An argument that is a contiguous array."""

    dtype: Literal["bool", "uint8", "int32", "int64", "uint64"]
    dimensions: int
    written: bool = False
    """Whether the function may write there: an array that is for reading alone is refused."""


Kind: TypeAlias = Array | Literal["int64", "bool"]
"""Of an argument."""
BYTES: Final = Array("uint8", 1)
BOOLS: Final = Array("bool", 1)
INT32S: Final = Array("int32", 1)
INT64S: Final = Array("int64", 1)
BYTE_ROWS: Final = Array("uint8", 2)
INT64_ROWS: Final = Array("int64", 2)
BYTES_OUT: Final = Array("uint8", 1, written=True)
BOOLS_OUT: Final = Array("bool", 1, written=True)
INT32S_OUT: Final = Array("int32", 1, written=True)
INT64S_OUT: Final = Array("int64", 1, written=True)
UINT64S_OUT: Final = Array("uint64", 1, written=True)
BYTE_ROWS_OUT: Final = Array("uint8", 2, written=True)
INT32_ROWS_OUT: Final = Array("int32", 2, written=True)
INT64_ROWS_OUT: Final = Array("int64", 2, written=True)

RESULTS_MAX: Final = 2
"""The most whole numbers that an entry returns: a count, and where it stopped."""
_ERROR_BYTE: Final = 8 * (1 + RESULTS_MAX)
_Results: Final = ctypes.c_int64 * (2 + RESULTS_MAX)
"""Whether the arguments were refused, the results, and room for an error that no function has (CC4)."""


class _Number(ctypes.c_int64):
    """A number or a truth value, numpy's as well as Python's."""

    @classmethod
    def from_param(cls, value: Any) -> ctypes.c_int64:
        return ctypes.c_int64(int(value))


class Compiled:
    """A function as Python calls it: machine code that is found at the first call (CC1)."""

    def __init__(self, function: Callable[..., object], name: str, results: int, kinds: tuple[Kind, ...]) -> None:
        self.function, self.name, self.results, self.kinds = function, name, results, kinds
        self.code: Any = None

    @property
    def module(self) -> str:
        """The module that it is written in."""
        return self.name.partition(".")[0]

    def __call__(self, *arguments: object) -> Any:
        """The number, or numbers, that it gives; None of one without results. TypeError: the arguments are not those that it names."""
        code = self.code
        if code is None:
            load()
            code = self.code
        found = _Results()
        failed = code(found, ctypes.byref(found, _ERROR_BYTE), id(np.ndarray), *arguments)
        if failed or found[0]:
            message = f"{self.name} takes {self.kinds}, not {[_shown(each) for each in arguments]}"
            raise TypeError(message)
        if self.results == 1:
            return found[1]
        return tuple(found[1 : 1 + self.results]) if self.results else None

    def at(self, address: int) -> None:
        """Call the machine code there from now on."""
        kinds = [ctypes.py_object if isinstance(kind, Array) else _Number for kind in self.kinds]
        places = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.code = ctypes.CFUNCTYPE(ctypes.c_int32, *places, *kinds)(address)


def _shown(argument: object) -> str:
    return f"{argument.dtype} {argument.shape}" if isinstance(argument, np.ndarray) else type(argument).__name__


class InnerFunction:
    """A function, or an instruction, that only compiled functions call."""

    def __init__(self, function: Callable[..., object], how: Literal["inlined", "called", "instruction"]) -> None:
        self.function, self.how = function, how
        self.compiler: Any = None
        """The compiled entry (`building.py`)."""


_FUNCTIONS: Final[list[Compiled]] = []
_LOADING: Final = threading.Lock()


def compiled(results: int, *kinds: Kind, name: str = "") -> Callable[[Callable[..., Any]], Compiled]:
    """A function of arguments of these kinds that gives so many whole numbers, at most RESULTS_MAX. name: in its module, if not its own."""

    def decorate(function: Callable[..., object]) -> Compiled:
        own = f"{function.__module__.removeprefix(_ROOM)}.{name or function.__name__}"
        _FUNCTIONS.append(Compiled(function, own, results, kinds))
        return _FUNCTIONS[-1]

    return decorate


def part(function: F) -> F:
    """A function that only compiled ones call: it becomes a part of each, without a call."""
    return InnerFunction(function, "inlined")  # type: ignore[return-value]


def rare(function: F) -> F:
    """A function that only compiled ones call, and seldom: it stays one, so that the others stay small."""
    return InnerFunction(function, "called")  # type: ignore[return-value]


def instruction(function: F) -> F:
    """An instruction: `instructions.py` has the code, in a function of this name."""
    return InnerFunction(function, "instruction")  # type: ignore[return-value]


def functions() -> tuple[Compiled, ...]:
    """Those of all modules of this package that have been imported."""
    return tuple(_FUNCTIONS)


def load() -> None:
    """Find the machine code of all functions; where there is none that fits, compile it (CC3), which takes a minute or two."""
    from tidemark.shared.compiled import linking  # noqa: PLC0415 - LLVM is loaded with the first call of machine code

    with _LOADING:
        waiting = [function for function in _FUNCTIONS if function.code is None]
        if waiting:
            addresses = linking.addresses()
            for function in waiting:
                function.at(addresses(function.name))
