"""Why a watermark or a task is held back, as heartbeats report it: small, and bounded by the operators of a task."""

from typing import Literal

from msgspec import Struct

Why = Literal["allowedLateness", "openWindow", "epoch", "timer", "match", "operator"]
"""allowedLateness: a window stays open behind the watermark. openWindow: an open window may still give a row with an earlier output time.
epoch: input rows are worked on when the epoch ends. timer: a record or timer of a computation waits. match: a row of a join may still
find its match."""


WaitKind = Literal["target", "blobs", "engine"]
"""target: what the document names, a sink's target, a source, a table or a server. blobs: the blob store. engine: Spark's session."""


class Hold(Struct, frozen=True):
    """An operator that keeps its output watermark below its input watermark."""

    operator: str
    """Its stage, e.g. `$tumblingWindow`."""
    why: Why
    input_ms: int
    output_ms: int


class TaskHeld(Struct, frozen=True):
    """A task's watermark and the reasons why it waits; `watermark` among the details of its heartbeat, as JSON."""

    since_ms: int
    """Since when the output watermark stands where it does: UTC, no finer than heartbeats are."""
    holds: tuple[Hold, ...] = ()
    sender: tuple[str, int, int] | None = None
    """(vertex, index, watermark) of the slowest channel that counts; None for a source, or if none counts."""
    held_back: Literal["", "receivers", "commits", "quota"] = ""
    """A source may not read: receivers are behind (F7), too much waits for commits (F8), or the namespace's bytes are used up (E4)."""
    aligning: int = 0
    """The checkpoint whose barriers are being collected: frames behind them wait (C3); 0 for none."""


class Wait(Struct, frozen=True):
    """Something outside of a task does not answer, or starts, and the task waits until it does (C10: time spent so does not count)."""

    kind: WaitKind
    doing: str
    """The step that the task tries: `opening`, `reading`, `asking`, `accepting`, `staging 7`, `releasing 6`."""
    on: str
    """The side that does not answer, as the document names it."""
    since_ms: int
    """Since when the task tries it, UTC."""
    reason: str
    """Why the last try failed; "" while the first is under way."""

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.doing}: {self.reason}"


class SplitHeld(Struct, frozen=True):
    """Where a split stands; `split:<id>` among the details of its task's beat, as JSON."""

    position: int
    watermark: int
    status: str
    """active, idle or finished."""
    topic: str | None = None
    """Topic of a Kafka split; the split's name is the topic, a hyphen and the partition. None for a split of another kind."""
    checkpoint: int | None = None
    """The position of a committed checkpoint, some seconds old; None before the first."""
    until: int | None = None
    atEnd: bool = False  # noqa: N815 - as stats show it
    more: bool = False
    """The broker has said lately that something lies behind the position. Neither this nor `atEnd`: it has not said lately."""
    finished: bool = False
    away: bool = False
    lastEvent: int | None = None  # noqa: N815
    """The highest event time that was accepted; None before the first."""
    delay: int = 0
    """How far the strategy holds the watermark behind it, ms."""
    since: int = 0
    """Since when its watermark stands there, UTC ms."""
    idleTimeout: int | None = None  # noqa: N815
    idleIn: int | None = None  # noqa: N815
    """At its end, and idle after so long, ms."""
    keepsTime: bool = False  # noqa: N815
    """Its watermark goes with the clock (SF6)."""
    seen: int = 0
    late: int = 0
    """Records that came behind the watermark, of `seen`, in the life of the split."""
