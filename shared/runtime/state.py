"""A task's state in checkpoints: changed parts go into one blob a checkpoint, small state into the acknowledgement (C7, C12)."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from shared.model.checkpoint import BlobRef, PartHandle, TaskHandle
from shared.model.ids import Epoch, Generation, JobId, StatePart, VertexId
from shared.ports.blobs import BlobError, BlobStore
from shared.runtime.exchange import blob_name


async def load_parts(
    blobs: BlobStore, handles: Sequence[TaskHandle], wanted: Callable[[StatePart], bool]
) -> dict[StatePart, bytes]:
    """The content of the wanted parts of a checkpoint's tasks. BlobError names what is missing or differs."""
    packs: dict[str, bytes] = {}
    found: dict[StatePart, bytes] = {}
    for handle in handles:
        for part in handle.parts:
            if not wanted(part.part):
                continue
            if part.part in found:
                message = f"state part {part.part} of {handle.vertex} is in two tasks of one checkpoint"
                raise BlobError(message)
            if part.inline is not None:
                found[part.part] = part.inline
            elif part.blob is not None:
                if part.blob.name not in packs:
                    packs[part.blob.name] = await blobs.get(part.blob)
                found[part.part] = packs[part.blob.name][part.offset : part.offset + part.length]
    return found


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
    ) -> None:
        self._blobs = blobs
        self._job = job
        self._vertex = vertex
        self._generation = generation
        self._unique = unique
        self._inline_bytes_max = inline_bytes_max
        self._blobs_max = blobs_max
        self._handles: dict[StatePart, PartHandle] = {}

    def restored(self, handles: Iterable[TaskHandle], parts: Mapping[StatePart, bytes]) -> None:
        """What the restored checkpoint holds of this task's parts."""
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
        """Bring parts that lie scattered over too many blobs back inline, so that they are packed anew."""
        names = {h.blob.name: h.blob for h in self._handles.values() if h.blob is not None}
        if len(names) <= self._blobs_max:
            return
        packs = {name: await self._blobs.get(ref) for name, ref in names.items()}
        for part, handle in self._handles.items():
            if handle.blob is not None:
                data = packs[handle.blob.name][handle.offset : handle.offset + handle.length]
                self._handles[part] = PartHandle(part, inline=data)

    async def _pack(self, epoch: Epoch, inline: Mapping[StatePart, bytes]) -> None:
        name = blob_name(self._job, self._vertex, self._generation, epoch, self._unique())
        ref = await self._blobs.put(name, b"".join(inline.values()))
        offset = 0
        for part, data in inline.items():
            self._handles[part] = PartHandle(part, blob=ref, offset=offset, length=len(data))
            offset += len(data)


def blobs_of(parts: Iterable[PartHandle]) -> tuple[BlobRef, ...]:
    """The distinct blobs in which parts lie, by name."""
    return tuple(sorted({p.blob for p in parts if p.blob is not None}, key=lambda b: b.name))
