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

import heapq
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.problems import ComputationError, DeathError, TimerError
from tidemark.shared.computation.records import Order, Record, Timer
from tidemark.shared.computation.state import StateCodec
from tidemark.shared.computation.timers import Pending
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.values import canonical_key, encode_doc, encode_value
from tidemark.shared.model.ids import KeyGroup
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.operators.computation_keys import Cooling, Due, Key, Keys, OrderKey, Waiting
from tidemark.shared.operators.context import NOWHERE, CallGuard

TIMESTAMP: Final = "timestamp"


def called_on_run(
    computation: Computation[Any, Any], key: Key, run: Sequence[Waiting], outputs_max: int
) -> list[tuple[int, Document]]:
    """Run `process_batch` on records of one key; (time, document) of each row that it gives.

    outputs_max: for each record. ComputationError for a batch that is out of order or too large.
    """
    schema = computation.batch_schema
    assert schema is not None
    columns = [pa.array([w.value.get(f.name) for w in run], f.type) for f in schema]
    columns.append(pa.array([w.timestamp_ms for w in run], pa.int64()))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.append(pa.field(TIMESTAMP, pa.int64())))
    found = computation.process_batch(batch, key.state(), key.timers)
    if found is None or found.num_rows == 0:
        return []
    if found.num_rows > outputs_max * len(run):
        raise _too_many(outputs_max)
    return _rows(found, run[0].timestamp_ms, run[-1].timestamp_ms)


def _rows(found: pa.RecordBatch, first_ms: int, last_ms: int) -> list[tuple[int, Document]]:
    if TIMESTAMP not in found.schema.names:
        raise ComputationError(
            f"process_batch gives a column {TIMESTAMP!r} with the time of each row; found {found.schema.names}"
        )
    names = [n for n in found.schema.names if n != TIMESTAMP]
    times = found.column(TIMESTAMP).to_pylist()
    if any(t is None or not first_ms <= t <= last_ms for t in times) or times != sorted(times):
        raise ComputationError(
            f"process_batch: the times of its rows lie in [{first_ms}, {last_ms}] and do not fall; found {times[:5]}"
        )
    columns = [_values(found.column(n)) for n in names]
    rows: list[tuple[int, Document]] = []
    for i, time_ms in enumerate(times):
        document = {n: c[i] for n, c in zip(names, columns, strict=True) if c[i] is not None}
        encode_doc(document)
        rows.append((time_ms, document))
    return rows


def _values(column: pa.Array) -> list[Any]:
    """A column's values as the language has them; a null is a field that is not there."""
    if pa.types.is_timestamp(column.type):
        return [None if t is None else Date(t) for t in column.cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()]
    return list(column.to_pylist())


def yielded(found: Iterable[Document] | None, time_ms: int, outputs_max: int) -> list[tuple[int, Document]]:
    """The documents that a callback yielded, checked to be of the language's values."""
    timed: list[tuple[int, Document]] = []
    for document in found or ():
        if type(document) is not dict:
            raise ComputationError(f"a computation yields documents (dicts), not a {type(document).__name__}")
        if len(timed) == outputs_max:
            raise _too_many(outputs_max)
        encode_doc(document)
        timed.append((time_ms, document))
    return timed


def _too_many(outputs_max: int) -> ComputationError:
    return ComputationError(
        f"one callback yielded more than {outputs_max} documents; yield fewer, or set options.limits.outputsPerCall"
    )


class Row(NamedTuple):
    """A record on its way in."""

    key: bytes
    """Canonical bytes of `key_value`."""
    key_value: Any
    value: Document
    timestamp_ms: int
    order: OrderKey = (0, 0)
    late_below_ms: int = MIN_TIME
    """A4: with `lateness: split`, its split's watermark before it less allowedLateness."""


class Yielded(NamedTuple):
    """A yielded document. No two share (time, key, sequence), but for late ones with `order: arrival` after their key was forgotten."""

    timestamp_ms: int
    key: bytes
    sequence: int
    """Counts the key's documents of this time: the order key for the next operator is (0, sequence)."""
    value: Document


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


