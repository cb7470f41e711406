"""Identifiers, each a type of its own so that one cannot stand in for another.

Epochs and checkpoints share their numbers: checkpoint n is the snapshot that ends epoch n everywhere.
"""

from dataclasses import dataclass
from typing import NewType

ProcessorName = NewType("ProcessorName", str)
"""The user's name of a pipeline."""
JobId = NewType("JobId", str)
"""UUID (32 hex digits) of one life of a processor; changes only when it starts without state."""
VertexId = NewType("VertexId", str)
"""A node of the physical plan, e.g. `source`, `window-1`, `emit-2`."""
EdgeId = NewType("EdgeId", str)
"""An edge of the physical plan, `sender>receiver` or `sender:port>receiver`."""
Incarnation = NewType("Incarnation", str)
"""UUID (32 hex digits) of one life of an edge: a rescale makes a new one."""
WorkerIncarnation = NewType("WorkerIncarnation", str)
"""UUID (32 hex digits) made at process start."""
Place = NewType("Place", str)
"""The name of a worker's seat, kept over restarts of its process: `operator-0`, a pod's name."""
LeaderToken = NewType("LeaderToken", int)
"""Grows with every take-over of the leadership of the coordinators."""
Generation = NewType("Generation", int)
"""One attempt at running a processor, from 1; grows at every start, restore, rescale and change of plan."""
Epoch = NewType("Epoch", int)
"""Number of an epoch and of the checkpoint that ends it, from 1; 0 means: before the first."""
Seq = NewType("Seq", int)
"""Number of a frame of one sender on one partition, from 0 (rule F1)."""
Offset = NewType("Offset", int)
"""Position of a record in a partition of the log."""
SplitId = NewType("SplitId", str)
"""A part of a source that is read in order: `topic-3`, a file's path, `script-0`."""
KeyGroup = NewType("KeyGroup", int)
"""0 ≤ group < G: the unit in which keyed state moves between tasks."""
StatePart = NewType("StatePart", str)
"""The unit in which a task's state is stored and moved: `kg:17`, `split:topic-3`, `task`."""

TASK_PART = StatePart("task")

NO_LEADER = LeaderToken(0)
NO_EPOCH = Epoch(0)
FIRST_SEQ = Seq(0)
FIRST_OFFSET = Offset(0)


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """(vertex, index): the unit of assignment, of state and of sending."""

    vertex: VertexId
    index: int

    def __str__(self) -> str:
        """As logs and topics show it: `window-1/0`."""
        return f"{self.vertex}/{self.index}"


def key_group_part(group: int) -> StatePart:
    """The state part of a key group."""
    return StatePart(f"kg:{group}")


def groups_part(groups: range) -> StatePart:
    """The state part that a task keeps of all its key groups together."""
    return StatePart(f"groups:{groups.start}-{groups.stop}")


def groups_of_part(name: str) -> range:
    """The key groups of such a part, from its name behind the colon."""
    first, _, end = name.partition("-")
    return range(int(first), int(end))


def split_part(split: str) -> StatePart:
    """The state part of a source's split."""
    return StatePart(f"split:{split}")


def owner_of(group: int, tasks: int, groups: int) -> int:
    """The index of the task, of `tasks`, that owns a key group, of `groups` (contiguous ranges, as Flink assigns them)."""
    return group * tasks // groups


def groups_owned(index: int, tasks: int, groups: int) -> range:
    """The key groups that a task owns: the range to `owner_of`."""
    return range(-(-index * groups // tasks), -(-(index + 1) * groups // tasks))


def namespace_of(name: str) -> str:
    """Of a processor: the part of its name before the first dot, "" without one (E4)."""
    head, dot, _ = name.partition(".")
    return head if dot else ""
