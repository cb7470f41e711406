"""Pipelines of stages over records drawn as text: on columns, in batches cut anywhere, what the interpreter gives of each record alone."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_records import Records
from tests.harness.drawn_stages import Stages
from tests.harness.drawn_world import outcomes
from tests.harness.interpreted import typed
from tests.property.test_operators_columns import canonical
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.kernels import calls
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import NO_SCHEMA, Schema, parse_schema
from tidemark.shared.language.stages import DateFormat, InlineTable, Lookup, OutputFormat, Stateless
from tidemark.shared.language.stages.base import Discarded, Failure, Outcome, Passed, declared
from tidemark.shared.language.stages.looking_up import apply_lookup, by_own_tables, key_of
from tidemark.shared.language.values import encode_value, parse_json, written
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.values import Document, Found
from tidemark.shared.operators.base import ARRIVAL, PART, POS, TS, Out
from tidemark.shared.operators.batches import batch_of, documents_of, user_columns, with_column
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.decode import Bad, decode, read_alone
from tidemark.shared.operators.lookup import LookupRows, sorted_out
from tidemark.shared.operators.program import through_in_pieces
from tidemark.shared.operators.rendered import rendered
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.specs import FrontSpec, StatelessSpec
from tidemark.shared.planning.draft import paths_ahead
from tidemark.shared.wire.arrow import decode_batch, encode_batch

TYPES: tuple[dict[str, str], ...] = (
    *[{}] * 12, {"a": "int?"}, {"a": "long?", "b": "double?"}, {"a": "string?", "k": "date?"}, {"n": "decimal?"}, {"b": "bool?"}
)  # fmt: skip

SOURCE: dict[str, Any] = {"$source": {"connectionName": "c", "topic": "t"}}
FORMS: tuple[OutputFormat, ...] = ("relaxedJson", "canonicalJson", "basicJson")
DATES: tuple[DateFormat, ...] = ("default", "ISO8601")


@dataclass
class Told:
    """What comes of records: documents, dead letters, refused records by their number, and how many were discarded."""

    documents: list[Document] = field(default_factory=list)
    letters: list[bytes] = field(default_factory=list)
    refused: list[tuple[int, Any, bytes | None]] = field(default_factory=list)
    discarded: int = 0

    def letter(self, document: Document, *why: Any) -> None:
        self.letters.append(encode_value([document, *why]))

    def refuse(self, row: int, cause: Any, text: bytes | None) -> None:
        self.refused.append((row, tuple(cause), None if text is None else encode_value(parse_json(text))))

    def comparable(self) -> tuple[Any, ...]:
        """All of it, types and orders of fields with it."""
        return list(map(encode_value, self.documents)), sorted(self.letters), self.refused, self.discarded


def with_engine(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Each row with the place and times of its record."""
    for name, kind in ((TS, pa.int64()), (PART, pa.int32()), (POS, pa.int64()), (ARRIVAL, pa.int64())):
        batch = with_column(batch, name, pa.array([0 if name == PART else row for row in rows], kind))
    return batch


@dataclass
class _Looking:
    """A lookup that looks through its whole table for each document."""

    stage: Lookup

    def apply(self, document: Document, env: Environment) -> Outcome:
        assert isinstance(self.stage.from_, InlineTable)
        return apply_lookup(self.stage, document, self.stage.from_.documents, env)


def interpreted(chain: Sequence[Stateless], texts: Sequence[bytes], schema: Schema) -> Told:
    """Each record by itself, as the language defines it."""
    told = Told()
    plain: Any = [_Looking(stage) if isinstance(stage, Lookup) else stage for stage in chain]
    for row, text in enumerate(texts):
        document = read_alone(text, schema)
        if isinstance(document, Bad):
            told.refuse(row, document.cause, document.document)
            continue
        (env,) = environments(with_engine(batch_of([document]), [row]), [document])
        for outcome, _ in outcomes(plain, document, env):
            match outcome:
                case Passed(found):
                    told.documents += found
                case Failure():
                    told.letter(outcome.document, outcome.reason, outcome.code, outcome.path)
                case Discarded():
                    told.discarded += 1
    return told


