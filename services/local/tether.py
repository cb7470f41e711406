"""Runs a program that dies when its parent dies.

``python tether.py PARENT_PID PROGRAM ARGUMENT…`` asks the kernel to kill this process when the parent is gone
(``prctl(PR_SET_PDEATHSIG)``, which an exec keeps) and then becomes PROGRAM. So a supervisor that is itself killed with
SIGKILL leaves no broker and no worker behind, and no watching process stands in between.

Standard library only, and run as a file: it starts in some 20 ms and imports nothing of the project.

The kernel means the *thread* that forked: start a tethered program from a thread that lives as long as the
supervisor does (its main thread, or that of its event loop), never from a pool.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
ORPHANED_STATUS: Final = 143  # as a shell reports a process ended by SIGTERM


def tethered(program: Sequence[str]) -> list[str]:
    """The command line that runs ``program`` so that it is killed when the calling process ends."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *program]


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends. SystemExit if it has ended already; OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}; a Linux kernel is needed")
    if os.getppid() != parent:
        sys.exit(ORPHANED_STATUS)  # It died before the tie was made.


def main(arguments: Sequence[str]) -> NoReturn:
    """Tie this process to its parent, then become the program."""
    parent, program = int(arguments[0]), list(arguments[1:])
    die_with(parent)
    os.execvp(program[0], program)  # noqa: S606 - the caller's own command line, no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
