"""Session windows: per key, [first, last + gap); two merge when one begins before the other ends (`t < last + gap`).

Rows and partials alike are intervals of a key. Sorted by start, an interval opens a new session where it begins at or
behind the end of everything before it; so a union of intervals does not depend on the order in which they came or were merged.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.stages import SessionWindow
from tidemark.shared.language.values import encode_value
from tidemark.shared.operators.base import WEND, WSTART, Out
from tidemark.shared.operators.batches import column_field, int64s, select, with_column
from tidemark.shared.operators.cells import canonical_cells, encoded_cells
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.event_time import rows_of
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.window_plan import SESSION, SESSION_KEY

Int64s = npt.NDArray[np.int64]
INTERVALS: Final = (SESSION, WSTART, WEND)
INTERVALS_SCHEMA: Final = pa.schema([(SESSION, pa.binary()), (WSTART, pa.int64()), (WEND, pa.int64())])


def components(keys: Int64s, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Start and end of the session that each interval belongs to; shape (n,) each. `keys` are codes of the sessions' keys."""
    n = len(keys)
    if n == 0:
        return starts, ends
    order = np.lexsort((starts, keys))
    k, s, e = keys[order], starts[order], ends[order]
    reach = np.empty(n, dtype=np.int64)
    first = np.concatenate(([True], k[1:] != k[:-1]))
    bounds = np.flatnonzero(first).tolist()
    for begin, end in zip(bounds, [*bounds[1:], n], strict=True):
        reach[begin:end] = np.maximum.accumulate(e[begin:end])
    opens = first | (s >= np.concatenate(([0], reach[:-1])))
    number = np.cumsum(opens) - 1
    heads = np.flatnonzero(opens)
    tails = np.concatenate((heads[1:], [n])) - 1
    out_starts, out_ends = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    out_starts[order], out_ends[order] = s[heads][number], reach[tails][number]
    return out_starts, out_ends


def assign_sessions(table: pa.Table) -> pa.Table:
    """Each interval (WSTART, WEND) of a key widened to its session's.

    A session shows the key of its earliest row: keys that are equal need not look alike (1 and 1.0).
    """
    codes, starts, ends = codes_of(table.column(SESSION)), int64s(table.column(WSTART)), int64s(table.column(WEND))
    wide_starts, wide_ends = components(codes, starts, ends)
    table = table.set_column(table.column_names.index(WSTART), WSTART, pa.array(wide_starts))
    table = table.set_column(table.column_names.index(WEND), WEND, pa.array(wide_ends))
    shown = table.column(SESSION_KEY).combine_chunks()
    looks = codes_of(shown)
    if not looks.any():
        return table
    # By session, then by the row's own start; equal starts by bytes, which any order of merging agrees on.
    values = shown.dictionary_encode().dictionary.to_pylist()
    rank = np.empty(len(values), dtype=np.int64)
    rank[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values))
    order = np.lexsort((rank[looks], starts, wide_starts, codes))
    new = np.concatenate(
        ([True], (codes[order][1:] != codes[order][:-1]) | (wide_starts[order][1:] != wide_starts[order][:-1]))
    )
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1]
    return table.set_column(table.column_names.index(SESSION_KEY), SESSION_KEY, shown.take(pa.array(first)))


def codes_of(column: pa.ChunkedArray | pa.Array) -> Int64s:
    """Equal bytes, equal code; shape (n,)."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    codes: Int64s = whole.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def intervals(tables: Iterable[pa.Table | pa.RecordBatch]) -> pa.Table:
    """The open sessions of these, without their rows: SESSION, WSTART, WEND."""
    parts = [pa.table({name: t.column(name) for name in INTERVALS}, schema=INTERVALS_SCHEMA) for t in tables]
    return pa.concat_tables(parts) if parts else INTERVALS_SCHEMA.empty_table()


def sessions_of(batch: pa.RecordBatch, times_ms: Int64s, gap_ms: int, open_: pa.Table) -> tuple[Int64s, Int64s]:
    """The session that each row belongs to, after merging with those open and with each other: starts and ends, ms, shape (n,)."""
    keys = pa.chunked_array([*open_.column(SESSION).chunks, batch.column(SESSION)], type=pa.binary())
    starts = np.concatenate((int64s(open_.column(WSTART)), times_ms))
    ends = np.concatenate((int64s(open_.column(WEND)), times_ms + gap_ms))
    wide_starts, wide_ends = components(codes_of(keys), starts, ends)
    return wide_starts[open_.num_rows :], wide_ends[open_.num_rows :]


def keyed(stage: SessionWindow, batch: pa.RecordBatch, context: TaskContext) -> tuple[pa.RecordBatch, list[Out]]:
    """Rows with SESSION and SESSION_KEY; a row on which `partitionBy` fails becomes a dead letter; a missing key is null's."""
    if stage.partition_by is None:
        return _keyed_by(column_field(pa.null(), empty="null"), pa.nulls(batch.num_rows), batch), []
    found = evaluated(stage.partition_by, batch, context.topic)
    array, failures = found.array, found.failures("")
    letters = dead_letters(batch, failures, stage.name, context)
    if failures:
        good = ~rows_of(failures, batch.num_rows)
        batch, array = select(batch, good), array.filter(pa.array(good))
    return _keyed_by(found.field, array, batch), letters


def _keyed_by(named: pa.Field, cells: pa.Array, batch: pa.RecordBatch) -> pa.RecordBatch:
    """SESSION and SESSION_KEY of keys that are a column; a missing key is null's."""
    values = encoded_cells(cells, named).fill_null(encode_value(None))
    coded = values.dictionary_encode()
    batch = with_column(batch, SESSION, canonical_cells(coded.dictionary).take(coded.indices))
    return with_column(batch, SESSION_KEY, values)
