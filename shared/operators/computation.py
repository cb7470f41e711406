"""A keyed computation in one task: applies records and timers of each key, keeps state, and bounds its later output.

Rules (LANGUAGE.md, Computations; protocol W1, E1):

- A1 `order: eventTime`: a record waits until the watermark is above its time. Then, per key, records and event-time timers are
  applied in the order of time; on a tie records first, by order key and then by their bytes; timers by (time, name).
- A2 `order: arrival`: a record is applied at once, whatever its time.
- A3 An event-time timer fires when the watermark is above its time, strictly: a watermark t says that no record with
  event time < t follows, so that at t itself one may.
- A4 Late (`order: eventTime` alone): event time below the record's own limit (with `lateness: split`, its split's watermark before it less
  allowedLateness), or below the input watermark. Late records are handed back, not applied.
- A5 A document takes the time of its record or timer; that of a processing-time timer the later of the output watermark and the
  time of the record or timer that set it.
- A6 The documents of one call are in the order of (time, key, the key's sequence). With A1 that makes the whole output independent of
  how often the watermark moved.
- A7 End of input: the watermark MAX_TIME. The rest is applied as ever up to a key's last record. The event-time timers then pending
  fire once, then the processing-time ones; timers set meanwhile are discarded and counted.
  So a timer that sets the next goes on while records follow, by whatever steps the watermark came there.
- A8 A callback happens whole or not at all. One that raises is tried again, `attempts_max` times in all, each time with the state and
  timers of before; then it is reported as a failure, for the dead letter queue, and the rest goes on.
- A9 One timer that sets itself for a passed time again and again would never end: after `passed_timers_max` such firings without
  time moving on it fails as in A8.
- A11 A watermark that lets much come due is applied in pieces, each the work of a lower watermark; so A6 holds. Where more keys than
  make a piece have something due at one time, that time is divided by keys, in the order of their bytes. The end of input is one piece.
- A10 A callback in which the process has died too often, as the guard counts, is not called again: it fails as in A8.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.problems import DeathError, TimerError
from tidemark.shared.computation.records import Order, Record, Timer
from tidemark.shared.computation.state import StateCodec
from tidemark.shared.computation.timers import PendingTimer
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.values import (
    canonical_key,
    decode_doc,
    decode_own_doc,
    decode_value,
    encode_doc,
    encode_value,
)
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.operators.computation_calls import Calls, Timed
from tidemark.shared.operators.computation_keys import Cooling, Due, Key, KeyedStates
from tidemark.shared.operators.computation_rows import (
    BELOW,
    KEY,
    ROWS,
    TIME,
    VALUE,
    KeyRows,
    OrderKey,
    RowsToApply,
    WaitingRows,
    arrived,
    numbers,
)
from tidemark.shared.operators.context import NOWHERE, CallGuard

T = TypeVar("T")
Call: TypeAlias = Callable[[Key, T, int], Sequence[Timed]]
"""A callback, of a key, what it is called for, and the time of that, ms."""
_PLACE: Final = itemgetter(0, 1, 2)


class Row(NamedTuple):
    """A record on its way in, or that is late."""

    key: bytes
    """Canonical bytes of `key_value`."""
    key_value: Any
    packed: bytes
    """The document, encoded."""
    timestamp_ms: int
    order: OrderKey = (0, 0)
    late_below_ms: int = MIN_TIME
    """A4: with `lateness: split`, its split's watermark before it less allowedLateness."""

    @property
    def value(self) -> Document:
        """The document."""
        return decode_doc(self.packed)


class Yielded(NamedTuple):
    """A yielded document. No two share (time, key, sequence), but for late ones with `order: arrival` after their key was forgotten."""

    timestamp_ms: int
    key: bytes
    sequence: int
    """Counts the key's documents of this time: the order key for the next operator is (0, sequence)."""
    packed: bytes
    """The document, encoded."""

    @property
    def value(self) -> Document:
        """The document."""
        return decode_doc(self.packed)


@dataclass(frozen=True, slots=True)
class CallbackFailure:
    """A callback that raised each time: exactly one of record and timer is there."""

    key_value: Any
    error: Exception
    record: Record | None = None
    order: OrderKey = (0, 0)
    timer: Timer | None = None


