"""A task's state in checkpoints: changed parts go into one blob a checkpoint, small state into the acknowledgement (C7, C12).

So does the list of the parts while it is small; a longer one is a blob, too, so that a task may have any number of parts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from msgspec import Struct, structs

from tidemark.shared.model.checkpoint import BlobRef, PartHandle, TaskHandle
from tidemark.shared.model.formats import PART_LIST, Codec
from tidemark.shared.model.ids import Epoch, Generation, JobId, StatePart, VertexId
from tidemark.shared.ports.blobs import BlobError, BlobStore
from tidemark.shared.runtime.exchange import blob_name


class PartList(Struct, array_like=True):
    """All parts of a task's state."""

    blobs: list[BlobRef]
    parts: list[tuple[StatePart, bytes | None, int, int, int]]
    """Each with its bytes, or with the place of its blob in the list, the first byte there and how many: as `PartHandle` has them."""


LISTS: Final[Codec[PartList]] = Codec(PART_LIST, PartList)


async def with_parts(blobs: BlobStore, handles: Sequence[TaskHandle]) -> list[TaskHandle]:
    """The handles with their parts, wherever these are listed. BlobError or FormatError for a list that is missing or no list."""
    return [
        handle if handle.listed is None else structs.replace(handle, parts=_parts(await blobs.get(handle.listed)))
        for handle in handles
    ]


def _parts(data: bytes) -> tuple[PartHandle, ...]:
    found = LISTS.decode(data)
    return tuple(
        PartHandle(part, inline=inline) if inline is not None else PartHandle(part, None, found.blobs[at], begin, size)
        for part, inline, at, begin, size in found.parts
    )


async def load_parts(
    blobs: BlobStore, handles: Sequence[TaskHandle], wanted: Callable[[StatePart], bool]
) -> dict[StatePart, bytes]:
    """The content of the wanted parts of a checkpoint's tasks. BlobError names a part that is missing or differs."""
    found: dict[StatePart, bytes] = {}
    packed: dict[BlobRef, list[PartHandle]] = {}
    seen: set[StatePart] = set()
    for handle in handles:
        for part in handle.parts:
            if not wanted(part.part):
                continue
            if part.part in seen:
                message = f"state part {part.part} of {handle.vertex} is in two tasks of one checkpoint"
                raise BlobError(message)
            seen.add(part.part)
            if part.inline is not None:
                found[part.part] = part.inline
            elif part.blob is not None:
                packed.setdefault(part.blob, []).append(part)
    for blob, parts in packed.items():
        found |= _cut(await blobs.get(blob), parts)  # one blob at a time lies beside the parts cut out of it
    return found


def _cut(pack: bytes, parts: Iterable[PartHandle]) -> dict[StatePart, bytes]:
    return {part.part: pack[part.offset : part.offset + part.length] for part in parts}


@dataclass(frozen=True, slots=True)
class StateBounds:
    """Of what a task's acknowledgement holds, and of its blobs: `RuntimeSettings` says what each is."""

    inline_bytes_max: int
    blobs_max: int
    blob_bytes_max: int
    parts_max: int


class StateStore:
    """Keeps, for one task, where each of its state parts lies."""

    def __init__(
        self,
        blobs: BlobStore,
        job: JobId,
        vertex: VertexId,
        generation: Generation,
        unique: Callable[[], str],
        bounds: StateBounds,
    ) -> None:
        self._blobs = blobs
        self._job = job
        self._vertex = vertex
        self._generation = generation
        self._unique = unique
        self._bounds = bounds
        self._handles: dict[StatePart, PartHandle] = {}

    def restored(self, handles: Iterable[TaskHandle], parts: Mapping[StatePart, bytes]) -> None:
        """Take over the restored checkpoint's handles of this task's parts."""
        self._handles = {p.part: p for handle in handles for p in handle.parts if p.part in parts}

    async def store(self, epoch: Epoch, changed: Mapping[StatePart, bytes | None]) -> tuple[PartHandle, ...]:
        """Make changed parts durable; the handles of all parts, old and new. Nothing of an earlier checkpoint is overwritten."""
        for part, data in changed.items():
            if data is None:
                self._handles.pop(part, None)
            else:
                self._handles[part] = PartHandle(part, inline=data)
        await self._gather()
        inline = {p: h.inline for p, h in self._handles.items() if h.inline is not None}
        if sum(map(len, inline.values())) > self._bounds.inline_bytes_max:
            await self._pack(epoch, inline)
        return tuple(self._handles.values())

    async def listed(self, epoch: Epoch, parts: Sequence[PartHandle]) -> BlobRef | None:
        """Where the list of these parts lies now; None for one that is short enough to travel as it is."""
        if sum(part.blob is not None for part in parts) <= self._bounds.parts_max:
            return None
        blobs = blobs_of(parts)
        places = {blob: at for at, blob in enumerate(blobs)}
        rows = [(p.part, p.inline, 0 if p.blob is None else places[p.blob], p.offset, p.length) for p in parts]
        return await self._blobs.put(self._name(epoch), LISTS.encode(PartList(list(blobs), rows)))

    async def _gather(self) -> None:
        """Bring parts inline, so that they are packed anew, where all lie scattered over too many blobs: those of the blobs with the least.

        Large state takes several blobs by its size; packed one after the other, two neighbours are larger than one may be.
        """
        sizes: dict[BlobRef, int] = {}
        for handle in self._handles.values():
            if handle.blob is not None:
                sizes[handle.blob] = sizes.get(handle.blob, 0) + handle.length
        beyond = len(sizes) - self._bounds.blobs_max - 2 * sum(sizes.values()) // self._bounds.blob_bytes_max
        if beyond <= 0:
            return
        least = sorted(sizes, key=lambda blob: (sizes[blob], blob.name))[: beyond + 1]
        packs = {blob: await self._blobs.get(blob) for blob in least}
        for part, handle in self._handles.items():
            if handle.blob in packs:
                data = packs[handle.blob][handle.offset : handle.offset + handle.length]
                self._handles[part] = PartHandle(part, inline=data)

    async def _pack(self, epoch: Epoch, inline: Mapping[StatePart, bytes]) -> None:
        """Pack into blobs of a bounded size, but for a part that is larger: a restore holds one of them at a time."""
        packed: dict[StatePart, PartHandle] = {}
        pack: dict[StatePart, bytes] = {}
        size = 0
        for part, data in inline.items():
            if pack and size + len(data) > self._bounds.blob_bytes_max:
                packed |= await self._put(epoch, pack)
                pack, size = {}, 0
            pack[part] = data
            size += len(data)
        self._handles |= packed | await self._put(epoch, pack)

    async def _put(self, epoch: Epoch, pack: Mapping[StatePart, bytes]) -> dict[StatePart, PartHandle]:
        ref = await self._blobs.put(self._name(epoch), b"".join(pack.values()))
        ends = list(accumulate(map(len, pack.values())))
        return {
            part: PartHandle(part, blob=ref, offset=end - len(data), length=len(data))
            for (part, data), end in zip(pack.items(), ends, strict=True)
        }

    def _name(self, epoch: Epoch) -> str:
        return blob_name(self._job, self._vertex, self._generation, epoch, self._unique())


def blobs_of(parts: Iterable[PartHandle]) -> tuple[BlobRef, ...]:
    """The distinct blobs in which parts lie, by name."""
    return tuple(sorted({p.blob for p in parts if p.blob is not None}, key=lambda b: b.name))
