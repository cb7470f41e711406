"""The fast path of decoding agrees with the plain one, whatever the records are: documents, rubbish, or both side by side."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.services.sink.connectors.sqlvalues import Misfit, _decimal_of
from tidemark.shared.language.accumulators.base import Accumulator
from tidemark.shared.language.accumulators.table import implementation
from tidemark.shared.language.expressions.ast import FieldPath
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import NO_SCHEMA, Schema, parse_schema
from tidemark.shared.language.values import ExtendedJsonError, encode_docs, encode_value, parse_json
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.decode import Decoded, decode, read_alone
from tidemark.shared.operators.encoded import encoded

TYPES = {"s": "string", "i": "int", "l": "long?", "d": "double?", "b": "bool?", "t": "date?"}

numbers = st.one_of(
    st.integers(-(2**31) - 1, 2**31), st.integers(-(2**63), 2**63 - 1), st.just(2**53 + 1),
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([5.0, -0.0, 1e300, 2.5, 1e15]),
)  # fmt: skip
values = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=5),
    st.sampled_from([
        "5", "-5", "NaN", "i", "}", '{"', "2013-01-01T00:00:00Z", {"$date": "2013-01-01T00:00:00Z"},
        {"$date": "2013-01-01T00:00:00.123Z"}, {"$date": "2013-13-01T00:00:00Z"}, {"$date": "2013-01-01"},
        {"$date": {"$numberLong": "5"}}, {"$numberLong": "7"}, {"$numberInt": "7"}, {"$numberDouble": "NaN"},
        {"$numberDecimal": "1.50"}, {"i": "5"}, [1, {"l": "2"}], {}, [],
    ]),
)  # fmt: skip
good = st.fixed_dictionaries(
    {"s": st.text(max_size=4), "i": st.integers(-(2**31), 2**31 - 1)},
    optional={"l": st.integers(-(2**63), 2**63 - 1), "d": numbers, "b": st.booleans(), "x": values,
              "t": st.just({"$date": "2013-07-01T12:00:00Z"})},
)  # fmt: skip
any_fields = st.dictionaries(st.sampled_from([*TYPES, "x", "s\\", 'a"b', "}"]), values, max_size=6)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A document as JSON, in one of the ways in which people write it."""
    fields = draw(st.one_of(good, good, any_fields))
    style = draw(st.sampled_from(["plain", "tight", "wide", "escaped", "twice"]))
    if style == "tight":
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if style == "wide":
        return json.dumps(fields, indent=1, separators=(" ,", " :\t")).encode()
    if style == "escaped":
        return json.dumps(fields).replace('"i"', '"\\u0069"').encode()
    if style == "twice":
        return json.dumps(fields).replace("{", '{"i": "9", ', 1).encode()
    return json.dumps(fields).encode()


rubbish = st.one_of(
    st.binary(max_size=6), st.none(),
    st.sampled_from([
        b"", b" ", b"null", b"[1]", b"{", b"}", b"{}", b'{"s":"}', b'{","i":1}', b'{"s":"a","i":1} {"s":"b","i":2}',
        b'{"s":"a","i":1}{"s":"b","i":2}', b'{"s":"a","i":1}null', b'{"s":"a","i":1}x', b'{"s":"a"\n,"i":1}',
        b' {"s":"a","i":1}', b'{"s":"a","i":1}\n', b'{"s":"a","i":01}', b'{"s":"a","i":+1}', b'{"s":"a","i":1,}',
        b'{"s":"\xff","i":1}', b'{"s":"\\ud800","i":1}', b'{"s":"a\tb","i":1}', b'{"s":"a","i":1e2}', b'{"s":"a","i":1E400}',
        b"{'s':'a','i':1}", b'{"s":"a","i":1,"d":1e400}', b'{"s":"a","i":-}', b'{"s":"a","i":1.}', b'{"s":"a","i":NaN}',
        b'{"s":"a","i":1,"d":NaN}', b'{"s":"a","i":1,"x":tru}', b'{"s":"a","i":1,"x":[1,2}', b'{"s":"a","i":1,"x":{"y":1}',
        b'{"s":"a","i":1}}', b'{"s":"a","i":1,"l":-0}', b'{"s":"a","i":1,"x":"\\q"}', b'{"s":"a","i":1,"x":01}',
        b'\xef\xbb\xbf{"s":"a","i":1}', b'{"s":"a","i":1,"x":"\\u00"}', b'{"s":"a","i":1,"b":"true"}', b'{"s":"a" "i":1}',
    ]),
)  # fmt: skip
records = st.lists(st.one_of(texts(), texts(), texts(), rubbish), max_size=50)


