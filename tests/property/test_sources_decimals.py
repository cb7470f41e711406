"""A decimal is read digit by digit, or its record is a dead letter: however it comes, none becomes another number."""

import io
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.services.source.connectors.filereaders import CsvRecords
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import NO_SCHEMA, Schema, parse_schema
from tidemark.shared.language.values.numbers import DECIMAL
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.decode import decode

DECLARED: Final = parse_schema({"v": "decimal"}, "schema", Problems({}))
_EXACT: Final = Context(prec=100)


@st.composite
def numbers(draw: st.DrawFn) -> Decimal:
    """Of up to 45 digits, which a decimal256 with twenty behind the point has as well."""
    digits = draw(st.integers(0, 10 ** draw(st.integers(1, 45)) - 1))
    return Decimal(-digits if draw(st.booleans()) else digits).scaleb(-draw(st.integers(0, 20)), _EXACT)


def json_number(number: Decimal) -> bytes:
    """A number of JSON's, which is a double in a field that is not declared."""
    return f'{{"v":{number:f}}}'.encode()


def extended(number: Decimal) -> bytes:
    """MongoDB's form."""
    return f'{{"v":{{"$numberDecimal":"{number}"}}}}'.encode()


def cell_of_csv(number: Decimal) -> bytes:
    """A cell of a file."""
    rows = CsvRecords({"v": "decimal"}, record_bytes_max=1 << 20).read(
        io.BytesIO(f"v\n{number:f}\n".encode()), "a.csv", 0, 1 << 20, grows=False
    )
    return rows.values[0]


def cell_of_parquet(number: Decimal) -> bytes:
    """A cell of a table."""
    return texts_of(pa.record_batch({"v": pa.array([number], pa.decimal256(66, 20))}))[0]


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (json_number, DECLARED), (extended, DECLARED), (extended, NO_SCHEMA), (cell_of_csv, DECLARED), (cell_of_csv, NO_SCHEMA),
        (cell_of_parquet, DECLARED), (cell_of_parquet, NO_SCHEMA),
    ],
)  # fmt: skip
@given(number=numbers())
@example(number=Decimal(1).scaleb(40, _EXACT))
@example(number=Decimal("1" * 20 + "." + "1" * 20))
@example(number=Decimal("1." + "0" * 20))
def test_a_decimal_is_exact_or_a_dead_letter(form: Callable[[Decimal], bytes], schema: Schema, number: Decimal) -> None:
    """A letter where no decimal of 34 digits is the number, and only there."""
    found = decode(pa.array([form(number)], pa.binary()), schema)
    if DECIMAL.create_decimal(number) == number:
        assert [document["v"] for document in documents_of(found.batch)] == [number]
    else:
        assert len(found.bad) == 1
        assert "34 digits" in found.bad.causes[0].reason
