"""Documents of a shelf, found by their fields."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.plugins import Found, Lookup, Value, from_json
from tidemark_shelf.file import Place, ShelfFile


@dataclass(frozen=True)
class On:
    """The config of the stage."""

    shelf: str


class ShelfLookup(Lookup[On, Place]):
    """SQLite narrows by one top-level field, where all that is wanted of it is text; the number of a document is its place."""

    api = 1
    Config = On
    Settings = Place
    _file: ShelfFile | None = None

    def open(self) -> None:
        """See `Plugin.open`."""
        self._file = ShelfFile(self.settings)

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        """See `Lookup.find`: more may come than is wanted, so what SQLite compares otherwise is left out of its question."""
        query, values = "SELECT n, document FROM documents WHERE shelf = ?", [self.config.shelf]
        for number, field in enumerate(fields):
            asked = [one[number] for one in wanted]
            if field.isidentifier() and all(isinstance(each, str) and each.isprintable() for each in asked):
                query += (
                    " AND EXISTS (SELECT 1 FROM json_each(document, ?) WHERE value IN (SELECT value FROM json_each(?)))"
                )
                values += [f"$.{field}", json.dumps(asked)]
                break
        assert self._file is not None, "Tidemark opens it first"
        with self._file.read() as db:
            return [Found(n, from_json(json.loads(document))) for n, document in db.execute(query, values)]

    def close(self) -> None:
        """See `Plugin.close`."""
        if self._file is not None:
            self._file.close()