def schema() -> Schema:
    return parse_schema(TYPES, "schema", Problems({}))


def plainly(texts_: list[bytes | None]) -> tuple[dict[int, bytes], set[int]]:
    """By row: the document encoded, and the rows that are none."""
    found = [read_alone(text, schema()) for text in texts_]
    docs = {row: encode_value(d) for row, d in enumerate(found) if isinstance(d, dict)}
    return docs, {row for row, d in enumerate(found) if not isinstance(d, dict)}


def _decoded(found: Decoded) -> dict[int, bytes]:
    return {int(r): encode_value(d) for r, d in zip(found.rows, documents_of(found.batch), strict=True)}


@given(given_records=records)
@example(given_records=[b'{"s":"}', b'{","i":1}', b'{"s":"a","i":1} {"s":"b","i":2}'])
@example(given_records=[b'{"s":"a","i":1}'] * 40 + [b'{"s":"a","i":"5"}'] + [b'{"s":"a","i":1}'] * 40)
@settings(max_examples=300)
def test_what_decodes_and_what_not_is_as_record_by_record(given_records: list[bytes | None]) -> None:
    """Same documents, same values of the same types, same rows refused; each row knows its record."""
    found = decode(pa.array(given_records, type=pa.binary()), schema())
    docs, bad = plainly(given_records)
    assert set(found.bad.rows.tolist()) == bad
    assert _decoded(found) == docs


