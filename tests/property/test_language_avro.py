"""Avro, there and back, for drawn schemas and values; compared with another implementation in both directions."""

import io
import json
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.shared.language.avro import AvroError, SchemaError, parse_schema, reader_of, writer_of
from tidemark.shared.language.avro.many import ManyReader
from tidemark.shared.language.values import parse_json
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
    texts, sure = ManyReader(schema).read(pa.array(records, pa.binary()))
    for data, text, known in zip(records, texts.to_pylist(), sure.tolist(), strict=True):
        if known:
            assert text == _one(read, data)
    assert bool(sure[0]) or "decimal" in json.dumps(tree)
    assert sure[0] == sure[-1]


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
        texts, sure = ManyReader(schema).read(pa.array([data], pa.binary()))
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
    with pytest.raises(SchemaError, match=said):
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
