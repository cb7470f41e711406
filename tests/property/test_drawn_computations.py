"""Computations over records drawn as text: under any schedule what each key's records give one by one, in the order of time."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_depths import Depths
from tests.harness.drawn_records import Records
from tests.harness.drawn_stages import Groups
from tests.harness.drawn_world import Plainly, Row, Texts, accepted, played, records_of, source
from tidemark.shared.computation import Computation, ComputationError, NoConfig, Record, Timer, Timers
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.stages import Compute
from tidemark.shared.language.values import canonical_key, encode_value
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.model.values import MISSING, Date, Document

_TOO_DEEP: Final = f"a computation's documents nest at most {DEPTH_MAX} deep, and one that it yields is deeper"


@dataclass
class Log:
    seen: list[int] = field(default_factory=list)


class Remembering(Computation[Log, NoConfig]):
    """Yields each record inside of another document, and what its key has seen; timers that records set tell it again."""

    State = Log

    def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
        """Every seventh record fails, once it has changed state and timers."""
        number = record.value["i"]
        state.seen.append(number)
        timers.set(f"t{number % 2}", record.timestamp + number % 5)
        if number % 3 == 0:
            timers.cancel("t1")
        yield {"seen": list(state.seen), "in": record.value, "at": Date(record.timestamp)}
        if number % 7 == 6:
            raise ValueError(f"no {number}")
        yield {"n": number}

    def on_timer(self, timer: Timer, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(-timer.time)
        yield {"timer": timer.name, "seen": list(state.seen)}


class _Set:
    """Timers of a key, by name."""

    def __init__(self, pending: dict[str, int]) -> None:
        self.pending = pending

    def set(self, name: str, time: int) -> None:
        self.pending[name] = time

    def cancel(self, name: str) -> None:
        self.pending.pop(name, None)


class Interpreted(Plainly):
    """A document over whole splits, each key by itself."""

    def __init__(self, document: dict[str, Any], splits: Sequence[Sequence[bytes]]) -> None:
        super().__init__()
        processor = parse(document)
        stages = cast("tuple[Any, ...]", processor.pipeline[1:])
        at = next(i for i, stage in enumerate(stages) if isinstance(stage, Compute))
        self._after = stages[at + 1 :]
        keys: dict[bytes, list[Row]] = defaultdict(list)
        for row in self.rows(splits, processor.source.schema, stages[:at]):
            try:
                key = evaluate_bounded(stages[at].key, row[2].on(row[0]))
            except ExpressionError as error:
                self.letter(row[0], error.reason)
                continue
            keys[canonical_key(None if key is MISSING else key)].append(row)
        for rows in keys.values():
            self._key(rows)

    def _key(self, rows: list[Row]) -> None:
        """Records and timers in the order of time, records first on a tie."""
        made, seen, timers = Remembering(NoConfig()), Log(), dict[str, int]()
        waiting = list(rows)
        while waiting or timers:
            due = min(((time, name) for name, time in timers.items()), default=None)
            if due is not None and (not waiting or due[0] < waiting[0][1][0]):
                del timers[due[1]]
                self._come(due[0], made.on_timer(Timer(due[1], due[0]), seen, cast("Any", _Set(timers))))
                continue
            document, order, _ = waiting.pop(0)
            state, pending = Log(list(seen.seen)), dict(timers)
            try:
                found = []
                for each in made.process(Record(None, document, order[0]), state, cast("Any", _Set(pending))):
                    if is_deeper(each, DEPTH_MAX):
                        raise ComputationError(_TOO_DEEP)
                    found.append(each)
            except (ValueError, ComputationError) as error:
                self.letter(document, f"{type(error).__name__}: {error}")
                continue
            seen, timers = state, pending
            self._come(order[0], found)

    def _come(self, time_ms: int, found: Iterable[Document]) -> None:
        env = Environment({}, now=Date(time_ms))
        for document in found:
            self.documents += [encode_value(each) for each, _ in self.passed(self._after, document, env)]


def drawn(chooser: random.Random, types: dict[str, str], stages: Groups) -> dict[str, Any] | None:
    """A document of one computation; None if it would be refused."""
    before, after = ([stages.stage() for _ in range(chooser.choice((0, 0, 1, 2)))] for _ in range(2))
    if any("$unwind" in stage for stage in before):
        return None  # rows of one record have no order among each other
    compute = {"class": f"{__name__}:{Remembering.__name__}", "key": chooser.choice((stages.key(), "$k", "$a"))}
    again: list[dict[str, Any]] = [{"$match": {"i": {"$type": "number"}}}]  # which a stage may have taken away
    return accepted(
        {"pipeline": [source(types), *before, *again, {"$compute": compute}, *after], "options": {"lateness": "split"}}
    )


@given(st.integers(0, 2**64))
@settings(max_examples=100)
def test_a_computation_gives_what_its_keys_records_give_one_by_one(seed: int) -> None:
    """Byte for byte, over restarts and any number of tasks; failures change nothing, and are the same dead letters."""
    chooser = random.Random(seed)
    types = chooser.choice(({}, {}, {"a": "int?"}, {"a": "string?", "k": "date?"}))
    deep = chooser.random() < 0.2
    texts: Texts = Depths(chooser) if deep else Records(chooser, chooser.choice((0.02, 0.1, 0.3)), types)
    document = None
    while document is None:
        document = drawn(chooser, {} if deep else types, Depths(chooser) if deep else Groups(chooser))
    splits = records_of(chooser, texts)
    assert played(chooser, document, splits) == Interpreted(document, splits).told()
