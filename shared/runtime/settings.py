"""Bounds and intervals of workers and tasks. Every one has a name, a unit and a default; `check` holds their relations."""

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from tidemark.shared.language.limits import CONDITIONS_MAX
from tidemark.shared.model.message_sizes import HEADER_BYTES_MAX, sized
from tidemark.shared.model.settings import knob
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.wire.limits import WireLimits

PARAMETERS_MAX: Final = 32_766
"""Of one question to a database: SQLite's bound; PostgreSQL's is twice that."""
TEXT_BYTES_MIN: Final = 512
"""Bytes that the longest name within a frame may take: a segment's, which holds a job, an edge and two unique names."""


class SettingsError(ValueError):
    """Two settings contradict each other: names both, with their values."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Bounds of `$lookup` and `$cachedLookup`."""

    keys_max: int = 500
    """Distinct keys of one question to a table."""
    rows_max: int = 100_000
    """Rows that one question may find, and documents of a file that serves as a table."""
    wait_ms_max: int = 60_000
    """How long an outage of the table is waited out before the task fails with it."""
    retry_ms: int = 100
    """Wait before a table that is away is asked again; doubled each time."""
    retry_ms_max: int = 5_000
    """The longest of these waits."""
    found_rows_max: int = knob(1_000_000)
    """Rows that the questions of one batch find together. Beyond it the task fails; the error says how to go on."""
    kept_rows_max: int = knob(1_000_000)
    """Rows in the answers that one task's `$cachedLookup` keeps, however few answers they are; the one used longest ago gives way."""
    file_interval_ms: int = 1_000
    """How often a file that serves as a table is looked at for changes."""


