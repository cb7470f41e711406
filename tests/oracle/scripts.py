"""What windows and computations over a script of both times are to give, step by step in plain Python; nothing of the product's in it.

Rules by LANGUAGE.md: partitions and their watermarks D2 and D3, windows D5 to D8, order D11, keys D12; Computations. Times
are milliseconds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Lateness: TypeAlias = Literal["merged", "split"]


@dataclass(frozen=True)
class Data:
    """A record comes. `key`: None stands for null and missing."""

    number: int
    time_ms: int
    key: Hashable
    partition: int = 0
    event_ms: int | None = None
    """To when it sets a timer of event time."""
    clock_ms: int | None = None
    """To when it sets one of processing time."""


@dataclass(frozen=True)
class Watermark:
    """The watermark of a partition, or of all, rises to this."""

    time_ms: int
    partition: int | None = None


@dataclass(frozen=True)
class Clock:
    """Processing time goes to this."""

    time_ms: int


@dataclass(frozen=True)
class Idle:
    """A partition is idle, or all are."""

    partition: int | None = None


Step: TypeAlias = Data | Watermark | Clock | Idle


class Source:
    """The watermarks of a script's partitions."""

    def __init__(self, steps: Sequence[Step], delay_ms: int) -> None:
        self._delay_ms = delay_ms
        named = [step.partition for step in steps if not isinstance(step, Clock) and step.partition is not None]
        self.of: dict[int, int | None] = dict.fromkeys(sorted(named) or [0])
        self.idle: set[int] = set()
        self.sent: int | None = None
        """The source's watermark; None for none yet."""

    def passes(self, step: Step) -> None:
        """What a step does to them."""
        match step:
            case Data():
                self._rise(step.partition, step.time_ms - self._delay_ms)
            case Watermark():
                for partition in self.of if step.partition is None else [step.partition]:
                    self._rise(partition, step.time_ms)
            case Idle():
                self.idle |= set(self.of) if step.partition is None else {step.partition}
        awake = set(self.of) - self.idle
        marks = [mark for partition, mark in self.of.items() if mark is not None and (partition in awake or not awake)]
        if not marks or len(marks) < len(awake):
            return
        found = min(marks) if awake else max(marks)
        self.sent = found if self.sent is None else max(self.sent, found)

    def _rise(self, partition: int, to_ms: int) -> None:
        before = self.of[partition]
        self.of[partition] = to_ms if before is None else max(before, to_ms)
        self.idle.discard(partition)


@dataclass(frozen=True)
class Windows:
    """A window stage. hop_ms 0: sessions, whose gap is `size_ms`."""

    size_ms: int
    hop_ms: int
    offset_ms: int = 0
    lateness_ms: int = 0
    idle_ms: int | None = None
    by_arrival: bool = False
    """`boundary: processingTime`."""


@dataclass(frozen=True)
class Taken:
    """A record in a window: the time that counts there, and the record."""

    at_ms: int
    record: Data


@dataclass(frozen=True)
class Closed:
    """A window when it closes, with its records in order (D11). key: of a session."""

    start_ms: int
    end_ms: int
    key: Hashable
    records: tuple[Data, ...]


@dataclass
class _Open:
    start_ms: int
    end_ms: int
    key: Hashable
    taken: list[Taken] = field(default_factory=list)

    def close(self) -> Closed:
        rows = sorted(self.taken, key=lambda each: (each.at_ms, each.record.partition, each.record.number))
        return Closed(self.start_ms, self.end_ms, self.key, tuple(each.record for each in rows))


