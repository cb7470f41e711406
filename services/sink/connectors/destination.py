"""Where a file sink writes: few operations, each durable when it returns and safe beside a second writer (protocol, S4).

`LocalDestination` is a directory: `create` writes under a temporary name, forces file and folder to disk, then links. So a name
either does not exist or is complete, and an existing file is never replaced. `objects.ObjectDestination` does the same on S3 and others.
Functions block: a sink calls them through the Executor port. Names are relative, with `/`.
"""

import errno
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol

from fsspec.implementations.local import LocalFileSystem

from tidemark.shared.adapters.creating import Folders, link_file
from tidemark.shared.adapters.filesystems import raise_unless_gone
from tidemark.shared.adapters.tablebytes import Folder, Outside
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

TEMPORARY_PREFIX: Final = ".tmp-"
"""Names of files that are being written; no reader looks at them."""
_FOLDERS_MAX: Final = 10_000
"""Folders that are known to be durable; with more, all are forced once more."""
_WAITING_HELPS: Final = frozenset(
    {
        errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOSPC, errno.ESTALE,
        errno.ETIMEDOUT,
    }
)  # fmt: skip


class Destination(Protocol):
    """A folder of immutable files, and one that is replaced (`_manifest.json`). TargetUnavailable, TargetRefused."""

    def prepare(self) -> None:
        """Make the root; check that it can be written to."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a complete, durable file if there is none of this name; False if there is one of other bytes, which stays as it is."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a complete, durable file in place of an older one; readers see the old one or the new one."""
        ...

    def read(self, name: str) -> bytes | None:
        """The whole file; None if there is none."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A file that is there, to read parts of it."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes in the file; None if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of all files below a folder, sorted, relative to the root; [] if there is no such folder.

        Of a folder that could be read in part only nothing is told: TargetUnavailable.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete those that exist."""
        ...

    def publish(self, staged: str, visible: str) -> None:
        """Give a complete, durable file the name under which readers find it; nothing if it has it already."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Make these files durable, also those that another process created."""
        ...

    def table(self) -> tuple[str, dict[str, str]]:
        """Where a table format finds the root, and with which options. TargetRefused where it cannot."""
        ...

    def folder(self) -> Folder:
        """The root, as files of a table that others write are read: none of them is elsewhere."""
        ...

    def uri(self, name: str) -> str:
        """For messages: where the file is."""
        ...


def sha256(data: bytes) -> str:
    """The digest by which files are checked, hex."""
    return hashlib.sha256(data).hexdigest()