@dataclass(slots=True)
class CallResults:
    """The outcome of a call."""

    outputs: list[Yielded] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    failures: list[CallbackFailure] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Totals since the start of the task."""

    records: int = 0
    late: int = 0
    outputs: int = 0
    timers_fired: int = 0
    timers_discarded: int = 0
    failures: int = 0


def batch_of_rows(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as columns (`computation_rows.ROWS`)."""
    cells = [(r.key, encode_value(r.key_value), r.packed, r.timestamp_ms, *r.order, r.late_below_ms) for r in rows]
    columns = zip(*cells, strict=True) if cells else ([] for _ in ROWS)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)], schema=ROWS
    )


def row_of(key_value: object, value: Document, timestamp_ms: int, order: OrderKey = (0, 0)) -> Row:
    """A row with its key's canonical bytes."""
    return Row(canonical_key(key_value), key_value, encode_doc(value), timestamp_ms, order)


class KeyedComputation:
    """One task's share of a computation. Calls come one at a time; times are ms."""

    def __init__(
        self,
        computation: Computation[Any, Any],
        *,
        order: Order = "eventTime",
        groups: int = 128,
        limits: Limits = DEFAULTS,
        waiting_max: int = NOWHERE.waiting_records_max,
        computed_max: int = NOWHERE.computed_max,
        cooling: Cooling | None = None,
        guard: CallGuard | None = None,
    ) -> None:
        self._guard = guard
        self._waiting_max = waiting_max
        self._computed_max = computed_max
        self._waiting = WaitingRows()
        self._calls = Calls(computation, limits.outputs_max)
        self._by_event_time = order == "eventTime"
        self._limits = limits
        codec = StateCodec(computation, limits.state_bytes_max)
        self._keys = KeyedStates(codec, groups, limits.timers_max, self._waiting, cooling)
        self.watermark_ms = MIN_TIME
        """All that was due below it has been applied."""
        self._due = Due()
        """By event time: timers."""
        self._clock_due = Due()
        """By processing time: timers."""
        self.counters = Counters()
        self.timed = False
        """`order: arrival`: a timer of event time was set; it fires between records as they happen to come."""
        self.clocked = False
        """A timer of processing time was set."""
        self.cut_ms = MAX_TIME
        """A timer of event time, of this time or later, fired at the end and set another: which counts if a watermark came between."""

    # --- in -------------------------------------------------------------------------------------------------

    def on_records(self, rows: Iterable[Row]) -> CallResults:
        """As `on_batch`."""
        return self.on_batch(batch_of_rows(list(rows)))

    def on_batch(self, rows: pa.RecordBatch) -> CallResults:
        """Records have come, in any order; columns as in `computation_rows.ROWS`."""
        done = CallResults()
        if rows.num_rows:
            (self._wait if self._by_event_time else self._arrive)(rows, done)
            self._keys.settle()
        self.counters.late += len(done.late)
        return self._sorted(done)

    def _wait(self, rows: pa.RecordBatch, done: CallResults) -> None:
        """A1, A4."""
        late = numbers(rows, TIME) < np.maximum(numbers(rows, BELOW), self.watermark_ms)
        if bool(late.any()):
            done.late += _rows_of(rows.filter(pa.array(late)))
            rows = rows.filter(pa.array(~late))
        room = self._waiting_max - len(self._waiting)
        if rows.num_rows > room:
            raise OperatorError(
                f"{self._waiting_max} records wait for the watermark, which stands at {self.watermark_ms} ms, and no more are allowed; "
                f"see which source or partition holds the watermark back, or run more tasks"
            )
        self._keys.add(self._waiting.add(rows), rows.column(VALUE))

    def _arrive(self, rows: pa.RecordBatch, done: CallResults) -> None:
        """A2."""
        names, own = rows.column(KEY).to_pylist(), arrived(rows)
        firsts = {name: row for row, name in reversed(list(enumerate(names)))}
        self._keys.add(list(firsts.items()), rows.column(VALUE))
        for at, name in enumerate(names):
            key = self._keys.find(name)
            assert key is not None, "it has been added"
            self._keys.changed(key)
            self._record(key, own, at, done)
            self._advance(key, self.watermark_ms, None, done)
            self._note(key)

    def on_watermark(self, watermark_ms: int, items_max: int = MAX_TIME) -> CallResults:
        """Raise the input watermark to this, and apply all that has become due. MAX_TIME ends the input (A7).

        items_max: of some more records and keys than these it goes to a lower watermark only (A11); `watermark_ms` tells to which.
        """
        done = CallResults()
        if watermark_ms > self.watermark_ms:
            floor_ms = self.output_watermark()
            below_ms = self._piece_ms(watermark_ms, items_max)
            one_time = below_ms < watermark_ms and below_ms == self.hold() + 1
            for key, rows in self._reached(below_ms, items_max if one_time else MAX_TIME):
                self._advance(key, below_ms, rows, done)
                self._note(key)
            if below_ms < watermark_ms:
                watermark_ms = max(self.watermark_ms, min(below_ms, self.hold()))
            self.watermark_ms = watermark_ms
            if watermark_ms == MAX_TIME:
                self._end(floor_ms, done)
            self._keys.pass_over(watermark_ms)
        return self._sorted(done)

    def on_processing_time(self, now_ms: int) -> CallResults:
        """Set processing time to this: the timers that it has reached fire, each key's by (time, name). Timers that these set wait."""
        done = CallResults()
        floor_ms = self.output_watermark()
        for data in sorted(self._clock_due.take(now_ms + 1)):
            self._keys.settle()
            key = self._keys.find(data)
            if key is not None:
                for pending in [p for p in key.timers.all() if p.domain == "processing" and p.due_ms <= now_ms]:
                    if key.timers.is_pending(pending):
                        self._timer(key, pending, max(floor_ms, pending.output_ms), done)
                        self._advance(key, self.watermark_ms, None, done)
                self._note(key)
        self._keys.settle()
        return self._sorted(done)

    def full(self) -> bool:
        """Half of the records that may wait for the watermark do."""
        return 2 * len(self._waiting) > self._waiting_max

    def _piece_ms(self, watermark_ms: int, items_max: int) -> int:
        """The watermark to apply in one piece on the way to this one: below it some `items_max` records and keys are due (A11)."""
        if MAX_TIME in (watermark_ms, items_max):
            return watermark_ms
        return min(
            watermark_ms, max(self.hold() + 1, min(self._waiting.nth_ms(items_max), self._due.nth_ms(items_max)))
        )

    # --- holds ----------------------------------------------------------------------------------------------

    def hold(self) -> int:
        """The earliest time of a waiting record or timer, before which none of them yields a document; MAX_TIME if none waits."""
        return min(self._waiting.first_ms(), self._due.first_ms())

    def output_watermark(self) -> int:
        """min(input watermark, hold): no document that follows is before it (W1), but for records that `order: arrival` takes behind it."""
        return min(self.watermark_ms, self.hold())

    def next_processing_time(self) -> int:
        """When `on_processing_time` next has something to do; MAX_TIME for never."""
        return self._clock_due.first_ms()

    def all_keys(self) -> list[Key]:
        """Those in memory, in the order of their bytes."""
        return self._keys.all()

    def snapshot(self) -> dict[StatePart, bytes | None]:
        """Parts with the state that changed since the last call; None for one that is gone."""
        return self._keys.snapshot()

    def restore(self, parts: MutableMapping[StatePart, bytes], watermark_ms: int = MIN_TIME) -> None:
        """Take the state from a snapshot, at the input watermark that belongs to it; called once, first. It empties `parts`."""
        self._keys.restore(parts, self._note)
        self.watermark_ms = watermark_ms
        self._keys.pass_over(watermark_ms)

    # --- applying -------------------------------------------------------------------------------------------

    def _advance(self, key: Key, watermark_ms: int, rows: KeyRows | None, done: CallResults) -> None:
        """Apply all of this key that the watermark has passed: records first on a tie (A1), times strictly below (A3)."""
        last_ms, chain = MIN_TIME, 0
        while True:
            record_ms = None if rows is None else rows.next_ms
            timer = key.timers.first("event")
            if rows is not None and record_ms is not None and (timer is None or record_ms <= timer.due_ms):
                if self._calls.by_batch:
                    self._run(key, rows, MAX_TIME if timer is None else timer.due_ms + 1, done)
                else:
                    self._record(key, rows.of, rows.take(), done)
                continue
            if timer is None or timer.due_ms >= watermark_ms:
                return
            if record_ms is None and watermark_ms == MAX_TIME:
                return  # A7: timers pending behind the last record fire in _end
            chain = chain + 1 if timer.due_ms <= last_ms else 0
            last_ms = max(last_ms, timer.due_ms)
            if chain > self._limits.passed_timers_max:  # A9
                self._give_up(key, timer, done)
            else:
                self._timer(key, timer, timer.output_ms, done)

    def _run(self, key: Key, rows: KeyRows, below_ms: int, done: CallResults) -> None:
        """With `process_batch`: apply all rows that are below this time."""
        count, last_ms = rows.pass_below(below_ms)
        if self._watcher is None and self._try(key, last_ms, self._calls.together, (rows, count), done) is None:
            self.counters.records += count
            return
        # One of them may be at fault: each by itself, so that only that one becomes a dead letter.
        for at in rows.last(count):
            self._record(key, rows.of, at, done)

    def _record(self, key: Key, rows: RowsToApply, at: int, done: CallResults) -> None:
        """Apply the row of this place."""
        self.counters.records += 1
        time_ms = rows.times[at]
        record = Record(key.value, decode_own_doc(rows.packed[at]), time_ms)
        guard = self._watcher
        if guard is None:
            error = self._try(key, time_ms, self._calls.record, record, done)
        else:
            error = self._watched(
                guard, ("record", key.data, time_ms, rows.order(at)), key, time_ms, self._calls.record, record, done
            )
        if error is not None:
            self._fail(CallbackFailure(key.value, error, record=record, order=rows.order(at)), done)

    def _timer(self, key: Key, pending: PendingTimer, output_ms: int, done: CallResults) -> None:
        """Fire a timer. It is pending no more, even if it fails."""
        timer = Timer(pending.name, pending.time_ms, pending.domain)
        self._keys.changed(key)
        key.timers.take(pending)
        self.counters.timers_fired += 1
        guard = self._watcher
        if guard is None:
            error = self._try(key, output_ms, self._calls.timer, timer, done)
        else:
            time_ms = pending.time_ms if pending.domain == "event" else None
            name = ("timer", key.data, pending.name, time_ms)
            error = self._watched(guard, name, key, output_ms, self._calls.timer, timer, done)
        if error is not None:
            self._fail(CallbackFailure(key.value, error, timer=timer), done)

    def _give_up(self, key: Key, pending: PendingTimer, done: CallResults) -> None:
        key.timers.take(pending)
        self._keys.changed(key)
        error = TimerError(
            f"timer {pending.name!r} was set for a time that had passed {self._limits.passed_timers_max} times without an end; "
            "options.limits.passedTimersInARow sets how often it may"
        )
        self._fail(CallbackFailure(key.value, error, timer=Timer(pending.name, pending.time_ms, pending.domain)), done)

    @property
    def _watcher(self) -> CallGuard | None:
        """The child that callbacks go to; between deaths none (A10)."""
        guard = self._guard
        return guard if guard is not None and guard.watching else None

    def _watched(
        self,
        guard: CallGuard,
        name: tuple[object, ...],
        key: Key,
        now_ms: int,
        call: Call[T],
        given: T,
        done: CallResults,
    ) -> Exception | None:
        """A10."""
        if (died := guard.enter(repr(name).encode())) is not None:
            return DeathError(died)
        error = self._try(key, now_ms, call, given, done)
        guard.leave()
        return error

    def _try(self, key: Key, now_ms: int, call: Call[T], given: T, done: CallResults) -> Exception | None:
        """Run a callback, for what it is given, whole or not at all (A8); its last error if it never succeeded."""
        state = key.before()  # state of the snapshot that does not fit is no fault of this record: it fails the task
        timers = key.timers
        timers.begin(now_ms, None if self._by_event_time else self.watermark_ms)
        error: Exception | None = None
        for _ in range(self._limits.attempts_max):
            try:
                yielded = call(key, given, now_ms)
                key.touched()
            except Exception as e:  # noqa: BLE001 - the user's code may raise anything; it is reported, never lost
                error = e
                key.restore(state)
                timers.undo()
            else:
                if yielded:
                    self._yield(key, yielded, done)
                return None
        return error

    def _yield(self, key: Key, yielded: Sequence[Timed], done: CallResults) -> None:
        if len(done.outputs) + len(yielded) > self._computed_max:
            raise OperatorError(
                f"a step of time lets more than {self._computed_max} documents out of this task, and computed_max allows no more;"
                " yield fewer, run more tasks, or raise computed_max in TIDEMARK_RUNTIME"
            )
        for time_ms, packed in yielded:
            done.outputs.append(Yielded(time_ms, key.data, key.next_sequence(time_ms), packed))

    def _fail(self, failure: CallbackFailure, done: CallResults) -> None:
        self.counters.failures += 1
        done.failures.append(failure)

    # --- the end --------------------------------------------------------------------------------------------

    def _end(self, floor_ms: int, done: CallResults) -> None:
        """Fire the pending timers once, event time first; timers set meanwhile are discarded (A7)."""
        for domain in ("event", "processing"):
            for key in self._all_with_timers():
                pending = [p for p in key.timers.all() if p.domain == domain]
                least_ms = floor_ms if domain == "processing" else MIN_TIME
                self._fire_once(key, pending, least_ms, done)
                self._note(key)

    def _fire_once(self, key: Key, pending: Sequence[PendingTimer], least_ms: int, done: CallResults) -> None:
        others = set(key.timers.all()).difference(pending)
        for timer in pending:
            if key.timers.is_pending(timer):  # not cancelled or set anew by one before it
                self._timer(key, timer, max(least_ms, timer.output_ms), done)
        for timer in key.timers.all():
            if timer not in others:  # it may be set for the time of one that has fired
                key.timers.take(timer)
                self.counters.timers_discarded += 1
                self.cut_ms = min([self.cut_ms, *(p.due_ms for p in pending if p.domain == "event")])

    # --- helpers --------------------------------------------------------------------------------------------

    def _note(self, key: Key) -> None:
        """Remember when this key next has something to apply."""
        if not key.timers.ever:
            return
        hold_ms, clock_ms = key.hold_ms(), key.clock_ms()
        self._due.note(key.data, hold_ms)
        self._clock_due.note(key.data, clock_ms)
        self.timed |= not self._by_event_time and (hold_ms is not None or self.counters.timers_fired > 0)
        self.clocked |= clock_ms is not None

    def _reached(self, below_ms: int, keys_max: int) -> Iterator[tuple[Key, KeyRows | None]]:
        """The keys that have something to apply below this time, in the order of their bytes, with their rows; at most `keys_max`."""
        rows = {}
        if self._waiting.first_ms() < below_ms:
            rows = {each.key: each for each in self._waiting.take(below_ms).by_key()}
        times = self._due.take(below_ms)
        keys = sorted({*rows, *times})
        for data in keys[keys_max:]:
            self._due.note(data, times.get(data))
            if data in rows:
                self._waiting.put_back(rows[data])
        for data in keys[:keys_max]:
            self._keys.settle()
            key = self._keys.find(data)
            if key is not None:
                found = rows.get(data)
                if found is not None:
                    self._waiting.applied(found)
                self._keys.changed(key)
                key.taken_ms = below_ms
                yield key, found
        self._keys.settle()

    def _all_with_timers(self) -> Iterator[Key]:
        """The keys that something was noted of, in the order of their bytes."""
        for data in sorted(self._due.keys() | self._clock_due.keys()):
            self._keys.settle()
            key = self._keys.find(data)
            if key is not None:
                yield key

    def _sorted(self, done: CallResults) -> CallResults:
        done.outputs.sort(key=_PLACE)  # A6
        self.counters.outputs += len(done.outputs)
        return done


def _rows_of(rows: pa.RecordBatch) -> list[Row]:
    keys, values, packed, times, ordinals, positions, below = (column.to_pylist() for column in rows.columns)
    orders = zip(ordinals, positions, strict=True)
    return list(map(Row, keys, map(decode_value, values), packed, times, orders, below))
