"""Blob stores on fsspec: a directory, S3, memory.

Rules: an object appears complete or not at all, under a name that was free; it is durable when `put` or
`seal` returns; `get` trusts nothing but size and digest. File systems block, so all work goes through the
Executor.
"""

import errno
import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import fsspec
from fsspec.asyn import sync
from fsspec.implementations.memory import MemoryFileSystem

from tidemark.shared.adapters.creating import create_object
from tidemark.shared.adapters.filesystems import folders_of, listing_of
from tidemark.shared.adapters.store_settings import BlobSettings
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.ports.blobs import BlobError, BlobUnavailable, Note
from tidemark.shared.ports.clock import Executor

T = TypeVar("T")

_DEFAULT: Final = BlobSettings()
_TEMPORARY: Final = ".tmp"
"""A prefix that no name begins with: adapters have it for themselves."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FOR_GOOD: Final = (PermissionError, IsADirectoryError, NotADirectoryError)


def check_name(name: str) -> str:
    """The name, if it is a relative path that stays inside the store; else BlobError."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") or part.startswith(_TEMPORARY) for part in parts) or "\0" in name:
        raise BlobError(f"blob name {name!r}: expected a relative path of plain parts, such as job/vertex/1/7/part")
    return name


def digest_of(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Size and SHA-256 (hex) of bytes in pieces."""
    size, state = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        state.update(chunk)
    return size, state.hexdigest()


class FsspecBlobs:
    """`BlobStore` below a root of any fsspec file system."""

    def __init__(
        self,
        filesystem: Any,
        root: str,
        executor: Executor,
        *,
        scheme: str = "",
        settings: BlobSettings = _DEFAULT,
    ) -> None:
        self._settings = settings
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._executor = executor
        self._scheme = scheme

    async def put(self, name: str, data: bytes) -> BlobRef:
        """Create; raises BlobError if the name is taken, BlobUnavailable if the store is full or away."""
        return await self._run("writing", check_name(name), self._put, data)

    async def get(self, ref: BlobRef) -> bytes:
        """The bytes, checked against size and digest."""
        data = await self._run("reading", check_name(ref.name), self._get)
        size, digest = await self._executor.blocking(digest_of, [data])
        if (size, digest) != (ref.size_bytes, ref.digest):
            raise BlobError(
                f"blob {self.uri(ref.name)}: expected {ref.size_bytes} bytes with SHA-256 {ref.digest}, found {size}"
                f" with {digest}; it was changed or cut: restore the store, or resume from an earlier checkpoint"
            )
        return data

    async def folders(self) -> list[str]:
        """The first parts of names that have several; sorted."""
        return [*await self._run("listing", "", self._folders)]

    async def list(self, prefix: str) -> list[str]:
        """All names below a prefix, which is a name or the head of names at a `/`; sorted. "" is everything."""
        folder = prefix.rstrip("/")
        if folder:
            check_name(folder)
        return [*await self._run("listing", folder, self._list)]

    async def delete(self, names: Sequence[str]) -> None:
        """Delete those that exist."""
        for name in names:
            check_name(name)
        if names:
            await self._run("deleting", names[0], self._delete, tuple(names))

    async def seal(self, name: str) -> BlobRef:
        """Make an object that something else wrote at `uri(name)` durable; its reference, read from its bytes."""
        return await self._run("sealing", check_name(name), self._seal)

    def note(self, name: str) -> Note:
        """Begin a note: an object that each `write` replaces."""
        return ObjectNote(self, check_name(name))

    async def read_note(self, name: str) -> bytes:
        """A note's bytes as they are now."""
        return await self._run("reading", check_name(name), self._get)

    def now(self, doing: str, name: str, work: Callable[..., T], *args: Any) -> T:
        """Work on an object in the caller's thread, with the port's errors."""
        try:
            return work(name, *args)
        except Exception as error:
            raise self._translated(error, f"blob {self._scheme}{self._path(name)}: {doing} it") from error

    def replace(self, name: str, data: bytes) -> None:
        """Write a note: the object is these bytes."""
        self._fs.pipe_file(self._path(name), data)

    def uri(self, name: str) -> str:
        """Where Spark or pyarrow reads or writes this object."""
        return f"{self._scheme}{self._path(check_name(name))}"

    # --- calls that run in a thread

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _put(self, name: str, data: bytes) -> BlobRef:
        size, digest = digest_of([data])
        if not create_object(self._fs, self._path(name), data):
            raise FileExistsError(self._path(name))
        return BlobRef(name, size, digest)

    def _get(self, name: str) -> bytes:
        data: bytes = self._fs.cat_file(self._path(name))
        return data

    def _list(self, name: str) -> Sequence[str]:
        head = len(self._stripped("")) + 1
        return sorted(self._stripped(path)[head:] for path in self._find(self._path(name)))

    def _folders(self, _: str) -> Sequence[str]:
        found = (self._stripped(path).rpartition("/")[2] for path in folders_of(self._fs, self._path("")))
        return sorted(name for name in found if not name.startswith(_TEMPORARY))

    def _find(self, path: str) -> Sequence[str]:
        return listing_of(self._fs, path)

    def _stripped(self, path: str) -> str:
        """As the file system itself writes a path: with or without a leading slash."""
        stripped: str = self._fs._strip_protocol(path or self._root)  # noqa: SLF001
        return stripped

    def _delete(self, _: str, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                continue

    def _seal(self, name: str) -> BlobRef:
        with self._fs.open(self._path(name), "rb") as file:
            size, digest = digest_of(iter(lambda: file.read(self._settings.chunk_bytes), b""))
        return BlobRef(name, size, digest)

    # --- errors

    async def _run(self, doing: str, name: str, work: Callable[..., T], *args: Any) -> T:
        try:
            return await self._executor.blocking(work, name, *args)
        except BlobError:
            raise
        except Exception as error:
            raise self._translated(error, f"blob {self._scheme}{self._path(name)}: {doing} it") from error

    def _translated(self, error: Exception, doing: str) -> BlobError:
        """The port's error for one of a file system, a network or an S3 library."""
        found = f"{type(error).__name__}: {error}"
        if isinstance(error, FileExistsError):
            return BlobError(f"{doing}: the name is taken; every attempt needs a name of its own")
        if isinstance(error, FileNotFoundError):
            return BlobError(f"{doing}: it is not there; restore the store, or resume from an earlier checkpoint")
        if isinstance(error, OSError) and error.errno in _FULL:
            return BlobUnavailable(f"{doing}: no space left below {self._root}; free some, or move the store")
        if isinstance(error, _FOR_GOOD):
            return BlobError(f"{doing}: refused ({found}); see the owner and the rights of {self._root}")
        if isinstance(error, ValueError | TypeError | AttributeError):
            return BlobError(f"{doing}: {found}; see the store's settings")
        return BlobUnavailable(f"{doing}: the store cannot do it now ({found}); see whether it can be reached")


class ObjectNote:
    """`Note` as an object that is written anew."""

    def __init__(self, blobs: FsspecBlobs, name: str) -> None:
        self._blobs = blobs
        self._name = name

    def write(self, data: bytes) -> None:
        """The object is these bytes."""
        self._blobs.now("noting", self._name, self._blobs.replace, data)

    def close(self) -> None:
        """Nothing is open."""


class S3Blobs(FsspecBlobs):
    """`BlobStore` in S3, or in a store that speaks like it and knows `If-None-Match` on writes."""

    def __init__(self, url: str, executor: Executor, settings: BlobSettings = _DEFAULT, **options: Any) -> None:
        """Open below `url`, an `s3://bucket/prefix`; the options are those of s3fs (key, secret, endpoint_url)."""
        if not url.startswith("s3://") or not url.removeprefix("s3://").strip("/"):
            raise BlobError(f"blob store {url!r}: expected s3://bucket/prefix")
        wait_s = settings.request_timeout_ms / 1000
        waits = {"connect_timeout": wait_s, "read_timeout": wait_s}
        options = {**options, "config_kwargs": {**waits, **options.get("config_kwargs", {})}}
        # Listings must not be remembered: others write too.
        filesystem = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True, **options)
        root = url.removeprefix("s3://")
        super().__init__(filesystem, root, executor, scheme="s3://", settings=settings)

    def _delete(self, _: str, names: Sequence[str]) -> None:
        most = self._settings.delete_names_max
        for start in range(0, len(names), most):
            paths = [self._path(name) for name in names[start : start + most]]
            sync(self._fs.loop, self._fs._bulk_delete, paths)  # noqa: SLF001 - `rm` asks for each whether it is there


class MemoryBlobs(FsspecBlobs):
    """`BlobStore` in this process's memory, below a root of its own; pyarrow finds it at `memory://…` by fsspec."""

    def __init__(self, executor: Executor, root: str | None = None) -> None:
        super().__init__(MemoryFileSystem(), f"/{root or uuid.uuid4().hex}", executor, scheme="memory:/")

    async def close(self) -> None:
        """Forget every object."""
        await self.delete(await self.list(""))
