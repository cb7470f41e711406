"""`$source` of changes of PostgreSQL's tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from tidemark.shared.language.kinds import BOOLEAN, STRING, Option, closed, integer
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSource(SourceBase):
    """Changes of PostgreSQL's tables, as a logical replication slot keeps them: one split that never ends."""

    one_task: ClassVar[bool] = True
    connection_name: str
    publication: str
    slot: str
    initial_sync: bool = False
    """The tables' rows come first, if there is no state."""

    @property
    def bounded(self) -> bool:
        """It never ends."""
        return False

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection to the database."""
        yield ConnectionNeed(self.connection_name, ("sql",), self.path)


_SYNC: Final = closed(
    Option("enable", BOOLEAN, "rows that are there come first, as inserts (default false)", into="initial_sync"),
    Option("parallelism", integer(1), "accepted and without effect: rows are read in the order of keys", into=None),
)
_OPTIONS: Final = (
    Option("connectionName", STRING, "the connection to PostgreSQL, of type sql", required=True),
    Option("publication", STRING, "the publication: which tables, rows and columns", required=True),
    Option(
        "slot", STRING, "the replication slot (pgoutput), which this source alone reads and advances", required=True
    ),
    Option("initialSync", _SYNC, "whether a start without state reads the tables' rows before their changes"),
    *TIMING,
)
KIND: Final = SourceKind(ChangesSource, _OPTIONS)
