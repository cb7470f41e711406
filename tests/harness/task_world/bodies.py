"""What the explorer's tasks do with data: small enough that what must come out is known from the source positions alone."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.harness.task_world.plan import GROUPS, Row, owner
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.watermarks import InputProgress, all_idle, combined_watermark

WINDOW = 10
TIMER_MS = 5


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a split."""

    key: int
    value: int
    ts: int


Script = Mapping[int, Sequence[Record]]
Key = tuple[int, int]


class Body(Protocol):
    """What a fake driver asks of a task's data side. `out_wm`: the output watermark, ms."""

    out_wm: int

    def apply(self, rows: Iterable[Row], now: int) -> list[Row]: ...
    def advance(self, watermark: int, now: int) -> list[Row]: ...
    def fire(self, now: int) -> list[Row]: ...
    def flush(self) -> list[Row]: ...
    def next_timer(self) -> int: ...


@dataclass
class SourceBody:
    """Reads its splits; the watermark of a split is the highest event time less 3."""

    script: Script
    positions: dict[int, int]
    progress: dict[int, InputProgress]
    out_wm: int = MIN_TIME

    def apply(self, rows: Iterable[Row], now: int) -> list[Row]:
        raise AssertionError("a source has no input")

    def advance(self, watermark: int, now: int) -> list[Row]:
        raise AssertionError("a source has no input")

    def fire(self, now: int) -> list[Row]:
        return []

    def flush(self) -> list[Row]:
        return []

    def next_timer(self) -> int:
        return MAX_TIME

    def read(self, rng: Random) -> list[Row]:
        """Take a few records of one split, or find it idle, or at its end."""
        open_splits = [s for s, p in self.progress.items() if not p.ended]
        if open_splits:
            split = rng.choice(open_splits)
            rows = self._read_split(split, rng)
        else:
            rows = []
        self.out_wm = max(self.out_wm, combined_watermark(self.progress.values()) if self.progress else MAX_TIME)
        return rows

    def _read_split(self, split: int, rng: Random) -> list[Row]:
        progress, position = self.progress[split], self.positions[split]
        records = self.script[split][position : position + rng.randint(1, 3)]
        if not records:
            progress.ended = True
            return []
        if rng.random() < 0.1:
            progress.idle = True
            return []
        progress.idle = False
        self.positions[split] = position + len(records)
        progress.raise_to(max(r.ts for r in records) - 3)
        return [Row("in", split, r.key, r.value, r.ts, on_time=True) for r in records]

    def idle(self) -> bool:
        return all_idle(self.progress.values())

    def ended(self) -> bool:
        return all(p.ended for p in self.progress.values())


