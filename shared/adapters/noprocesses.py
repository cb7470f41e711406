"""A process that can start no other: threads, but no fork, by a filter of the kernel (seccomp), for good.

A bound on a number would need a look at the processes, and a loop that forks doubles them every few milliseconds.
"""

import ctypes
import errno
import os
import platform
import struct
from typing import Final

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
