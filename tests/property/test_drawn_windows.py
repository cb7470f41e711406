"""Windows that group records drawn as text: under any schedule, cut, restored and merged, what the interpreter makes of their records."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_records import Records
from tests.harness.drawn_stages import Groups
from tests.harness.drawn_world import Order, Plainly, Row, accepted, ms, played, records_of, source
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.stages import Count, Group, HoppingWindow, Limit, SessionWindow, Stateless
from tidemark.shared.language.stages.base import too_deep
from tidemark.shared.language.stages.skip import Skip
from tidemark.shared.language.values import canonical_key, encode_value
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.model.values import MISSING, Date, Document, Value
from tidemark.shared.operators.dead_letters import LATE

TYPES: tuple[dict[str, str], ...] = (
    *[{}] * 3, {"a": "int?"}, {"a": "long?", "b": "double?"}, {"a": "string?", "k": "date?"}, {"b": "bool?", "a": "double?", "k": "int?"}
)  # fmt: skip


def drawn(chooser: random.Random, types: dict[str, str]) -> dict[str, Any] | None:
    """A document of one window; None if it would be refused."""
    groups = Groups(chooser)
    size = chooser.choice((3, 7, 20))
    kind = chooser.choice(("$tumblingWindow", "$hoppingWindow", "$sessionWindow"))
    before = [groups.stage() for _ in range(chooser.choice((0, 0, 1, 2)))]
    key = groups.key()
    if chooser.random() < 0.3:
        groups.metas += ["stream.window", "stream.window.start", "stream.window.end"] * 3
    inner = [groups.stage() for _ in range(chooser.choice((0, 0, 1, 2)))]
    # Rows of one record have no order among each other.
    of_items = any("$unwind" in stage for stage in (*before, *inner))
    ordered = [] if of_items else groups.order() or chooser.choice(([], [], [], [{"$limit": 3}], [{"$skip": 2}]))
    ordered += [groups.stage() for _ in range(chooser.choice((0, 0, 1)))] if ordered else []
    of_items = of_items or any("$unwind" in stage for stage in ordered)
    if chooser.random() < 0.8 or not ordered:
        ordered.append(groups.group(of_items=of_items) if chooser.random() < 0.9 else {"$count": "n"})
    after = [groups.stage() for _ in range(chooser.choice((0, 0, 0, 1)))]
    after += chooser.choice(
        ([], [], [], [{"$group": {"_id": {"$type": "$_id"}, "n": {"$count": {}}}}], [{"$count": "m"}])
    )
    names = ("start", "end", *(("partition",) if kind == "$sessionWindow" else ()))
    bounds = {"$addFields": {name: {"$meta": f"stream.window.{name}"} for name in names}}
    window: dict[str, Any] = {"pipeline": [*inner, *ordered, *after, bounds]}
    delay_ms = 1_000
    if chooser.random() < 0.3:
        window["outputTime"] = chooser.choice(("end", "earliest", "latest"))
    if kind == "$sessionWindow":
        window |= {"gap": ms(size), "partitionBy": key}
    else:
        window |= {"interval": ms(size)}
        if kind == "$hoppingWindow":
            window["hopSize"] = ms(chooser.choice((2, 5, 9)))
        if chooser.random() < 0.3:
            window["offset"] = {"offsetFromUtc": chooser.randint(-30, 30), "unit": "ms"}
        if chooser.random() < 0.2:
            window["idleTimeout"] = chooser.choice((0, ms(5)))
        if chooser.random() < 0.3:
            delay_ms = chooser.choice((1, 5, 20))
            window["allowedLateness"] = chooser.choice((0, ms(1), ms(8), ms(100)))
    return accepted({"pipeline": [source(types, delay_ms), *before, {kind: window}], "options": {"lateness": "split"}})


class Interpreted(Plainly):
    """A document over whole splits, each window by itself."""

    def __init__(self, document: dict[str, Any], splits: Sequence[Sequence[bytes]]) -> None:
        super().__init__()
        self._firsts: dict[Order, int] = {}
        processor = parse(document)
        *stages, self._window = cast("tuple[Any, ...]", processor.pipeline[1:])
        self._delay_ms = next(iter(document["pipeline"]))["$source"]["watermark"]["maxDelay"]["size"]
        pipeline = self._window.pipeline
        at = next((i for i, stage in enumerate(pipeline) if isinstance(stage, Group | Count)), len(pipeline))
        text = json.dumps(list(next(iter(document["pipeline"][-1].values()))["pipeline"])[: at + 1])
        asks = "stream.window" in text or '"stream"' in text
        self._of_each = asks or any(isinstance(stage, Limit | Skip) for stage in pipeline[:at])
        for told, members in self._windows(self.rows(splits, processor.source.schema, stages)):
            self._close(told, members)

    def _windows(self, rows: list[Row]) -> Iterator[tuple[Document, list[Row]]]:
        window = self._window
        if isinstance(window, SessionWindow):
            yield from self._sessions(window, rows)
            return
        hop = window.hop_size_ms if isinstance(window, HoppingWindow) else window.interval_ms
        held: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            time = row[1][0]
            starts, start = [], (time - window.offset_ms) // hop * hop + window.offset_ms
            while start > time - window.interval_ms:
                starts.append(start)
                start -= hop
            closed = self.highest.get(row[1], -(10**9)) - self._delay_ms - window.allowed_lateness_ms
            in_time = [each for each in starts if each + window.interval_ms > closed]
            if len(in_time) < len(starts):
                self.letter(row[0], LATE)
            for start in in_time:
                held[start].append(row)
                self._firsts[row[1]] = min(in_time)
        for start, members in held.items():
            yield {"start": Date(start), "end": Date(start + window.interval_ms)}, members

    def _sessions(self, window: SessionWindow, rows: list[Row]) -> Iterator[tuple[Document, list[Row]]]:
        held: dict[bytes, list[list[tuple[Row, Value]]]] = defaultdict(list)
        for row in rows:
            try:
                key = evaluate_bounded(window.partition_by, row[2].on(row[0])) if window.partition_by else None
            except ExpressionError as error:
                self.letter(row[0], error.reason)
                continue
            key = None if key is MISSING else key
            sessions = held[canonical_key(key)]
            if not sessions or sessions[-1][-1][0][1][0] + window.gap_ms <= row[1][0]:
                sessions.append([])
            sessions[-1].append((row, key))
        for session in (each for sessions in held.values() for each in sessions):
            first, last = (session[place][0][1][0] for place in (0, -1))
            # Equal keys need not look alike: that of the earliest row is shown, and of equal times the least, as bytes.
            key = min((key for row, key in session if row[1][0] == first), key=encode_value)
            yield (
                {"start": Date(first), "end": Date(last + window.gap_ms), "partition": key},
                [row for row, _ in session],
            )

    def _tells(self, start: int, order: Order) -> bool:
        """Whether a window tells of a record's failure: its first one does."""
        return self._of_each or self._firsts.get(order, start) == start

    def _close(self, told: Document, rows: list[Row]) -> None:
        start = cast("int", told["start"])
        rows = [(row, order, windowed(env, told)) for row, order, env in rows]
        stages = list(self._window.pipeline)
        while stages and not isinstance(stages[0], Group | Count):
            rows = self._through(stages.pop(0), start, rows)
        if not stages:
            self.documents += [encode_value(document) for document, _, _ in rows]
            return
        first = stages.pop(0)
        found = self._grouped(first, start, rows) if isinstance(first, Group) else first.gather(rows, Environment({}))
        env = Environment({}, meta={"window": told})
        for stage in stages:
            if isinstance(stage, Stateless):
                found = [each for document in found for each, _ in self.passed([stage], document, env)]
            else:
                found = stage.gather(found, env)
        self.documents += map(encode_value, found)

    def _through(self, stage: Any, start: int, rows: list[Row]) -> list[Row]:
        """The rows of a window behind a stage; one that gathers them orders them anew (D15)."""
        if isinstance(stage, Stateless):
            return [
                (each, order, here)
                for row, order, env in rows
                for each, here in self.passed([stage], row, env, tells=self._tells(start, order))
            ]
        by_document = {id(document): (order, env) for document, order, env in rows}
        found = []
        for place, document in enumerate(stage.gather([document for document, _, _ in rows], Environment({}))):
            order, env = by_document[id(document)]
            found.append((document, (-1, 0, place), env))
            self._firsts[-1, 0, place] = self._firsts.get(order, start)
        return found

    def _grouped(self, group: Group, start: int, rows: list[Row]) -> list[Document]:
        groups: dict[bytes, tuple[Any, list[Any]]] = {}
        accumulators = [implementation(field.accumulator) for field in group.fields]
        for found, order, env in rows:
            try:
                key = group.key(env.on(found))
                inputs = [accumulator_input(field.accumulator, env.on(found)) for field in group.fields]
                for how, value in zip(accumulators, inputs, strict=True):
                    how.add(how.init(), value, order)
            except ExpressionError as error:
                if self._tells(start, order):
                    self.letter(found, error.reason)
                continue
            key = None if key is MISSING else key
            _, states = groups.setdefault(canonical_key(key), (key, [how.init() for how in accumulators]))
            states[:] = [
                how.add(state, value, order) for how, state, value in zip(accumulators, states, inputs, strict=True)
            ]
        documents = []
        for key, states in groups.values():
            finished = [how.finish(state) for how, state in zip(accumulators, states, strict=True)]
            document = {"_id": key, **dict(zip((f.name for f in group.fields), finished, strict=True))}
            if is_deeper(document, DEPTH_MAX):
                self.letter(document, too_deep().reason)
            else:
                documents.append(document)
        return documents