@given(given_records=records, begin=st.integers(0, 3))
@example(given_records=[b'{"a":1', b'{"$date":1}', b'{"a":{"$date":"x"}}', b'{"a":1} {"b":2}', b"[1]", None], begin=0)
@example(
    given_records=[b'{"a":1}', b'{"a":"' + b"\xff" + b'"}', b'{"a":1e999}', b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"],
    begin=0,
)
@settings(max_examples=300)
def test_without_declared_fields_records_decode_one_by_one(given_records: list[bytes | None], begin: int) -> None:
    """The same documents, and the same reasons for what is none, as each record gives alone."""
    part = pa.array(given_records, type=pa.binary())[begin:]
    found = decode(part, NO_SCHEMA)
    documents: dict[int, bytes] = {}
    bad: list[tuple[int, str, str]] = []
    for row, text in enumerate(part.to_pylist()):
        try:
            value = None if text is None else parse_json(text)
        except ExtendedJsonError as e:
            bad.append((row, f"The record does not decode: {e}", "DecodeFailure"))
            continue
        if type(value) is dict:
            documents[row] = encode_value(value)
        elif text is None:
            bad.append((row, "The record has no value.", "NoValue"))
        else:
            bad.append((row, f"The record is no document but {type(value).__name__}.", "DecodeFailure"))
    assert [
        (row, *found.bad.causes[place][:2])
        for row, place in zip(found.bad.rows.tolist(), found.bad.places.tolist(), strict=True)
    ] == bad
    assert {int(r): encode_value(d) for r, d in zip(found.rows, documents_of(found.batch), strict=True)} == documents


@given(given_records=records, begin=st.integers(0, 20), end=st.integers(0, 50))
@settings(max_examples=80)
def test_a_slice_of_records_decodes_as_the_records_alone(
    given_records: list[bytes | None], begin: int, end: int
) -> None:
    """Arrow's offsets into a larger buffer change nothing."""
    part = pa.array(given_records, type=pa.binary())[begin:end]
    assert _decoded(decode(part, schema())) == plainly(part.to_pylist())[0]


@given(given_records=records)
@settings(max_examples=80)
def test_rows_are_the_same_documents_once_their_undeclared_fields_are_parsed(given_records: list[bytes | None]) -> None:
    """RAW says what REST will say."""
    batch = decode(pa.array(given_records, type=pa.binary()), schema()).batch
    assert encoded(batch).to_pylist() == encode_docs(documents_of(batch))


@pytest.mark.parametrize("rows", [1, 33, 1000])
def test_one_bad_record_spoils_no_other(rows: int) -> None:
    """A record that the reader cannot read is found among many, and the others keep their places."""
    lines: list[Any] = [b'{"s":"a","i":%d}' % i for i in range(rows)]
    lines[rows // 2] = b'{"s":"a","i":{}}'
    found = decode(pa.array(lines, type=pa.binary()), schema())
    assert found.bad.rows.tolist() == [rows // 2]
    assert [d["i"] for d in documents_of(found.batch)] == [i for i in range(rows) if i != rows // 2]


def test_a_declared_decimal_is_one() -> None:
    """A decimal has no column of its own, but its document has it as declared, and the other fields are typed."""
    declared = parse_schema({"s": "string", "n": "decimal"}, "schema", Problems({}))
    found = decode(pa.array([b'{"s":"a","n":5}', b'{"s":"a","n":"1.5"}'], type=pa.binary()), declared)
    assert documents_of(found.batch) == [{"s": "a", "n": Decimal(5)}]
    assert type(documents_of(found.batch)[0]["n"]) is Decimal
    assert found.bad.rows.tolist() == [1]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**28), max_value=10**28))
def test_money_is_read_digit_by_digit(amount: Decimal) -> None:
    """A JSON number in a field that is declared as decimal is that decimal, however many digits it has (up to 34)."""
    schema = parse_schema({"amount": "decimal"}, "schema", Problems({}))
    found = decode(pa.array([f'{{"amount": {amount}}}'.encode()], pa.binary()), schema)
    assert not len(found.bad)
    assert documents_of(found.batch) == [{"amount": amount}]


def test_sums_of_money_fit_their_column() -> None:
    """Amounts as JSON numbers, summed, go into numeric(12, 2) exactly, where the same sum of doubles does not."""
    schema = parse_schema({"amount": "decimal"}, "schema", Problems({}))
    texts = [b'{"amount": 0.1}', b'{"amount": 0.2}', b'{"amount": 1000000000.07}']
    state = implementation(Accumulator("$sum", FieldPath(("amount",)), "total"))
    total = state.init()
    for document in documents_of(decode(pa.array(texts, pa.binary()), schema).batch):
        total = state.add(total, document["amount"], (0, 0, 0))
    money = _decimal_of(12, 2)
    assert money(state.finish(total)) == Decimal("1000000000.37")
    with pytest.raises(Misfit, match="declare money as decimal"):
        money(0.1 + 0.2)


@pytest.mark.parametrize("leaf", ['{"$date":{"$numberLong":"5"}}', "1", '{"$numberDecimal":"1"}'])
@pytest.mark.parametrize("opened", ['{"a":', "["])
def test_the_deepest_record_is_read_again_as_it_was_rendered(opened: str, leaf: str) -> None:
    """A typed value at the last level is no level of its own: nor is that of a plain number, in the canonical form."""
    closed = {"{": "}", "[": "]"}[opened[0]]
    for depth in (DEPTH_MAX - 2, DEPTH_MAX - 1):
        deep = opened * depth + leaf + closed * depth
        texts = [f'{{"s":"","i":1,"x":{deep},"x":{deep}}}', f'{{"s":"","i":1,"x":{deep}, "y":{{"$oid":5}}}}']
        found = decode(pa.array([text.encode() for text in texts], pa.binary()), schema(), [("x", "a")])
        plain = [read_alone(text.encode(), schema()) for text in texts]
        assert [encode_value(d) for d in documents_of(found.batch)] == [
            encode_value(d) for d in plain if type(d) is dict
        ]
        assert found.rows.tolist() == [0]
