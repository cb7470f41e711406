"""Records that are made a column at a time are those that each row makes alone, and so are the reasons of rows that make none."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.sinks_targets import expression
from tests.property.language_strategies import SCALARS, VALUES
from tidemark.services.sink.connectors.kafkacells import RecordRefused, header_pairs, key_bytes
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.language.values import encode_value, render_json, written
from tidemark.shared.model.values import MISSING, Date, Document, Long
from tidemark.shared.operators.base import ARRIVAL, RAW, REST
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.ports.log import NewRecord

TAKES = Takes(record_bytes_max=400, headers_max=2, prefix="ours")
TOPICS = ["a", "b.c", "ours.requests", "..", "no such", "", "é"]
KEYS: list[Any] = [
    "$k", "$k.x", "$o", {"$toString": "$k"}, {"a": "$k", "b": "$o"}, ["$k", 1], {"$concat": ["$k", "-"]}, {"$divide": [1, "$n"]},
    {"$literal": None}, {"$toLong": "$n"}, {"$multiply": ["$n", 0.5]}, "$$NOW", "$$REMOVE", {"$ifNull": ["$k", 'q"é\\']},
]  # fmt: skip
HEADERS: list[Any] = [
    None, {"a": "b"}, {"a": "b", "c": 1, "d": 2}, {"a": "$k"}, {"a": "$k", "é": {"$toString": "$n"}}, {"a": "$k", "b": "$o", "c": "$n"},
    "$o", "$k", [{"k": "a", "v": "$k"}], {"$objectToArray": "$o"}, {"a": {"$divide": [1, "$n"]}}, {},
]  # fmt: skip
TOMBSTONES: list[Any] = [None, "$t", {"$eq": ["$n", 1]}, {"$gt": [{"$divide": [1, "$n"]}, 0]}]


def alone(stage: KafkaEmit, document: Document, now: int | None) -> tuple[str, NewRecord] | str:
    """What one row makes; the reason, if it makes nothing."""
    env = Environment(document, now=None if now is None else Date(now))
    try:
        topic = evaluate(stage.topic, env)
        reason = RecordMaker(stage, TAKES)._no_topic(topic)
        if not isinstance(topic, str) or topic not in ("a", "b.c", "ours.requests", "t-0", "t-1"):
            return reason
        if topic == "ours.requests":
            return "internal"
        key = None if stage.key is None else key_bytes(evaluate(stage.key, env), stage.key_format)
        headers = [] if stage.headers is None else header_pairs(evaluate(stage.headers, env))
        if len(headers) > TAKES.headers_max:
            return f"$emit.config.headers: expected at most {TAKES.headers_max} headers, found {len(headers)}"
        gone = False if stage.tombstone_when is None else evaluate(stage.tombstone_when, env)
        if not isinstance(gone, bool):
            return "$emit.config.tombstoneWhen: expected true or false"
        if gone and key is None:
            return "$emit.config.tombstoneWhen: a record without a value needs a key, found none"
    except RecordRefused as error:
        return str(error)
    except ExpressionError as error:
        return f"$emit: {error}"
    value = None if gone else written(document, stage.output_format, stage.date_format)
    return topic, NewRecord(value, key, tuple(headers), None)


def batch_of_documents(documents: list[Document], form: str) -> pa.RecordBatch:
    """As a source gives them, or an operator."""
    arrivals = pa.array(range(len(documents)), pa.int64())
    texts = [render_json(each) if form == RAW else encode_value(each) for each in documents]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.binary()), arrivals], names=[form, ARRIVAL])


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "k": st.sampled_from(["x", "y", 'q"\\\n', "é", "", 5, Long(7), 2**40, 0.5, None, True]) | SCALARS,
    "o": st.dictionaries(st.sampled_from(["a", "b", "c"]), SCALARS, max_size=3) | VALUES,
    "n": st.sampled_from([0, 1, 2, Long(3), 2**40, 0.5, None, "1"]),
    "t": st.booleans() | st.sampled_from([None, 1]),
    "topic": st.sampled_from([*TOPICS, 3, None]),
    "v": st.text(max_size=300),
}


@st.composite
def rows(draw: st.DrawFn) -> list[Document]:
    """Documents most of whose fields have one type, or any."""
    count = draw(st.integers(1, 8))
    kinds = {name: draw(cells) if draw(st.booleans()) else None for name, cells in FIELDS.items()}

    def cell(name: str) -> Any:
        return (
            kinds[name]
            if kinds[name] is not None and draw(st.integers(0, 5))
            else draw(FIELDS[name] | st.just(MISSING))
        )

    found = [{name: cell(name) for name in FIELDS} for _ in range(count)]
    return [{name: value for name, value in each.items() if value is not MISSING} for each in found]


def _kind(reason: str) -> str:
    """Without what differs by the place at which a refused name is known."""
    return reason.split(", found a value of type", maxsplit=1)[0]


@settings(max_examples=400, deadline=None)
@given(
    documents=rows(),
    form=st.sampled_from([RAW, REST]),
    topic=st.sampled_from(["a", "$topic", {"$cond": ["$t", "a", "b.c"]}, {"$concat": ["$topic", ""]}]),
    key=st.none() | st.sampled_from(KEYS),
    key_format=st.sampled_from(["json", "string", "int", "long", "double", "binData"]),
    headers=st.sampled_from(HEADERS),
    tombstone=st.sampled_from(TOMBSTONES),
    forms=st.tuples(
        st.sampled_from(["relaxedJson", "canonicalJson", "basicJson"]), st.sampled_from(["default", "ISO8601"])
    ),
)
def test_records_of_a_batch_are_those_of_each_row(
    documents: list[Document],
    form: str,
    topic: Any,
    key: Any,
    key_format: Any,
    headers: Any,
    tombstone: Any,
    forms: tuple[Any, Any],
) -> None:
    """Topics, keys, headers, values, tombstones and refusals, whatever types stand beside each other."""
    given_: Callable[[Any], Expr | None] = lambda tree: None if tree is None else expression(tree)  # noqa: E731
    stage = KafkaEmit(
        path="$emit", connection_name="c", topic=expression(topic), key=given_(key), key_format=key_format,
        headers=given_(headers), tombstone_when=given_(tombstone), output_format=forms[0], date_format=forms[1],
    )  # fmt: skip
    batch = batch_of_documents(documents, form)
    made, rejected = RecordMaker(stage, TAKES).runs(batch)
    found: dict[int, Any] = {}
    for places, run in made:
        for row, record in zip(places.tolist(), run.columns, strict=True):
            assert row not in found
            found[row] = run.topic, record
    reasons = {each.row: each.reason for each in rejected}
    assert not found.keys() & reasons.keys()
    for row, document in enumerate(documents_of(batch)):
        wanted = alone(stage, document, row)
        if isinstance(wanted, str):
            assert row in reasons, (wanted, found[row])
            assert wanted == "internal" or _kind(reasons[row]) == _kind(wanted)
        elif row in reasons:
            assert "at most 400 are allowed" in reasons[row]
        else:
            assert found[row] == wanted


@pytest.mark.parametrize("form", [RAW, REST])
@pytest.mark.parametrize(
    ("key", "key_format"),
    [
        ("$s", "string"),
        ("$s", "json"),
        ("$n", "int"),
        ("$l", "long"),
        ("$d", "double"),
        ({"a": "$s", "b": "$n"}, "json"),
        ("$maybe", "string"),
    ],
)
def test_no_row_is_looked_at_for_itself(form: str, key: Any, key_format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, keys, headers and tombstones of undeclared fields cost a column each, not a document a row."""
    documents: list[Document] = [
        {"s": f"s{n}", "n": n, "l": Long(2**40 + n), "d": n + 0.5, **({"maybe": "x"} if n % 2 else {})}
        for n in range(9)
    ]
    stage = KafkaEmit(
        path="$emit", connection_name="c", topic=expression({"$concat": ["t-", {"$toString": {"$mod": ["$n", 2]}}]}),
        key=expression(key), key_format=key_format, headers=expression({"a": "$s", "b": "$n"}),
        tombstone_when=expression({"$eq": ["$n", 1]}),
    )  # fmt: skip
    batch = batch_of_documents(documents, form)
    wanted = {row: alone(stage, document, row) for row, document in enumerate(documents_of(batch))}

    def none(rows: Any, *_: Any) -> list[Any]:
        return pytest.fail("looked at") if len(rows) else []

    for where in ("kafkarecords.documents_of", "kafkacells.values_of", "kafkarecords.values_of"):
        monkeypatch.setattr(f"tidemark.services.sink.connectors.{where}", none)
    made, rejected = RecordMaker(stage, Takes()).runs(batch)
    assert not rejected
    found = {
        row: (run.topic, record)
        for places, run in made
        for row, record in zip(places.tolist(), run.columns, strict=True)
    }
    assert found == wanted
