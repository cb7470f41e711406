"""The contract of computations finds what it is for."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tidemark import Computation, NoConfig, Record, Timer, Timers
from tidemark.testing import ComputationContract


@dataclass
class Seen:
    n: int = 0


class Right(Computation[Seen, NoConfig]):
    """The number of a key's records, ten behind the last."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        state.n += 1
        timers.set("end", record.timestamp + 10)

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        del timer, timers
        yield {"n": state.n}
        state.n = 0


class Forgets(Right):
    """Counts beside its state."""

    def __init__(self, config: NoConfig) -> None:
        super().__init__(config)
        self.counts: dict[Any, int] = {}

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        super().process(record, state, timers)
        state.n = self.counts[record.key] = self.counts.get(record.key, 0) + 1


class Shares(Right):
    """Counts all keys of all objects together."""

    total: ClassVar[int] = 0

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        super().process(record, state, timers)
        Shares.total += 1
        state.n = Shares.total


class Batched(Right):
    """Tells how many records came together, which is chance."""

    batch_schema = pa.schema([("n", pa.int64())])

    def process_batch(self, batch: pa.RecordBatch, state: Seen, timers: Timers) -> pa.RecordBatch:
        del state, timers
        counts = pa.array([batch.num_rows] * batch.num_rows, pa.int64())
        return pa.RecordBatch.from_arrays([counts, batch.column("timestamp")], names=["n", "timestamp"])


class Silent(Right):
    """Gives nothing."""

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        """Nothing."""


class Hashes(Right):
    """Tells a share of its key by `hash`."""

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        super().process(record, state, timers)
        yield {"n": state.n, "share": hash(record.key) % 1_000}


@dataclass
class Users:
    """Sets in state are in the order of their values; a list is in its own."""

    found: list[str] = field(default_factory=list)


class Ordered(Computation[Users, NoConfig]):
    """Keeps letters as a set has them, and sorts them where it tells of them."""

    State = Users

    def process(self, record: Record, state: Users, timers: Timers) -> Any:
        del timers
        state.found = list(set("abcdefgh"))
        yield {"n": record.value["n"], "found": sorted(state.found)}


class Waiting(Right):
    """Sets a timer by `hash`, of which nothing comes out."""

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        super().process(record, state, timers)
        timers.set("idle", 100 + hash(record.key) % 1_000)

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        if timer.name == "end":
            yield from super().on_timer(timer, state, timers)


class Dated(Right):
    """Tells today's date."""

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        del timer, timers
        yield {"n": state.n, "on": date.today().isoformat()}  # noqa: DTZ011 - the fault


class Local(Dated):
    """Tells the date of its timer where it happens to run."""

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        del timers
        yield {"n": state.n, "on": datetime.fromtimestamp(timer.time / 1000).date().isoformat()}  # noqa: DTZ006 - the fault


class Counted(Right):
    """Tells the days since 1970."""

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        del timer, timers
        yield {"n": state.n, "day": int(time.time() // 86_400)}


SALT = random.getrandbits(64)


class Salted(Right):
    """Marks what it gives with a number that each process draws."""

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        del timer, timers
        yield {"n": state.n, "salt": f"{SALT:x}"}


class Prepared(Right):
    """Works where something was prepared for it."""

    prepared: ClassVar[bool] = False

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        if not self.prepared:
            raise RuntimeError("nothing is prepared")
        super().process(record, state, timers)


class Contract(ComputationContract):
    __test__ = False
    key = "k"
    records = tuple(
        ({"k": key, "n": n}, at) for n, (key, at) in enumerate([("a", 3), ("b", 1), ("a", 2), ("a", 20), ("b", 9)])
    )


def of(computation: type[Computation[Any, Any]]) -> Contract:
    suite = Contract()
    suite.plugin = computation  # type: ignore[misc]
    return suite


def pass_all(computation: type[Computation[Any, Any]]) -> None:
    """The whole contract."""
    for name in sorted(dir(ComputationContract)):
        if name.startswith("test_"):
            getattr(of(computation), name)()


RESTART = ComputationContract.test_a_restart_changes_nothing
ALONE = ComputationContract.test_a_key_knows_nothing_of_others
PACE = ComputationContract.test_the_pace_changes_nothing


def test_a_computation_that_keeps_to_its_state_passes() -> None:
    """All of it."""
    pass_all(Right)


@pytest.mark.parametrize(
    ("computation", "test", "says"),
    [
        (Forgets, RESTART, "a restart behind record"),
        (Shares, ALONE, "without the others"),
        (Silent, RESTART, "nothing comes out"),
        (Batched, PACE, "no watermark before the end"),
    ],
)
def test_one_that_does_not_is_told(
    computation: type[Computation[Any, Any]], test: Callable[[Any], None], says: str
) -> None:
    """By the first difference."""
    with pytest.raises(AssertionError, match=says):
        test(of(computation))


@pytest.mark.parametrize(
    ("computation", "says"),
    [
        (Hashes, "behind record 1: document 0: expected .*share"),
        (Ordered, "behind record 1: the state of key 'b': expected .*found"),
        (Waiting, "behind record 1: the timers of key 'b': expected .*'idle' at"),
        (Dated, "at the end: document 0: expected .*on"),
        (Local, "at the end: document 0: expected .*on"),
        (Counted, "at the end: document 0: expected .*day"),
        (Salted, "at the end: document 0: expected .*salt"),
    ],
)
def test_what_depends_on_the_process_or_the_clock_is_told(computation: type[Computation[Any, Any]], says: str) -> None:
    """By what differs first in another process, on another day: documents, a key's state, or its timers."""
    with pytest.raises(AssertionError, match=f"in another process .* another day, {says}"):
        pass_all(computation)


def test_one_that_another_process_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what that process says; and one that it cannot even find, by its name."""

    class Inner(Right):
        """Of a function."""

    monkeypatch.setattr(Prepared, "prepared", True)
    for kind, says in (
        (Prepared, "it fails in another process:(.|\n)*nothing is prepared"),
        (Inner, "Inner is made in"),
    ):
        with pytest.raises(AssertionError, match=says):
            pass_all(kind)
