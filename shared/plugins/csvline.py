"""CSV as a format of records: `format: {csv: …}` of a topic. It has the interface of other packages' formats."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.shared.language.csv_cells import text_of, value_of
from tidemark.shared.model.values import Document
from tidemark.shared.plugins.interface import Format

_END: Final = "\r\n"


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """The layout of a line."""

    fields: list[str]
    """The names of its cells."""
    delimiter: str = ","
    types: Mapping[str, str] = field(default_factory=dict)
    """Declared types of fields that are read; the others are texts."""


class CsvLine(Format[CsvLayout]):
    """A record is a line without a header. An empty cell is a missing field, and so are those behind a short line."""

    Config = CsvLayout
    api = 1

    def decode(self, data: bytes) -> Document:
        """See `Format.decode`."""
        text = data.decode("utf-8")
        # The library's own bound of a cell is the process'; a record has one already.
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.config.delimiter, strict=True)
            lines = [cells for cells in reader if cells]
        except csv.Error as error:
            raise ValueError(f"its quotes are no CSV: {error}") from error
        if len(lines) != 1:
            raise ValueError(f"expected one line, found {len(lines)}")
        names, cells = self.config.fields, lines[0]
        if len(cells) > len(names):
            raise ValueError(f"it has {len(cells)} cells, but csv.fields names {len(names)}")
        types = self.config.types
        return {name: value_of(cell, types.get(name)) for name, cell in zip(names, cells, strict=False) if cell}

    def encode(self, document: Document) -> bytes:
        """See `Format.encode`."""
        names = self.config.fields
        if others := sorted(set(document).difference(names)):
            raise ValueError(
                f"no cell for the field {others[0]!r}: name it in csv.fields, or leave it out by a $project"
            )
        out = io.StringIO(newline="")
        # The end of a line tells the library which characters need quotes.
        csv.writer(out, lineterminator=_END, delimiter=self.config.delimiter).writerow(
            [text_of(document.get(name)) for name in names]
        )
        return out.getvalue().removesuffix(_END).encode()
