"""What all stages share."""

from dataclasses import dataclass
from typing import Final, Literal

Boundary = Literal["eventTime", "processingTime"]
UNITS_MS: Final = {"ms": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""The units of durations in a document; all of fixed length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBase:
    """`path` is the stage's place in the document, e.g. `pipeline[2].$tumblingWindow`: in errors, dead letters and plans."""

    path: str

    @property
    def name(self) -> str:
        """The stage's operator, e.g. `$match`."""
        return self.path.rpartition(".")[2]