@dataclass
class OperatorBody:
    """By key: a running sum, counts in windows that fire with the watermark, and one processing-time timer."""

    sums: dict[Key, int] = field(default_factory=dict)
    windows: dict[tuple[int, int, int], int] = field(default_factory=dict)
    closed: set[tuple[int, int, int]] = field(default_factory=set)
    timers: dict[Key, int] = field(default_factory=dict)
    wm: int = MIN_TIME
    out_wm: int = MIN_TIME

    def apply(self, rows: Iterable[Row], now: int) -> list[Row]:
        out = []
        for row in rows:
            key = (row.split, row.key)
            if key not in self.sums:
                self.timers[key] = now + TIMER_MS
            self.sums[key] = self.sums.get(key, 0) + row.number
            out.append(Row("sum", *key, self.sums[key], row.ts, on_time=True))
            window = (*key, row.ts // WINDOW * WINDOW + WINDOW)
            if row.ts < self.wm:
                out.append(Row("late", *key, 1, row.ts, on_time=True))
            else:
                assert window not in self.closed, f"window {window} is opened again at watermark {self.wm}"
                self.windows[window] = self.windows.get(window, 0) + 1
        return out

    def advance(self, watermark: int, now: int) -> list[Row]:
        assert watermark >= self.wm, f"the input watermark falls from {self.wm} to {watermark}"
        self.wm = watermark
        fired = sorted((w for w in self.windows if w[2] <= watermark), key=lambda w: (w[2], w))
        out = [Row("win", *w[:2], self.windows.pop(w), w[2] - 1, on_time=True) for w in fired]
        self.closed.update(fired)
        self.out_wm = watermark
        return out + (self._fire(MAX_TIME) if watermark == MAX_TIME else [])

    def fire(self, now: int) -> list[Row]:
        return self._fire(now)

    def _fire(self, now: int) -> list[Row]:
        due = sorted(k for k, at in self.timers.items() if at <= now)
        for key in due:
            del self.timers[key]
        return [Row("timer", *key, 1, max(self.wm, 0), on_time=True) for key in due]

    def flush(self) -> list[Row]:
        return []

    def next_timer(self) -> int:
        return min(self.timers.values(), default=MAX_TIME)


@dataclass
class StepBody:
    """Holds an epoch's rows until its flush, as a Spark stage does."""

    held: list[Row] = field(default_factory=list)
    wm: int = MIN_TIME
    out_wm: int = MIN_TIME

    def apply(self, rows: Iterable[Row], now: int) -> list[Row]:
        self.held += rows
        return []

    def advance(self, watermark: int, now: int) -> list[Row]:
        assert watermark >= self.wm
        self.wm = watermark
        return self.flush() if watermark == MAX_TIME else []

    def fire(self, now: int) -> list[Row]:
        return []

    def flush(self) -> list[Row]:
        out, self.held = self.held, []
        self.out_wm = self.wm
        return out

    def next_timer(self) -> int:
        return MAX_TIME


@dataclass
class SinkBody:
    """Stages by epoch; the handle covers all after the last committed checkpoint (C5)."""

    rows: list[Row] = field(default_factory=list)
    staged: list[tuple[Epoch, list[Row]]] = field(default_factory=list)
    out_wm: int = MIN_TIME

    def apply(self, rows: Iterable[Row], now: int) -> list[Row]:
        self.rows += rows
        return []

    def advance(self, watermark: int, now: int) -> list[Row]:
        return []

    def fire(self, now: int) -> list[Row]:
        return []

    def flush(self) -> list[Row]:
        return []

    def next_timer(self) -> int:
        return MAX_TIME

    def stage(self, epoch: Epoch, committed: Epoch) -> tuple[Row, ...]:
        """Everything staged after `committed`."""
        self.staged = [(e, rows) for e, rows in self.staged if e > committed]
        self.staged.append((epoch, self.rows))
        self.rows = []
        return tuple(row for _, rows in self.staged for row in rows)


AnyBody = SourceBody | OperatorBody | StepBody | SinkBody


def restored_source(script: Script, index: int, tasks: int, states: Sequence[AnyBody]) -> SourceBody:
    """Splits go round; positions and progress come from whoever had them."""
    mine = [s for s in script if s % tasks == index]
    body = SourceBody(script, dict.fromkeys(mine, 0), {s: InputProgress() for s in mine})
    for state in states:
        assert isinstance(state, SourceBody)
        for split in set(mine) & set(state.positions):
            body.positions[split] = state.positions[split]
            body.progress[split] = copy.copy(state.progress[split])
    return body


def restored_operator(index: int, tasks: int, states: Sequence[AnyBody]) -> OperatorBody:
    """Keys go by group; the watermark comes with the machine's first Advance."""
    body = OperatorBody()

    def mine(split: int, key: int) -> bool:
        return owner((split * 3 + key) % GROUPS, tasks) == index

    for state in states:
        assert isinstance(state, OperatorBody)
        body.sums.update({k: v for k, v in state.sums.items() if mine(*k)})
        body.timers.update({k: v for k, v in state.timers.items() if mine(*k)})
        body.windows.update({w: v for w, v in state.windows.items() if mine(*w[:2])})
        body.closed.update(w for w in state.closed if mine(*w[:2]))
    return body


def expected_sums(script: Script, positions: Mapping[int, int]) -> dict[Key, list[int]]:
    """The running sums that a prefix of every split determines, in order, by key."""
    sums: dict[Key, list[int]] = {}
    for split, position in positions.items():
        for record in script[split][:position]:
            series = sums.setdefault((split, record.key), [])
            series.append((series[-1] if series else 0) + record.value)
    return sums
