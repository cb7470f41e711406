"""Documents onto a shelf."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.plugins import Document, Overtaken, Sink, to_json
from tidemark_shelf.file import Place, ShelfFile


@dataclass(frozen=True)
class Onto:
    """The config of the stage."""

    shelf: str
    needs: str = ""
    """A field that each document has to have; documents without it are refused."""


class ShelfSink(Sink[Onto, Place]):
    """Documents and marker in one transaction of SQLite."""

    api = 1
    Config = Onto
    Settings = Place
    _file: ShelfFile | None = None

    def open(self) -> None:
        """See `Plugin.open`."""
        self._file = ShelfFile(self.settings)

    def marker(self, identity: str) -> bytes | None:
        """See `Sink.marker`."""
        with self._opened.read() as db:
            found = db.execute("SELECT marker FROM markers WHERE identity = ?", (identity,)).fetchone()
        return None if found is None else bytes(found[0])

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        """See `Sink.write`: nobody else writes between the look at the marker and the commit."""
        now_ms = time.time_ns() // 1_000_000
        rows = [(self.config.shelf, now_ms, json.dumps(to_json(each))) for each in documents]
        with self._opened.changed() as db:
            found = db.execute("SELECT marker FROM markers WHERE identity = ?", (identity,)).fetchone()
            if (None if found is None else bytes(found[0])) != after:
                raise Overtaken
            db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)", rows)
            db.execute("INSERT OR REPLACE INTO markers VALUES (?, ?)", (identity, marker))

    def refused(self, documents: Sequence[Document]) -> Mapping[int, str]:
        """See `Sink.refused`."""
        needs = self.config.needs
        return {n: f"has no field {needs}" for n, each in enumerate(documents) if needs and needs not in each}

    def close(self) -> None:
        """See `Plugin.close`."""
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> ShelfFile:
        assert self._file is not None, "Tidemark opens it first"
        return self._file
