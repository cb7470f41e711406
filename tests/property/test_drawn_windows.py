"""Windows that group records drawn as text: under any schedule, cut, restored and merged, what the interpreter makes of their records."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_records import Records
from tests.harness.drawn_stages import Groups
from tests.harness.plan_world import PlanWorld
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages import Group, HoppingWindow, SessionWindow, Stateless
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import canonical_key, encode_value, parse_json
from tidemark.shared.model.values import MISSING, Date, Document, Value
from tidemark.shared.operators.decode import Bad, read_alone

TYPES: tuple[dict[str, str], ...] = (
    *[{}] * 3, {"a": "int?"}, {"a": "long?", "b": "double?"}, {"a": "string?", "k": "date?"}, {"b": "bool?", "a": "double?", "k": "int?"}
)  # fmt: skip
Order = tuple[int, int, int]
Ordered = tuple[Document, Order, Environment]


def ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def drawn(chooser: random.Random, types: dict[str, str]) -> dict[str, Any] | None:
    """A document of one window that groups; None if it would be refused."""
    groups = Groups(chooser)
    before = [groups.stage() for _ in range(chooser.choice((0, 0, 1, 2)))]
    inner = [groups.stage() for _ in range(chooser.choice((0, 0, 1)))]
    after = [groups.stage() for _ in range(chooser.choice((0, 0, 0, 1)))]
    if any("$unwind" in stage for stage in (*before, *inner)):
        return None  # rows of one record have no order among each other
    bounds = {"$addFields": {"start": {"$meta": "stream.window.start"}, "end": {"$meta": "stream.window.end"}}}
    window: dict[str, Any] = {"pipeline": [*inner, groups.group(), *after, bounds]}
    size = chooser.choice((3, 7, 20))
    kind = chooser.choice(("$tumblingWindow", "$hoppingWindow", "$sessionWindow"))
    if kind == "$sessionWindow":
        window |= {"gap": ms(size), "partitionBy": groups.key()}
    else:
        window |= {"interval": ms(size)} | (
            {"hopSize": ms(chooser.choice((2, 5, 9)))} if kind == "$hoppingWindow" else {}
        )
    watermark = {"strategy": "boundedDisorder", "maxDelay": ms(1_000)}
    source = {
        "connectionName": "c",
        "topic": "t",
        "timeField": "$ts",
        "watermark": watermark,
        **({"schema": types} if types else {}),
    }
    document = {"pipeline": [{"$source": source}, *before, {kind: window}], "options": {"lateness": "split"}}
    try:
        parse(document)
    except InvalidDocument:
        return None
    return document


class Interpreted:
    """A document over whole splits, each window by itself."""

    def __init__(self, document: dict[str, Any], splits: Sequence[Sequence[bytes]]) -> None:
        self.documents: list[bytes] = []
        self.letters: list[bytes] = []
        self._told: set[tuple[Order | None, bytes]] = set()
        processor = parse(document)
        *stages, self._window = cast("tuple[Any, ...]", processor.pipeline[1:])
        schema: Schema = processor.source.schema
        pipeline = self._window.pipeline
        at = next(i for i, stage in enumerate(pipeline) if isinstance(stage, Group))
        self._inner, self._group, self._after = pipeline[:at], pipeline[at], pipeline[at + 1 :]
        rows: list[Ordered] = []
        for split, texts in enumerate(splits):
            for position, text in enumerate(texts):
                found = read_alone(text, schema)
                if isinstance(found, Bad):
                    self._letter(None if found.document is None else parse_json(found.document), found.cause.reason)
                    continue
                time = found.get("ts")
                if type(time) is not Date:
                    self._letter(found, f"The event time is a date, found {'missing' if time is None else type(time)}.")
                    continue
                env = Environment(found, now=Date(0), meta={"source": {"partition": split}})
                rows += [(d, (int(time), split, position), env) for d in self._passed(stages, found, env)]
        for start, end, members in self._windows(sorted(rows, key=lambda row: row[1])):
            self._close(start, end, members)

    def _letter(self, document: Value, reason: str, of: Order | None = None) -> None:
        """of: the record, which has one letter for all of its windows."""
        letter = encode_value([document, reason])
        if of is None or (of, letter) not in self._told:
            self.letters.append(letter)
        self._told.add((of, letter))

    def _passed(
        self, stages: Sequence[Stateless], document: Document, env: Environment, of: Order | None = None
    ) -> Iterator[Document]:
        for outcome in apply_stages(stages, document, env):
            if isinstance(outcome, Passed):
                yield from outcome.documents
            elif isinstance(outcome, Failure):
                self._letter(outcome.document, outcome.reason, of)

    def _windows(self, rows: list[Ordered]) -> Iterator[tuple[int, int, list[Ordered]]]:
        window = self._window
        if isinstance(window, SessionWindow):
            yield from self._sessions(window, rows)
            return
        hop = window.hop_size_ms if isinstance(window, HoppingWindow) else window.interval_ms
        held: dict[int, list[Ordered]] = defaultdict(list)
        for row in rows:
            start = row[1][0] // hop * hop
            while start > row[1][0] - window.interval_ms:
                held[start].append(row)
                start -= hop
        for start, members in held.items():
            yield start, start + window.interval_ms, members

    def _sessions(self, window: SessionWindow, rows: list[Ordered]) -> Iterator[tuple[int, int, list[Ordered]]]:
        held: dict[bytes, list[list[Ordered]]] = defaultdict(list)
        for row in rows:
            try:
                key = evaluate_bounded(window.partition_by, row[2].on(row[0])) if window.partition_by else None
            except ExpressionError as error:
                self._letter(row[0], error.reason)
                continue
            sessions = held[canonical_key(None if key is MISSING else key)]
            if not sessions or sessions[-1][-1][1][0] + window.gap_ms <= row[1][0]:
                sessions.append([])
            sessions[-1].append(row)
        for session in (each for sessions in held.values() for each in sessions):
            yield session[0][1][0], session[-1][1][0] + window.gap_ms, session

    def _close(self, start: int, end: int, rows: list[Ordered]) -> None:
        groups: dict[bytes, tuple[Any, list[Any]]] = {}
        accumulators = [implementation(field.accumulator) for field in self._group.fields]
        for document, order, env in rows:
            for found in self._passed(self._inner, document, env, order):
                try:
                    key = evaluate_bounded(self._group.id, env.on(found))
                    inputs = [accumulator_input(field.accumulator, env.on(found)) for field in self._group.fields]
                    for how, value in zip(accumulators, inputs, strict=True):
                        how.add(how.init(), value, order)
                except ExpressionError as error:
                    self._letter(found, error.reason, order)
                    continue
                key = None if key is MISSING else key
                _, states = groups.setdefault(canonical_key(key), (key, [how.init() for how in accumulators]))
                states[:] = [
                    how.add(state, value, order) for how, state, value in zip(accumulators, states, inputs, strict=True)
                ]
        env = Environment({}, meta={"window": {"start": Date(start), "end": Date(end)}})
        for key, states in groups.values():
            finished = [how.finish(state) for how, state in zip(accumulators, states, strict=True)]
            document = {"_id": key, **dict(zip((f.name for f in self._group.fields), finished, strict=True))}
            self.documents += map(encode_value, self._passed(self._after, document, env))


_TIMED = b'{"ts":{"$date":{"$numberLong":"%d"}},"i":%d%s'


def records_of(chooser: random.Random, records: Records) -> list[list[bytes]]:
    """Records of some splits, with their times in front."""
    splits = []
    for _ in range(chooser.choice((1, 1, 2, 3))):
        texts = [records.text() for _ in range(chooser.choice((1, 4, 12, 25)))]
        splits.append([
            _TIMED % (chooser.randint(0, 40), number, b"," * (text[1:2] != b"}") + text[1:]) if text.startswith(b"{") else text
            for number, text in enumerate(texts)
        ])  # fmt: skip
    return splits


@given(st.integers(0, 2**64))
@settings(max_examples=200)
def test_a_window_gives_what_the_interpreter_makes_of_its_records(seed: int) -> None:
    """All accumulators, over states that were stored, restored and merged in any order: byte for byte, and the same dead letters."""
    chooser = random.Random(seed)
    types = chooser.choice(TYPES)
    document = None
    while document is None:
        document = drawn(chooser, types)
    splits = records_of(chooser, Records(chooser, chooser.choice((0.02, 0.1, 0.3)), types))
    world = PlanWorld(document, {"source-1": splits}, {"source-1": chooser.randint(1, 3)})
    for _ in range(chooser.choice((0, 5, 20))):
        match chooser.randrange(8):
            case 0:
                world.epoch()
            case 1:
                world.restart(chooser.randint(0, 3))
            case 2 | 3:
                world.deliver(chooser.randint(0, 8), chooser.randint(1, 4))
            case _:
                world.feed(0, chooser.randrange(len(splits)), chooser.randint(1, 6))
    world.finish()
    wanted = Interpreted(document, splits)
    letters: list[Any] = world.dead_letters()
    assert sorted(map(encode_value, world.documents())) == sorted(wanted.documents)
    found = [encode_value([d["doc"] if type(d["doc"]) is dict else None, d["errInfo"]["reason"]]) for d in letters]
    assert sorted(found) == sorted(wanted.letters)
