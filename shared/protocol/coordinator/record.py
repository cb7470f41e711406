"""The coordinator's data in `ProcessorRow.extra` and `.plan`, and their bytes.

`Decisions` holds decisions, which change only with a write of the row (C8). It also holds facts that workers may report again (markers), as
they were at the last write.
"""

from msgspec import Struct

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.formats import DECISIONS, PLAN, Codec
from tidemark.shared.model.ids import Epoch, Generation, JobId, Offset, SplitId, VertexId
from tidemark.shared.model.messages import RunningPlan

Purpose = str
"""The purpose of a generation: RUN, or RELEASE: only committed output is released (E2, S1)."""
RUN: Purpose = "run"
RELEASE: Purpose = "release"

Identity = tuple[VertexId, int]
"""Under which a sink task stages and releases, within a job (S1)."""


class PendingPlan(Struct, frozen=True):
    """A plan that the next generation will run (R4, E3): edges as (id, sender, receiver)."""

    document: str
    tasks: dict[VertexId, int]
    services: dict[VertexId, str]
    edges: tuple[tuple[str, VertexId, VertexId], ...]
    key_groups: int
    parallelism: dict[str, int]
    interval_ms: int | None = None
    names: dict[str, VertexId] = {}
    code: bytes = b""
    code_digest: str = ""


class RemovedSink(Struct, frozen=True):
    """A sink that is no longer in the plan, with the plan that had it last: it stays, release-only, until nothing waits (S1)."""

    vertex: VertexId
    plan: RunningPlan


class OldJob(Struct, frozen=True):
    """A life of the processor that ended: its blobs and commit rows go."""

    job: JobId
    epochs: tuple[Epoch, ...]


class KeptCheckpoint(Struct, frozen=True, array_like=True):
    """A checkpoint that a user named, with all that a start from it needs beside its commit row (C11)."""

    name: str
    epoch: Epoch
    plan: RunningPlan
    parallelism: dict[str, int]
    interval_ms: int | None
    splits: dict[VertexId, dict[SplitId, KnownSplit]]
    ended: bool
    """The three as in `Decisions`, when it was named."""


class Decisions(Struct, frozen=True):
    """The coordinator's own part of a processor's row."""

    purpose: Purpose = RUN
    without_state: bool = False
    """The next run starts without state (E2)."""
    drain: dict[str, Offset] | None = None
    """A drain is wanted: where the user says that splits end, by name (E2)."""
    ended: bool = False
    """It is decided where each split ends: `KnownSplit.end` (I3)."""
    splits: dict[VertexId, dict[SplitId, KnownSplit]] = {}
    """By source: its splits; none for a source that was never looked at (I1)."""
    pending: PendingPlan | None = None
    interval_ms: int | None = None
    identities: tuple[Identity, ...] = ()
    """Those that commits name and that are not retired (S1)."""
    released: tuple[tuple[VertexId, int, Epoch], ...] = ()
    """Markers, as of the last write."""
    removed: tuple[RemovedSink, ...] = ()
    obsolete_topics: tuple[str, ...] = ()
    """Replaced by the current generation; they go when it has committed (R4)."""
    unwanted_topics: tuple[str, ...] = ()
    """Nothing can resume from these."""
    old_jobs: tuple[OldJob, ...] = ()
    skips: tuple[tuple[VertexId, int, Epoch], ...] = ()
    """The releases that a user skips: identity and commit; kept until the commit is released (S6)."""
    checkpoints: tuple[KeptCheckpoint, ...] = ()
    """Those that a user named: their commit rows and blobs stay (C11). `checkpoints_max` and `checkpoints_bytes_max`."""
    go_back: str = ""
    """The next run begins from the kept checkpoint of this name (E2)."""
    answers: tuple[tuple[str, str], ...] = ()
    """The last requests carried out: (id, error)."""
    shown: tuple[str, Generation, JobId] | None = None
    """State, generation and job that the registry had."""
    changes: int = 0
    """How often these have changed."""
    mirror: Offset = Offset(0)
    """From where the mirror is to be read: the oldest commit that somebody has still to release lies there (C9)."""
    commits: int = 0
    """Checkpoints committed in the life of the job."""


_KEPT: Codec[Decisions] = Codec(DECISIONS, Decisions)
_PLAN: Codec[RunningPlan] = Codec(PLAN, RunningPlan)


def encode_kept(kept: Decisions) -> bytes:
    """For `ProcessorRow.extra`."""
    return _KEPT.encode(kept)


def decode_kept(data: bytes) -> Decisions:
    """From `ProcessorRow.extra`; empty bytes are a row that nothing is kept for. Raises FormatError."""
    return _KEPT.decode(data) if data else Decisions()


def encode_plan(plan: RunningPlan) -> bytes:
    """For `ProcessorRow.plan`."""
    return _PLAN.encode(plan)


def decode_plan(data: bytes) -> RunningPlan:
    """From `ProcessorRow.plan`. Raises FormatError."""
    return _PLAN.decode(data)