def windowed(env: Environment, told: Document) -> Environment:
    """The same in a window."""
    source = {"source": env.meta["source"]}
    own = {name: value for name, value in env.meta.items() if name != "source"}
    return Environment(env.root, now=env.now, meta={**own, "window": told, **source})


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
    assert played(chooser, document, splits) == Interpreted(document, splits).told()


@pytest.mark.parametrize("name", ["stream", "stream.window", "stream.window.start"])
def test_the_bounds_of_a_session_are_those_that_it_has_in_the_end(name: str) -> None:
    """Also where a stage in front of the `$group`, or the group, reads them, however the session's rows came."""
    told = {"$meta": name}
    texts = [b'{"ts":{"$date":{"$numberLong":"%d"}},"i":%d,"k":1}' % (time, time) for time in (11, 12, 17, 60)]
    for inner in (
        [{"$set": {"s": told}}, {"$group": {"_id": None, "all": {"$addToSet": "$s"}}}],
        [{"$group": {"_id": told, "all": {"$push": told}}}],
    ):
        window = {"$sessionWindow": {"gap": ms(10), "partitionBy": "$k", "pipeline": inner}}
        document = {"pipeline": [source({}), window], "options": {"lateness": "split"}}
        for seed in range(5):
            assert played(random.Random(seed), document, [texts]) == Interpreted(document, [texts]).told()


