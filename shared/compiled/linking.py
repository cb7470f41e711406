"""Machine code that was compiled ahead, linked into this process by LLVM's own linker."""

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from llvmlite import binding

from tidemark.shared.compiled import keeping

_NAME: Final = "tidemark"
Addresses: TypeAlias = Callable[[str], int]
"""Where the machine code of a function is, by its name (`json.read`)."""


@functools.lru_cache(maxsize=1)
def addresses() -> Addresses:
    """Of this package; all of it is compiled here if none is kept that fits (CC3)."""
    code = keeping.kept()
    if code is None:
        code = made()
        keeping.keep(code)
    return linked(code)


def made() -> bytes:
    """All of it compiled now, in other processes (CC6). CalledProcessError: they failed, and have said why."""
    command = [sys.executable, "-P", "-m", "tidemark.shared.compiled", "-"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout  # noqa: S603 - no argument comes from outside


def linked(code: bytes) -> Addresses:
    """Of the functions of an object file."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    linker: Any = binding.create_lljit_compiler(use_jit_link=True)
    held = [binding.JITLibraryBuilder().add_object_img(code).add_current_process().link(linker, _NAME)]

    def address(name: str) -> int:
        held.append(linker.lookup(_NAME, name))  # the code lies there as long as what the linker gives is held
        return int(held[-1][name])

    return address
