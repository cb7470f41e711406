"""Avro, there and back, for drawn schemas and values; compared with another implementation in both directions."""

import io
import json
import time
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.shared.language.avro import AvroError, AvroSchemaError, parse_schema, reader_of, writer_of
from tidemark.shared.language.avro.many import ManyAvroReader
from tidemark.shared.language.avro.many_writing import ManyAvroWriter
from tidemark.shared.language.values import encode_value, parse_json
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Binary, Date, long

_PLAIN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(INT32_MIN, INT32_MAX)),
    ("long", st.integers(INT64_MIN, INT64_MAX).map(long)),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("bytes", st.binary(max_size=20).map(Binary)),
    ("string", st.text(max_size=12)),
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
    ({"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(2**45), 2**45).map(Date)),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.integers(-(2**45), 2**45).map(Date)),
    ({"type": "int", "logicalType": "date"}, st.integers(-700_000, 2_900_000).map(lambda n: Date(n * 86_400_000))),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4},
        st.integers(-(10**30) + 1, 10**30 - 1).map(lambda n: Decimal(n).scaleb(-4, Context(prec=40))),
    ),
]


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, names: list[int] | None = None) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema's JSON, and its values."""
    names = names if names is not None else [0]
    kind = draw(st.sampled_from(["plain", "plain", "record", "array", "map", "union", "enum", "fixed"]))
    if depth == 0 or kind == "plain":
        plain: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(_PLAIN))
        return plain
    names[0] += 1
    name = f"space{names[0] % 2}.N{names[0]}"
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B_1", "C"]}, st.sampled_from(["A", "B_1", "C"])
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 5}, st.binary(min_size=5, max_size=5).map(Binary)
    if kind == "union":
        # Types of which each value is of one alone, so that the value tells the type.
        kinds = [("null", st.none()), ("boolean", st.booleans()), ("string", st.text(max_size=5)), _PLAIN[12]]
        picked = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4, unique_by=lambda each: str(each[0])))
        return [each[0] for each in picked], st.one_of([each[1] for each in picked])
    if kind == "record":
        fields = [(f"f{number}", *draw(schemas(depth - 1, names))) for number in range(draw(st.integers(0, 4)))]
        tree = {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t, _ in fields]}
        return tree, st.fixed_dictionaries({n: values for n, _, values in fields})
    inner, values = draw(schemas(depth - 1, names))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    keys = st.text(max_size=5).filter(lambda key: not key.startswith("$"))
    return {"type": "map", "values": inner}, st.dictionaries(keys, values, max_size=3)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    tree, values = draw(schemas())
    root = {"type": "record", "name": "Root", "fields": [{"name": "value", "type": tree}]}
    return root, {"value": draw(values)}


def _same(one: Any, other: Any) -> bool:
    """Equal with types; NaN is NaN. A record's fields come in the order of the schema."""
    return repr(_sorted(one)) == repr(_sorted(other))


def _sorted(value: Any) -> Any:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if type(value) is list else value


@settings(max_examples=300, deadline=None)
@given(cases())
def test_documents_go_there_and_back(case: tuple[Any, Any]) -> None:
    """A document that fits is, read again, the same document, each value with its type."""
    tree, document = case
    schema = parse_schema(tree)
    data = writer_of(schema)(document)
    assert _same(parse_json(reader_of(schema)(data)), document)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_another_implementation_reads_the_same_bytes(case: tuple[Any, Any]) -> None:
    """What is written here, another reader takes whole, and its writer makes the same bytes of what it read."""
    tree, document = case
    data = writer_of(parse_schema(tree))(document)
    plain = json.loads(json.dumps(tree).replace("logicalType", "noLogicalType"))
    theirs = fastavro.parse_schema(plain)
    source = io.BytesIO(data)
    found = fastavro.schemaless_reader(source, theirs, None)
    assert source.read() == b""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, theirs, found)
    assert out.getvalue() == data


def _one(read: Any, data: bytes) -> bytes | None:
    try:
        found: bytes = read(data)
    except AvroError:
        return None
    return found


