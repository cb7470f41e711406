"""Rows as relaxed extended JSON, by compiled code: byte for byte the output of `render_json` for each document."""

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import rendering
from tidemark.shared.language.values import render_json
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.encoded import Overlay, with_others

_GROWTH: Final = 8
"""How many times as long as in the codec, or in another JSON, a value's JSON may be: of control characters, and of dates as numbers."""
_CELL_BYTES: Final = 64
"""A number, a date, or a bracket, a comma and a colon."""


def rendered(batch: pa.RecordBatch) -> pa.BinaryArray:
    """The JSON of each row's document, shape (n,)."""
    overlay, count = Overlay.of(batch, lambda name: msgspec.json.encode(name) + b":"), batch.num_rows
    room = overlay.room(_GROWTH, _CELL_BYTES) + _CELL_BYTES
    out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    size = rendering.render(
        overlay.text, overlay.bounds, overlay.encoded, overlay.names, overlay.name_ends, overlay.kinds, overlay.numbers,
        overlay.begins, overlay.ends, overlay.data, out, offsets, sure, *rendering.room_to_work(len(overlay.name_ends)),
    )  # fmt: skip
    out.resize(size, refcheck=False)
    return with_others(offsets, out, sure, batch, lambda rows: [render_json(each) for each in documents_of(rows)])
