"""Rows as JSON, by compiled code: byte for byte what `written` makes of each document."""

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import rendering
from tidemark.shared.language.stages import DateFormat, OutputFormat
from tidemark.shared.language.values import written
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.encoded import Overlay, with_others

_GROWTH: Final = 8
"""How many times as long as in the codec, or in another JSON, a value's JSON may be: of control characters, and of dates as numbers."""
_CANONICAL_GROWTH: Final = 24
"""The same, where each number has its type beside it."""
_FORMS: Final = {"relaxedJson": rendering.RELAXED, "canonicalJson": rendering.CANONICAL, "basicJson": rendering.BASIC}
_CELL_BYTES: Final = 64
"""A number, a date, or a bracket, a comma and a colon."""


def rendered(
    batch: pa.RecordBatch, output_format: OutputFormat = "relaxedJson", date_format: DateFormat = "default"
) -> pa.BinaryArray:
    """The JSON of each row's document, shape (n,)."""
    form = _FORMS[output_format] | (rendering.ISO if date_format == "ISO8601" else 0)
    growth = _CANONICAL_GROWTH if form & rendering.CANONICAL else _GROWTH
    overlay, count = Overlay.of(batch, lambda name: msgspec.json.encode(name) + b":"), batch.num_rows
    room = overlay.room(growth, _CELL_BYTES) + _CELL_BYTES
    out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    size = rendering.render(
        form, overlay.text, overlay.bounds, overlay.encoded, *overlay.names, overlay.kinds, overlay.numbers,
        overlay.begins, overlay.ends, overlay.data, out, offsets, sure, *overlay.room_to_work(),
    )  # fmt: skip
    out.resize(size, refcheck=False)
    return with_others(
        offsets,
        out,
        sure,
        batch,
        lambda rows: [written(each, output_format, date_format) for each in documents_of(rows)],
    )
