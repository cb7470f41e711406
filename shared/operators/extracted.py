"""Columns of undeclared fields: the paths that stages read, out of the rows' documents, and nothing else of them.

- X1 A column has its rows' types, nulls and missing fields as the documents have them. Rows that it cannot show (another type than most
  have, an array on the way or at the end of a path) are in doubt: the caller looks at their documents.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import documents, tags
from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.language.kernels.base import Bools, Column, Path, either
from tidemark.shared.language.kernels.cells import tagged_column, values_at
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.values import MISSING, Document
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.read_ahead import read_before

Int64s = npt.NDArray[np.int64]


def extracted(batch: pa.RecordBatch, paths: Iterable[Path]) -> dict[Path, Column]:
    """The values at these paths in RAW or REST of a batch; typed columns are not looked at."""
    wanted = sorted({path for path in paths if path})
    found, unsure = _cells(batch, wanted)
    if not found:
        return {path: Column("null", pa.nulls(batch.num_rows), missing=True, absent=True) for path in wanted}
    return {path: tagged_column(found[path], unsure) for path in wanted}


def fields_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[Document]:
    """One document a row with these fields of RAW or REST: values of the language."""
    found, unsure = _cells(batch, [(name,) for name in names])
    made: list[Document] = [{} for _ in range(batch.num_rows)]
    for (name,), cells in found.items():
        for document, value in zip(made, values_at(cells), strict=True):
            if value is not MISSING:
                document[name] = value
    for row in np.flatnonzero(unsure).tolist() if unsure is not None else ():
        whole = parse_json(batch.column(RAW)[row].as_py())
        made[row] = {name: whole[name] for name in names if name in whole}
    return made


def places_of(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, Int64s]:
    """Where each field stands in its row's document, -1 where it does not: numbers that are in the order of the row's fields."""
    found, unsure = _cells(batch, [(name,) for name in names])
    places = {name: np.where(cells.tags == tags.MISSING, -1, cells.begins) for (name,), cells in found.items()}
    for row in np.flatnonzero(unsure).tolist() if unsure is not None else ():
        order = list(parse_json(batch.column(RAW)[row].as_py()))
        for name, at in places.items():
            at[row] = order.index(name) if name in order else -1
    return places


def _cells(batch: pa.RecordBatch, paths: Sequence[Path]) -> tuple[Mapping[Path, Tagged], Bools | None]:
    """The documents' values, by path, and the rows of which the reader is not sure; no paths where there are no documents."""
    if not paths or not batch.num_rows:
        return {}, None
    if RAW in batch.schema.names:
        before = read_before(batch, paths)
        if len(before) == len(paths):
            return before, None
        found = documents.read(batch.column(RAW), [path for path in paths if path not in before], trusted=True)
        return {**found.columns, **before}, either(~found.sure)
    return (documents.read_packed(batch.column(REST), paths) if REST in batch.schema.names else {}), None
