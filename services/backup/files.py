"""The form of a backup: a folder of files, and `backup.json`, written last, which lists each with its size and digest.

Without that list a backup was not finished. A restore reads every byte once before it writes anything anywhere.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Final, Literal, Self

from msgspec import Struct, structs

from tidemark.shared.adapters.blobs import digest_of
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.formats import BACKUP, FormatError, JsonCodec
from tidemark.shared.model.ids import Epoch, JobId, ProcessorName
from tidemark.shared.model.processors import ProcessorRow

LIST: Final = "backup.json"
_CHUNK_BYTES: Final = 1 << 20
"""Of a file, in memory at once."""
_OWNERS: Final = 0o700
"""Mode of a backup's folders: documents with passwords, keys and all records lie in it."""
_OWNERS_FILE: Final = 0o600

Kind = Literal["folder", "parts"]
"""folder: of a local installation, its broker's data included. parts: store, blobs and the topics that state depends on."""


class BackupFailed(Exception):
    """A backup cannot be made, or not be restored, or is damaged: gives place, expectation and finding."""


class BackedFile(Struct, frozen=True):
    """A file of a backup."""

    path: str
    """Below the backup's folder, with `/`."""
    size: int
    sha256: str


class BackedProcessor(Struct, frozen=True):
    """A processor, as the backup has it."""

    name: ProcessorName
    job: JobId
    state: str
    last: Epoch
    """The checkpoint from which a restored installation goes on; 0 for none."""


class Backup(Struct, frozen=True):
    """The content of `backup.json`."""

    kind: Kind
    made: str
    """When, RFC 3339."""
    by: str
    """Version of Tidemark."""
    processors: tuple[BackedProcessor, ...]
    files: tuple[BackedFile, ...]
    prefix: str = ""
    """Of the installation's topics, for `parts`."""
    version: int = BACKUP.version
    sha256: str = ""
    """Of this list, written without it."""


_CODEC: Final[JsonCodec[Backup]] = JsonCodec(BACKUP, Backup)


def encode(backup: Backup) -> bytes:
    """The bytes of the list, with its own digest."""
    bare = structs.replace(backup, sha256="")
    return _CODEC.encode(structs.replace(bare, sha256=hashlib.sha256(_CODEC.encode(bare)).hexdigest()))


def decode(data: bytes) -> Backup:
    """The list. FormatError where it is not as it was written."""
    found = _CODEC.decode(data)
    if encode(found) != data:
        raise FormatError(
            f"expected {BACKUP.name}, found {len(data)} bytes that are not as written: their digest differs"
        )
    return found


class BackupWriter:
    """A backup that is being written. What is there of it when the block fails is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[BackedFile] = []
        self._made = False

    def __enter__(self) -> Self:
        """Make the folder. BackupFailed if something is in it."""
        self._made = not self._folder.exists()
        check_free(self._folder, "a backup")
        self._folder.mkdir(mode=_OWNERS, parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Remove what is not finished."""
        if error is None:
            return
        for entry in self._folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if self._made:
            self._folder.rmdir()

    def path_of(self, name: str) -> Path:
        """Where a file of this name is written; its folder is there. `add_written` puts it on the list."""
        path = self._folder / name
        path.parent.mkdir(mode=_OWNERS, parents=True, exist_ok=True)
        return path

    def add(self, name: str, chunks: Iterable[bytes]) -> BackedFile:
        """Write a file. Pieces of nothing but zeros become holes: a broker's indexes are mostly that."""
        path = self.path_of(name)
        size, state = write(path, chunks)
        return self._listed(name, size, state)

    def copy(self, name: str, source: Path) -> None:
        """A copy of a file."""
        self.add(name, chunks_of(source))

    def add_written(self, name: str) -> None:
        """A file that something else has written at `path_of`."""
        size, digest = digest_of(chunks_of(self._folder / name))
        self._listed(name, size, digest)

    def files(self) -> dict[str, BackedFile]:
        """Those written so far, by name."""
        return {file.path: file for file in self._files}

    def finish(self, backup: Callable[[tuple[BackedFile, ...]], Backup]) -> Backup:
        """Make all durable, then write the list."""
        os.sync()
        made = backup(tuple(self._files))
        temporary = self._folder / f"{LIST}.new"
        with temporary.open("xb") as out:
            out.write(encode(made))
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(self._folder / LIST)
        os.sync()
        return made

    def _listed(self, name: str, size: int, digest: str) -> BackedFile:
        file = BackedFile(name, size, digest)
        self._files.append(file)
        return file


def read_backup(folder: Path) -> Backup:
    """The list of a backup, after every file has been read and found as listed. BackupFailed with the first place that is not."""
    path = folder / LIST
    try:
        found = decode(path.read_bytes())
    except FileNotFoundError as error:
        message = f"{folder}: expected a backup, found no {LIST}, which is written last: this is none, or one that was not finished"
        raise BackupFailed(message) from error
    except FormatError as error:
        raise BackupFailed(f"{path}: {error}") from error
    for file in found.files:
        if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
            raise BackupFailed(f"{path}: {file.path!r}: expected a path inside of the backup")
        for _ in checked(folder, file):
            pass
    return found


def checked(folder: Path, file: BackedFile) -> Iterator[bytes]:
    """The bytes of a file, in pieces. BackupFailed at the end if they were not as listed."""
    size, state = 0, hashlib.sha256()
    try:
        for chunk in chunks_of(folder / file.path):
            size += len(chunk)
            state.update(chunk)
            yield chunk
    except FileNotFoundError as error:
        message = f"{folder / file.path}: expected {file.size} bytes with SHA-256 {file.sha256}, found no such file"
        raise BackupFailed(message) from error
    if (size, state.hexdigest()) != (file.size, file.sha256):
        message = (
            f"{folder / file.path}: expected {file.size} bytes with SHA-256 {file.sha256}, found {size} with"
            f" {state.hexdigest()}: the backup is damaged, and nothing of it was used"
        )
        raise BackupFailed(message)


def check_free(folder: Path, what: str) -> None:
    """BackupFailed if there is something at a place that must be empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BackupFailed(f"{folder}: expected a place for {what}: an empty folder or none, found something in it")


def chunks_of(path: Path) -> Iterator[bytes]:
    """A file in pieces."""
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk


def write(path: Path, chunks: Iterable[bytes]) -> tuple[int, str]:
    """Write a new file, its owner's alone, with holes for zeros; its size and digest."""
    size, state = 0, hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNERS_FILE), "wb") as out:
        for chunk in chunks:
            state.update(chunk)
            size += len(chunk)
            if chunk.count(0) == len(chunk):
                out.seek(len(chunk), os.SEEK_CUR)
            else:
                out.write(chunk)
        out.truncate(size)
    return size, state.hexdigest()


def listing(kind: Kind, rows: Sequence[ProcessorRow], files: tuple[BackedFile, ...], prefix: str = "") -> Backup:
    """Of these processors and files, now."""
    made = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(timespec="seconds")
    processors = tuple(BackedProcessor(row.name, row.job, row.state, row.last) for row in rows)
    return Backup(kind, made, version("tidemark"), processors, files, prefix)


def told(backup: Backup) -> list[str]:
    """A backup's content, a line for each processor."""
    size = sum(file.size for file in backup.files)
    lines = [f"{len(backup.files):,} files, {size:,} bytes, of {backup.made}; {len(backup.processors)} processors"]
    for each in backup.processors:
        at = f"goes on behind checkpoint {each.last}" if each.last else "has no checkpoint yet"
        lines.append(f"  {each.name}: {each.state}, {at}")
    return lines
