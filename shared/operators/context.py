"""All that an operator knows about its task.

A guard stands before a user's callback while a task recovers from a death of its process. Otherwise there is none:
`watching` is false, and a callback costs that check alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidemark.shared.language.stages import KafkaSource, KeyFormat
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.operators.base import Operator
from tidemark.shared.operators.computation_keys import Cooling
from tidemark.shared.operators.specs import ComputeSpec, FrontSpec, JoinSpec

Shelve: TypeAlias = Callable[[pa.RecordBatchReader], pa.Table]
"""The same rows, out of memory. ScratchUnavailable where they find no room."""


class CallGuard(Protocol):
    """Counts, over deaths of the process, in which callback it died."""

    @property
    def watching(self) -> bool:
        """Whether `enter` and `leave` want to be told of callbacks."""
        ...

    def enter(self, call: bytes) -> str | None:
        """The callback of this name runs next, unless a reason is given: then the process has died in it too often."""
        ...

    def leave(self) -> None:
        """No callback runs."""
        ...


Names: TypeAlias = str | tuple[str, ...] | None
"""One topic, several in the order of the document, or None for a source without topics."""


@dataclass(frozen=True, slots=True)
class KeyedTopics:
    """Topics in which `$meta` shows a record's key in a format, not as plain bytes."""

    names: Names
    key_format: KeyFormat


Topics: TypeAlias = Names | KeyedTopics
"""Where records come from."""


def topics_told(names: Sequence[str], key_format: KeyFormat) -> Topics:
    """Topics as operators are told of them."""
    known: Names = names[0] if len(names) == 1 else tuple(names) or None
    return known if key_format == "binData" else KeyedTopics(known, key_format)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Names for dead letters, the same over restarts, and bounds."""

    processor: str = ""
    instance: str = ""
    """The deployment's name (`instanceName` of a dead letter)."""
    topic: Topics = None
    """The source's topic; for `_stream_meta`. Of several, partition p of topic i is the split with the ordinal p · topics + i."""
    rows_are_records: bool = True
    """Whether rows stand for records of the source; behind a join none does. (Rows of windows tell it themselves.)"""
    inputs: Mapping[str, tuple[Topics, bool]] = field(default_factory=dict)
    """Both for each input by its tag, where the operator tells its inputs apart."""
    join_bytes_max: int = 1024 * 1024 * 1024
    """Rows that one task of a `$join` has in memory."""
    join_ahead_bytes_max: int = 8 * 1024 * 1024 * 1024
    """Rows that wait for the watermark in one task of a `$join`, wherever they lie, before senders ahead in event time wait (F7)."""
    join_pairs_max: int = 10_000_000
    """Documents that one watermark may let out of one task of a `$join`."""
    cooling: Cooling | None = None
    """Where keys of computations lie that nobody has asked for lately; None: in memory, all of them."""
    waiting_records_max: int = 5_000_000
    """Records that may wait for the watermark in one task of a keyed computation."""
    computed_max: int = 10_000_000
    """Documents that one batch or watermark may let out of one task of a computation."""
    ids_bytes_max: int = 1024 * 1024 * 1024
    """Record ids that one task has in memory."""
    shelve: Shelve | None = None
    """Where rows of a `$join` and ids lie that have no room in memory; None: such rows stay there, and a task with more ids fails."""
    ordered_bytes_max: int = 256 * 1024 * 1024
    """Rows of an epoch that one task holds to give them out in order; beyond it they go in pieces."""
    open_rows_max: int = 10_000_000
    """Groups and rows of open windows that one task keeps."""
    unmerged_groups_max: int = 262_144
    """Partials that a sender holds before it merges those of one window and key; later, twice the number that the last merge left."""
    held_groups_max: int = 200_000
    """Partials, one for a window and a key, that a sender holds for its next barrier; beyond it they are given out before."""
    letter_bytes_max: int = 256 * 1024
    """Of a dead letter's document, as it is stored: its text may take four times as much, which a Kafka record of a megabyte holds."""
    guard: CallGuard | None = None
    """Stands before callbacks of users' code; None where nobody counts deaths."""
    code: bytes = b""
    """The code of the processor's computations (`tidemark.shared.computation.bundle`)."""
    computing: "Callable[[ComputeSpec, TaskContext], Operator] | None" = None
    """Makes the operators of computations; None: they run in this process (`compute.ComputeOperator`)."""

    def of_input(self, tag: str) -> "TaskContext":
        """The same, of rows as they come on this input."""
        topic, are_records = self.inputs.get(tag, (self.topic, self.rows_are_records))
        return replace(self, topic=topic, rows_are_records=are_records)


def context_of(plan: PhysicalPlan, vertex: VertexId, processor: str) -> TaskContext:
    """The names that operators of a vertex know: the same wherever they run."""
    edges = plan.inputs_of(vertex)
    topic, are_records = _told_of(plan, plan.upstream({vertex}), but=vertex)
    inputs = {
        tag: _told_of(plan, plan.upstream({edge.sender for edge in edges if edge.tag == tag}))
        for tag in {edge.tag for edge in edges if edge.tag}
    }
    return TaskContext(processor=processor, topic=topic, rows_are_records=are_records, inputs=inputs)


def _told_of(plan: PhysicalPlan, upstream: set[VertexId], but: VertexId | None = None) -> tuple[Topics, bool]:
    """The topics of rows that came through these, and whether they are records still; `but`: a join that they have yet to reach."""
    chains = {vertex.id: vertex.chain for vertex in plan.vertices if vertex.id in upstream}
    sources = [chain[0].source for chain in chains.values() if chain and isinstance(chain[0], FrontSpec)]
    told = [(s.topics, s.key_format) if isinstance(s, KafkaSource) else ((), "binData") for s in sources]
    topics, formats = {names for names, _ in told}, {key_format for _, key_format in told}
    # Of several sources no row here says by which it came.
    known = topics.pop() if len(topics) == 1 else ()
    joined = any(isinstance(spec, JoinSpec) for v, chain in chains.items() if v != but for spec in chain)
    return topics_told(known, formats.pop() if len(formats) == 1 else "binData"), not joined


def source_place(topics: Topics, ordinal: int) -> tuple[str | None, int]:
    """(topic, partition) of a split by its ordinal."""
    if isinstance(topics, KeyedTopics):
        topics = topics.names
    if isinstance(topics, tuple):
        return topics[ordinal % len(topics)], ordinal // len(topics)
    return topics, ordinal


NOWHERE = TaskContext()
"""A task without names, for tests and single runs."""