def on_columns(
    chooser: random.Random, chain: Sequence[Stateless], texts: Sequence[bytes], schema: Schema
) -> tuple[Told, list[pa.RecordBatch]]:
    """The same in batches cut anywhere, over a wire between two of the stages; and the batches at the end."""
    told = Told()
    batches: list[pa.RecordBatch] = []
    cuts = sorted({0, len(texts), *(chooser.randint(0, len(texts)) for _ in range(chooser.choice((0, 1, 3))))})
    front = FrontSpec(parse({"pipeline": [SOURCE]}).source)
    ahead = [
        path
        for path in paths_ahead(
            front, (StatelessSpec(tuple(takewhile(lambda stage: not isinstance(stage, Lookup), chain))),)
        )
        if schema.get(path[0]) is None
    ]
    ahead = chooser.choice((ahead, ahead, []))
    half, most = chooser.randint(0, len(chain)), chooser.choice((200, 2_000, 10**7))

    def letters(outs: Iterable[Out]) -> None:
        for letter in (letter for out in outs for letter in documents_of(out.batch)):
            why: Any = letter["errInfo"]
            told.letter(letter["doc"], why["reason"], why.get("code"), why.get("path"))

    def looked_up(stage: Lookup, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        operator = LookupRows(stage)
        looking = operator.begin(batch)
        table = [Found(place, row) for place, row in enumerate(cast("InlineTable", stage.from_).documents)]
        buckets = sorted_out(operator.looker.narrowing, table, [key_of(wanted) for wanted in looking.wanted.values()])
        outs = by_own_tables(operator.finish(looking, buckets, most))
        letters(out for out in outs if out.port == DLQ)
        yield from (out.batch for out in outs if out.port == OUT and out.batch.num_rows)

    def through(stages: Sequence[Any], batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        front = list(takewhile(lambda stage: not isinstance(stage, Lookup), stages))
        for staged in through_in_pieces(front, batch, NOWHERE, most):
            told.discarded += staged.discarded
            letters(staged.letters)
            if staged.batch.num_rows and len(front) < len(stages):
                for found in looked_up(stages[len(front)], staged.batch):
                    yield from through(stages[len(front) + 1 :], found)
            elif staged.batch.num_rows:
                yield staged.batch

    for begin, end in pairwise(cuts):
        decoded = decode(pa.array(texts[begin:end], pa.binary()), schema, ahead)
        bad = decoded.bad
        for row, place, text in zip(bad.rows.tolist(), bad.places.tolist(), bad.documents.to_pylist(), strict=True):
            told.refuse(begin + row, bad.causes[place], text)
        first = with_engine(decoded.batch, [begin + row for row in decoded.rows.tolist()])
        for between in through(chain[:half], first):
            sent = decode_batch(encode_batch(between)) if chooser.random() < 0.5 else between
            batches += through(chain[half:], sent)
    told.documents = [document for batch in batches for document in documents_of(batch)]
    return told, batches


def chain_of(chooser: random.Random, most: int = 6) -> tuple[Stateless, ...]:
    """Stages that a document may have; those that it refuses are drawn again."""
    drawn, wanted = Stages(chooser), chooser.randint(1, most)
    trees: list[dict[str, Any]] = []
    chain: tuple[Any, ...] = ()
    for _ in range(8 * most):
        tree = drawn.stage() if chooser.random() < 0.93 else drawn.lookup()
        try:
            chain = parse({"pipeline": [SOURCE, *trees, tree]}).pipeline[1:]
        except InvalidDocument:
            continue
        trees.append(tree)
        if len(trees) == wanted:
            break
    return chain


@given(st.integers(0, 2**64))
@settings(max_examples=400)
def test_a_pipeline_gives_on_columns_what_it_gives_of_each_record(seed: int) -> None:
    """The same documents in the same order, byte for byte at a sink; the same dead letters with the same reasons, and the same counts.

    What the planner derives of declared fields holds behind the stages.
    """
    chooser = random.Random(seed)
    types = chooser.choice(TYPES)
    records = Records(chooser, chooser.choice((0.02, 0.1, 0.3)), types)
    texts = [records.text() for _ in range(chooser.choice((1, 3, 12, 40)))] * chooser.choice((1, 1, 1, 2, 8))
    schema, chain = parse_schema(types, "schema", Problems({})), chain_of(chooser)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "FEW_ROWS", chooser.choice((0, 0, calls.FEW_ROWS)))
        found, batches = on_columns(chooser, chain, texts, schema)
    wanted = interpreted(chain, texts, schema)
    assert found.comparable() == wanted.comparable()
    known = declared(schema, chain)
    for batch in batches:
        again = typed(batch, known)
        assert set(user_columns(again)) == {field.name for field in known if field.type != "decimal"}
        assert canonical(documents_of(again)) == canonical(documents_of(batch))
    form, dates = chooser.choice(FORMS), chooser.choice(DATES)
    lines = [line for batch in batches for line in rendered(batch, form, dates).to_pylist()]
    assert lines == [written(document, form, dates) for document in wanted.documents]


_LONG = b"\\u0078" * 300


@pytest.mark.parametrize(
    ("stages", "texts"),
    [
        pytest.param([{"$unset": "a"}, {"$lookup": {"from": {"documents": []}, "as": "a", "localField": "n", "foreignField": "n"}}],
                     [b'{"a":1,"n":2}', b'{"n":2}'], id="a lookup in the place of a field that is gone"),
        pytest.param([{"$project": {"k": 1, "n": {"a": {"$toDate": "$s"}}}}], [b'{"s":"","k":0,"n":[]}', b'{"n":null,"s":"","k":0}'],
                     id="no item to compute in"),
        pytest.param([{"$match": {"a.a": {"$exists": True}}}], [b'{"a":[{"a":5,"b":-3},{"b":1,"b":2}]}'], id="names twice in an item"),
        pytest.param([{"$match": {"$jsonSchema": {"properties": {"a": {"items": {"bsonType": "string"}}}}}}],
                     [b'{"a":[{"b":1,"b":2}]}'], id="names twice in an item of a schema"),
        pytest.param([{"$project": {"a": 1, "k": 1}}], [b'{"a":0,"k":1,"a":2}', b'{"k":1,"a":2}'], id="a field twice, around another"),
        pytest.param([{"$project": {"k": 1, "c": {"$cond": ["$k.b", 1, "$$ROOT"]}}}],
                     [b'{"a":0,"b":["xxxxxxxxxxxxxxxxxxxxxxxx"],"k":{"n":null,"%b":{"x":1}}}' % _LONG], id="a long name of escapes"),
        pytest.param([{"$unwind": {"path": "$k", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "k"}}],
                     [b'{"k":[],"n":1}', b'{"k":[7],"n":1}', b'{"n":1}'], id="an index in the place of the array"),
        pytest.param([{"$unwind": {"path": "$k", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "k.a"}}],
                     [b'{"k":[],"n":1}', b'{"k":[7,{"b":2}],"n":1}', b'{"n":1}'], id="an index inside of the item"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("few", [0, 128])
def test_a_pipeline_gives_the_same_of_hard_records(
    stages: list[dict[str, Any]], texts: list[bytes], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, where it once did not."""
    monkeypatch.setattr(calls, "FEW_ROWS", few)
    chain: Any = parse({"pipeline": [SOURCE, *stages]}).pipeline[1:]
    for seed in range(4):
        found, _ = on_columns(random.Random(seed), chain, texts, NO_SCHEMA)
        assert found.comparable() == interpreted(chain, texts, NO_SCHEMA).comparable()


_DEEP = [
    {"$set": {"b": "$n"}}, {"$set": {"b": ["$n"]}}, {"$set": {"b.c": "$n"}}, {"$set": {"b": "$$ROOT"}},
    {"$set": {"b": {"$ifNull": ["$n", 1]}}},
    {"$set": {"b": {"$concatArrays": [["$n"]]}}}, {"$set": {"b": {"$type": "$n"}}},
    {"$set": {"b": {"$map": {"input": ["$n"], "in": "$$this"}}}},
    {"$set": {"b": {"$map": {"input": ["$n"], "in": {"$type": "$$this"}}}}}, {"$project": {"n": 1}}, {"$project": {"n": {"a": "$n"}}},
    {"$replaceWith": {"n": "$n"}}, {"$replaceWith": {"n": "$n", "c": {"$add": ["$n"]}}},
    {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"c": "$x"}]}},
    {"$replaceWith": {"$ifNull": ["$c", "$$ROOT"]}}, {"$unwind": "$n"}, {"$match": {"n": {"$size": 1}}},
    {"$redact": {"$cond": [{"$eq": [{"$type": "$n"}, "object"]}, "$$KEEP", "$$DESCEND"]}},
]  # fmt: skip


@pytest.mark.parametrize("stage", _DEEP, ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_a_result_nests_no_deeper_than_the_interpreter_lets_it(
    stage: dict[str, Any], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field as the document has it may; known: whether the reader is sure of the record."""
    monkeypatch.setattr(calls, "FEW_ROWS", 0)
    chain: Any = parse({"pipeline": [SOURCE, stage]}).pipeline[1:]
    for depth in (148, 149, 150, 151, 170, 178):
        for opened, closed in (("[", "]"), ("[", ",1]"), ('{"a":', "}")):
            deep = opened * depth + "1" + closed * depth
            again = "" if known else f'"n":{deep},'
            texts = [f'{{{again}"n":{deep},"x":{row}}}'.encode() for row in range(3)]
            found, _ = on_columns(random.Random(depth), chain, texts, NO_SCHEMA)
            assert found.comparable() == interpreted(chain, texts, NO_SCHEMA).comparable()


@pytest.mark.parametrize(
    ("kind", "number"),
    [("int", b"1000000000000000.0"), ("int", b"2147483648.0"), ("long", b"1e300"), ("int", b"3000000000")],
)
def test_a_number_that_has_no_room_in_a_declared_type_is_told_as_what_it_is(kind: str, number: bytes) -> None:
    """A double is no long because it is whole."""
    schema = parse_schema({"a": kind}, "schema", Problems({}))
    found, _ = on_columns(random.Random(0), (), [b'{"a":%b}' % number], schema)
    assert found.comparable() == interpreted((), [b'{"a":%b}' % number], schema).comparable()
