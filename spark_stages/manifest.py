"""State of a window's stage between steps: a list of Parquet segments, and times. Its snapshot is this and nothing else (P2)."""

from msgspec import Struct

from tidemark.shared.model.time import MIN_TIME


class StateSegment(Struct, frozen=True):
    """Partials (or rows with windows) in one Parquet file."""

    name: str
    rows: int
    size_bytes: int
    digest: str
    min_start_ms: int
    """No window in it that is still open starts before this."""
    max_end_ms: int
    """No window in it ends after this: once that is closed, the segment goes."""


class StageState(Struct, frozen=True):
    """Open windows of a stage."""

    segments: tuple[StateSegment, ...] = ()
    closed_to_ms: int = MIN_TIME
    """Windows that end at or below are closed: what segments still hold of them is left out."""
    forced_ms: int = MIN_TIME
    """To where `idleTimeout` has put the watermark."""
    last_arrival_ms: int = MIN_TIME
