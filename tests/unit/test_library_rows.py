"""Rows of a caller's, of whatever kind: documents that lose nothing, or an error that names the place."""

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidemark
from tidemark.services.library.rows import documents_of
from tidemark.shared.model.values import Binary, Date, Timestamp

DAY = Date(1_767_225_600_000)
"""The first of 2026."""


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (pd.Series([pd.Timestamp("2026-01-01"), pd.NaT]), [DAY, None]),
        (pd.Series([pd.Timestamp("2026-01-01 01:00", tz="Europe/Berlin"), pd.NaT]), [DAY, None]),
        (pd.Series(np.array(["2026-01-01", "99999-01-01"], "datetime64[s]")), [DAY, Date(3_093_496_444_800_000)]),
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series([1.5, np.nan]), [1.5, None]),
        (pd.Series([True, None], dtype="boolean"), [True, None]),
        (pd.Series(["x", None, "y"], dtype="category"), ["x", None, "y"]),
        (pd.Series(["x", np.nan], dtype=object), ["x", None]),
        (pd.Series([np.array([1, 2]), np.array([3]), np.array([])]), [[1, 2], [3], []]),
        (pd.Series([dt.date(2026, 1, 1), None]), [DAY, None]),
        (pd.Series([b"ab", bytearray(b"c")]), [Binary(b"ab"), Binary(b"c")]),
        (pd.Series([uuid.UUID(int=1)]), [Binary(uuid.UUID(int=1).bytes, 4)]),
        (pd.Series(np.array([2**64 - 1], "uint64")), [float(2**64 - 1)]),
    ],
)
def test_a_frames_cells_are_values_and_empty_ones_missing_fields(column: Any, cells: list[Any]) -> None:
    """Of each type of columns: what pandas takes for missing is no field, as of a file."""
    assert documents_of(pd.DataFrame({"a": column})) == [{} if cell is None else {"a": cell} for cell in cells]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (pa.array([1, None], pa.date32()), [Date(86_400_000), None]),
        (pa.array([10**12], pa.timestamp("s", "Europe/Berlin")), [Date(10**15)]),
        (pa.array([b"ab", None]), [Binary(b"ab"), None]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), [{"k": 1}]),
        (pa.array([{"x": 1, "y": None}]), [{"x": 1}]),
        (pa.array(["x", None]).dictionary_encode(), ["x", None]),
        (pa.RunEndEncodedArray.from_arrays([2], ["x"]), ["x", "x"]),
        (pa.array([2**64 - 1], pa.uint64()), [float(2**64 - 1)]),
    ],
)
def test_an_arrow_tables_cells_are_what_a_file_of_parquet_gives(column: Any, cells: list[Any]) -> None:
    """In a table, in a batch, and in whatever hands out batches."""
    wanted = [{} if cell is None else {"a": cell} for cell in cells]
    for rows in (pa.table({"a": column}), pa.record_batch({"a": column}), pa.table({"a": column}).to_reader()):
        assert documents_of(rows) == wanted


def test_values_of_mappings_are_what_they_are() -> None:
    """Null stays null; numpy's scalars, texts of other kinds and bytes of each kind are values."""
    given: list[tuple[Any, Any]] = [
        (None, None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.datetime64("2026-01-01T00:00:00.000000000"), DAY),
        (np.datetime64("NaT"), None),
        (np.str_("x"), "x"),
        (Colour.RED, "red"),
        (memoryview(b"x"), Binary(b"x")),
        (Binary(b"x", 5), Binary(b"x", 5)),
        (np.array([5]), [5]),
        (np.array(5), 5),
        (2**70, float(2**70)),
        (Decimal("NaN"), Decimal("NaN")),
    ]
    for value, found in given:
        assert repr(documents_of([{"a": value}])) == repr([{"a": found}])


def deep(levels: int) -> Any:
    """Arrays in arrays."""
    return [deep(levels - 1)] if levels else 1


def test_extended_json_in_rows_is_what_it_says() -> None:
    """With numbers inside, too, as drivers and files of MongoDB's tools have it."""
    rows = [
        {"t": {"$timestamp": {"t": 1, "i": 2}}, "d": {"$date": 5}, "n": {"$numberLong": 7}, "f": {"$numberDouble": 1}}
    ]
    assert documents_of(rows) == [{"t": Timestamp(1, 2), "d": Date(5), "n": 7, "f": 1.0}]


@pytest.mark.parametrize(
    "cells", [[1, "x"], [Decimal("Infinity")], [Decimal("1E-100"), Decimal("1E+100")], [{"$oid": "0" * 24}]]
)
def test_a_field_that_fits_no_column_is_named(cells: list[Any]) -> None:
    """Whatever Arrow says of it."""
    result = tidemark.try_out({"pipeline": []}, [{"n": 1, "odd": cell} for cell in cells])
    with pytest.raises(pa.ArrowInvalid, match="field 'odd' fits no one type"):
        result.to_arrow()
    assert len(result.to_pandas()) == len(cells)


IN_ITSELF: list[Any] = []
IN_ITSELF.append(IN_ITSELF)


@pytest.mark.parametrize(
    ("rows", "error", "why"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), tidemark.TryOutFailed, "rows: two columns have the name 'a'"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
            tidemark.TryOutFailed,
            "rows: two columns have the name 'a'",
        ),
        ([{}, {1: 1, "1": 2}], tidemark.TryOutFailed, r"rows\[1\]: two names are the same text"),
        ([{"a": ["\ud800"]}], tidemark.TryOutFailed, r"rows\[0\]\.a\[0\]: '\\ud800' is no text"),
        ([{"\ud800": 1}], tidemark.TryOutFailed, r"rows\[0\]: '\\ud800' is no text"),
        ([{"a": Decimal("0." + "1" * 35)}], tidemark.TryOutFailed, r"rows\[0\]\.a: a decimal has at most 34 digits"),
        ([{"a": Decimal("1E+7000")}], tidemark.TryOutFailed, r"rows\[0\]\.a: a decimal has .* an exponent within 6144"),
        (
            pa.table({"a": pa.array([Decimal("1" * 40)], pa.decimal256(40))}),
            tidemark.TryOutFailed,
            r"rows\[0\]: \$numberDecimal takes a decimal of at most 34 digits",
        ),
        ([{"a": 10**400}], tidemark.TryOutFailed, r"rows\[0\]\.a: int too large"),
        ([{"a": IN_ITSELF}], tidemark.TryOutFailed, r"rows\[0\]: deeper than 180 levels, or within itself"),
        ([{"a": deep(200)}], tidemark.TryOutFailed, r"rows\[0\]: nested too deeply"),
        (pd.Series([1]), tidemark.TryOutFailed, r"rows\[0\]: expected a document, found int"),
        ({"a": 1}, TypeError, "rows: expected mappings, a data frame, or a table of Arrow's, found dict"),
        (5, TypeError, "rows: expected mappings, a data frame, or a table of Arrow's, found int"),
        (pd.DataFrame({"a": pd.period_range("2026", periods=1, freq="M")}), TypeError, r"rows\[0\]\.a: .* Period"),
        ([{"a": np.timedelta64(1, "ns")}], TypeError, r"rows\[0\]\.a: .* timedelta64"),
        (
            pa.table(
                {
                    "a": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["x"])]),
                }
            ),
            TypeError,
            r"rows: not a value of the language: sparse_union",
        ),
    ],
)
def test_rows_that_are_no_documents_are_refused_by_place(rows: Any, error: type[Exception], why: str) -> None:
    """Nothing of them is lost or changed without a word."""
    with pytest.raises(error, match=why):
        tidemark.try_out({"pipeline": []}, rows)
