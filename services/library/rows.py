"""Rows of the caller's as documents: mappings, a data frame, or a table of Arrow's.

In tables an empty cell is a missing field, as in files of Parquet and CSV: null, and of pandas whatever it takes for missing (None,
NaN, NaT, NA). Mappings have what they say.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from tidemark.services.library.documents import to_language
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.shared.language.values import ExtendedJsonError, from_json, parse_json
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.model.values import Date, Document

if TYPE_CHECKING:
    import pandas as pd

    Rows: TypeAlias = Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch | pd.DataFrame

_EXPECTED: Final = "expected mappings, a data frame, or a table of Arrow's"


class NoRow(ValueError):
    """Rows that are no documents: the place, and why."""


def documents_of(rows: "Rows") -> list[Document]:
    """A document a row. NoRow; TypeError for what is no rows, or a value without a type of the language."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        given: Iterable[Any] = _of_frame(rows)
    elif isinstance(rows, pa.RecordBatch) or (hasattr(rows, "__arrow_c_stream__") and not _is_series(rows)):
        return _of_arrow(rows)
    elif isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise TypeError(f"rows: {_EXPECTED}, found {type(rows).__name__}")
    else:
        given = rows
    return [_document(row, f"rows[{number}]") for number, row in enumerate(given)]


def _is_series(rows: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(rows, pandas.Series)


def _document(row: object, place: str) -> Document:
    try:
        found = from_json(to_language(row, place))
    except ValueError as error:
        said = str(error)
        raise NoRow(said if said.startswith(place) else f"{place}: {said}") from None
    except RecursionError:
        raise NoRow(f"{place}: deeper than {DEPTH_MAX} levels, or within itself") from None
    if type(found) is not dict:
        raise NoRow(f"{place}: expected a document, found {type(found).__name__}")
    return found


def _different(names: Sequence[str]) -> Sequence[str]:
    """The names of columns. NoRow where two are the same: one of them would be lost."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise NoRow(f"rows: two columns have the name {twice[0]!r}")
    return names


def _of_arrow(rows: object) -> list[Document]:
    try:
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else pa.table(rows)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise TypeError(f"rows: {_EXPECTED}, found {type(rows).__name__}: {error}") from None
    _different(table.column_names)
    if not table.column_names:
        return [{} for _ in range(table.num_rows)]
    try:
        texts = [text for batch in table.to_batches() for text in texts_of(batch)]
    except TypeError as error:
        raise TypeError(f"rows: {error}") from None
    return [_read(text, f"rows[{number}]") for number, text in enumerate(texts)]


def _read(text: bytes, place: str) -> Document:
    try:
        found: Document = parse_json(text)
    except ExtendedJsonError as error:
        raise NoRow(f"{place}: {error}") from None
    return found


def _of_frame(frame: "pd.DataFrame") -> Iterable[dict[str, Any]]:
    names = _different([str(name) for name in frame.columns])
    columns = [frame.iloc[:, place] for place in range(len(names))]
    there = [column.notna().tolist() for column in columns]
    cells = [_cells(column) for column in columns]
    for row in range(len(frame)):
        yield {name: cells[at][row] for at, name in enumerate(names) if there[at][row]}


def _cells(column: "pd.Series[Any]") -> list[Any]:
    """Of columns of times, milliseconds: Python has no years behind 9999."""
    if column.dtype.kind != "M":
        return list(column.tolist())
    at = column.dt.tz_convert(None) if column.dt.tz is not None else column
    return [Date(ms) for ms in at.astype("datetime64[ms]").astype("int64").tolist()]
