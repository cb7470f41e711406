"""Settings of the coordinator's decisions; their relations are checked when the object is built."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from tidemark.shared.model.message_sizes import sized
from tidemark.shared.model.messages import KEY_GROUPS
from tidemark.shared.model.settings import check_positive, knob


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A namespace's upper bounds; None: no bound."""

    namespace: str
    """`*`: each namespace that has no quota of its own."""
    processors: Annotated[int, msgspec.Meta(ge=0)] | None = None
    tasks: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Of processors that run or are to run. A task takes at most one slot."""
    bytes_per_s: Annotated[int, msgspec.Meta(ge=1_024)] | None = None
    """That its sources take together, of records' values: on average, with some seconds' worth at once (`shares.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Bounds and times; `_ms` on the monotonic clock."""

    heartbeat_timeout_ms: int = knob(6_000)
    """A worker is lost after so long without a word from it or from the starter of its process (R1)."""
    work_timeout_ms: int = 60_000
    """A worker whose process lives but that reports nothing itself is lost after so long (R1)."""
    adopt_wait_ms: int = knob(6_000)
    """How long a new leader waits for the tasks of a running generation to show themselves before it starts the next."""
    checkpoint_interval_ms: int = knob(1_000)
    """From start to start; a plan's own interval goes before it."""
    checkpoint_timeout_ms: int = knob(60_000)
    epoch_target_ms: int = 5_000
    """The time that an epoch may take from its start until it is released: sources bound its rows by the times of earlier epochs (F9).
    A longer interval counts instead, and a third of the checkpoint time-out at the most."""
    first_epoch_rows: int = 10_000
    """Rows of a source's first epoch, of which nothing is measured yet (F9). A tenth where operators are behind it, for each row may be a
    callback or a request there, and a tenth after each generation in a row that has not read on."""
    checkpoint_timeouts_max: int = 3
    """So many time-outs in a row fail the generation (C10)."""
    restore_timeout_ms: int = 60_000
    failures_max: int = knob(5)
    """So many generations in a row that have not read on make the processor FAILED (C10)."""
    steady_ms: int = 600_000
    """A generation that has lived so long is none of those: nothing may come in that could be read."""
    backoff_base_ms: int = 500
    backoff_max_ms: int = 30_000
    retry_ms: int = 500
    """Wait before the store, the mirror, topics or blobs are tried again."""
    unreleased_max: int = knob(8)
    """When more commits than this wait for their release, no checkpoint starts (C11)."""
    inline_bytes_max: int = sized(256 * 1024)
    """State that a commit row holds inline; beyond it goes into blobs before the commit (C7)."""
    document_bytes_max: int = sized(512 * 1024)
    """Of a processor's document with the connections that it names: it travels in each assignment, beside inline state."""
    splits_bytes_max: int = sized(192 * 1024)
    """Of the splits of a source's task, as its assignment lists them; a source with more makes the processor FAILED (I1)."""
    mirror_bytes_max: int = sized(900_000)
    """Limit of a row of the mirror: sinks' staged output and sources' positions. A checkpoint above it makes the processor FAILED (C9)."""
    mirror_rows_kept: int = knob(100_000)
    """The newest rows of a job's mirror that stay for audits, besides those that sinks have still to release (C9)."""
    numbers_block: int = 64
    """Checkpoint numbers reserved at a time (C1)."""
    stop_release_wait_ms: int = 30_000
    """How long a stop without drain waits for the release of committed output."""
    cleanup_interval_ms: int = 10_000
    status_interval_ms: int = 1_000
    """Least time between two publications of a status in which only progress changed."""
    spawn_wait_ms: int = 20_000
    """How long a wish for a worker stands before it is made again."""
    retires_workers: bool = knob(False)
    """There is a supervisor that ends workers when asked to."""
    retire_idle_ms: int = knob(10_000)
    """A worker that hosts nothing for so long is wished away."""
    workers_min: int = knob(1)
    """Workers of each service that stay even when they host nothing."""
    replaced_max: int = 1_000
    """Incarnations remembered as replaced at their place."""
    lineage_max: int = 100
    """Generations that an assignment names, of those that committed: frames of older ones are in every checkpoint since (L1)."""
    requests_max: int = 64
    """Requests that wait, for each processor."""
    processors_max: int = knob(1_000)
    """Processors that are registered, running or not; no more are created."""
    quotas: tuple[Quota, ...] = knob(())
    """Of namespaces, each named once (E4)."""
    shares_interval_ms: int = 1_000
    """How often the shares of a quota of bytes are looked at: as often as sources tell what they took (E4)."""
    connections_max: int = 1_000
    """Connections in the registry; no more are added."""
    workers_max: int = 1_000
    """Workers that are alive; those that come beyond it get no tasks."""
    tasks_max: int = KEY_GROUPS
    """Tasks of one vertex; at most as many as there are key groups, since more could own none."""
    lease_ms: int = knob(5_000)
    """How long a leader leads without word from the store; a standby takes over after so long (C8)."""
    checkpoints_max: int = 8
    """Checkpoints that a processor keeps under names: each is part of its row, which every commit writes (C11)."""
    checkpoints_bytes_max: int = 1024 * 1024
    """Of their plans and splits together, for the same reason."""
    answers_max: int = 32
    """Answers kept with each processor, so that a repeated request is not carried out twice."""
    reason_characters_max: int = 4_000
    """Limit of an answer to a request, and of the reason in a processor's state: both may quote the request."""
    sample_max: int = 100
    """Documents that a sink task shows on one request."""
    topic_prefix: str = "tidemark"

    def __post_init__(self) -> None:
        """Raise ValueError for settings that cannot work."""
        check_positive(self, "coordinator", but=_MAY_BE_ZERO)
        if self.checkpoint_timeout_ms <= self.checkpoint_interval_ms:
            raise ValueError(
                f"coordinator settings: checkpoint_timeout_ms ({self.checkpoint_timeout_ms}) must be above"
                f" checkpoint_interval_ms ({self.checkpoint_interval_ms})"
            )
        if len({quota.namespace for quota in self.quotas}) < len(self.quotas):
            names = ", ".join(quota.namespace for quota in self.quotas)
            raise ValueError(f"coordinator setting quotas: expected each namespace once, found {names}")
        if self.lineage_max < 2:  # noqa: PLR2004 - a generation, and the one that committed what it was restored from
            raise ValueError(f"coordinator setting lineage_max: expected at least 2, found {self.lineage_max}")
        if self.tasks_max > KEY_GROUPS:
            raise ValueError(
                f"coordinator settings: tasks_max ({self.tasks_max}) must not be above the {KEY_GROUPS} key groups of a plan:"
                " tasks beyond them would own no key"
            )
        if self.backoff_max_ms < self.backoff_base_ms:
            raise ValueError(
                f"coordinator settings: backoff_max_ms ({self.backoff_max_ms}) must not be below"
                f" backoff_base_ms ({self.backoff_base_ms})"
            )

    def backoff_ms(self, tries: int) -> int:
        """The wait before try number `tries` + 1, doubling from the base: 0 for no tries yet."""
        if tries <= 0:
            return 0
        return min(self.backoff_max_ms, self.backoff_base_ms << min(tries - 1, 30))


_MAY_BE_ZERO = frozenset(
    {"workers_min", "retire_idle_ms", "cleanup_interval_ms", "status_interval_ms", "stop_release_wait_ms"}
)
