"""Disks that can be full: file systems in memory, each with a size that is lowered to what lies there, and raised again.

They are mounted in a mount namespace of this process' own (`unshare --mount`), so nothing is left of them however it ends.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SIZE_BYTES = 3 * 2**30
_INSIDE = "TIDEMARK_CHAOS_INSIDE"


class Disk:
    """A folder on a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fills = 0
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=700", "tmpfs", str(folder))

    def fill(self, left_bytes: int) -> None:
        """Nothing but so much fits from now on, whole pages."""
        self._fills += 1
        for _ in range(100):  # others write meanwhile, and no file system is made smaller than what lies there
            stat = os.statvfs(self._folder)
            used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
            if self._sized(max(used, stat.f_frsize) + left_bytes):
                return
        message = f"{self._folder} grows faster than it can be filled"
        raise RuntimeError(message)

    def free(self) -> None:
        """There is room again, unless another still keeps it full."""
        self._fills -= 1
        if not self._fills:
            assert self._sized(SIZE_BYTES)

    def close(self) -> None:
        """Unmount it."""
        _run("umount", "--lazy", str(self._folder))

    def _sized(self, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self._folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def can_mount() -> bool:
    """Whether this process may mount, and nobody else sees it."""
    return _INSIDE in os.environ


def enter(module: str, arguments: Sequence[str]) -> None:
    """Begin this module again where it may mount; returns if it is there, or where this machine lets nobody."""
    if can_mount():
        return
    for options in (["--mount"], ["--map-root-user", "--mount"]):
        ways = ["unshare", *options, "--"]
        probe = [*ways, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if shutil.which("unshare") and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.environ[_INSIDE] = "1"
            os.execvp("unshare", [*ways, sys.executable, "-m", module, *arguments])
