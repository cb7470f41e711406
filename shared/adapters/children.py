"""Child processes for users' code: forked from a server that has loaded the needed modules, so that one more starts in milliseconds.

- A child dies with the server, and the server with this process, however it ends.
- The kernel bounds it: its memory (RLIMIT_DATA), and it starts no other process (seccomp): threads, but no fork, for good. A
  bound on a number would need a look at the processes, and a loop that forks doubles them every few milliseconds.
"""

import ctypes
import errno
import gc
import multiprocessing
import os
import platform
import resource
import signal
import struct
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import connection, util
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Final

from tidemark.shared.ports.children import ChildEnded

_PR_SET_NO_NEW_PRIVS: Final = 38  # linux/prctl.h
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2  # linux/seccomp.h
_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000  # with the number of an error in the low bits
_CLONE_THREAD: Final = 0x00010000  # linux/sched.h
_CLONE3: Final = 435  # the same number on every machine
_X32: Final = 0x40000000  # the bit of x86-64's second table of calls
# Where `struct seccomp_data` has its fields, in bytes; both machines are little-endian.
_NUMBER, _MACHINE, _FLAGS = 0, 4, 16
# BPF instructions (linux/bpf_common.h).
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _BITS = 0x20, 0x06, 0x15, 0x35, 0x45
_FOLDER_BYTES_MAX: Final = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""A socket's name has 107 bytes (unix(7)), and Python adds its own to the folder's."""
_MACHINES: Final = {  # by name: the kernel's number (linux/audit.h), clone, other calls that start a process
    "x86_64": (0xC000003E, 56, [57, 58]),  # fork, vfork
    "aarch64": (0xC00000B7, 220, []),
}


def forbid_processes() -> None:
    """From now on, whatever would start a process fails in this thread and all that it starts (EPERM).

    Raises:
        OSError: The kernel has no such filters, or knows none for this machine.
    """
    name = platform.machine()
    if name not in _MACHINES:
        raise OSError(errno.ENOSYS, f"processes of users' code need Linux on {' or '.join(_MACHINES)}, this is {name}")
    rules = _rules(*_MACHINES[name])
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    header = struct.pack("@HP", len(rules), ctypes.addressof(program))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    for option, first, second in [
        (_PR_SET_NO_NEW_PRIVS, 1, None),  # without it a filter takes a privilege
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header),
    ]:
        if libc.prctl(option, ctypes.c_ulong(first), second, ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), f"the kernel takes no filter: {os.strerror(ctypes.get_errno())}")


def _rules(machine: int, clone: int, others: list[int]) -> list[tuple[int, int, int, int]]:
    """Instructions as (code, steps if true, steps if false, operand)."""
    no_call, no_right = _FAIL | errno.ENOSYS, _FAIL | errno.EPERM
    calls = [rule for call in others for rule in ((_EQUAL, 0, 1, call), (_RETURN, 0, 0, no_right))]
    return [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, no_call),  # calls of another machine have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, no_call),
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, no_call),  # its flags are out of a filter's sight; the C library then asks by clone
        *calls,
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FLAGS),
        (_BITS, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, no_right),
        (_RETURN, 0, 0, _ALLOW),
    ]


Work = Callable[[Connection], None]
"""A child's work with its end of the connection, until that is closed."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_STATUS_S: Final = 5.0
"""How long the end of a process may take until its status is known."""


class ForkedChild:
    """`Child` of a server's."""

    def __init__(self, process: ForkServerProcess, ours: Connection) -> None:
        self._process = process
        self._connection = ours
        self._ended_by = ""
        self._ending = threading.Lock()

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._process.pid or 0

    def send(self, message: bytes | memoryview) -> None:
        """See `Child.send`."""
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise self._ended() from error

    def receive(self, wait_ms: int) -> bytes:
        """See `Child.receive`."""
        waited_for: list[Connection | int] = [self._connection, self._process.sentinel]
        while not self._connection.poll():
            ready = connection.wait(waited_for, wait_ms / 1000)
            if not ready:
                self._stop(f"was ended: it did not answer within {wait_ms} ms")
            elif self._connection not in ready and not self._connection.poll():
                raise self._ended()
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def end(self) -> None:
        """See `Child.end`."""
        self._stop("was ended with its task")
        connection.wait([self._process.sentinel], _STATUS_S)  # not a join: a caller in `receive` may read the status

    def _stop(self, why: str) -> None:
        with self._ending:
            if self._ended_by:
                return
            self._ended_by = "" if self._process.exitcode is not None else why
            self._process.kill()

    def _ended(self) -> ChildEnded:
        self._process.join(_STATUS_S)
        status = self._process.exitcode
        self._stop("closed its connection")
        return ChildEnded(self._ended_by or _said(status))


def keep_sockets_short() -> None:
    """Let the server's socket lie below /tmp where it would have too long a name in the user's folder of temporary files (TMPDIR).

    A clear copy of what Python does itself from 3.14 on. Everything else stays in the user's folder.
    """
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _FOLDER_BYTES_MAX:
        tempfile.tempdir = "/tmp"  # noqa: S108 - a folder of random name is made in it
        try:
            util.get_temp_dir()  # made once a process
        finally:
            tempfile.tempdir = folder


class ForkedChildren:
    """`Children` that all do one work. `preload`: modules that the server loads before it forks."""

    def __init__(self, work: Work, preload: list[str], *, memory_bytes_max: int) -> None:
        self._work = work
        self._memory_bytes_max = memory_bytes_max
        keep_sockets_short()
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def start(self) -> ForkedChild:
        """See `Children.start`; the first one starts the server, too."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_begin, args=(self._work, theirs, self._memory_bytes_max), daemon=True)
        process.start()
        theirs.close()
        return ForkedChild(process, ours)


def _begin(work: Work, theirs: Connection, memory_bytes_max: int) -> None:
    os.setsid()  # an interrupt at the terminal is the worker's affair
    gc.freeze()  # memory loaded before is shared with the server as long as nobody writes to it, and the collector would
    server = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # it died before the tie was made
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = memory_bytes_max if hard == resource.RLIM_INFINITY else min(memory_bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    forbid_processes()
    work(theirs)


def _said(status: int | None) -> str:
    if status is None:
        return "answers no more"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"
