"""The blob store in a directory, durable over a loss of power.

A new object is written under a temporary name, made durable, linked to its name (which fails if that is
taken), and the folders that name it are made durable. Temporary names that a crash left behind are removed
after a day.
"""

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import fsspec

from tidemark.shared.adapters.blobs import FsspecBlobs, check_name, digest_of
from tidemark.shared.adapters.creating import Folders, link_file
from tidemark.shared.adapters.filesystems import raise_unless_gone
from tidemark.shared.adapters.store_settings import BlobSettings
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.ports.blobs import BlobError, Note
from tidemark.shared.ports.clock import Executor

_TEMPORARY: Final = ".tmp"
_LEFT_OVER_S: Final = 24 * 3600
"""Files that a crash left behind go after a day: nobody writes one object for so long."""
_DEFAULT: Final = BlobSettings()


class DirectoryBlobs(FsspecBlobs):
    """`BlobStore` below a directory.

    fsync: whether objects survive a loss of power; without it they survive the process only.
    """

    def __init__(
        self, root: Path, executor: Executor, settings: BlobSettings = _DEFAULT, *, fsync: bool = True
    ) -> None:
        filesystem = fsspec.filesystem("file", skip_instance_cache=True)
        super().__init__(filesystem, str(root.absolute()), executor, settings=settings)
        self._fsync = fsync
        self._folder = root.absolute()
        self._temporary = self._folder / _TEMPORARY
        self._swept = False
        self._folders_made = Folders(self._folder, fsync=fsync, folders_max=settings.folders_kept_max)

    def _put(self, name: str, data: bytes) -> BlobRef:
        size, digest = digest_of([data])
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._sweep()
        temporary = self._temporary / uuid.uuid4().hex
        try:
            with temporary.open("xb") as file:
                file.write(data)
                if self._fsync:
                    file.flush()
                    os.fsync(file.fileno())
            self._link(temporary, Path(self._path(name)))
        finally:
            temporary.unlink(missing_ok=True)
        return BlobRef(name, size, digest)

    def _link(self, temporary: Path, target: Path) -> None:
        for attempt in range(self._settings.link_tries_max):
            try:
                self._folders_made.make(target.parent)
                if not link_file(temporary, target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            except FileNotFoundError:
                if attempt + 1 == self._settings.link_tries_max:
                    raise
            except OSError as error:
                if isinstance(error, FileExistsError) or error.errno is None:
                    raise
                raise OSError(error.errno, f"{error.strerror} while linking: the store needs hard links") from error
            else:
                self._folders_made.keep(target.parent)
                return

    def note(self, name: str) -> Note:
        """Begin a note: a file that is open, so that a write costs microseconds."""
        return FileNote(self, check_name(name), self.now("noting", name, self._open_note))

    def _open_note(self, name: str) -> int:
        path = Path(self._path(name))
        for attempt in range(self._settings.link_tries_max):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            except FileNotFoundError:
                if attempt + 1 == self._settings.link_tries_max:
                    raise
        raise AssertionError(path)

    def _get(self, name: str) -> bytes:
        return Path(self._path(name)).read_bytes()

    def _find(self, path: str) -> Sequence[str]:
        found: list[str] = []
        for folder, _, files in os.walk(path, onerror=raise_unless_gone):
            if Path(folder) != self._temporary:
                found += [f"{folder}/{file}" for file in files]
        return found

    def _delete(self, _: str, names: Sequence[str]) -> None:
        for name in names:
            path = Path(self._path(name))
            path.unlink(missing_ok=True)
            # Folders that name nothing any more go too; one that is not empty, or is just being filled,
            # stays.
            for folder in path.parents:
                if folder == self._folder:
                    break
                try:
                    folder.rmdir()
                except OSError:
                    break
                self._folders_made.gone(folder)

    def _seal(self, name: str) -> BlobRef:
        path = Path(self._path(name))
        if path.is_dir():
            raise BlobError(f"blob {path}: expected a file, found a folder; seal each file in it")
        ref = super()._seal(name)
        if self._fsync:
            self._folders_made.force(path)
            self._folders_made.keep(path.parent)
        return ref

    def _sweep(self) -> None:
        """Once a process: remove temporary files that a crash left behind."""
        if self._swept:
            return
        self._swept = True
        old = time.time() - _LEFT_OVER_S
        for left in self._temporary.iterdir():
            # Another process may remove it, or its own, at the same time.
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < old:
                    left.unlink()


class FileNote:
    """`Note` in a file: each write is one call of the system, at the file's beginning."""

    def __init__(self, blobs: DirectoryBlobs, name: str, descriptor: int) -> None:
        self._blobs = blobs
        self._name = name
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """The file begins with these bytes."""
        self._blobs.now("noting", self._name, lambda _: os.pwrite(self._descriptor, data, 0))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