@settings(max_examples=500, deadline=None)
@given(cases(), st.binary(max_size=40), st.integers(0, 60), st.integers(0, 255))
def test_many_records_at_once_are_what_each_is(case: tuple[Any, Any], more: bytes, at: int, byte: int) -> None:
    """Byte for byte, whole or damaged; all that is whole is read, but for long decimals and those with an exponent."""
    tree, document = case
    schema = parse_schema(tree)
    whole, read = writer_of(schema)(document), reader_of(schema)
    records = [whole, more, whole[:at], whole + more, whole[:at] + bytes([byte]) + whole[at + 1 :], whole]
    texts, sure = ManyAvroReader(schema).read(pa.array(records, pa.binary()))
    for data, text, known in zip(records, texts.to_pylist(), sure.tolist(), strict=True):
        if known:
            assert text == _one(read, data)
    assert bool(sure[0]) or "decimal" in json.dumps(tree)
    assert sure[0] == sure[-1]


def _written(write: Any, value: Any) -> bytes | None:
    try:
        found: bytes = write(value)
    except AvroError:
        return None
    return found


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(INT64_MIN, INT64_MAX), st.integers(-100, 100).map(long), st.floats(), st.just("A"),
        st.sampled_from([0.5, 12.25, 3.0, -0.0, 1e40, 1e-45, 7.1e-46, 1e-46, 3.4028235677973366e38, 3.4e38, 16777217, 2**53 + 1]),
        st.text(max_size=5),
        st.integers(-(2**62), 2**62).map(Date), st.integers(-99, 99).map(lambda n: Date(n * 86_400_000)),
        st.binary(max_size=6).map(Binary), st.binary(min_size=16, max_size=16).map(lambda b: Binary(b, 4)),
        st.decimals(-(10**9), 10**9, places=2), st.decimals(allow_nan=False).map(Context(prec=34).plus), st.just(Decimal("NaN")),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["f0", "f1", "a", "value"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""Of any type: few fit where they stand."""


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with a part of another type, a field less or more, or another order of fields."""
    if draw(st.integers(0, 9)) == 0:
        return draw(_VALUES)
    if type(value) is dict and value:
        names = draw(st.permutations(list(value)))
        found = {name: draw(changed(value[name])) for name in names if draw(st.integers(0, 9))}
        return {**found, **({"other": 1} if draw(st.integers(0, 29)) == 0 else {})}
    return [draw(changed(item)) for item in value] if type(value) is list else value


@settings(max_examples=500, deadline=None)
@given(cases(), st.data())
def test_many_documents_written_at_once_are_what_each_is(case: tuple[Any, Any], data: st.DataObject) -> None:
    """Byte for byte, whether they fit or not; all that fit are written, but for rare numbers."""
    tree, document = case
    schema = parse_schema(tree)
    values = [
        document,
        {},
        document,
        *(data.draw(changed(document)) for _ in range(4)),
        {"value": data.draw(_VALUES)},
        document,
    ]
    records, sure = ManyAvroWriter(schema).write(pa.array([encode_value(value) for value in values], pa.binary()))
    write = writer_of(schema)
    for value, record, known in zip(values, records.to_pylist(), sure.tolist(), strict=True):
        assert record == (_written(write, value) if known else b""), value
    assert bool(sure[0]) or "decimal" in json.dumps(tree) or "NaN" in repr(document) or "nan" in repr(document)
    assert sure[0] == sure[2] == sure[-1]


_UNIONS = [
    ["null", "int", "long"], ["double", "long", "null"], ["float", "int"], ["string", {"type": "enum", "name": "e", "symbols": ["A", "b"]}],
    [{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "double", "string"],
    [{"type": "fixed", "name": "f", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}, "float"],
    ["null", {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "f0", "type": "int", "default": 7}]}],
    [{"type": "map", "values": "int"}, {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}],
    [{"type": "array", "items": ["null", "long"]}, {"type": "map", "values": ["null", "string"]}],
    [{"type": "long", "logicalType": "timestamp-nanos"}, {"type": "int", "logicalType": "date"}, {"type": "fixed", "name": "f", "size": 6}],
    [{"type": "string", "logicalType": "uuid"}, "bytes", "boolean"],
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_UNIONS), st.lists(_VALUES, max_size=8))
def test_unions_take_many_values_as_each(union: Any, values: list[Any]) -> None:
    """Branches are tried in the same order, and a value that none takes is the plain writer's to refuse."""
    schema = parse_schema({"type": "record", "name": "Root", "fields": [{"name": "value", "type": union}]})
    documents: list[Any] = [{"value": value} for value in values]
    records, sure = ManyAvroWriter(schema).write(pa.array([encode_value(each) for each in documents], pa.binary()))
    for value, record, known in zip(documents, records.to_pylist(), sure.tolist(), strict=True):
        assert record == (_written(writer_of(schema), value) if known else b""), value


