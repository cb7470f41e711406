"""Frames: the records that services write to each other on edges (protocol, section 2). `tidemark.shared.wire.frames` has their bytes.

Markers (`WatermarkFrame`, `BarrierFrame`, `EndFrame`) go to every partition of an edge, behind the data they speak about.
"""

from dataclasses import dataclass
from typing import Literal

from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, Seq, TaskId

Content = Literal["rows", "partials"]
"""The kind of rows in a body: documents, or partial aggregates of windows."""


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of every frame (F1, F3, F4)."""

    job: JobId
    edge: Incarnation
    generation: Generation
    sender: TaskId
    seq: Seq
    epoch: Epoch
    watermark_ms: int
    """The sender's watermark; takes effect behind the frame's own rows."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A small batch inside the frame: one Arrow IPC stream."""

    content: Content
    rows: int
    ipc: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A batch by reference: a Parquet file in the blob store, durable before the frame that names it (P2)."""

    content: Content
    name: str
    """Name in the blob store."""
    rows: int
    size_bytes: int
    digest: str
    """SHA-256 of the file, hex."""
    min_event_ms: int
    max_event_ms: int


Body = Inline | Segment


@dataclass(frozen=True, slots=True)
class DataFrame:
    """Rows. Implies that its sender is active."""

    header: Header
    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class WatermarkFrame:
    """The header's watermark, with no rows; says whether the sender is idle."""

    header: Header
    idle: bool


@dataclass(frozen=True, slots=True)
class BarrierFrame:
    """Ends epoch `header.epoch`; names the last committed checkpoint when it was started (C5)."""

    header: Header
    committed: Epoch


@dataclass(frozen=True, slots=True)
class EndFrame:
    """No more data from this sender (E1); barriers go on."""

    header: Header


Frame = DataFrame | WatermarkFrame | BarrierFrame | EndFrame