class Script:
    """The windows of a script: `closed` and `late`, (number, starts of the windows missed)."""

    def __init__(self, steps: Sequence[Step], windows: Windows, lateness: Lateness, delay_ms: int) -> None:
        self._windows, self._lateness = windows, lateness
        self._source = Source(steps, delay_ms)
        self._open: list[_Open] = []
        self._now: int | None = None
        self._last_arrival: int | None = None
        self._forced: int | None = None
        """To where `idleTimeout` has put the watermark."""
        self.closed: list[Closed] = []
        self.late: list[tuple[int, tuple[int, ...]]] = []
        for step in steps:
            if isinstance(step, Data):
                self._comes(step)
            if isinstance(step, Clock):
                self._now = step.time_ms
            self._source.passes(step)
            self._close()
        self.closed += [each.close() for each in self._open]

    def _judged_alone(self, record: Data) -> bool:
        """Whether its partition's own watermark judges it: with `split`, unless the others are ahead since it fell silent (W4)."""
        own, sent = self._source.of[record.partition], self._source.sent
        return self._lateness == "split" and (sent is None or (own is not None and own >= sent))

    def _comes(self, record: Data) -> None:
        if self._windows.by_arrival:
            assert self._now is not None
            self._put(record, self._now, None)
            return
        self._last_arrival = self._now
        source = self._source
        reached = source.of[record.partition] if self._judged_alone(record) else source.sent
        self._put(record, record.time_ms, None if reached is None else reached - self._windows.lateness_ms)

    def _put(self, record: Data, at_ms: int, closed_to: int | None) -> None:
        windows = self._windows
        if not windows.hop_ms:
            self._session(record, at_ms, closed_to)
            return
        missed = []
        for start in starts_of(at_ms, windows):
            end = start + windows.size_ms
            if (closed_to is not None and end <= closed_to) or (self._forced is not None and end <= self._forced):
                missed.append(start)
            else:
                self._window(start, end, None).taken.append(Taken(at_ms, record))
        if missed:
            self.late.append((record.number, tuple(missed)))

    def _window(self, start: int, end: int, key: Hashable) -> _Open:
        for each in self._open:
            if (each.start_ms, each.key) == (start, key):
                return each
        self._open.append(_Open(start, end, key))
        return self._open[-1]

    def _session(self, record: Data, at_ms: int, closed_to: int | None) -> None:
        gap = self._windows.size_ms
        met = [
            each
            for each in self._open
            if each.key == record.key and each.start_ms < at_ms + gap and at_ms < each.end_ms
        ]
        start = min([at_ms, *(each.start_ms for each in met)])
        end = max([at_ms + gap, *(each.end_ms for each in met)])
        own = None if self._windows.by_arrival else self._source.of[record.partition]
        if self._lateness == "split" and own is not None and at_ms < own - self._windows.lateness_ms:
            self.late.append((record.number, (at_ms,)))  # whatever session it would join: its source knows of none
            return
        if not self._judged_alone(record) and closed_to is not None and end <= closed_to:
            self.late.append((record.number, (start,)))
            return
        one = _Open(start, end, record.key, [Taken(at_ms, record), *(row for each in met for row in each.taken)])
        self._open = [each for each in self._open if each not in met] + [one]

    def _close(self) -> None:
        windows = self._windows
        if windows.by_arrival:
            closed_to = self._now
        else:
            sent = self._source.sent
            closed_to = None if sent is None else sent - windows.lateness_ms
            if windows.idle_ms is not None and self._now is not None and self._last_arrival is not None:
                due = [
                    each.end_ms
                    for each in self._open
                    if max(each.end_ms, self._last_arrival) + windows.idle_ms <= self._now
                ]
                if due:
                    self._forced = max([*due, *([] if self._forced is None else [self._forced])])
            if self._forced is not None:
                closed_to = self._forced if closed_to is None else max(closed_to, self._forced)
        if closed_to is not None:
            self.closed += [each.close() for each in self._open if each.end_ms <= closed_to]
            self._open = [each for each in self._open if each.end_ms > closed_to]


def starts_of(time_ms: int, windows: Windows) -> list[int]:
    """All starts k · hop + offset with start ≤ time < start + size, ascending."""
    last = windows.offset_ms + (time_ms - windows.offset_ms) // windows.hop_ms * windows.hop_ms
    return sorted(range(last, time_ms - windows.size_ms, -windows.hop_ms))