def test_documents_inside_of_themselves_are_written_at_once() -> None:
    """As deep as the plain writer goes, and no deeper; arrays in arrays as far as there is room."""
    link = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    schema = parse_schema(link)
    document: Any = {"next": None}
    for depth in range(70):
        records, sure = ManyAvroWriter(schema).write(pa.array([encode_value(document)], pa.binary()))
        assert (records[0].as_py() if sure[0] else None) == _written(writer_of(schema), document)
        assert bool(sure[0]) == (depth < 64)
        document = {"next": document}
    lists: Any = {"type": "array", "items": "int"}
    value: Any = [1]
    for _ in range(62):
        lists, value = {"type": "array", "items": lists}, [value]
    schema = parse_schema(lists)
    assert ManyAvroWriter(schema).write(pa.array([encode_value(value)]))[0].to_pylist() == [writer_of(schema)(value)]


def test_a_record_inside_of_itself_is_read_at_once() -> None:
    """As deep as the plain reader goes, and no deeper."""
    link = {
        "type": "record",
        "name": "Link",
        "fields": [{"name": "next", "type": ["null", "Link"]}, {"name": "n", "type": "long"}],
    }
    schema = parse_schema(link)
    document: Any = None
    for depth in range(70):
        document = {"next": document, "n": long(depth)}
        data = writer_of(schema)(document) if depth < 64 else b"\x02" * depth + b"\x00" * (depth + 1)
        texts, sure = ManyAvroReader(schema).read(pa.array([data], pa.binary()))
        assert (texts[0].as_py() if sure[0] else None) == _one(reader_of(schema), data)
        assert bool(sure[0]) == (depth < 64)


@settings(max_examples=500, deadline=None)
@given(cases(), st.binary(max_size=40), st.integers(0, 60), st.integers(0, 255))
def test_damaged_records_are_refused_or_read(case: tuple[Any, Any], more: bytes, at: int, byte: int) -> None:
    """Any bytes are a record, or are none with a reason; nothing else comes out."""
    tree, document = case
    schema = parse_schema(tree)
    read, write = reader_of(schema), writer_of(schema)
    whole = write(document)
    for data in (more, whole[:at], whole + more, whole[:at] + bytes([byte]) + whole[at + 1 :]):
        try:
            found = read(data)
        except AvroError:
            continue
        parse_json(found)


