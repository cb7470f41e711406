"""Windows that group records drawn as text: under any schedule, cut, restored and merged, what the interpreter makes of their records."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_records import Records
from tests.harness.drawn_stages import Groups
from tests.harness.drawn_world import Plainly, Row, accepted, ms, played, records_of, source
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.stages import Gathering, Group, HoppingWindow, SessionWindow
from tidemark.shared.language.stages.base import too_deep
from tidemark.shared.language.values import canonical_key, encode_value
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.model.values import MISSING, Date

TYPES: tuple[dict[str, str], ...] = (
    *[{}] * 3, {"a": "int?"}, {"a": "long?", "b": "double?"}, {"a": "string?", "k": "date?"}, {"b": "bool?", "a": "double?", "k": "int?"}
)  # fmt: skip


def drawn(chooser: random.Random, types: dict[str, str]) -> dict[str, Any] | None:
    """A document of one window that groups; None if it would be refused."""
    groups = Groups(chooser)
    before = [groups.stage() for _ in range(chooser.choice((0, 0, 1, 2)))]
    inner = [groups.stage() for _ in range(chooser.choice((0, 0, 1)))]
    after = [groups.stage() for _ in range(chooser.choice((0, 0, 0, 1)))]
    if any("$unwind" in stage for stage in (*before, *inner)):
        return None  # rows of one record have no order among each other
    bounds = {"$addFields": {"start": {"$meta": "stream.window.start"}, "end": {"$meta": "stream.window.end"}}}
    window: dict[str, Any] = {"pipeline": [*inner, *groups.order(), groups.group(), *after, bounds]}
    size = chooser.choice((3, 7, 20))
    kind = chooser.choice(("$tumblingWindow", "$hoppingWindow", "$sessionWindow"))
    if kind == "$sessionWindow":
        window |= {"gap": ms(size), "partitionBy": groups.key()}
    else:
        window |= {"interval": ms(size)} | (
            {"hopSize": ms(chooser.choice((2, 5, 9)))} if kind == "$hoppingWindow" else {}
        )
    return accepted({"pipeline": [source(types), *before, {kind: window}], "options": {"lateness": "split"}})


class Interpreted(Plainly):
    """A document over whole splits, each window by itself."""

    def __init__(self, document: dict[str, Any], splits: Sequence[Sequence[bytes]]) -> None:
        super().__init__()
        processor = parse(document)
        *stages, self._window = cast("tuple[Any, ...]", processor.pipeline[1:])
        pipeline = self._window.pipeline
        at = next(i for i, stage in enumerate(pipeline) if isinstance(stage, Group))
        first = next(i for i, stage in enumerate(pipeline) if isinstance(stage, Gathering))
        self._inner, self._ordering, self._group = pipeline[:first], pipeline[first:at], pipeline[at]
        self._after = pipeline[at + 1 :]
        for start, end, members in self._windows(self.rows(splits, processor.source.schema, stages)):
            self._close(start, end, members)

    def _windows(self, rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        window = self._window
        if isinstance(window, SessionWindow):
            yield from self._sessions(window, rows)
            return
        hop = window.hop_size_ms if isinstance(window, HoppingWindow) else window.interval_ms
        held: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            start = row[1][0] // hop * hop
            while start > row[1][0] - window.interval_ms:
                held[start].append(row)
                start -= hop
        for start, members in held.items():
            yield start, start + window.interval_ms, members

    def _sessions(self, window: SessionWindow, rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        held: dict[bytes, list[list[Row]]] = defaultdict(list)
        for row in rows:
            try:
                key = evaluate_bounded(window.partition_by, row[2].on(row[0])) if window.partition_by else None
            except ExpressionError as error:
                self.letter(row[0], error.reason)
                continue
            sessions = held[canonical_key(None if key is MISSING else key)]
            if not sessions or sessions[-1][-1][1][0] + window.gap_ms <= row[1][0]:
                sessions.append([])
            sessions[-1].append(row)
        for session in (each for sessions in held.values() for each in sessions):
            yield session[0][1][0], session[-1][1][0] + window.gap_ms, session

    def _ordered(self, rows: list[Row]) -> list[Row]:
        """The rows of a window as its `$group` has them (D15)."""
        passed = []
        for row, order, env in rows:
            of = None if self._ordering else order
            passed += [(each, order, env) for each in self.passed(self._inner, row, env, of)]
        documents = [document for document, _, _ in passed]
        for stage in self._ordering:
            documents = stage.gather(documents, Environment({}))
        if not self._ordering:
            return passed
        envs = {id(document): env for document, _, env in passed}
        return [(document, (0, 0, place), envs[id(document)]) for place, document in enumerate(documents)]

    def _close(self, start: int, end: int, rows: list[Row]) -> None:
        groups: dict[bytes, tuple[Any, list[Any]]] = {}
        accumulators = [implementation(field.accumulator) for field in self._group.fields]
        for found, order, env in self._ordered(rows):
            try:
                key = evaluate_bounded(self._group.id, env.on(found))
                inputs = [accumulator_input(field.accumulator, env.on(found)) for field in self._group.fields]
                for how, value in zip(accumulators, inputs, strict=True):
                    how.add(how.init(), value, order)
            except ExpressionError as error:
                self.letter(found, error.reason, None if self._ordering else order)
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
            if is_deeper(document, DEPTH_MAX):
                self.letter(document, too_deep().reason)
                continue
            self.documents += map(encode_value, self.passed(self._after, document, env))


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
