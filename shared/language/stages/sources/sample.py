"""`$source` of Atlas' sample stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from tidemark.shared.language.kinds import STRING, Option
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind

SAMPLE_CONNECTION: Final = "sample_stream_solar"
"""A connection that every installation has: the sample stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource(SourceBase):
    """Readings of solar panels, made up: one split that never ends, whose records are a function of their positions."""

    one_task: ClassVar[bool] = True
    connection_name: str

    @property
    def bounded(self) -> bool:
        """It never ends."""
        return False

    def needs(self) -> Iterator[ConnectionNeed]:
        """A connection of its own."""
        if self.connection_name != SAMPLE_CONNECTION:
            yield ConnectionNeed(self.connection_name, ("sample",), self.path)


_OPTIONS: Final = (
    Option("connectionName", STRING, "sample_stream_solar, or a connection of type sample", required=True),
    *TIMING,
)
KIND: Final = SourceKind(SampleSource, _OPTIONS)
