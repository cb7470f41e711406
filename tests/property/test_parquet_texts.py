"""Rows of Parquet become JSON a column at a time, byte for byte as each row alone."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.services.source.connectors.parquetcells import documents_of_batch, texts_of
from tidemark.shared.language.values import parse_json, render_json

_WORD = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
_NEAR = st.integers(-(10**13), 10**13)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text(max_size=6)),
    (pa.large_string(), st.text(max_size=6)),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), _WORD),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1])),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *((pa.timestamp(unit), _NEAR | _WORD) for unit in ("ms", "us")),
    *((pa.timestamp(unit, "UTC"), _NEAR) for unit in ("us", "ms")),
    (pa.timestamp("s"), st.integers(-(10**11), 10**11)),
    (pa.timestamp("ns"), st.integers(-(10**18), 10**18)),
    (pa.date32(), st.integers(-800_000, 3_000_000)),
    (pa.date64(), st.integers(-20_000, 20_000).map(lambda days: days * 86_400_000)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.decimal128(12, 2), st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-2))),
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
    (pa.null(), st.none()),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.none() | st.text(max_size=3)}),
    ),
    (
        pa.map_(pa.string(), pa.int32()),
        st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2).map(lambda d: list(d.items())),
    ),
    (pa.time32("s"), st.integers(0, 80_000).map(lambda s: dt.time(s // 3600, s // 60 % 60, s % 60))),
]
NAMES = ["a", "b", 'odd "name"', "é", "__raw", "__x"]


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Columns of any types, with nulls."""
    count = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    columns = []
    for _ in names:
        kind, cells = draw(st.sampled_from(KINDS))
        values = draw(st.lists(st.none() | cells, min_size=count, max_size=count))
        whole = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        bits = pa.int64() if kind != pa.date32() else pa.int32()
        columns.append(pa.array(values, bits).cast(kind) if whole else pa.array(values, kind))
    return pa.RecordBatch.from_arrays(columns, names=names)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_a_batch_is_written_as_its_rows_are(batch: pa.RecordBatch) -> None:
    """Times before 1970 and beyond Python's years, numbers that are none, nested values, names like the engine's own."""
    assert texts_of(batch) == [render_json(document) for document in documents_of_batch(batch)]


def test_an_unsigned_number_beyond_long_is_a_double() -> None:
    """As in JSON, at any depth; it neither wraps around nor ends the source."""
    for beyond in (2**63, 2**64 - 1):
        cells = {"u": [beyond], "l": [[beyond, 2**63 - 1]], "s": [{"u": beyond}]}
        kinds = [pa.uint64(), pa.list_(pa.uint64()), pa.struct([("u", pa.uint64())])]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(c, k) for c, k in zip(cells.values(), kinds, strict=True)], list(cells)
        )
        expected = {"u": float(beyond), "l": [float(beyond), 2**63 - 1], "s": {"u": float(beyond)}}
        assert [parse_json(text) for text in texts_of(batch)] == [expected] == documents_of_batch(batch)
