"""Columns of what nobody declared: the paths that an expression reads, out of the rows' documents.

Where most rows have values of one type at a path, or nothing, they become a column that the language's kernels take; the other rows are
doubtful, and whoever asks looks at their documents one by one.

- X1 A column says of its rows what the document says: types, nulls, and fields that are missing. Rows of which it could not (another
  type, an array on the way or at the end of a path) are doubtful.
- X2 With a typed column of the same name nothing is taken out: the column speaks for its field (B2).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.compiled import documents, tags
from shared.compiled.columns import TAGS, Tagged
from shared.language.kernels.base import ARROW, Column, ColumnType, Path
from shared.operators.base import RAW, REST
from shared.operators.batches import user_columns

Bools: TypeAlias = npt.NDArray[np.bool_]
DOUBTFUL_MOST: Final = 0.5
"""With a larger part of doubtful rows the columns are not worth it."""
_TYPES: Final[Mapping[int, ColumnType]] = {**{tag: kind for kind, tag in TAGS.items()}, tags.OBJECT: "object"}


@dataclass(frozen=True, slots=True)
class Extracted:
    """Columns by path, and which rows they do not speak for; cells of those are null."""

    columns: Mapping[Path, Column]
    doubtful: Bools
    """Shape (n,)."""


def extracted(batch: pa.RecordBatch, paths: Iterable[Path], *, exact: bool = False) -> Extracted | None:
    """What the documents of a batch have at these paths; None where only the documents can tell.

    exact: a column has either nulls or missing fields, not both; rows of the rarer kind are doubtful.
    """
    known = user_columns(batch)
    wanted = sorted({path for path in paths if path and path[0] not in known})
    doubtful: Bools = np.zeros(batch.num_rows, dtype=np.bool_)
    if not wanted or not batch.num_rows:
        return Extracted({}, doubtful)
    columns: dict[Path, Column] = {}
    found = _cells(batch, wanted, doubtful)
    for path in wanted:
        made = _column(found[path], doubtful, exact=exact) if found else _nothing(batch.num_rows)
        if made is None:
            return None
        columns[path] = made
    return None if doubtful.sum() > DOUBTFUL_MOST * len(doubtful) else Extracted(columns, doubtful)


def beside(batch: pa.RecordBatch, names: Iterable[str]) -> tuple[pa.RecordBatch, Bools]:
    """The batch with columns of these fields beside its documents, and the rows of which they do not speak, shape (n,)."""
    found = extracted(batch, [(name,) for name in names])
    if found is None:
        return batch, np.zeros(batch.num_rows, dtype=np.bool_)
    for (name, *_), column in found.columns.items():
        if column.type in ARROW and column.type != "null":
            batch = batch.append_column(name, column.values)
    return batch, found.doubtful


def _cells(batch: pa.RecordBatch, paths: list[Path], doubtful: Bools) -> Mapping[Path, Tagged]:
    """What the documents have, by path; nothing where there are none. Records that the reader is not sure of are noted as doubtful."""
    if RAW in batch.schema.names:
        found = documents.read(batch.column(RAW), paths, trusted=True)
        doubtful |= ~found.sure
        return found.columns
    return documents.read_packed(batch.column(REST), paths) if REST in batch.schema.names else {}


def _nothing(count: int) -> Column:
    return Column("null", pa.nulls(count), missing=True, absent=True)


def _column(cells: Tagged, doubtful: Bools, *, exact: bool) -> Column | None:
    """The column of one path; rows of which it does not speak are noted. None where it could be none of anything."""
    counts = cells.counts
    tag = max(_TYPES, key=lambda each: int(counts[each]))
    if not counts[tag]:
        if not cells.all(tags.MISSING, tags.NULL):
            return None
        missing, absent = _emptiness(cells, doubtful, exact=exact)
        return Column("null", pa.nulls(len(cells)), missing=missing, absent=absent)
    if not cells.all(tag, tags.MISSING, tags.NULL):
        doubtful |= ~np.isin(cells.tags, (tag, tags.MISSING, tags.NULL))
    missing, absent = _emptiness(cells, doubtful, exact=exact)
    kind = _TYPES[tag]
    if kind == "object":
        there = cells.tags == tag
        return Column(kind, pa.array(there, pa.bool_(), mask=~there), missing=missing, absent=absent)
    return Column(kind, cells.of(kind), missing=missing, absent=absent)  # type: ignore[arg-type]  # neither null nor object


def _emptiness(cells: Tagged, doubtful: Bools, *, exact: bool) -> tuple[bool, bool]:
    """(whether nulls may be missing fields, whether all are); with `exact` rows of the rarer kind become doubtful."""
    gone, nulls = int(cells.counts[tags.MISSING]), int(cells.counts[tags.NULL])
    if not (gone and nulls and exact):
        return gone > 0, gone > 0 and nulls == 0
    more = gone > nulls
    doubtful |= cells.tags == (tags.NULL if more else tags.MISSING)
    return more, more


def of_rows(columns: Mapping[Path, Column], mask: pa.BooleanArray) -> dict[Path, Column]:
    """The columns of some rows."""
    return {path: replace(column, values=column.values.filter(mask)) for path, column in columns.items()}
