"""A sink's staged data, and the handle that lists them: it travels in the ack and comes back in the commit.

Rules kept here:
- C5: a handle covers all data staged after the checkpoint named as committed. So data that an aborted epoch staged are released
  with the next epoch that is committed (`Ledger`).
- S3: the division into parts is fixed when staged: a part of the handle is a part of the release.
- C12: blobs are named for the epoch that first lists them, under an attempt-unique name; `blobs_of` gives those that a handle lists.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec import Struct

from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.formats import FILE_LIST, STAGED_HANDLE, Codec, FormatError
from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.model.message_sizes import sized
from tidemark.shared.model.settings import check_positive
from tidemark.shared.ports.blobs import BlobError, BlobStore, BlobUnavailable
from tidemark.shared.ports.sink import StagedUnavailable, TargetRefused

_INLINE_EPOCHS: Final = 2
"""Records of so many epochs have room in a handle: of one that was aborted, and of the next. Those of further ones go into blobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingSettings:
    """How large handles may be: they travel in an acknowledgement, and all of a checkpoint's together in a row of the mirror."""

    inline_bytes_max: int = sized(192 * 1024, grows=False)
    """Records of an epoch that travel in a handle itself; the others go into the blob store (C7), which syncs its disk for them."""
    mirror_inline_bytes_max: int = sized(256 * 1024, grows=False)
    """Records that travel in the handles of all sink tasks of a plan together: each has its share."""
    kept_bytes_max: int = 32 * 1024 * 1024
    """Parts in the blob store that a task still has in memory, until it releases them; others are read back, and checked."""
    handle_bytes_max: int = sized(512 * 1024)
    """A handle above this is neither written nor read: it would fit into no acknowledgement."""

    def __post_init__(self) -> None:
        check_positive(self, "staging")
        if _INLINE_EPOCHS * self.inline_bytes_max > self.handle_bytes_max:
            raise ValueError(
                f"staging settings: twice inline_bytes_max {self.inline_bytes_max} must not be above handle_bytes_max"
                f" {self.handle_bytes_max}: a handle would have no room for an aborted epoch and the next"
            )

    def inline_of(self, tasks: int) -> int:
        """How many bytes one of so many sink tasks may put into its handle."""
        return min(self.inline_bytes_max, self.mirror_inline_bytes_max // max(1, tasks))


_DEFAULT: Final = StagingSettings()
T = TypeVar("T")
BlobNamer = Callable[[Epoch], str]
"""An attempt-unique blob name for the epoch that will first list it (C12)."""


class InlinePart(Struct, frozen=True, tag="inline"):
    """Encoded records inside the handle."""

    rows: int
    data: bytes


class BlobPart(Struct, frozen=True, tag="blob"):
    """Encoded records in the blob store."""

    rows: int
    blob: BlobRef


class StagedFile(Struct, frozen=True, tag="file"):
    """A file that lies at the destination under its final, immutable name."""

    name: str
    """Relative to the destination's root."""
    rows: int
    size_bytes: int
    digest: str
    """SHA-256, hex."""
    partition: dict[str, str | None] = {}
    """Values of `partitionBy`, as text; None for null."""


class FileList(Struct, frozen=True, tag="list"):
    """A file at the destination that lists staged files, where they are too many for the handle."""

    name: str
    rows: int
    size_bytes: int
    digest: str


Part = InlinePart | BlobPart | StagedFile | FileList


FILES: Final[Codec[Sequence[StagedFile]]] = Codec(FILE_LIST, tuple[StagedFile, ...])
"""The files that a `FileList` names."""
_CODEC: Final[Codec[tuple[Part, ...]]] = Codec(STAGED_HANDLE, tuple[Part, ...])
"""Of parts in the order of their release."""


def encode_handle(parts: tuple[Part, ...], bytes_max: int = _DEFAULT.handle_bytes_max) -> bytes:
    """The handle's bytes; b"" where nothing was staged. Equal parts give equal bytes. TargetRefused for one that nobody would read."""
    staged = _CODEC.encode(parts) if parts else b""
    _check_size(staged, bytes_max)
    return staged


def _check_size(staged: bytes, bytes_max: int) -> None:
    if len(staged) > bytes_max:
        raise TargetRefused(
            f"staged handle: expected at most {bytes_max} bytes, by message_bytes_max, found {len(staged)}:"
            " let parts be larger, checkpoints more frequent, or raise it and the brokers' bound"
        )


def decode_handle(staged: bytes, bytes_max: int = _DEFAULT.handle_bytes_max) -> tuple[Part, ...]:
    """The parts of a handle. TargetRefused if the bytes are no handle: then committed data cannot be read."""
    if not staged:
        return ()
    _check_size(staged, bytes_max)
    try:
        return _CODEC.decode(staged)
    except FormatError as error:
        raise TargetRefused(str(error)) from error


def blobs_of(staged: bytes, bytes_max: int = _DEFAULT.handle_bytes_max) -> tuple[BlobRef, ...]:
    """The blobs that a handle refers to: the acknowledgement lists them, so that they are kept while it may be released (C12)."""
    return tuple(part.blob for part in decode_handle(staged, bytes_max) if isinstance(part, BlobPart))


@dataclass(slots=True)
class Ledger:
    """The data that one sink object has staged and that no known commit covers.

    Bounded by the number of checkpoints that may be aborted in a row (C10) and the size of a handle.
    """

    newest: Epoch = NO_EPOCH
    """The last staged epoch, or the checkpoint that was restored: rows accepted now belong to a later one."""
    _open: list[Part] = field(default_factory=list)
    _staged: list[tuple[Epoch, tuple[Part, ...]]] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """A part of the epoch that is being accepted."""
        self._open.append(part)

    def stage(self, epoch: Epoch, committed: Epoch) -> tuple[Part, ...]:
        """Close the epoch; all parts that were staged after `committed` (C5). May be repeated after an error."""
        if epoch < self.newest:
            raise ValueError(f"staging: epoch {epoch} after epoch {self.newest}; epochs are staged in ascending order")
        self._staged = [entry for entry in self._staged if entry[0] > committed]
        if self._open:
            self._staged.append((epoch, tuple(self._open)))
            self._open = []
        self.newest = epoch
        return tuple(part for _, parts in self._staged for part in parts)


class PartStore:
    """Encoded records of an epoch in parts: small ones inline, others in the blob store (C7)."""

    def __init__(
        self,
        blobs: BlobStore,
        name_of: BlobNamer,
        inline_bytes_max: int = _DEFAULT.inline_bytes_max,
        handle_bytes_max: int = _DEFAULT.handle_bytes_max,
        kept_bytes_max: int = _DEFAULT.kept_bytes_max,
    ) -> None:
        self._blobs = blobs
        self._name_of = name_of
        self.inline_bytes_max = inline_bytes_max
        self.handle_bytes_max = handle_bytes_max
        self._kept: dict[BlobRef, bytes] = {}
        """Parts that are to be loaded once, of `_kept_left` and these bytes together. The oldest stay: they are released first."""
        self._kept_left = kept_bytes_max

    async def keep(self, data: bytes, rows: int, epoch: Epoch, inline_left: int) -> Part:
        """Make one part durable. `inline_left`: how many bytes the handle still has room for."""
        if len(data) <= min(self.inline_bytes_max, inline_left):
            return InlinePart(rows, data)
        blob = await _on_blobs(self._blobs.put(self._name_of(epoch), data))
        if len(data) <= self._kept_left:
            self._kept[blob] = data
            self._kept_left -= len(data)
        return BlobPart(rows, blob)

    def listed(self, staged: bytes) -> tuple[Part, ...]:
        """The parts of a handle, see `decode_handle`."""
        return decode_handle(staged, self.handle_bytes_max)

    async def load(self, part: Part) -> bytes:
        """The bytes of a part, checked. TargetRefused if they are lost or damaged."""
        match part:
            case InlinePart():
                return part.data
            case BlobPart():
                data = self._kept.pop(part.blob, None)
                if data is None:
                    return await _on_blobs(self._blobs.get(part.blob))
                self._kept_left += len(data)
                return data
            case _:
                raise TargetRefused(
                    f"staged part: expected records, found {type(part).__name__}; the handle is another sink's"
                )


class Staging:
    """A sink object's data on the way from memory to the handle: parts made durable, and the epoch's end."""

    def __init__(self, parts: PartStore, restored_from: Epoch = NO_EPOCH) -> None:
        self._parts = parts
        self._ledger = Ledger(newest=restored_from)
        self._inline_left = self._parts.inline_bytes_max

    async def keep(self, data: bytes, rows: int) -> None:
        """Encoded records become a part of the epoch after the last that was staged; raises as `PartStore.keep`."""
        part = await self._parts.keep(data, rows, Epoch(self._ledger.newest + 1), self._inline_left)
        self._ledger.add(part)
        if isinstance(part, InlinePart):
            self._inline_left -= len(part.data)

    def handle(self, epoch: Epoch, committed: Epoch) -> bytes:
        """The epoch ends: the bytes of all that was staged after `committed` (C5)."""
        parts, most = self._ledger.stage(epoch, committed), self._parts.inline_bytes_max
        inline = sum(len(part.data) for part in parts if isinstance(part, InlinePart))
        self._inline_left = min(most, _INLINE_EPOCHS * most - inline)
        return encode_handle(parts, self._parts.handle_bytes_max)


async def _on_blobs(answer: Awaitable[T]) -> T:
    """The blob store's errors in the words of a sink."""
    try:
        return await answer
    except BlobUnavailable as error:
        raise StagedUnavailable(f"staged output: {error}") from error
    except BlobError as error:
        raise TargetRefused(f"staged output: {error}") from error
