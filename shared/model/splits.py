"""Where a split stands, as its connector says it and as it is noted."""

from dataclasses import dataclass
from typing import Literal, Protocol

from tidemark.shared.model.ids import Offset, SplitId

Status = Literal["active", "idle", "finished"]
"""idle: left out of the watermark (W4). finished: bounded and read to its end (E1)."""


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """Where a split stands beside the batches."""

    split: SplitId
    next_position: Offset
    at_end: bool
    """The position has reached the end that the broker last reported, and the broker answered (W4)."""
    finished: bool
    """The split is bounded and read to its end (E1)."""
    more: bool = False
    """The broker has said lately that there is something behind the position, which may not be readable yet: no idleness lasts (W4)."""


class Noted(Protocol):
    """The part of a split's snapshot besides its position and its strategy."""

    @property
    def status(self) -> Status:
        """As it was told."""

    @property
    def away(self) -> bool:
        """The split came, or came back from idleness, behind the watermark that other splits may have given receivers."""

    @property
    def catch_up_ms(self) -> int | None:
        """The watermark that the split has to reach to be away no longer; None until the receivers have reported."""