def row_of(key_value: Any, value: Document, timestamp_ms: int, order: OrderKey = (0, 0)) -> Row:
    """A row with its key's canonical bytes."""
    return Row(canonical_key(key_value), key_value, value, timestamp_ms, order)


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
        self._waiting = 0
        self._computation = computation
        self._by_event_time = order == "eventTime"
        self._limits = limits
        self._keys = Keys(StateCodec(computation, limits.state_bytes_max), groups, limits.timers_max, cooling)
        self.watermark_ms = MIN_TIME
        """All that was due below it has been applied."""
        self._times: list[int] = []
        """Heap of the times of records that wait; some more, below the watermark."""
        self._due = Due()
        """By event time."""
        self._clock_due = Due()
        """By processing time: timers."""
        self._count = 0
        self.counters = Counters()
        self.timed = False
        """`order: arrival`: a timer of event time was set; it fires between records as they happen to come."""
        self.clocked = False
        """A timer of processing time was set."""

    # --- in -------------------------------------------------------------------------------------------------

    def on_records(self, rows: Iterable[Row]) -> CallResults:
        """Records have come, in any order."""
        done = CallResults()
        for row in rows:
            if self._by_event_time and row.timestamp_ms < max(row.late_below_ms, self.watermark_ms):  # A4
                done.late.append(row)
                continue
            key = self._keys.find_or_add(row.key, row.key_value)
            if self._by_event_time:  # A1
                self._wait(key, row)
            else:  # A2
                record = Record(key.value, row.value, row.timestamp_ms)
                self._record(key, record, row.order, done)
                self._advance(key, self.watermark_ms, done)
            self._note(key)
        self._keys.settle()
        self.counters.late += len(done.late)
        return self._sorted(done)

    def on_watermark(self, watermark_ms: int, items_max: int = MAX_TIME) -> CallResults:
        """Raise the input watermark to this, and apply all that has become due. MAX_TIME ends the input (A7).

        items_max: of some more records and keys than these it goes to a lower watermark only (A11); `watermark_ms` tells to which.
        """
        done = CallResults()
        if watermark_ms > self.watermark_ms:
            floor_ms = self.output_watermark()
            below_ms = self._piece_ms(watermark_ms, items_max)
            for key in self._due_keys(below_ms, items_max if below_ms < watermark_ms else MAX_TIME):
                self._advance(key, below_ms, done)
                self._note(key)
            if below_ms < watermark_ms:
                watermark_ms = max(self.watermark_ms, min(below_ms, self._due.first_ms()))
            self._drop_times(watermark_ms)
            self.watermark_ms = watermark_ms
            if watermark_ms == MAX_TIME:
                self._end(floor_ms, done)
            self._keys.pass_over(watermark_ms)
        return self._sorted(done)

    def on_processing_time(self, now_ms: int) -> CallResults:
        """Set processing time to this: the timers that it has reached fire, each key's by (time, name). Timers that these set wait."""
        done = CallResults()
        floor_ms = self.output_watermark()
        for data in self._clock_due.take(now_ms + 1):
            self._keys.settle()
            key = self._keys.find(data)
            if key is not None:
                for pending in [p for p in key.timers.all() if p.domain == "processing" and p.due_ms <= now_ms]:
                    if key.timers.is_pending(pending):
                        self._timer(key, pending, max(floor_ms, pending.output_ms), done)
                        self._advance(key, self.watermark_ms, done)
                self._note(key)
        self._keys.settle()
        return self._sorted(done)

    def _wait(self, key: Key, row: Row) -> None:
        if self._waiting >= self._waiting_max:
            raise OperatorError(
                f"{self._waiting} records wait for the watermark, which stands at {self.watermark_ms} ms, and no more are allowed; "
                f"see which source or partition holds the watermark back, or run more tasks"
            )
        self._waiting += 1
        self._count += 1
        heapq.heappush(self._times, row.timestamp_ms)
        packed = encode_value(row.value)
        heapq.heappush(key.waiting, Waiting(row.timestamp_ms, row.order, packed, self._count, row.value))

    def full(self) -> bool:
        """Half of the records that may wait for the watermark do."""
        return 2 * self._waiting > self._waiting_max

    def _piece_ms(self, watermark_ms: int, items_max: int) -> int:
        """The watermark to apply in one piece on the way to this one: below it some `items_max` records and keys are due (A11)."""
        if MAX_TIME in (watermark_ms, items_max):
            return watermark_ms
        taken: list[int] = []
        while self._times and self._times[0] < watermark_ms and len(taken) <= items_max:
            taken.append(heapq.heappop(self._times))
        for time_ms in taken:
            heapq.heappush(self._times, time_ms)
        records_ms = taken[-1] if len(taken) > items_max else watermark_ms
        first_ms = self._due.first_ms()
        return min(watermark_ms, max(first_ms + 1, min(records_ms, self._due.nth_ms(items_max))))

    def _drop_times(self, below_ms: int) -> None:
        while self._times and self._times[0] < below_ms:
            heapq.heappop(self._times)

    # --- holds ----------------------------------------------------------------------------------------------

    def hold(self) -> int:
        """The earliest time of a waiting record or timer, before which none of them yields a document; MAX_TIME if none waits."""
        return self._due.first_ms()

    def output_watermark(self) -> int:
        """min(input watermark, hold): no document that follows is before it (W1), but for records that `order: arrival` takes behind it."""
        return min(self.watermark_ms, self.hold())

    def next_processing_time(self) -> int:
        """When `on_processing_time` next has something to do; MAX_TIME for never."""
        return self._clock_due.first_ms()

    def snapshot_groups(self) -> dict[KeyGroup, bytes | None]:
        """State of the key groups that changed since the last call; None for one that is gone."""
        return self._keys.snapshot()

    def restore(self, groups: MutableMapping[KeyGroup, bytes], watermark_ms: int = MIN_TIME) -> None:
        """Take the state from a snapshot, at the input watermark that belongs to it; called once, first. It empties `groups`."""
        self._keys.restore(groups, self._restored)
        self.watermark_ms = watermark_ms
        self._keys.pass_over(watermark_ms)

    def _restored(self, key: Key) -> None:
        self._waiting += len(key.waiting)
        for waiting in key.waiting:
            heapq.heappush(self._times, waiting.timestamp_ms)
        self._note(key)

    # --- applying -------------------------------------------------------------------------------------------

    def _advance(self, key: Key, watermark_ms: int, done: CallResults) -> None:
        """Apply all of this key that the watermark has passed: records first on a tie (A1), times strictly below (A3)."""
        last_ms, chain = MIN_TIME, 0
        while True:
            record = key.waiting[0] if key.waiting else None
            timer = key.timers.first("event")
            if watermark_ms == MAX_TIME and record is None and self._by_event_time:
                return  # A7: timers pending behind the last record fire in _end
            if (
                record is not None
                and record.timestamp_ms < watermark_ms
                and (timer is None or record.timestamp_ms <= timer.due_ms)
            ):
                self._records(key, min(watermark_ms, MAX_TIME if timer is None else timer.due_ms + 1), done)
            elif timer is not None and timer.due_ms < watermark_ms:
                chain = chain + 1 if timer.due_ms <= last_ms else 0
                last_ms = max(last_ms, timer.due_ms)
                if chain > self._limits.passed_timers_max:  # A9
                    self._give_up(key, timer, done)
                else:
                    self._timer(key, timer, timer.output_ms, done)
            else:
                return

    def _records(self, key: Key, below_ms: int, done: CallResults) -> None:
        """Apply the first waiting record, or with `process_batch` all that are below this time."""
        if self._computation.batch_schema is None:
            waiting = heapq.heappop(key.waiting)
            self._waiting -= 1
            self._record(key, Record(key.value, waiting.value, waiting.timestamp_ms), waiting.order, done)
            return
        run: list[Waiting] = []
        while key.waiting and key.waiting[0].timestamp_ms < below_ms:
            run.append(heapq.heappop(key.waiting))
        self._waiting -= len(run)
        self.counters.records += len(run)
        error: Exception | None = None
        together = self._guard is None or not self._guard.watching
        if together:
            error = self._try(
                key,
                run[-1].timestamp_ms,
                lambda: called_on_run(self._computation, key, run, self._limits.outputs_max),
                done,
            )
        if error is not None or not together:
            # One of them may be at fault: each by itself, so that only that one becomes a dead letter.
            self.counters.records -= len(run)
            for one in run:
                self._record(key, Record(key.value, one.value, one.timestamp_ms), one.order, done)

    def _record(self, key: Key, record: Record, order: OrderKey, done: CallResults) -> None:
        self.counters.records += 1
        if self._computation.batch_schema is not None:
            alone = [Waiting(record.timestamp, order, b"", 0, record.value)]
            call = partial(called_on_run, self._computation, key, alone, self._limits.outputs_max)
        else:
            call = partial(self._timed, key, record)
        error = self._guarded(("record", key.data, record.timestamp, order), key, record.timestamp, call, done)
        if error is not None:
            self._fail(CallbackFailure(key.value, error, record=record, order=order), done)

    def _timed(self, key: Key, record: Record) -> list[tuple[int, Document]]:
        found = self._computation.process(record, key.state(), key.timers)
        return yielded(found, record.timestamp, self._limits.outputs_max)

    def _timer(self, key: Key, pending: Pending, output_ms: int, done: CallResults) -> None:
        """Fire a timer. It is pending no more, even if it fails."""
        timer = Timer(pending.name, pending.time_ms, pending.domain)
        key.timers.take(pending)
        self.counters.timers_fired += 1
        error = self._guarded(
            ("timer", key.data, pending.name, pending.time_ms if pending.domain == "event" else None),
            key,
            output_ms,
            lambda: yielded(
                self._computation.on_timer(timer, key.state(), key.timers), output_ms, self._limits.outputs_max
            ),
            done,
        )
        if error is not None:
            self._fail(CallbackFailure(key.value, error, timer=timer), done)

    def _give_up(self, key: Key, pending: Pending, done: CallResults) -> None:
        key.timers.take(pending)
        self._keys.changed(key)
        error = TimerError(
            f"timer {pending.name!r} was set for a time that had passed {self._limits.passed_timers_max} times without an end; "
            "options.limits.passedTimersInARow sets how often it may"
        )
        self._fail(CallbackFailure(key.value, error, timer=Timer(pending.name, pending.time_ms, pending.domain)), done)

    def _guarded(
        self,
        name: tuple[Any, ...],
        key: Key,
        now_ms: int,
        callback: Callable[[], Sequence[tuple[int, Document]]],
        done: CallResults,
    ) -> Exception | None:
        """A10; between deaths no more than `_try`."""
        guard = self._guard
        if guard is None or not guard.watching:
            return self._try(key, now_ms, callback, done)
        if (died := guard.enter(repr(name).encode())) is not None:
            return DeathError(died)
        error = self._try(key, now_ms, callback, done)
        guard.leave()
        return error

    def _try(
        self, key: Key, now_ms: int, callback: Callable[[], Sequence[tuple[int, Document]]], done: CallResults
    ) -> Exception | None:
        """Run a callback whole or not at all (A8); its last error if it never succeeded."""
        self._keys.changed(key)
        key.state()  # state of the snapshot that does not fit is no fault of this record: it fails the task
        state, timers = key.pack(), key.timers.pending()
        key.timers.begin(now_ms, None if self._by_event_time else self.watermark_ms)
        error: Exception | None = None
        for _ in range(self._limits.attempts_max):
            try:
                yielded = callback()
                key.touched()
            except Exception as e:  # noqa: BLE001 - the user's code may raise anything; it is reported, never lost
                error = e
                key.restore(state)
                key.timers.back_to(timers)
            else:
                if len(done.outputs) + len(yielded) > self._computed_max:
                    raise OperatorError(
                        f"a step of time lets more than {self._computed_max} documents out of this task, and computed_max allows no more;"
                        " yield fewer, run more tasks, or raise computed_max in TIDEMARK_RUNTIME"
                    )
                for time_ms, document in yielded:
                    done.outputs.append(Yielded(time_ms, key.data, key.next_sequence(time_ms), document))
                return None
        return error

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

    def _fire_once(self, key: Key, pending: Sequence[Pending], least_ms: int, done: CallResults) -> None:
        before = set(key.timers.all())
        for timer in pending:
            if key.timers.is_pending(timer):  # not cancelled or set anew by one before it
                self._timer(key, timer, max(least_ms, timer.output_ms), done)
        for timer in key.timers.all():
            if timer not in before:
                key.timers.take(timer)
                self.counters.timers_discarded += 1

    # --- helpers --------------------------------------------------------------------------------------------

    def _note(self, key: Key) -> None:
        """Remember when this key next has something to apply."""
        hold_ms, clock_ms = key.hold_ms(), key.clock_ms()
        self._due.note(key.data, hold_ms)
        self._clock_due.note(key.data, clock_ms)
        self.timed |= not self._by_event_time and (hold_ms is not None or self.counters.timers_fired > 0)
        self.clocked |= clock_ms is not None

    def _due_keys(self, watermark_ms: int, keys_max: int) -> Iterator[Key]:
        """The keys that have something to apply below this watermark, in the order of their bytes; each is noted anew before the next."""
        for data in self._due.take(watermark_ms, keys_max):
            self._keys.settle()
            key = self._keys.find(data)
            if key is not None:
                yield key
        self._keys.settle()

    def _all_with_timers(self) -> Iterator[Key]:
        """The keys that something was noted of, in the order of their bytes."""
        for data in sorted(self._due.keys() | self._clock_due.keys()):
            self._keys.settle()
            key = self._keys.find(data)
            if key is not None:
                yield key

    def _sorted(self, done: CallResults) -> CallResults:
        done.outputs.sort(key=lambda o: o[:3])  # A6
        self.counters.outputs += len(done.outputs)
        return done
