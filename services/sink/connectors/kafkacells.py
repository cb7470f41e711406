"""Computed columns as bytes of Kafka records: keys as Kafka's own serializers write them, the contents of headers, conditions.

int and long are big-endian, texts UTF-8, all others relaxed extended JSON. The cells of the commonest type are made at once; those of
another, and texts with escapes, one by one by `key_bytes` and `header_bytes`, which are the definition.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import values
from tidemark.shared.language.kernels.base import either, filled, nulls_of
from tidemark.shared.language.kernels.cells import tagged_column
from tidemark.shared.language.stages import KeyFormat
from tidemark.shared.language.values import render_json, type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Binary, Long, Value
from tidemark.shared.operators.batches import is_tagged, values_of
from tidemark.shared.operators.cells import KINDS
from tidemark.shared.operators.frame import Cells
from tidemark.shared.operators.rendered import rendered
from tidemark.shared.ports.log import HEADERS

Bools = npt.NDArray[np.bool_]
_NAME: Final = "v"
_BEFORE: Final = len('{"v":')
_BINARY: Final = b'{"$binary"'
_SIZES: Final = {"int": ">i4", "long": ">i8", "double": ">f8"}


class RecordRefused(Exception):
    """Why a row cannot become a record."""


def texts_of(found: Cells) -> pa.BinaryArray:
    """The JSON of each cell, shape (n,); null where there is no value."""
    rows = pa.RecordBatch.from_arrays([found.array], schema=pa.schema([found.field.with_name(_NAME)]))
    inner = pc.binary_slice(rendered(rows), _BEFORE, -1)
    return pc.if_else(pc.equal(pc.binary_length(inner), 0), None, inner)


def keys_of(found: Cells, key_format: KeyFormat) -> tuple[pa.BinaryArray, dict[int, str]]:
    """The key of each row, shape (n,), null where it has none; and the rows whose value the format does not have, with the reason."""
    made, done = _keys(found, key_format)
    return _with_others(found, made, done, lambda value: key_bytes(value, key_format))


def _keys(found: Cells, key_format: KeyFormat) -> tuple[pa.BinaryArray, Bools]:
    """The keys that are made at once, and which these are."""
    count = len(found.array)
    if key_format == "string" and pa.types.is_string(found.array.type):
        return found.array.cast(pa.binary()), np.ones(count, np.bool_)
    if key_format in ("json", "string"):
        texts = texts_of(found)
        keys = pc.if_else(pc.equal(texts, b"null"), None, texts)
        return (keys, np.ones(count, np.bool_)) if key_format == "json" else _unquoted(keys)
    kind, cells, others = _commonest(found)
    fits = kind in ("int", "long") if key_format in ("int", "long") else kind == key_format
    if not fits or key_format == "binData":
        return pa.nulls(count, pa.binary()), np.zeros(count, np.bool_)
    numbers = cells.fill_null(0).to_numpy(zero_copy_only=False)
    if key_format == "int":
        others = others | (numbers < INT32_MIN) | (numbers > INT32_MAX)
    packed = np.ascontiguousarray(numbers, dtype=_SIZES[key_format])
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(packed.itemsize), count, [None, pa.py_buffer(packed)])
    return pc.if_else(pa.array(~others), fixed.cast(pa.binary()), None), ~others


def _unquoted(texts: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
    """The characters of JSON strings; made where the text is one without escapes, or null."""
    plain = pc.and_(pc.starts_with(texts, b'"'), pc.invert(pc.match_substring(texts, b"\\")))
    return pc.if_else(plain, pc.binary_slice(texts, 1, -1), None), filled(pc.or_kleene(plain, texts.is_null()))


def conditions_of(found: Cells) -> tuple[Bools, dict[int, str]]:
    """Which rows' value is true, shape (n,); and the rows whose value is neither true nor false, with the reason."""
    kind, cells, others = _commonest(found)
    if kind != "bool":
        others = np.ones(len(cells), np.bool_)
    rows = _left(found, ~others)
    held = np.zeros(len(cells), np.bool_) if kind != "bool" else filled(cells) & ~others
    refused: dict[int, str] = {}
    for row, value in zip(rows.tolist(), _values(found, rows), strict=True):
        if isinstance(value, bool):
            held[row] = value
        else:
            refused[row] = (
                f"$emit.config.tombstoneWhen: expected true or false, found a value of type {type_name(value)}"
            )
    return held, refused


