"""In which order the fields of a batch's documents stand, where columns go beside texts (batches, B1, B2).

A row's document has the fields of its text in their places, then those of columns that the text does not have, in the order of the columns.
One order of columns is that of all rows. So a row whose document would have another one is encoded (`moves`, and None of `document_order`).
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.operators.batches import empty_of, is_tagged, user_columns
from tidemark.shared.operators.extracted import places_of

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]
_BEHIND: Final = 1 << 40
"""Above each place in a text: of fields that are columns alone."""


def document_order(batch: pa.RecordBatch, kept: Sequence[str], computed: Sequence[str]) -> list[str] | None:
    """Names in the order in which documents have them behind a stage; None where they may have them in different ones.

    kept: fields that stay where a document has them. computed: those that come behind these, some of the kept ones where it has none.
    """
    if len(kept) < 2 and not set(kept).intersection(computed):  # noqa: PLR2004 - nothing to order
        return [*kept, *computed]
    user = user_columns(batch)
    stand = {name: _places(batch, user, name, inside) for name, inside in _inside(batch, kept).items()}
    for nth, name in enumerate(computed):
        there = stand.get(name, np.full(batch.num_rows, -1, np.int64))
        stand[name] = np.where(there < 0, 2 * _BEHIND + nth, there)
    ordered = sorted(stand, key=lambda name: _first(stand[name]))
    highest = np.full(batch.num_rows, -1, dtype=np.int64)
    for name in ordered:
        if bool(((stand[name] >= 0) & (stand[name] < highest)).any()):
            return None
        highest = np.maximum(highest, stand[name])
    return ordered


def moves(batch: pa.RecordBatch, new: Mapping[str, tuple[pa.Field, pa.Array]]) -> bool:
    """Whether a row that has lost a field gets it at another place than last, if these columns replace those of their names, one by one."""
    user = user_columns(batch)
    order = [*user, *(name for name in new if name not in user)]
    given: dict[str, Bools] = {}
    for name, (field, cells) in new.items():
        there = _there(field, cells)
        if name in user and (lost := _lost(batch, name) & there).any():
            inside = _inside(batch, [name])[name]
            later = [n for n in user[user.index(name) + 1 :] if n not in given]
            stand = [_places(batch, user, n, place) >= _BEHIND for n, place in _inside(batch, later).items()]
            before = [n for n in given if order.index(n) > order.index(name)]
            stand += [given[n] & (place < 0) for n, place in _inside(batch, before).items()]
            if (inside[lost] >= 0).any() or any(rows[lost].any() for rows in stand):
                return True
        given[name] = there
    return False


def _inside(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, Int64s]:
    """Where the fields stand in the texts of the rows, -1 for nowhere."""
    found = places_of(batch, names)
    return {n: found[n].astype(np.int64) if n in found else np.full(batch.num_rows, -1, np.int64) for n in names}


def _places(batch: pa.RecordBatch, user: Sequence[str], name: str, inside: Int64s) -> Int64s:
    """Where a field stands in each row: in the text, or behind it as its column does; -1 for nowhere."""
    if name not in user:
        return inside
    places: Int64s = np.where(inside >= 0, inside, _BEHIND + user.index(name))
    places[_lost(batch, name)] = -1
    return places


def _lost(batch: pa.RecordBatch, name: str) -> Bools:
    """The rows that have no field of a column's name."""
    field, cells = batch.schema.field(name), batch.column(name)
    if empty_of(field) is not None or is_tagged(field) or not cells.null_count:
        return ~_there(field, cells)
    nulls: Bools = cells.is_null().to_numpy(zero_copy_only=False)
    return nulls & (_inside(batch, [name])[name] < 0)


def _there(field: pa.Field, cells: pa.Array) -> Bools:
    """The rows for which a column has a value, null included."""
    if is_tagged(field) or empty_of(field) == "missing":
        return np.asarray(cells.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return np.ones(len(cells), np.bool_)


def _first(places: Int64s) -> tuple[bool, int]:
    """Where the field stands in the first document that has it; those that none has come last."""
    there = np.flatnonzero(places >= 0)
    return (not len(there), int(places[there[0]]) if len(there) else 0)