@pytest.mark.parametrize("key", ["$c", {"p": "$c"}, {"$ifNull": ["$c", 1]}])
@pytest.mark.parametrize("ordering", [[], [{"$sort": {"k": 1}}]])
def test_a_letter_has_all_of_its_document(key: Any, ordering: list[dict[str, Any]]) -> None:
    """Also where a group alone looks at rows on their way, and takes all but the deepest."""
    inner = [*ordering, {"$group": {"_id": key, "s": {"$first": "$k"}}}]
    window = {"$tumblingWindow": {"interval": ms(10), "pipeline": inner}}
    document = {"pipeline": [source({}), window], "options": {"lateness": "split"}}
    texts = []
    for number, depth in enumerate((3, 149, 150, 170)):
        deep = "[" * depth + "]" * depth
        texts.append(f'{{"ts":{{"$date":{{"$numberLong":"{number}"}}}},"c":{deep},"k":{number},"b":"other"}}'.encode())
    assert played(random.Random(1), document, [texts]) == Interpreted(document, [texts]).told()


_FAILING = {"$set": {"x": {"$divide": [1, "$k"]}}}
_SUM = {"$group": {"_id": None, "s": {"$sum": {"$divide": [1, "$k"]}}}}
_IN_TIME = {
    "$set": {"x": {"$cond": [{"$gt": [{"$meta": "stream.window.start"}, {"$date": 0}]}, {"$divide": [1, "$k"]}, 0]}}
}


@pytest.mark.parametrize(
    ("stages", "more", "count"),
    [
        ([_SUM], {}, 1),
        ([{"$sort": {"k": 1}}, _SUM], {}, 1),
        ([_SUM], {"outputTime": "latest"}, 1),
        ([_FAILING, _SUM], {}, 1),
        ([_FAILING, _SUM], {"outputTime": "earliest"}, 1),
        ([_FAILING, {"$sort": {"k": 1}}, _SUM], {}, 1),
        ([{"$sort": {"k": 1}}, _FAILING], {}, 1),
        ([_FAILING], {"idleTimeout": ms(5)}, 1),
        ([{"$sort": {"k": -1}}, {"$limit": 2}, _SUM], {}, 1),
        ([{"$sort": {"k": -1}}, {"$skip": 1}, _SUM], {}, 3),
        ([_IN_TIME, {"$group": {"_id": None}}], {}, 2),
        ([{"$sort": {"k": 1}}, _IN_TIME], {}, 2),
    ],
)
def test_a_document_that_fails_in_windows_that_overlap_is_one_dead_letter(
    stages: list[dict[str, Any]], more: dict[str, Any], count: int
) -> None:
    """Behind a `$sort`, too; of each window in which it fails where they differ in that."""
    window = {"$hoppingWindow": {"interval": ms(15), "hopSize": ms(5), "pipeline": stages, **more}}
    texts = [b'{"ts":{"$date":{"$numberLong":"%d"}},"i":%d,"k":%d}' % (time, time, time != 12) for time in (11, 12, 17)]
    for seed in range(4):
        document = {"pipeline": [source({}), window], "options": {"lateness": "split"}}
        _, letters = played(random.Random(seed), document, [texts])
        assert len(letters) == count
