"""`python -m tidemark.shared.compiled` compiles all that this room has, and keeps it: `make setup` and the images do so once.

With `-` it writes the machine code to its output instead. With `FOLDER MODULE…` it is one of the processes that the work is shared
among, and leaves the functions of these modules in the folder.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidemark.shared.compiled import building, keeping

_PROCESSES_MAX: Final = 4
"""The longest module takes a fifth of the time of all, and each process has a compiler of 300 MiB."""


def main(arguments: Sequence[str]) -> int:
    """Compile all, or what a folder and modules name; 1 where a process failed, which has said why."""
    if len(arguments) > 1:
        folder, *modules = arguments
        for function in building.everything():
            if function.module in modules:
                (Path(folder) / function.name).write_bytes(building.bitcode(function))
        return 0
    with tempfile.TemporaryDirectory() as made:
        own = [sys.executable, "-P", "-m", "tidemark.shared.compiled", made]
        shares = _shares(min(_PROCESSES_MAX, os.cpu_count() or 1))
        processes = [subprocess.Popen([*own, *modules]) for modules in shares]  # noqa: S603 - no argument comes from outside
        if sum(process.wait() != 0 for process in processes):
            return 1
        code = building.machine_code(each.read_bytes() for each in sorted(Path(made).iterdir()))
    if arguments:
        sys.stdout.buffer.write(code)
    else:
        keeping.keep(code)
    return 0


def _shares(count: int) -> list[list[str]]:
    """Modules for so many processes, the longest first and each to the process that has least: its functions have parts in common."""
    shares: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    modules = {
        function.module: (keeping.ROOM / f"{function.module}.py").stat().st_size for function in building.everything()
    }
    for module in sorted(modules, key=lambda name: -modules[name]):
        least = sizes.index(min(sizes))
        shares[least].append(module)
        sizes[least] += modules[module]
    return [share for share in shares if share]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
