"""Documents of declared fields as relaxed extended JSON, a column at a time: byte for byte what `render_json` gives for each.

None where that cannot be: fields that may be missing, texts that need escapes, what is nested or undeclared. Then each is rendered alone.
"""

import json
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.values import render_json
from shared.operators.base import RAW, REST
from shared.operators.batches import user_columns, values_of

_QUOTE, _BACKSLASH, _SPACE = (ord(c) for c in '"\\ ')
_BY_VALUE_MAX: Final = 0.5
"""Other types are rendered once for each value, where the values are at most this part of the rows."""


def rendered(batch: pa.RecordBatch) -> pa.BinaryArray | None:
    """The JSON of each row's document, shape (n,), or None."""
    names = user_columns(batch)
    if not names or any(name in batch.schema.names for name in (RAW, REST)):
        return None
    pieces: list[pa.Array | bytes] = []
    for number, name in enumerate(names):
        texts = _texts(batch.column(name), batch.schema.field(name))
        if texts is None:
            return None
        pieces += [("{" if number == 0 else ",").encode() + json.dumps(name, ensure_ascii=False).encode() + b":", texts]
    scalars = [p if not isinstance(p, bytes) else pa.scalar(p, pa.binary()) for p in [*pieces, b"}", b""]]
    return pc.binary_join_element_wise(*scalars)


def _texts(column: pa.Array, field: pa.Field) -> pa.Array | None:
    if column.null_count:
        return None
    if pa.types.is_integer(column.type):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_string(column.type):
        return None if _needs_escapes(column) else _quoted(column)
    if pa.types.is_boolean(column.type):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_timestamp(column.type) or pa.types.is_floating(column.type):
        return _by_value(column, field)
    return None


def _quoted(column: pa.StringArray) -> pa.BinaryArray:
    quote, nothing = pa.scalar(b'"', pa.binary()), pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(quote, column.cast(pa.binary()), quote, nothing)


def _needs_escapes(column: pa.StringArray) -> bool:
    _, offsets, data = column.buffers()
    if data is None:
        return False
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    text = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    return bool(((text == _QUOTE) | (text == _BACKSLASH) | (text < _SPACE)).any())


def _by_value(column: pa.Array, field: pa.Field) -> pa.Array | None:
    coded = column.dictionary_encode()
    if len(coded.dictionary) > _BY_VALUE_MAX * len(column) + 1:
        return None
    texts = [render_json(value) for value in values_of(coded.dictionary, field)]
    return pa.array(texts, pa.binary()).take(coded.indices)
