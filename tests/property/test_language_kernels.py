"""Kernels agree with the interpreter, value for value, or leave the batch to it."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.library.calendar import offset_ms, zone_named
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kernels import (
    Column,
    Unvectorised,
    column_of,
    is_vectorised,
    predicate_is_vectorised,
    verdict_of,
)
from tidemark.shared.language.kernels.base import ARROW, TIMESTAMP, DeclaredRows
from tidemark.shared.language.kernels.dates import offsets
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.query.parse import parse_predicate
from tidemark.shared.language.schema import Field, Schema
from tidemark.shared.language.values import to_json, type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, MISSING, Date, long
from tidemark.shared.operators.frame import evaluated

SCHEMA = Schema(
    (
        Field("i", "int", optional=False),
        Field("i2", "int", optional=True),
        Field("l", "long", optional=True),
        Field("d", "double", optional=False),
        Field("d2", "double", optional=True),
        Field("s", "string", optional=False),
        Field("s2", "string", optional=True),
        Field("b", "bool", optional=True),
        Field("t", "date", optional=False),
        Field("t2", "date", optional=True),
    )
)
_SMALL = st.integers(-3, 3)
_OF = {
    "int": _SMALL | st.integers(INT32_MIN, INT32_MAX),
    "long": (_SMALL | st.integers(-(2**40), 2**40) | st.sampled_from([INT64_MIN, INT64_MAX])).map(long),
    "double": _SMALL.map(float)
    | st.sampled_from([-0.0, 0.5, -1.5, 2.5, 1e300, float("inf"), float("nan")])
    | st.floats(-1e6, 1e6),
    "string": st.sampled_from(
        ["", "a", "A", "b", "é", "2024-03-05T12:00:00Z", "2024-02-30T12:00:00Z", "1999-12-31T23:59:59.5"]
    )
    | st.text("aZé ", max_size=4),
    "bool": st.booleans(),
    "date": st.integers(-(10**13), 10**13).map(Date) | st.sampled_from([Date(0), Date(-1), Date(951_782_400_000)]),
}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document that fits SCHEMA; optional fields may be null or missing."""
    document = {}
    for field in SCHEMA:
        value = draw(_OF[field.type] if not field.optional else _OF[field.type] | st.none() | st.just(MISSING))
        if value is not MISSING:
            document[field.name] = value
    return document


def _constants(value: Any) -> Any:
    return to_json(value, canonical=True)


_LEAVES = st.sampled_from(
    [f"${f.name}" for f in SCHEMA] + [f"${f.name}" for f in SCHEMA if f.type in ("int", "double")]
) | st.one_of(*_OF.values(), st.none()).map(lambda v: {"$literal": _constants(v)})
_ONE = [
    "$not",
    "$abs",
    "$floor",
    "$ceil",
    "$toUpper",
    "$toLower",
    "$strLenCP",
    "$toDate",
    "$toLong",
    "$toDouble",
    "$toString",
    "$toInt",
    "$round",
    "$sqrt",
    "$trunc",
    "$strLenBytes",
    "$week",
]
_PARTS = [
    "$year",
    "$month",
    "$dayOfMonth",
    "$dayOfYear",
    "$dayOfWeek",
    "$isoDayOfWeek",
    "$isoWeek",
    "$isoWeekYear",
    "$hour",
    "$second",
]
_TWO = ["$max", "$min", "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$cmp", "$subtract", "$divide", "$mod", "$ifNull"]
_ZONES = ["Europe/Berlin", "America/New_York", "-03:30", "Asia/Kathmandu", "UTC"]
_UNITS = st.sampled_from(["year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond"])
_WRITTEN = ["%Y-%m-%d", "%H:%M:%S.%L %z", "%d %b %j%%U%U %u%w", "%G-W%V", "day %d of %B, %Z", ""]
_MANY = ["$and", "$or", "$add", "$multiply", "$concat"]