def test_items_without_bytes_and_endless_nesting_are_bounded() -> None:
    """Five bytes do not make millions of items, and a record inside of itself does not end the process."""
    nulls = reader_of(parse_schema({"type": "array", "items": "null"}))
    with pytest.raises(AvroError, match="more items"):
        nulls(b"\x80\x80\x80\x40\x00")
    chain = parse_schema({"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]})
    with pytest.raises(AvroError, match="deeper"):
        reader_of(chain)(b"\x02" * 100_000 + b"\x00")
    document: Any = {"next": None}
    for _ in range(100):
        document = {"next": document}
    with pytest.raises(AvroError, match="deeper"):
        writer_of(chain)(document)


def test_a_decimal_of_many_bytes_is_refused_at_once() -> None:
    """Its digits would take the square of their number: minutes for a megabyte, in which its source stands still."""
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    read = reader_of(parse_schema({"type": "record", "name": "n", "fields": [{"name": "amount", "type": amount}]}))
    begin = time.process_time()
    with pytest.raises(AvroError, match=r"byte 100003: a decimal of more than 34 digits"):
        read(b"\xc0\x9a\x0c" + b"\x7f" * 100_000)
    assert time.process_time() - begin < 1
    assert read(b"\x1e" + (10**34 - 1).to_bytes(15, "big")) == b'{"amount":{"$numberDecimal":"%s.99"}}' % (b"9" * 32)
    with pytest.raises(AvroError, match="34 digits"):
        read(b"\x1e" + (-(10**34)).to_bytes(15, "big", signed=True))


@pytest.mark.parametrize(("unit", "said"), [("micros", "microseconds"), ("nanos", "nanoseconds")])
def test_a_date_beyond_a_timestamp_is_refused_with_its_number(unit: str, said: str) -> None:
    """A date that the schema's unit does not reach is told from what is no date."""
    at = {"type": "long", "logicalType": f"timestamp-{unit}"}
    write = writer_of(parse_schema({"type": "record", "name": "n", "fields": [{"name": "at", "type": at}]}))
    with pytest.raises(AvroError, match=f"at: expected a date that 64 bits of {said} hold, found {2**62} ms"):
        write({"at": Date(2**62)})


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "count", "type": "int", "default": 7},
        {"name": "before", "type": ["null", "Order"], "default": None},
    ],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "x"}, "id: expected a whole number"),
        ({"id": 1.5}, "id: expected a whole number"),
        ({"amount": Decimal("1.005")}, "amount: expected a number of at most 9 digits, 2 of them"),
        ({"amount": Decimal("12345678.00")}, "amount"),
        ({"amount": 0.1 + 0.2}, "amount"),
        ({"note": 5}, "note: expected null or string, found a value of type int"),
        ({"other": 1}, "other: shop.Order has no such field"),
        ({"before": {"id": 1}}, "before.amount: expected"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    """A value that the schema's type does not have exactly, or a field that it lacks, is named."""
    with pytest.raises(AvroError, match=said):
        writer_of(parse_schema(ORDER))({"id": 1, "amount": Decimal("1.20"), **change})


def test_a_missing_field_is_its_default_or_null() -> None:
    """Fields that a document lacks have the schema's default; numbers of another type that are the same number fit."""
    schema = parse_schema(ORDER)
    data = writer_of(schema)({"id": 5.0, "amount": 12.5})
    found = parse_json(reader_of(schema)(data))
    assert found == {"id": long(5), "amount": Decimal("12.50"), "note": None, "count": 7, "before": None}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ("nothing", "unknown type"),
        ('{"type": "record", "name": "a"}', "found the text of a schema"),
        (["null", ' "string"'], r"schema\[1\]: .*found the text of a schema"),
        ({"type": "record", "name": "a"}, "needs fields"),
        (
            {"type": "record", "name": "a", "fields": [{"name": "x", "type": "b"}]},
            r"schema.fields\[0\].type: unknown type",
        ),
        ({"type": "record", "name": "a-b", "fields": []}, "letters"),
        (["null", "null"], "different types"),
        ({"type": "enum", "name": "e", "symbols": ["a", "a"]}, "twice"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, "scale"),
        ({"type": "record", "name": "a", "fields": [{"name": "x", "type": "int", "default": "y"}]}, "default"),
    ],
)
def test_wrong_schemas_are_named(tree: Any, said: str) -> None:
    """A schema that is none has its place and what was expected."""
    with pytest.raises(AvroSchemaError, match=said):
        writer_of(parse_schema(tree))


def test_a_schema_may_use_names_of_another() -> None:
    """References: a schema that was registered apart gives its names."""
    item = parse_schema({"type": "record", "name": "shop.Item", "fields": [{"name": "sku", "type": "string"}]})
    tree = {
        "type": "record",
        "name": "Cart",
        "fields": [{"name": "items", "type": {"type": "array", "items": "shop.Item"}}],
    }
    cart = parse_schema(tree, known=(item,))
    document = {"items": [{"sku": "a"}, {"sku": "b"}]}
    assert parse_json(reader_of(cart)(writer_of(cart)(document))) == document
