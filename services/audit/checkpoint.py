"""An audit's own checkpoint: what it knew behind the last commit that it compared at all outputs, so that a later audit goes on there.

A job that lives long keeps no history from its begin on: rows of its mirror, markers, records of its sources and outputs go with time.
Audits that follow each other need only what lies between them, and take time for that alone. The checkpoint holds the audit's own
computation and account, and nothing that the system said of itself. It lies in the blob store with the job's snapshots, under the
installation's seal; the coordinator keeps the latest of a job (C12).
"""

import hashlib
from typing import Final

from msgspec import Struct

from tidemark.services.audit.outputs import KeptOutput
from tidemark.services.audit.recompute import KeptRun
from tidemark.services.audit.report import Covered
from tidemark.shared.language.documents import parse
from tidemark.shared.model.checkpoint import BlobRef, MirrorRow
from tidemark.shared.model.formats import AUDIT_CHECKPOINT, Codec, FormatError
from tidemark.shared.model.ids import NO_EPOCH, Epoch, Generation, JobId, Offset, SplitId, VertexId
from tidemark.shared.model.messages import RunningPlan
from tidemark.shared.planning import plan_processor
from tidemark.shared.ports.blobs import BlobError, BlobStore, BlobUnavailable
from tidemark.shared.protocol.coordinator.retention import AUDIT, audit_folder, parse_blob_name
from tidemark.shared.runtime.exchange import blob_name
from tidemark.shared.wire.limits import WireError
from tidemark.shared.wire.seals import HEADER, SealKeys


class AuditCheckpoint(Struct, frozen=True):
    """What an audit has found of a job up to `commit`: the next one goes on from there."""

    document: str
    """See `digest_of_plan`."""
    commit: MirrorRow
    place: str
    """Where its row lies in the mirror, as messages name it."""
    offset: Offset
    began: list[SplitId]
    """The splits of the job's first commit."""
    moments: bool
    """Epochs were compared all together, for nobody noted when within them the watermark moved."""
    covered: Covered
    run: KeptRun
    outputs: dict[VertexId, KeptOutput]


CHECKPOINTS: Final[Codec[AuditCheckpoint]] = Codec(AUDIT_CHECKPOINT, AuditCheckpoint)
_SEAL_BYTES: Final = 2
"""That tell the length of the seal, which stands in front."""


def digest_of_plan(plan: RunningPlan) -> str:
    """Of all that an output follows from besides the records, and of the vertices that this version makes of it."""
    physical = plan_processor(parse(plan.document), engine="local", running=plan.tasks)
    made = "\n".join(sorted([*(v.id for v in physical.vertices), *(e.id for e in physical.edges)]))
    return hashlib.sha256(b"\0".join((plan.document.encode(), plan.code, made.encode()))).hexdigest()


async def last_checkpoint(
    job: JobId, plan: RunningPlan, blobs: BlobStore, keys: SealKeys | None
) -> AuditCheckpoint | None:
    """The latest of a job that this version reads, of the document that runs; None if there is none. BlobError."""
    names = await blobs.list(audit_folder(job))
    for name in sorted(names, key=lambda name: -_epoch_of(name)):
        try:
            found = _opened(job, await blobs.get(_ref_of(name)), _epoch_of(name), keys)
        except BlobUnavailable:
            raise
        except (BlobError, FormatError, WireError):
            continue  # the coordinator may have deleted it meanwhile, for there is a later one
        if found.document == digest_of_plan(plan):
            return found
    return None


async def keep(checkpoint: AuditCheckpoint, blobs: BlobStore, keys: SealKeys | None) -> None:
    """Make it durable. BlobError."""
    job, epoch = checkpoint.commit.job, checkpoint.commit.epoch
    body = CHECKPOINTS.encode(checkpoint)
    seal = b"" if keys is None else keys.seal((job, epoch), None, body, ())
    data = len(seal).to_bytes(_SEAL_BYTES) + seal + body
    name = blob_name(job, AUDIT, Generation(0), epoch, f"{len(data)}-{hashlib.sha256(data).hexdigest()}")
    if name not in await blobs.list(audit_folder(job)):
        await blobs.put(name, data)


def _opened(job: JobId, data: bytes, epoch: Epoch, keys: SealKeys | None) -> AuditCheckpoint:
    at = _SEAL_BYTES + int.from_bytes(data[:_SEAL_BYTES])
    seal, body = data[_SEAL_BYTES:at], data[at:]
    if keys is not None:
        keys.check((job, epoch), None, body, ((HEADER, seal),))
    return CHECKPOINTS.decode(body)


def _epoch_of(name: str) -> Epoch:
    parsed = parse_blob_name(name)
    return NO_EPOCH if parsed is None else parsed.epoch


def _ref_of(name: str) -> BlobRef:
    """Its name tells size and digest."""
    size, _, digest = name.rpartition("/")[2].partition("-")
    return BlobRef(name, int(size) if size.isdigit() else 0, digest)