def _call(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def op(names: list[str], args: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[Any]:
        return st.tuples(st.sampled_from(names), args).map(lambda p: {p[0]: p[1]})

    items = st.lists(st.one_of(*_OF.values(), st.none()).map(_constants), max_size=3)
    return st.one_of(
        op(_ONE + _PARTS, inner.map(lambda e: [e])),
        st.tuples(st.sampled_from(_PARTS), inner, st.sampled_from(_ZONES)).map(
            lambda p: {p[0]: {"date": p[1], "timezone": p[2]}}
        ),
        op(_TWO, st.lists(inner, min_size=2, max_size=2)),
        op(_MANY, st.lists(inner, min_size=1, max_size=3)),
        op(["$cond"], st.lists(inner, min_size=3, max_size=3)),
        st.tuples(inner, items).map(lambda p: {"$in": [p[0], {"$literal": p[1]}]}),
        st.tuples(inner, _UNITS, st.integers(1, 5), st.sampled_from(_ZONES), st.sampled_from(["mon", "Sunday"])).map(
            lambda p: {
                "$dateTrunc": {"date": p[0], "unit": p[1], "binSize": p[2], "timezone": p[3], "startOfWeek": p[4]}
            }
        ),
        st.tuples(
            inner, _UNITS, _SMALL | inner, st.sampled_from(_ZONES), st.sampled_from(["$dateAdd", "$dateSubtract"])
        ).map(lambda p: {p[4]: {"startDate": p[0], "unit": p[1], "amount": p[2], "timezone": p[3]}}),
        st.tuples(inner, inner, _UNITS, st.sampled_from(_ZONES), st.sampled_from(["tue", "Saturday"])).map(
            lambda p: {
                "$dateDiff": {"startDate": p[0], "endDate": p[1], "unit": p[2], "timezone": p[3], "startOfWeek": p[4]}
            }
        ),
        st.tuples(inner, st.sampled_from(_ZONES), st.sampled_from(_WRITTEN)).map(
            lambda p: {"$dateToString": {"date": p[0], "timezone": p[1], "format": p[2]}}
        ),
        st.tuples(st.sampled_from(["$round", "$trunc"]), inner, st.integers(-1, 17)).map(
            lambda p: {p[0]: [p[1], p[2]]}
        ),
        st.tuples(inner, st.integers(-1, 3), st.integers(-1, 3)).map(lambda p: {"$substrCP": list(p)}),
        st.tuples(st.sampled_from(["$trim", "$ltrim", "$rtrim"]), inner, st.sampled_from(["a", "é5", " "])).map(
            lambda p: {p[0]: {"input": p[1], "chars": p[2]}}
        ),
        st.tuples(st.sampled_from(["$trim", "$ltrim", "$rtrim"]), inner).map(lambda p: {p[0]: {"input": p[1]}}),
        st.tuples(inner, st.sampled_from(["a", "é", "", "2"])).map(lambda p: {"$indexOfCP": list(p)}),
        st.tuples(st.sampled_from(["$replaceOne", "$replaceAll"]), inner, st.sampled_from(["a", "aa", "é", ""])).map(
            lambda p: {p[0]: {"input": p[1], "find": p[2], "replacement": "é-"}}
        ),
        st.tuples(inner, inner, inner).map(
            lambda p: {"$switch": {"branches": [{"case": p[0], "then": p[1]}], "default": p[2]}}
        ),
    )


EXPRESSIONS = _call(_call(_LEAVES) | _LEAVES) | _call(_LEAVES)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    arrays = []
    for field in SCHEMA:
        cells = [row.get(field.name) for row in rows]
        kind = ARROW[field.type]
        cells = [None if c is None else int(c) if isinstance(c, int) and field.type != "bool" else c for c in cells]
        arrays.append(pa.array(cells, pa.int64()).cast(TIMESTAMP) if field.type == "date" else pa.array(cells, kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(SCHEMA.names))


def _shown(value: Any) -> str:
    """Type and exact value, sign of zero included."""
    if value is None or value is MISSING:
        return type_name(value)
    return (
        f"{type_name(value)} {value!r}"
        if type_name(value) not in ("long", "date")
        else f"{type_name(value)} {int(value)}"
    )


def _cells(array: pa.Array, kind: str) -> list[str]:
    if kind == "date":
        cells = array.cast(pa.int64()).to_pylist()
        return [_shown(None if c is None else Date(c)) for c in cells]
    cells = array.to_pylist()
    return [_shown(None if c is None else long(c) if kind == "long" else c) for c in cells]


def _rows(batch: pa.RecordBatch, schema: Schema) -> DeclaredRows:
    return DeclaredRows({name: batch.column(name) for name in batch.schema.names}, schema, batch.num_rows)


def _column(expr: Expr, batch: pa.RecordBatch, schema: Schema) -> Column | None:
    """By its kernel; None where it has none."""
    try:
        return column_of(expr, _rows(batch, schema))
    except Unvectorised:
        return None


def _agree(tree: Any, rows: list[dict[str, Any]]) -> None:
    """The kernel's values are the interpreter's, if it gives any."""
    problems = Problems()
    expr = parse_expression(tree, "e", Scope(problems))
    problems.check()
    found = _column(expr, _batch(rows), SCHEMA)
    if found is None:
        return
    assert is_vectorised(expr, SCHEMA)
    doubt = [False] * len(rows) if found.doubt is None else found.doubt.tolist()
    for cell, row, unsure in zip(_cells(found.values, found.type), rows, doubt, strict=True):
        if unsure:
            continue
        try:
            wanted = _shown(evaluate(expr, Environment(row)))
        except ExpressionError as e:
            raise AssertionError(f"the interpreter fails: {e}") from e
        empty = ["missing"] if found.absent else ["null", "missing"] if found.missing else ["null"]
        assert wanted in empty if cell == "null" else cell == wanted


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.lists(documents(), max_size=4))
def test_expression_kernels_agree_with_the_interpreter(tree: Any, rows: list[dict[str, Any]]) -> None:
    """Where a kernel gives values, the interpreter gives the same ones, of the same types, without an error."""
    _agree(tree, rows)


_TESTS = st.one_of(
    st.tuples(
        st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]),
        st.one_of(*_OF.values(), st.none()).map(_constants),
    ),
    st.tuples(
        st.sampled_from(["$in", "$nin"]), st.lists(st.one_of(*_OF.values(), st.none()).map(_constants), max_size=3)
    ),
    st.tuples(st.just("$exists"), st.booleans()),
    st.tuples(st.just("$type"), st.sampled_from(["int", "long", "number", "null", "string"])),
    st.tuples(st.just("$mod"), st.tuples(st.integers(1, 4), st.integers(-2, 2)).map(list)),
    st.tuples(st.just("$regex"), st.sampled_from(["^a", "é$", "."])),
)
_FIELD = st.tuples(st.sampled_from(SCHEMA.names), st.lists(_TESTS, min_size=1, max_size=2).map(dict)).map(
    lambda p: {p[0]: p[1]}
)
QUERIES = st.recursive(
    _FIELD | st.deferred(lambda: EXPRESSIONS).map(lambda e: {"$expr": e}),
    lambda q: st.tuples(st.sampled_from(["$and", "$or", "$nor"]), st.lists(q, min_size=1, max_size=3)).map(
        lambda p: {p[0]: p[1]}
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(QUERIES, st.lists(documents(), max_size=4))
def test_predicate_kernels_agree_with_the_interpreter(tree: Any, rows: list[dict[str, Any]]) -> None:
    """Where a kernel says which rows a query is true of, the interpreter says the same."""
    problems = Problems()
    predicate = parse_predicate(tree, "q", Scope(problems))
    problems.check()
    assert predicate is not None
    try:
        found = verdict_of(predicate, _rows(_batch(rows), SCHEMA))
    except Unvectorised:
        assert not predicate_is_vectorised(predicate, SCHEMA)
        return
    passes, doubt = found
    unsure = [False] * len(rows) if doubt is None else doubt.tolist()
    for passed, row, skipped in zip(passes.tolist(), rows, unsure, strict=True):
        assert skipped or passed == matches(predicate, Environment(row))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Africa/Monrovia", "Australia/Lord_Howe", "+05:30"]),
    st.lists(
        st.integers(-(10**12), 4 * 10**12)
        | st.integers(-900_001, 900_001).map(lambda near: 1_711_846_800_000 + near)  # Berlin's clocks, 2024-03-31
        | st.integers(-900_001, 900_001).map(lambda near: 63_593_070_000 + near),  # Monrovia's, 1972-01-07, at 00:44:30
        min_size=1,
        max_size=20,
    ),
)
def test_offsets_of_arrays_are_those_of_single_instants(name: str, instants: list[int]) -> None:
    """Local time of an array is exact around changes of the clocks, also those that are not on a quarter of an hour."""
    zone = zone_named(name)
    assert offsets(np.array(instants, dtype=np.int64), zone).tolist() == [offset_ms(zone, ms) for ms in instants]


@given(
    st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$cmp"]),
    st.sampled_from(["$i2", "$l", "$d2", "$s2", "$t2"]),
    st.sampled_from(["$i2", "$l", "$d2", "$s2", {"$literal": None}]),
    st.lists(documents(), max_size=3),
    st.sets(st.sampled_from(["i2", "l", "d2", "s2", "t2"])),
)
def test_comparisons_of_null_and_missing_agree(
    op: str, left: Any, right: Any, rows: list[dict[str, Any]], gone: set[str]
) -> None:
    """Null and missing differ in a comparison: where both operands may be either, the kernel gives way to the interpreter."""
    for row in rows:
        for name in gone:
            row.pop(name, None)
    _agree({op: [left, right]}, rows)
    _agree({"$ifNull": [left, left]}, rows)


_FORMS = ["%Y-%m-%d", "%d/%b/%Y:%H:%M:%S %z", "%Y%m%dT%H%M%S.%LZ", "%d%m%Y", "day %d of %b %Y", "%d.%m.%Y %z"]
_DATE_TEXTS = st.one_of(
    st.datetimes(),
    st.none(),
).flatmap(
    lambda t: (
        st.sampled_from(
            [
                "",
                "2024-02-30",
                "01/Mar/2024:10:00:00 +0000",
                "1/Mar/2024:10:00:00 +00:00",
                "0\u0661/Mar/2024:10:00:00 +0000",
            ]
        )
        if t is None
        else st.tuples(
            st.sampled_from(["", "x", "-0530", "+0100", "+2400", "+0060", "Z"]), st.sampled_from(_FORMS)
        ).map(
            lambda p: (
                (
                    f"{t.year:04d}{t.strftime(p[1][2:])}"
                    if p[1].startswith("%Y")
                    else t.strftime(p[1].replace("%Y", f"{t.year:04d}"))
                )
                .replace("%L", "123")
                .replace("%z", "")
                + p[0]
            )
        )
    )
)


_PATTERNS = st.lists(
    st.sampled_from(
        [
            *("a", "b", "é", ".", "[ab]", "[^a]", "[[:alpha:]]", "\\d", "\\s", "\\pL", "\\x62", "\\0141*", "\\."),
            *("a*", "b+", "b+?", "a?", "a{2}", "a{0,2}", "\\b", "\\B", "^", "$", "\\z", "|"),
            *("(a)", "(b.)", "(?P<n>a)", "(?:ab)", "(?:a)?", "(a)?", "(a|b)", "(a|)", "(a*)?"),
            *("(?:(a)|b)+", "((a)b)?", "(a){2}", "(?:b(\\d)|.)", "(?i)", "(?i:A)", "\\Qa\\E"),
        ]
    ),
    min_size=1,
    max_size=5,
).map("".join)


@given(
    _PATTERNS,
    st.lists(st.text("aAbé1 .\n\x1f", max_size=8), min_size=1, max_size=8),
    st.sampled_from(["", "i", "m", "s", "x"]),
)
def test_what_a_pattern_finds_is_what_the_interpreter_finds(pattern: str, texts: list[str], options: str) -> None:
    """The first match and all, with their places and groups, also of items of arrays."""
    batch = pa.record_batch({"s": pa.array(texts)})
    for op in ("$regexFind", "$regexFindAll", "$regexMatch"):
        for name, loop in (
            ("$s", lambda call: call),
            ("$$t", lambda call: {"$map": {"input": ["$s"], "as": "t", "in": call}}),
        ):
            problems = Problems()
            expr = parse_expression(
                loop({op: {"input": name, "regex": pattern, "options": options}}), "e", Scope(problems)
            )
            if not problems.errors:
                found = evaluated(expr, batch).values()
                assert found == [evaluate(expr, Environment({"s": text})) for text in texts], expr


@given(texts=st.lists(_DATE_TEXTS, min_size=1, max_size=6), form=st.sampled_from(_FORMS))
@settings(max_examples=300)
def test_dates_of_a_format_are_read_as_by_the_interpreter(texts: list[str], form: str) -> None:
    """What the kernel does not call doubtful is the interpreter's instant."""
    problems = Problems({})
    expr = parse_expression({"$dateFromString": {"dateString": "$s", "format": form}}, "e", Scope(problems))
    schema = Schema((Field("s", "string", optional=False),))
    for text in texts:
        found = _column(expr, pa.record_batch({"s": pa.array([text])}), schema)
        if found is not None and found.doubt is None:
            assert Date(found.values.cast(pa.int64())[0].as_py()) == evaluate(expr, Environment({"s": text}))


@given(
    op=st.sampled_from(["$round", "$trunc"]),
    place=st.integers(0, 15),
    values=st.lists(
        st.floats()
        | st.integers(-(10**6), 10**6).map(lambda n: n / 8)
        | st.decimals(-(10**5), 10**5, places=3).map(float)
        | st.integers(-(10**9), 10**9).map(lambda n: (n + 0.5) / 1000),
        min_size=1,
        max_size=20,
    ),
)
@settings(max_examples=500)
def test_rounding_is_that_of_the_exact_value(op: str, place: int, values: list[float]) -> None:
    """Halves, what is a half only as a double, and what is none although its product is; signs of zeros, infinities, NaN."""
    _agree({op: ["$d", place]}, [{"i": 0, "d": value, "s": "", "t": Date(0)} for value in values])


def test_rounding_leaves_no_number_of_everyday_size_to_the_interpreter() -> None:
    """Also halves have a kernel: prices in cents, rounded to tenths."""
    expr = parse_expression({"$round": ["$d", 1]}, "e", Scope(Problems()))
    batch = pa.record_batch({"d": pa.array([cents / 100 for cents in range(-5000, 5000)])})
    found = _column(expr, batch, Schema((Field("d", "double", optional=False),)))
    assert found is not None
    assert found.doubt is None