def header_cells(found: Cells) -> pa.BinaryArray:
    """The content of one header in each row, shape (n,); null where the row has none."""
    texts = texts_of(found)
    plain, _ = _unquoted(texts)
    quoted = pc.starts_with(texts, b'"')
    odd = pc.or_(pc.and_(quoted, plain.is_null()), pc.starts_with(texts, _BINARY))
    made = pc.if_else(quoted, plain, texts)
    done = ~filled(odd)
    return _with_others(found, made, done, lambda value: None if value is MISSING else header_bytes(value))[0]


def headers_of(names: Sequence[str], contents: Sequence[pa.BinaryArray]) -> pa.ListArray:
    """Rows' headers, of the type HEADERS, from k columns of contents, shape (n,) each; a null content is no header of its row."""
    count = len(contents[0])
    there = np.stack([column.is_valid().to_numpy(zero_copy_only=False) for column in contents], axis=1)
    rows, which = np.nonzero(there)
    flat = pa.concat_arrays(contents).take(pa.array(which * count + rows))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()).take(pa.array(which)), flat], fields=list(HEADERS.value_type)
    )
    offsets = np.concatenate(([0], np.cumsum(there.sum(axis=1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pairs).cast(HEADERS)


def _commonest(found: Cells) -> tuple[str | None, pa.Array, Bools]:
    """The type that most cells have, the cells of that type, and the rows with another or no value, shape (n,)."""
    if is_tagged(found.field):
        column = tagged_column(values.read(found.array))
        others = either(column.doubt, nulls_of(column))
        return column.type, column.values, np.zeros(len(found.array), np.bool_) if others is None else others
    return KINDS.get(found.array.type), found.array, found.array.is_null().to_numpy(zero_copy_only=False)


def _with_others(found: Cells, made: pa.BinaryArray, done: Bools, one: Any) -> tuple[pa.BinaryArray, dict[int, str]]:
    """The cells that were made at once, with those that `one` makes of each other value; and the rows for which it raises RecordRefused."""
    rows = _left(found, done)
    refused: dict[int, str] = {}
    if not len(rows):
        return made, refused
    cells: list[bytes | None] = []
    for row, value in zip(rows.tolist(), _values(found, rows), strict=True):
        try:
            cells.append(one(value))
        except RecordRefused as error:
            refused[row] = str(error)
            cells.append(None)
    mask = np.zeros(len(done), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(made, pa.array(mask), pa.array(cells, pa.binary())), refused


def _left(found: Cells, done: Bools) -> npt.NDArray[np.int64]:
    """The rows that are to be made one by one: not those on which the expression failed."""
    left = ~done
    left[list(found.errors)] = False
    return np.flatnonzero(left)


def _values(found: Cells, rows: npt.NDArray[np.int64]) -> list[Value]:
    return values_of(found.array.take(pa.array(rows)), found.field)


def key_bytes(value: Any, key_format: KeyFormat) -> bytes | None:
    """A key's bytes in a format; None for null and missing. `RecordRefused` if the value's type is not the format's."""
    if value is None or value is MISSING:
        return None
    kind = type(value)
    match key_format:
        case "json":
            return render_json(value)
        case "string" if kind is str:
            return str(value).encode()
        case "binData" if kind is Binary:
            return bytes(value)
        case "int" if kind in (int, Long) and INT32_MIN <= value <= INT32_MAX:
            return struct.pack(">i", value)
        case "long" if kind in (int, Long):
            return struct.pack(">q", value)
        case "double" if kind is float:
            return struct.pack(">d", value)
        case _:
            raise RecordRefused(
                f"$emit.config.key: keyFormat is {key_format}, found a value of type {type_name(value)}"
            )


def header_pairs(value: Any) -> list[tuple[str, bytes]]:
    """The headers that a document {name: value} says, or an array of {k, v}. `RecordRefused` for anything else but null and missing."""
    if value is None or value is MISSING:
        return []
    match value:
        case dict():
            pairs = list(value.items())
        case list() if all(
            isinstance(item, dict) and set(item) == {"k", "v"} and isinstance(item["k"], str) for item in value
        ):
            pairs = [(item["k"], item["v"]) for item in value]
        case _:
            raise RecordRefused(
                f"$emit.config.headers: expected a document, or an array of {{k, v}}, found type {type_name(value)}"
            )
    return [(name, header_bytes(item)) for name, item in pairs]


def header_bytes(value: Any) -> bytes:
    """The content of a header: strings as UTF-8, binary data as it is, others as relaxed JSON."""
    match value:
        case str():
            return value.encode()
        case Binary():
            return bytes(value)
        case _:
            return render_json(value)
