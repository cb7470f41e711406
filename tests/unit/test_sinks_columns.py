"""Values and the columns of tables that others made: each is taken exactly, or rescued, or refused, whatever other rows there are."""

import random
from typing import Any

import pyarrow as pa
import pytest

from tidemark.services.sink.connectors.tablecolumns import RESCUED, TableColumns
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of

_MONEY = pa.decimal128(10, 2)
_NEEDED = pa.field("x", pa.int32(), nullable=False)
_KINDS: tuple[pa.DataType, ...] = (
    pa.int8(), pa.int64(), pa.float32(), pa.float64(), _MONEY, pa.decimal128(38, 37), pa.date32(), pa.timestamp("us", "UTC"), pa.bool_(),
    pa.string(), pa.binary(), pa.map_(pa.string(), pa.int64()), pa.list_(pa.int32()), pa.list_(pa.field("element", _MONEY, nullable=False)),
    pa.struct([_NEEDED, pa.field("s", pa.string())]), pa.struct([pa.field("m", pa.map_(pa.string(), pa.int64()), nullable=False)]),
    pa.struct([pa.field("d", pa.date32(), nullable=False), pa.field("n", _MONEY)]), pa.list_(pa.struct([_NEEDED])),
)  # fmt: skip
_RAW = {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64()}
"""Beyond Python's dates there are others."""
_TEXTS = (
    "null", "1", "128", "2147483648", "9007199254740993", "1.5", "1.256", "0.1", "1e300", '{"$numberDouble":"NaN"}', "true", '"a"', '""',
    '{"$numberDecimal":"1.25"}', '{"$numberDecimal":"1.256"}', '{"$numberDecimal":"NaN"}', '{"$oid":"5f5f5f5f5f5f5f5f5f5f5f5f"}',
    '{"$date":"2026-01-01T00:00:00Z"}', '{"$date":"2026-01-01T00:00:01Z"}', '{"$date":{"$numberLong":"253402300800000"}}',
    '{"$binary":{"base64":"AAAA","subType":"00"}}', "[]", "[1]", "[1,null]", "[1.5]", '["a"]', "{}", '{"x":1}', '{"x":null,"s":"a"}',
    '{"x":1,"s":7}', '{"x":1,"s":{"$numberDecimal":"1.25"}}', '{"m":{"a":1}}', '{"d":{"$date":"2026-01-01T00:00:00Z"},"n":5}', '[{"x":1}]',
    '[null,{"x":1}]', "[{}]", '{"x":null}', '{"s":null}', '{"s":{"a":null}}', '{"n":null}', '[{"x":null}]',
)  # fmt: skip


def _fitted(kind: pa.DataType, texts: list[str], *, nullable: bool = True) -> list[tuple[str, str | None, bool]]:
    """Of each value what its column has, what is rescued, and whether the row is refused."""
    known = pa.schema([pa.field("v", kind, nullable), pa.field(RESCUED, pa.string())])
    batch = batch_of([{"id": 1, **parse_json(f'{{"v":{text}}}')} for text in texts])
    fitted = TableColumns(lambda _: pa.schema([pa.field("id", pa.int64()), *known]), (), frozenset()).fit(batch)

    def cells(name: str) -> list[Any]:
        return [*fitted.rows.column(name)] if name in fitted.rows.column_names else [pa.scalar(None)] * len(texts)

    shown = [str(cell.cast(_RAW.get(cell.type, cell.type))) for cell in cells("v")]
    rescued = [cell.as_py() for cell in cells(RESCUED)]
    return [(*pair, row in fitted.refused) for row, pair in enumerate(zip(shown, rescued, strict=True))]


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("kind", _KINDS, ids=str)
def test_a_value_fares_in_any_company_as_alone(kind: pa.DataType, *, nullable: bool) -> None:
    """It is in its column, or rescued and refused where the column takes no null; none is lost."""
    alone = {text: _fitted(kind, [text], nullable=nullable)[0] for text in _TEXTS}
    for text, (cell, rescued, refused) in alone.items():
        assert (cell == "None") == (rescued is not None or text == "null"), text
        assert refused == (cell == "None" and not nullable), text
    rng = random.Random(str(kind))
    for _ in range(60):
        drawn = rng.choices(_TEXTS, k=rng.randint(2, 5))
        assert _fitted(kind, drawn, nullable=nullable) == [alone[text] for text in drawn], drawn


@pytest.mark.parametrize(
    ("kind", "text", "cell"),
    [
        (_MONEY, "5", "5.00"), (_MONEY, "-129", "-129.00"), (_MONEY, "9007199254740993", None),
        (_MONEY, "1.25", "1.25"), (_MONEY, "1.256", None), (_MONEY, '{"$numberDecimal":"NaN"}', None),
        (_MONEY, '{"$numberDecimal":"1.25"}', "1.25"), (_MONEY, '{"$numberDecimal":"1.256"}', None),
        (pa.decimal128(38, 37), "3", "3." + "0" * 37), (pa.date32(), '{"$date":"1970-01-03T00:00:00Z"}', "2"),
        (pa.date32(), '{"$date":"1970-01-03T00:00:01Z"}', None), (pa.float32(), "1.5", "1.5"), (pa.float32(), "1e300", None),
        (pa.float32(), '{"$numberDouble":"Infinity"}', "inf"), (pa.float64(), '{"$numberDecimal":"1.5"}', None),
    ],
)  # fmt: skip
def test_numbers_and_dates_are_taken_whole_or_not_at_all(kind: pa.DataType, text: str, cell: str | None) -> None:
    """A column that would round a number to its places, make it infinite or leave a time of day out does not take it."""
    found, rescued, _ = _fitted(kind, [text])[0]
    assert found == str(cell)
    assert (rescued is None) == (cell is not None)


@pytest.mark.parametrize("first", [{"a": "x"}, {"a": None}])
def test_objects_of_nulls_alone_are_told_with_the_others(first: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at each row by itself takes fifty times as long: columns with such an object somewhere are common."""
    known: dict[str, pa.Field] = {}

    def agree(schema: pa.Schema) -> pa.Schema:
        known.update({field.name: field for field in schema if field.name not in known})
        return pa.schema(list(known.values()))

    columns = TableColumns(agree, ())
    columns.fit(batch_of([{"v": {"n": 1, "meta": first}, "l": [first]}]))
    monkeypatch.delattr(TableColumns, "_each")
    document: Document = {"v": {"n": 2, "meta": {"a": None}}, "l": [{"a": None}, None]}
    nothing = {"a": None} if first["a"] else '{"a":null}'
    told = {"v": {"n": 2, "meta": nothing}, "l": [nothing, None]}
    assert columns.fit(batch_of([document, {}, document])).rows.to_pylist() == [told, {"v": None, "l": None}, told]