@dataclass(frozen=True, slots=True)
class DeathSettings:
    """Bounds of how callbacks of users' code are watched after a death of their process (`services/operator/deaths.py`)."""

    deaths_max: int = knob(3)
    """A callback in which the process has died so often is given up: its record goes to the dead letter queue."""
    commits_watched: int = 50
    """Callbacks are noted before they run until so many commits after a death."""
    suspects_max: int = 64
    """Callbacks that are remembered as suspected."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The settings of one worker process."""

    heartbeat_interval_ms: int = knob(1_000)
    heartbeat_timeout_ms: int = knob(5_000)
    """The coordinator gives a silent worker up after this."""
    heartbeat_bytes_max: int = sized(512 * 1024)
    """Of a heartbeat: one that would be larger goes without the details of its tasks, such as where each split stands."""
    acknowledgement_bytes_max: int = sized(900_000)
    """Limit of a task's acknowledgement: inline state, staged output, split positions. Beyond it the task fails, with advice."""
    reason_characters_max: int = 4_000
    """Of the reason that is told when a task fails; the worker's log has all of it."""
    coordinator_silence_ms_max: int = 60_000
    """A worker that hears no coordinator for so long stops its tasks (R2)."""
    topics_kept_ms: int = 600_000
    """How long commands, reports, answers and read positions stay in their topics (`upkeep.py`)."""
    garbage_interval_ms: int = 600_000
    """How often the leader looks for blobs and topics of jobs that are gone (`sweeping.py`)."""
    answers_known_max: int = 10_000
    """Answers that a coordinator remembers, by which it tells a request that was copied; the oldest gives way."""
    samples_kept_ms: int = 600_000
    """How long samples of output stay in their topic; nothing depends on them."""
    note_interval_ms: int = 5_000
    """Lag tools are told of commits no oftener."""
    reports_waiting_max: int = 10_000
    """Messages of one process that the broker has not acknowledged; when there are more, no heartbeat is added to them."""
    parcels_waiting_max: int = 200_000
    """Frames or messages that are not acknowledged, for a task, a worker or the coordinator; one more ends that owner: it begins anew."""
    events_waiting_max: int = 400_000
    """Events that wait for the machine of a task or of the coordinator; one more ends that owner: it begins anew."""
    assignments_kept_max: int = 10_000
    """Tasks and jobs for which a worker remembers the last generation given to it (R2); jobs whose mirror a coordinator knows."""
    commits_waiting_max: int = 10_000
    """Commits that wait for their release in one sink task; the coordinator holds checkpoints back long before (C11)."""
    connections_max: int = knob(256)
    """Clients that a process holds for documents' connections: of Kafka clusters so many, of databases so many."""
    snapshots_waiting_max: int = 3
    """Snapshots of a task that are not durable yet; before the next is copied the task waits for room."""
    writes_waiting_max: int = 10_000
    """Writes to the store, and rows for the mirror, that wait in the coordinator: each processor has few of them (C8, C9)."""
    tick_interval_ms: int = 50
    """How often time reaches the machines: watermarks without rows, processing-time timers."""
    flow_interval_ms: int = 100
    """How often a worker looks for read positions that senders need (F7); one that has read an eighth of W tells it at once."""
    flow_silence_ms_max: int = 1_000
    """How long a read position stays untold where little was read: less than an eighth of W, `limits.ahead_bytes_max`."""
    fetch_timeout_ms: int = 500
    """How long a fetch waits where there is nothing."""
    retry_ms: int = 300
    """Time between two tries of a system that is away: the log, the store."""
    topic_records_max: int = 1_000
    """Of commands, reports, requests, answers, positions and mirrors, per fetch."""
    fetch_records_max: int = 500
    fetch_bytes_max: int = knob(4 * 1024 * 1024)
    """Of a source, per fetch."""
    splits_interval_ms: int = knob(5_000)
    """How often a source that does not end by itself looks for partitions or files that have come."""
    origins_interval_ms: int = 1_000
    """How often a source asks whether its topics are still those that it began to read (I2); after an outage before it reads on."""
    inline_bytes_max: int = sized(256 * 1024, grows=False)
    """A batch above this goes by reference on edges that allow it, and is split on others."""
    state_inline_bytes_max: int = knob(64 * 1024)
    """State of a task below this travels in its acknowledgement (C7)."""
    state_blobs_max: int = 16
    """Where state parts lie in more blobs, beyond those that their size takes, the blobs with the least of them are written anew."""
    state_parts_max: int = 256
    """So many state parts in blobs are named in an acknowledgement; a list of more is a blob, too."""
    state_blob_bytes_max: int = 64 * 1024 * 1024
    """Limit of one blob of state parts: a restore holds one beside the part cut out of it. A larger part has a blob of its own."""
    engine: Literal["spark", "local"] = knob("spark")
    """The engine that runs the steps of windows; `local`: Arrow, in operator tasks. The same in every process of an installation."""
    collects: bool = False
    """For trying out: output and dead letters without a target in the document are collected (`plan_processor`)."""
    join_bytes_max: int = knob(1024 * 1024 * 1024)
    """Rows that one task of a `$join` has in memory; the others lie in mapped files in the operator's scratch folder."""
    join_ahead_bytes_max: int = knob(8 * 1024 * 1024 * 1024)
    """Rows that wait for the watermark in one task of a `$join`, in memory or not. Beyond it sources ahead in event time wait (F7)."""
    join_pairs_max: int = knob(10_000_000)
    """Documents that one watermark may let out of one task of a `$join`. Beyond it the task fails; the error says how to go on."""
    keys_in_memory: int = knob(500_000)
    """Keys of a computation that one task has at hand; the others lie packed in RocksDB, below the operator's scratch folder."""
    keys_buffer_bytes: int = 16 << 20
    """Memory for writes to such a RocksDB; twice that at the most."""
    waiting_records_max: int = 5_000_000
    """Records that may wait for the watermark in one task of a keyed computation. Beyond it the task fails, with advice."""
    computed_max: int = knob(10_000_000)
    """Documents that one batch or watermark may let out of one task of a computation. Beyond it the task fails, with advice."""
    ids_bytes_max: int = knob(1024 * 1024 * 1024)
    """Record ids that one task has in memory; beyond it an operator has them in mapped files in its scratch folder; a source fails."""
    ordered_bytes_max: int = 256 * 1024 * 1024
    """Rows of an epoch that one task holds to give them out in the order of their splits; beyond it they go in pieces."""
    open_rows_max: int = knob(10_000_000)
    """Groups and rows of open windows that one task keeps with `engine: local`. Beyond it the task fails; the error says how to go on."""
    unmerged_groups_max: int = 262_144
    """Partials that a sender holds before it merges those of one window and key; or twice the number that the last merge left."""
    patterns_kept_max: int = 1_024
    """Regular expressions that a process keeps compiled."""
    held_groups_max: int = 200_000
    """Partials, one for a window and a key, that a sender holds for its next barrier; beyond it they are sent before, and count (F8)."""
    lookup: LookupSettings = field(default_factory=LookupSettings)
    deaths: DeathSettings = field(default_factory=DeathSettings)
    threads: int = knob(8)
    """Threads of a process for calls that block: files, databases, users' computations."""
    calls_waiting_max: int = 1_024
    """Blocking calls of a process that may run or wait for a thread; one more is an error."""
    slots: int = knob(32)
    """Processors of which this worker hosts tasks at the same time: most have little to do, and an idle process costs 170 MiB."""
    limits: TaskLimits = field(default_factory=TaskLimits)
    wire: WireLimits = field(default_factory=WireLimits)
    """The same in every process of an installation."""
    work_bytes_per_s_min: int = 1024 * 1024
    """The least rate of a task: it bounds how long a barrier stands behind the bytes that senders may be ahead (F7)."""

    def check(self) -> None:
        """Raises SettingsError."""
        if self.heartbeat_timeout_ms < 3 * self.heartbeat_interval_ms:
            message = (
                f"heartbeat_timeout_ms={self.heartbeat_timeout_ms} must be at least three times "
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: one late heartbeat would lose a worker"
            )
            raise SettingsError(message)
        if self.coordinator_silence_ms_max <= self.heartbeat_timeout_ms:
            message = (
                f"coordinator_silence_ms_max={self.coordinator_silence_ms_max} must be above "
                f"heartbeat_timeout_ms={self.heartbeat_timeout_ms}: workers would stop at a short pause of the coordinator"
            )
            raise SettingsError(message)
        if self.topics_kept_ms <= 2 * self.coordinator_silence_ms_max:
            message = (
                f"topics_kept_ms={self.topics_kept_ms} must be above twice coordinator_silence_ms_max="
                f"{self.coordinator_silence_ms_max}: what a worker has still to read would be gone before it gives up"
            )
            raise SettingsError(message)
        if self.calls_waiting_max < self.threads:
            message = f"calls_waiting_max={self.calls_waiting_max} must not be below threads={self.threads}: some would never work"
            raise SettingsError(message)
        if self.parcels_waiting_max <= self.reports_waiting_max:
            message = (
                f"parcels_waiting_max={self.parcels_waiting_max} must be above reports_waiting_max={self.reports_waiting_max}:"
                " heartbeats alone would end a worker in an outage"
            )
            raise SettingsError(message)
        if self.events_waiting_max <= self.parcels_waiting_max:
            message = (
                f"events_waiting_max={self.events_waiting_max} must be above parcels_waiting_max={self.parcels_waiting_max}:"
                " all that brokers acknowledge when they are back is told to a task at once, and would end it"
            )
            raise SettingsError(message)
        self._check_sizes()
        self._check_wire()
        self._check_lookup()

    def _groups(self) -> tuple[tuple[str, Any], ...]:
        groups = {"limits": self.limits, "wire": self.wire, "lookup": self.lookup, "deaths": self.deaths}
        return (("", self), *((f"{name}.", group) for name, group in groups.items()))

    def _check_lookup(self) -> None:
        waits = self.lookup
        if waits.keys_max * CONDITIONS_MAX > PARAMETERS_MAX:
            message = (
                f"lookup.keys_max={waits.keys_max} with up to {CONDITIONS_MAX} columns a key must not be above {PARAMETERS_MAX} in all:"
                " databases take no more parameters in one question"
            )
            raise SettingsError(message)
        if waits.found_rows_max < waits.rows_max:
            message = (
                f"lookup.found_rows_max={waits.found_rows_max} must not be below lookup.rows_max={waits.rows_max}:"
                " a batch of one question could find more than it may"
            )
            raise SettingsError(message)
        if not waits.retry_ms <= waits.retry_ms_max <= waits.wait_ms_max:
            message = (
                f"lookup.retry_ms={waits.retry_ms}, lookup.retry_ms_max={waits.retry_ms_max} and lookup.wait_ms_max={waits.wait_ms_max}"
                " must not fall in this order: a table that is away would not be asked again in time"
            )
            raise SettingsError(message)

    def _check_wire(self) -> None:
        wire = self.wire
        if self.acknowledgement_bytes_max < self.state_inline_bytes_max + HEADER_BYTES_MAX:
            message = (
                f"acknowledgement_bytes_max={self.acknowledgement_bytes_max} must be above state_inline_bytes_max="
                f"{self.state_inline_bytes_max} and a header of up to {HEADER_BYTES_MAX} bytes: a task with full state would fail"
            )
            raise SettingsError(message)
        if self.inline_bytes_max + HEADER_BYTES_MAX > wire.frame_bytes_max:
            message = (
                f"inline_bytes_max={self.inline_bytes_max} and a header of up to {HEADER_BYTES_MAX} bytes must not be above"
                f" wire.frame_bytes_max={wire.frame_bytes_max}: no receiver takes a larger frame (F6)"
            )
            raise SettingsError(message)
        if wire.batch_bytes_max < self.inline_bytes_max:
            message = (
                f"wire.batch_bytes_max={wire.batch_bytes_max} must not be below inline_bytes_max={self.inline_bytes_max}:"
                " no receiver would take a full batch out of its frame (F6)"
            )
            raise SettingsError(message)
        if wire.text_bytes_max < TEXT_BYTES_MIN:
            message = (
                f"wire.text_bytes_max={wire.text_bytes_max} must be at least {TEXT_BYTES_MIN}:"
                " the names of tasks and of segments would not fit"
            )
            raise SettingsError(message)

    def _check_sizes(self) -> None:
        for path, group in self._groups():
            for each in fields(group):
                value = getattr(group, each.name)
                if type(value) is int and value < 1:
                    message = f"{path}{each.name}={value} must be at least 1"
                    raise SettingsError(message)
        if self.inline_bytes_max > self.limits.ahead_bytes_max:
            message = (
                f"inline_bytes_max={self.inline_bytes_max} must not be above limits.ahead_bytes_max="
                f"{self.limits.ahead_bytes_max}: one frame would be more than a sender may be ahead"
            )
            raise SettingsError(message)
        if self.open_rows_max < self.held_groups_max:
            message = (
                f"open_rows_max={self.open_rows_max} must not be below held_groups_max={self.held_groups_max}:"
                " what one sender may hold would be more than a window's task may keep"
            )
            raise SettingsError(message)

    def check_coordinator(self, heartbeat_timeout_ms: int, lease_ms: int) -> None:
        """R1, C8: workers outlast a late heartbeat and a change of leaders. Raises SettingsError."""
        if heartbeat_timeout_ms < 3 * self.heartbeat_interval_ms:
            message = (
                f"heartbeat_timeout_ms={heartbeat_timeout_ms} of the coordinator must be at least three times"
                f" heartbeat_interval_ms={self.heartbeat_interval_ms}: one late heartbeat would lose a worker"
            )
            raise SettingsError(message)
        if self.coordinator_silence_ms_max <= 2 * lease_ms:
            message = (
                f"coordinator_silence_ms_max={self.coordinator_silence_ms_max} must be above twice lease_ms={lease_ms}"
                " of the coordinator: workers would stop before a standby leads"
            )
            raise SettingsError(message)

    def check_deaths(self, failures_max: int) -> None:
        """C10: a callback in which the process dies is given up before the processor is. Raises SettingsError."""
        if self.deaths.deaths_max + 1 >= failures_max:  # the first death only makes the next generation watch
            message = (
                f"deaths.deaths_max={self.deaths.deaths_max} and one more must be below failures_max={failures_max} of the coordinator:"
                " a record in which the process dies would make the processor FAILED before it goes to the dead letter queue"
            )
            raise SettingsError(message)

    def check_commits(self, unreleased_max: int) -> None:
        """C11: checkpoints are held back before a sink has more commits waiting than it takes. Raises SettingsError."""
        if self.commits_waiting_max <= unreleased_max:
            message = (
                f"commits_waiting_max={self.commits_waiting_max} must be above unreleased_max={unreleased_max} of the coordinator:"
                " a sink whose target is slow would fail instead of waiting"
            )
            raise SettingsError(message)

    def check_alignment(self, checkpoint_timeout_ms: int) -> None:
        """F7: the bytes that may lie before a barrier are worked off before the checkpoint times out. Raises SettingsError."""
        ahead = self.limits.ahead_bytes_max
        work_ms = ahead * 1000 // self.work_bytes_per_s_min
        if work_ms >= checkpoint_timeout_ms:
            message = (
                f"limits.ahead_bytes_max={ahead} takes {work_ms} ms at work_bytes_per_s_min={self.work_bytes_per_s_min}, which must be "
                f"below checkpoint_timeout_ms={checkpoint_timeout_ms}: barriers would stand behind it until their checkpoint is given up"
            )
            raise SettingsError(message)
