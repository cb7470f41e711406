"""What is not taken from the wire: bytes that do not decode, and those beyond the limits, the same in a whole installation (F6)."""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.model.message_sizes import sized


class WireError(Exception):
    """Bytes that are not what they should be. The message says what was expected and found; the caller adds where they lay (F6)."""


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits of the wire. Writers keep them, too: a value that no reader would take is refused where it is made."""

    frame_bytes_max: int = 8 * 1024 * 1024
    """Of a frame on an edge, encoded."""
    message_bytes_max: int = sized(8 * 1024 * 1024)
    """Of a command, report, request, answer, status, commit row or mirror row, encoded."""
    batch_bytes_max: int = 64 * 1024 * 1024
    """Of a record batch in memory. A larger batch is divided before it goes by reference."""
    text_bytes_max: int = 1024
    """Of a name within a frame: of a job, an edge, a vertex, a segment."""
    bodies_max: int = 4096
    """Batches and segments in a frame."""


DEFAULT: Final = WireLimits()
