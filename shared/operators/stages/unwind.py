"""`$unwind`."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled.values import at
from tidemark.shared.language.stages import Unwind
from tidemark.shared.language.values import encode_value
from tidemark.shared.operators import inside
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import TAGGED_FIELD, column_field
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.frame import Frame
from tidemark.shared.operators.pieces import ranges, row_bytes
from tidemark.shared.operators.staged import Staged, of_field, replaced
from tidemark.shared.operators.stages.counting import numbered
from tidemark.shared.operators.whole_windows import ranks

_COPIES: Final = 8
"""So many copies of a document cost less than to write it without its array."""


def unwind(stage: Unwind, staged: Staged, context: TaskContext, most: int | None) -> Iterator[pa.RecordBatch]:
    """Rows as often as the array has items, without a large array; only fields that change are looked at. One piece at the least."""
    batch = staged.batch
    top, within = stage.names[0], stage.names[1:]
    index_path = stage.include_array_index or ()
    names = stage.named()
    frame = Frame(batch, names, context.topic)
    frame.prepare((name,) for name in names)
    fields = {name: of_field(name, frame, staged) for name in sorted(names)}
    arrays = at(fields[top], *within)
    rows, items, indices = inside.unwound(arrays, keep_empty=stage.preserve_null_and_empty_arrays)
    ordinals = ranks(rows) if stage.counted else None
    if within:
        fields[top] = inside.put(fields[top], within, inside.emptied(arrays))
    else:
        fields[top] = pa.nulls(batch.num_rows, pa.binary())
    sizes = row_bytes(batch)
    if int(sizes[rows].sum()) > _COPIES * int(sizes.sum()):
        batch = _without_value(batch, top)
        sizes = row_bytes(batch)
    sizes += sum(pc.binary_length(cells).fill_null(0).to_numpy() for cells in fields.values())
    for begin, end in [(0, len(rows))] if most is None else ranges(sizes[rows], most) or [(0, 0)]:
        places = pa.array(rows[begin:end])
        own = {name: cells.take(places) for name, cells in fields.items()}
        own[top] = inside.put(own[top], within, items.slice(begin, end - begin))
        if index_path:
            numbers = indices.slice(begin, end - begin)
            cells = encoded_cells(numbers, column_field(numbers.type, empty="null"))
            own[index_path[0]] = inside.put(own[index_path[0]], index_path[1:], cells)
        staged.batch = batch.take(places)
        if ordinals is not None:
            staged.batch = numbered(staged.batch, ordinals[begin:end])
        replaced(staged, {name: (TAGGED_FIELD.with_name(name), cells) for name, cells in own.items()})
        yield staged.batch


def _without_value(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The batch with null as the value of a field, which keeps its place in the documents."""
    null = pa.repeat(pa.scalar(encode_value(None), pa.binary()), batch.num_rows)
    at = batch.schema.get_field_index(name)
    if at >= 0:
        batch = batch.set_column(at, TAGGED_FIELD.with_name(name), null)
    kept = next((engine for engine in (REST, RAW) if engine in batch.schema.names), None)
    if kept is None:
        return batch
    documents = pa.RecordBatch.from_arrays(
        [batch.column(kept), null], schema=pa.schema([batch.schema.field(kept), TAGGED_FIELD.with_name(name)])
    )
    at = batch.schema.get_field_index(kept)
    return batch.set_column(at, REST, encoded(documents))
