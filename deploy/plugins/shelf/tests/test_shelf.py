"""The contract of sources and sinks, kept by the shelf."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tidemark_shelf import Labels, Quiet, ShelfLookup, ShelfSink, ShelfSource
from tidemark_shelf.file import Place, ShelfFile

from tidemark.plugins import Date, Document, to_json
from tidemark.testing import ComputationContract, FormatContract, LookupContract, SinkContract, SourceContract

Given = tuple[dict[str, Any], dict[str, Any]]


class TestSink(SinkContract):
    """Documents onto one shelf."""

    plugin = ShelfSink

    def given(self, folder: Path) -> Given:
        """A file that is made with the first look at it."""
        return {"shelf": "out"}, {"file": str(folder / "shelf.db")}

    def visible(self, folder: Path) -> Sequence[int]:
        """Those of the shelf, with a connection of its own."""
        if not (folder / "shelf.db").exists():
            return []
        with closing(sqlite3.connect(folder / "shelf.db")) as db:
            rows = db.execute("SELECT document FROM documents WHERE shelf = 'out'").fetchall()
        return [json.loads(document)["id"] for (document,) in rows]


class TestSource(SourceContract):
    """Shelves that grow."""

    plugin = ShelfSource
    follow = True

    def given(self, folder: Path) -> Given:
        """All shelves of a file."""
        return {"follow": self.follow}, {"file": str(folder / "shelf.db")}

    def add(self, folder: Path, split: int, numbers: Sequence[int]) -> None:
        """As any writer would, in one transaction."""
        source = ShelfSource(ShelfSource.Config(), ShelfSource.Settings(str(folder / "shelf.db")))
        source.open()
        source.close()
        with closing(sqlite3.connect(folder / "shelf.db")) as db, db:
            db.executemany(
                "INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)",
                [(f"in-{9 - split}", 1_000 * number, json.dumps({"n": number})) for number in numbers],
            )


class TestSourceThatEnds(TestSource):
    """Shelves as they are."""

    follow = False


class TestLookup(LookupContract):
    """Documents of one shelf, beside those of another."""

    plugin = ShelfLookup
    documents = (
        {"id": 1, "place": "Köln", "tags": ["a", "b"], "deep": {"er": "x"}},
        {"id": 2.0, "place": None, "tags": "b", "since": Date(0)},
        {"id": "2", "place": "it's", "tags": [], "deep": [{"er": "x"}, {"er": 3}]},
        {"id": True, "tags": [["a"], 1.5]},
    )
    fields = ("id", "place", "tags", "since", "deep.er", "nowhere")

    def given(self, folder: Path) -> Given:
        """A file that is made with the first look at it."""
        return {"shelf": "in"}, {"file": str(folder / "shelf.db")}

    def fill(self, folder: Path, documents: Sequence[Document]) -> None:
        """As any writer would."""
        file = ShelfFile(Place(str(folder / "shelf.db")))
        with file.changed() as db:
            rows = [(shelf, json.dumps(to_json(each))) for each in documents for shelf in ("other", "in")]
            db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, 0, ?)", rows)
        file.close()


class TestLabels(FormatContract):
    """Texts."""

    plugin = Labels
    documents = ({}, {"id": "7"}, {"id": "7", "place": "Köln", "": ""})


class TestQuiet(ComputationContract):
    """Two authors, out of order; one is quiet twice."""

    plugin = Quiet
    key = "author"
    config = {"after_ms": 10}  # noqa: RUF012 - the contract's
    records = tuple(
        ({"author": author, "n": n}, at)
        for n, (author, at) in enumerate([("a", 3), ("b", 1), ("a", 2), ("a", 20), ("b", 9)])
    )
