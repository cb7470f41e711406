"""A task's state in checkpoints: changed parts go into one blob a checkpoint, small state into the acknowledgement (C7, C12)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from tidemark.shared.model.checkpoint import BlobRef, PartHandle, TaskHandle
from tidemark.shared.model.ids import Epoch, Generation, JobId, StatePart, VertexId
from tidemark.shared.ports.blobs import BlobError, BlobStore
from tidemark.shared.runtime.exchange import blob_name


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


class StateStore:
    """Keeps, for one task, where each of its state parts lies."""

    def __init__(
        self,
        blobs: BlobStore,
        job: JobId,
        vertex: VertexId,
        generation: Generation,
        unique: Callable[[], str],
        *,
        inline_bytes_max: int,
        blobs_max: int,
        blob_bytes_max: int,
    ) -> None:
        self._blobs = blobs
        self._job = job
        self._vertex = vertex
        self._generation = generation
        self._unique = unique
        self._inline_bytes_max = inline_bytes_max
        self._blobs_max = blobs_max
        self._blob_bytes_max = blob_bytes_max
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
        if sum(map(len, inline.values())) > self._inline_bytes_max:
            await self._pack(epoch, inline)
        return tuple(self._handles.values())

    async def _gather(self) -> None:
        """Bring parts that lie scattered over too many blobs back inline, so that they are packed anew.

        Large state takes several blobs by its size; packed one after the other, two neighbours are larger than one may be.
        """
        names = {h.blob.name: h.blob for h in self._handles.values() if h.blob is not None}
        by_size = 2 * sum(h.length for h in self._handles.values() if h.blob is not None) // self._blob_bytes_max
        if len(names) <= self._blobs_max + by_size:
            return
        packs = {name: await self._blobs.get(ref) for name, ref in names.items()}
        for part, handle in self._handles.items():
            if handle.blob is not None:
                data = packs[handle.blob.name][handle.offset : handle.offset + handle.length]
                self._handles[part] = PartHandle(part, inline=data)

    async def _pack(self, epoch: Epoch, inline: Mapping[StatePart, bytes]) -> None:
        """Pack into blobs of a bounded size, but for a part that is larger: a restore holds one of them at a time."""
        packed: dict[StatePart, PartHandle] = {}
        pack: dict[StatePart, bytes] = {}
        size = 0
        for part, data in inline.items():
            if pack and size + len(data) > self._blob_bytes_max:
                packed |= await self._put(epoch, pack)
                pack, size = {}, 0
            pack[part] = data
            size += len(data)
        self._handles |= packed | await self._put(epoch, pack)

    async def _put(self, epoch: Epoch, pack: Mapping[StatePart, bytes]) -> dict[StatePart, PartHandle]:
        name = blob_name(self._job, self._vertex, self._generation, epoch, self._unique())
        ref = await self._blobs.put(name, b"".join(pack.values()))
        ends = list(accumulate(map(len, pack.values())))
        return {
            part: PartHandle(part, blob=ref, offset=end - len(data), length=len(data))
            for (part, data), end in zip(pack.items(), ends, strict=True)
        }


def blobs_of(parts: Iterable[PartHandle]) -> tuple[BlobRef, ...]:
    """The distinct blobs in which parts lie, by name."""
    return tuple(sorted({p.blob for p in parts if p.blob is not None}, key=lambda b: b.name))