class Alarms:
    """A key's state, and timers by name: each record and timer appends to `seen`, and tells all of it."""

    def __init__(self) -> None:
        self.waiting: list[Data] = []
        self.seen: list[str] = []
        self.told: list[tuple[str, ...]] = []
        self.event: dict[str, tuple[int, int]] = {}
        """When each is due, and the time that it was set for."""
        self.clock: dict[str, int] = {}

    def record(self, record: Data, now_ms: int) -> None:
        """It sets timers: of an even number the first of its kind, of an odd one the second. None is due before `now_ms`."""
        self._tell(str(record.number))
        if record.event_ms is not None:
            self.event[f"e{record.number % 2}"] = max(record.event_ms, now_ms), record.event_ms
        if record.clock_ms is not None:
            self.clock[f"c{record.number % 2}"] = record.clock_ms

    def advance(self, below_ms: int, *, to_the_last: bool = False) -> None:
        """Waiting records and timers below this come, in the order of time, records first. to_the_last: up to the last record."""
        while True:
            record = next(iter(sorted(self.waiting, key=lambda r: (r.time_ms, r.partition, r.number))), None)
            timer = min(((due, time, name) for name, (due, time) in self.event.items()), default=None)
            if record is not None and record.time_ms < below_ms and (timer is None or record.time_ms <= timer[0]):
                self.waiting.remove(record)
                self.record(record, record.time_ms)
            elif timer is not None and timer[0] < below_ms and (not to_the_last or record is not None):
                self._fires(timer[2])
            else:
                return

    def passes(self, now_ms: int) -> None:
        """Processing time goes to this."""
        for due in sorted((time, name) for name, time in self.clock.items() if time <= now_ms):
            del self.clock[due[1]]
            self._tell(f"{due[1]}@{due[0]}")

    def end(self) -> None:
        """What is pending fires once; what is set meanwhile does not."""
        names = [name for _, name in sorted((due, name) for name, due in self.event.items())]
        for number, name in enumerate(names):
            if "e0" not in names[:number]:  # which has set the other one anew
                self._fires(name)
        self.passes(max(self.clock.values(), default=0))

    def _fires(self, name: str) -> None:
        due, time = self.event.pop(name)
        self._tell(f"{name}@{time}")
        if name == "e0":
            self.event["e1"] = max(time + 3, due), time + 3

    def _tell(self, what: str) -> None:
        self.seen.append(what)
        self.told.append(tuple(self.seen))


def computed(
    steps: Sequence[Step], lateness: Lateness, delay_ms: int, *, arrival: bool
) -> tuple[dict[Hashable, list[tuple[str, ...]]], list[int]]:
    """What each key tells, in order; and the numbers of late records. arrival: `order: arrival`."""
    source, keys, late = Source(steps, delay_ms), dict[Hashable, Alarms](), list[int]()
    now_ms = -(2**62)
    for step in steps:
        if isinstance(step, Data):
            limits = [source.sent, source.of[step.partition] if lateness == "split" else None]
            behind = any(limit is not None and step.time_ms < limit for limit in limits)
            if behind and not arrival:
                late.append(step.number)
            elif arrival:
                one = keys.setdefault(step.key, Alarms())
                one.record(step, -(2**62))
                if source.sent is not None:
                    one.advance(source.sent)
            else:
                keys.setdefault(step.key, Alarms()).waiting.append(step)
        source.passes(step)
        now_ms = step.time_ms if isinstance(step, Clock) else now_ms
        for one in keys.values():
            if source.sent is not None:
                one.advance(source.sent)
            one.passes(now_ms)
    for one in keys.values():
        one.advance(2**62, to_the_last=True)
        one.end()
    return {key: one.told for key, one in keys.items()}, late
