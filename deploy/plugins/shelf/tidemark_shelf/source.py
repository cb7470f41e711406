"""Documents from all shelves."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.plugins import Batch, Record, Source, Split
from tidemark_shelf.file import Place, ShelfFile

_ROWS_MAX = 1_000
"""Of one read."""


@dataclass(frozen=True)
class From:
    """The config of the stage."""

    follow: bool = True
    """Go on when all is read: more may come."""


class ShelfSource(Source[From, Place]):
    """A shelf is a split, and the number of a document its position: SQLite has one writer at a time, so numbers come in their order."""

    api = 1
    Config = From
    Settings = Place
    _file: ShelfFile | None = None

    @property
    def bounded(self) -> bool:
        """See `Source.bounded`."""
        return not self.config.follow

    def open(self) -> None:
        """See `Plugin.open`."""
        self._file = ShelfFile(self.settings)

    def splits(self) -> Sequence[Split]:
        """See `Source.splits`: the number of its first document is a shelf's own, and stays."""
        with self._opened.read() as db:
            (origin,) = db.execute("SELECT id FROM file").fetchone()
            found = db.execute("SELECT shelf, min(n) FROM documents GROUP BY shelf").fetchall()
        return [Split(shelf, ordinal, origin) for shelf, ordinal in found]

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        """See `Source.read`."""
        records: list[Record] = []
        size = 0
        with self._opened.read() as db:
            rows = db.execute(
                "SELECT n, added_ms, document FROM documents WHERE shelf = ? AND n >= ? ORDER BY n LIMIT ?",
                (split, position, _ROWS_MAX),
            )
            for number, added_ms, document in rows:
                records.append(Record(number, document.encode(), added_ms))
                size += len(document)
                if size >= max_bytes:
                    break
        if records:
            return Batch(records, records[-1].position + 1)
        return Batch((), position, "nothing yet" if self.config.follow else "nothing")

    def end(self, split: str) -> int:
        """See `Source.end`."""
        with self._opened.read() as db:
            (last,) = db.execute("SELECT max(n) FROM documents WHERE shelf = ?", (split,)).fetchone()
        return 0 if last is None else int(last) + 1

    def close(self) -> None:
        """See `Plugin.close`."""
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> ShelfFile:
        assert self._file is not None, "Tidemark opens it first"
        return self._file
