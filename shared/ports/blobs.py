"""The blob store: named, immutable objects (directory, S3, memory). Only the coordinator deletes (C12)."""

from collections.abc import Sequence
from typing import Protocol

from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.failures import Outage


class BlobError(Exception):
    """The store refused or lost an object. The message names the object, what was expected and what was found."""


class BlobUnavailable(BlobError, Outage):
    """The store cannot be reached now, or is full; waiting may help."""


class Note(Protocol):
    """A note that a process leaves behind if it dies in its very next line. It outlives the process, not a loss of power."""

    def write(self, data: bytes) -> None:
        """From here on the note begins with these bytes; older ones may follow them. Blocks; BlobUnavailable."""
        ...

    def close(self) -> None:
        """Write no more; the note stays."""
        ...


class BlobStore(Protocol):
    """Names are relative paths with `/`; an object is durable when `put` returns, and never changes."""

    async def put(self, name: str, data: bytes) -> BlobRef:
        """Create; raises BlobError if the name is taken (names are attempt-unique)."""
        ...

    async def get(self, ref: BlobRef) -> bytes:
        """The bytes, checked against size and digest; BlobError names the object if they differ or it is missing."""
        ...

    async def folders(self) -> list[str]:
        """The first parts of names that have several."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """All names below a prefix."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete those that exist."""
        ...

    async def seal(self, name: str) -> BlobRef:
        """Make an object that something else (Spark, pyarrow) wrote at `uri(name)` durable; its reference, read from its bytes."""
        ...

    def note(self, name: str) -> Note:
        """Begin a note under a free name: the one kind of object that changes, and that nothing lists. Blocks; BlobError."""
        ...

    async def read_note(self, name: str) -> bytes:
        """A note's bytes as they are now; BlobError if it is gone."""
        ...

    def uri(self, name: str) -> str:
        """Where Spark or pyarrow reads or writes this object: a path or `s3://…`."""
        ...
