"""A disk that loses what was not forced to it, below a folder of this machine; processes that are killed between two calls of the system.

What `os.fsync` was called for is safe: a file's bytes as they were then, a folder's entries as they were then. Of all else a loss of power
keeps what it likes: each entry as it is or as it was, a file whole, cut off or empty.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

CALLS: Final = ("fsync", "link", "rename", "replace", "mkdir", "rmdir", "unlink")
"""Before and behind which a process may die."""


class Killed(BaseException):
    """The process is gone: not a line of it takes effect any more."""


class Disk:
    """See the module."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self._rng = random.Random(seed)
        self._files: dict[int, bytes] = {}
        """By inode, as forced."""
        self._folders: dict[int, dict[str, int]] = {}
        """By inode, as forced: inodes by name."""
        self._calls_left: int | None = None
        self._dead = False
        self._all_safe()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """All calls of this process go through here."""
        with ExitStack() as calls:
            for name in CALLS:
                calls.enter_context(mock.patch.object(os, name, self._through(name)))
            yield

    def _through(self, name: str) -> Callable[..., Any]:
        return partial(self.call, name, getattr(os, name))

    def killed(self, work: Callable[[], Any], calls: int) -> bool:
        """Do work in a process that dies at the call of that number, if it comes to it: whether it died."""
        self._calls_left, self._dead = calls, False
        try:
            work()
        except Killed:
            return True
        finally:
            self._calls_left, self._dead = None, False
        return False

    def call(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A call of the system."""
        self._die()
        if name == "fsync":
            self._force(args[0])
            result = None
        else:
            result = real(*args, **options)
        self._die()
        return result

    def _die(self) -> None:
        if self._calls_left is not None:
            self._calls_left -= 1
            self._dead = self._dead or self._calls_left < 0
        if self._dead:
            raise Killed

    def _force(self, descriptor: int) -> None:
        path, found = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor)
        if path.is_dir():
            self._folders[found.st_ino] = _entries(path)
        else:
            self._files[found.st_ino] = path.read_bytes()

    def lose_power(self) -> None:
        """What is there afterwards is safe."""
        files, folders = dict[int, bytes](), dict[int, dict[str, int]]()
        for at, _, names in os.walk(self.root):
            folders[Path(at).stat().st_ino] = _entries(Path(at))
            for name in names:
                path = Path(at) / name
                files[path.stat().st_ino] = path.read_bytes()
        found: dict[Path, bytes | None] = {}
        self._left(self.root, self.root.stat().st_ino, files, folders, found)
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, data in found.items():
            path.mkdir() if data is None else path.write_bytes(data)
        self._all_safe()

    def _left(
        self,
        at: Path,
        inode: int,
        files: dict[int, bytes],
        folders: dict[int, dict[str, int]],
        found: dict[Path, bytes | None],
    ) -> None:
        """What is left of a folder; `files` and `folders` are as they were last."""
        forced = self._folders.get(inode, {})
        last = folders.get(inode, {})
        for name in sorted(forced.keys() | last.keys()):
            entry = self._rng.choice((forced.get(name), last.get(name)))
            if entry in folders or entry in self._folders:
                found[at / name] = None
                self._left(at / name, entry, files, folders, found)
            elif entry is not None:
                found[at / name] = self._bytes_left(self._files.get(entry), files.get(entry))

    def _bytes_left(self, forced: bytes | None, last: bytes | None) -> bytes:
        if last is None or forced == last:
            return forced or b""
        return self._rng.choice((forced or b"", last, last[: self._rng.randint(0, len(last))]))

    def _all_safe(self) -> None:
        self._files, self._folders = {}, {}
        for at, _, names in os.walk(self.root):
            self._folders[Path(at).stat().st_ino] = _entries(Path(at))
            for name in names:
                path = Path(at) / name
                self._files[path.stat().st_ino] = path.read_bytes()


def _entries(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}