def check_name(name: str) -> str:
    """The name, if it stays inside its folder. ValueError otherwise."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or any(part in ("..", ".") for part in parts):
        raise ValueError(f"file name {name!r}: expected a relative path without '.' and '..'")
    return name


class LocalDestination:
    """A directory of this machine, or one that is mounted on it with POSIX semantics for link and rename."""

    def __init__(self, root: str | Path, attempt: str, *, fsync: bool = True) -> None:
        self._root = Path(root)
        self._attempt = attempt
        self._fsync = fsync
        self._folders = Folders(self._root, fsync=fsync, folders_max=_FOLDERS_MAX)
        self._settled: dict[str, set[str]] = {}
        """By folder, the names that `settle` was last asked for."""
        self._temporaries = itertools.count(1)
        self._shape = threading.Lock()
        """Held while a folder is made and gets its first entry, and while empty ones go: staging and release are threads."""

    def prepare(self) -> None:
        """Make the root; TargetRefused if this is not possible or it cannot be written to."""
        with _as_target(self.uri("")):
            self._folders.make(self._root)
            if not os.access(self._root, os.W_OK | os.X_OK):
                raise TargetRefused(
                    f"{self._root}: no right to write there; change its owner or mode, or the path in $emit"
                )

    def create(self, name: str, data: bytes) -> bool:
        """See `Destination.create`."""
        return self._publish(name, data, link_file)

    def replace(self, name: str, data: bytes) -> None:
        """See `Destination.replace`."""
        self._publish(name, data, _replace)

    def _publish(self, name: str, data: bytes, publish: Callable[[Path, Path], bool]) -> bool:
        final = self._root / check_name(name)
        temporary = final.parent / f"{TEMPORARY_PREFIX}{self._attempt}-{next(self._temporaries)}"
        with _as_target(str(final)):
            try:
                with self._shape:
                    self._folders.make(final.parent)
                    file = temporary.open("xb")
                self._write(file, data)
                created = publish(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)
            self._folders.keep(final.parent)
        return created

    def _write(self, file: BinaryIO, data: bytes) -> None:
        with file:
            file.write(data)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())

    def read(self, name: str) -> bytes | None:
        """See `Destination.read`."""
        with _as_target(self.uri(name)):
            try:
                return (self._root / check_name(name)).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open(self, name: str) -> BinaryIO:
        """See `Destination.open`."""
        with _as_target(self.uri(name)):
            return (self._root / check_name(name)).open("rb")

    def size(self, name: str) -> int | None:
        """See `Destination.size`."""
        with _as_target(self.uri(name)):
            try:
                return (self._root / check_name(name)).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def names(self, folder: str) -> list[str]:
        """See `Destination.names`."""
        found: list[str] = []
        with _as_target(self.uri(folder)):
            for at, _, files in os.walk(self._root / folder, onerror=raise_unless_gone):
                inside = Path(at).relative_to(self._root)
                found += [(inside / file).as_posix() for file in files if not file.startswith(TEMPORARY_PREFIX)]
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        """Delete those that exist, and the folders that this leaves empty."""
        for name in names:
            path = self._root / check_name(name)
            with _as_target(str(path)):
                path.unlink(missing_ok=True)
                self._prune(path.parent)

    def _prune(self, folder: Path) -> None:
        """Remove a folder and those above it while they are empty; another writer may be filling them again."""
        with self._shape:
            while folder != self._root:
                try:
                    folder.rmdir()
                except OSError:
                    return
                self._folders.gone(folder)
                folder = folder.parent

    def publish(self, staged: str, visible: str) -> None:
        """See `Destination.publish`: a rename, atomic for readers."""
        source, final = self._root / check_name(staged), self._root / check_name(visible)
        with _as_target(str(final)):
            self._folders.make(final.parent)
            try:
                source.rename(final)
            except FileNotFoundError:
                if not final.is_file():
                    raise
            self._folders.keep(final.parent)
            self._prune(source.parent)

    def settle(self, names: Iterable[str]) -> None:
        """See `Destination.settle`: those that this object has not made durable just before."""
        by_folder: dict[str, set[str]] = {}
        for name in names:
            by_folder.setdefault(name.rpartition("/")[0], set()).add(name)
        for folder, files in by_folder.items():
            with _as_target(self.uri(folder)):
                for name in sorted(files - self._settled.get(folder, set())):
                    self._folders.force(self._root / name)
                self._settled[folder] = files
                self._folders.force(self._root / folder)

    def table(self) -> tuple[str, dict[str, str]]:
        """See `Destination.table`."""
        return str(self._root.absolute()), {}

    def folder(self) -> Folder:
        """See `Destination.folder`."""
        return Folder(LocalFileSystem(), str(self._root.absolute()), self._check_inside)

    def _check_inside(self, path: str) -> None:
        if not Path(path).resolve().is_relative_to(self._root.resolve()):
            raise Outside(path)

    def uri(self, name: str) -> str:
        """See `Destination.uri`."""
        return str(self._root / name)


def _replace(temporary: Path, final: Path) -> bool:
    temporary.replace(final)
    return True


@contextmanager
def _as_target(place: str) -> Iterator[None]:
    """The operating system's errors in the words of a sink."""
    try:
        yield
    except OSError as error:
        if error.errno in _WAITING_HELPS:
            raise TargetUnavailable(f"{place}: {error.strerror}; it is tried again") from error
        raise TargetRefused(f"{place}: {error.strerror}; change the path in $emit, or the rights there") from error
