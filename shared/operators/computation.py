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
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.problems import ComputationError, DeathError, TimerError
from tidemark.shared.computation.records import Order, Record, Timer
from tidemark.shared.computation.state import StateCodec
from tidemark.shared.computation.timers import Pending
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.values import (
    canonical_key,
    decode_doc,
    decode_value,
    encode_doc,
    encode_docs,
    encode_value,
)
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.operators.computation_keys import Cooling, Due, Key, Keys
from tidemark.shared.operators.computation_rows import (
    BELOW,
    ROWS,
    TIME,
    VALUE,
    KeyRows,
    OrderKey,
    Stored,
    WaitingRows,
    numbers,
)
from tidemark.shared.operators.context import NOWHERE, CallGuard

TIMESTAMP: Final = "timestamp"
Timed: TypeAlias = tuple[int, bytes]
"""The time of a document, ms, and the document, encoded."""


def columns_of(schema: pa.Schema, rows: Sequence[Stored]) -> pa.RecordBatch:
    """Rows as `process_batch` takes them; ArrowException, TypeError or OverflowError where a field is not of its column's type."""
    names = schema.names
    # A document is let go of before the next is made: so many at once would keep the garbage collector busy.
    cells = [tuple(map(decode_doc(packed).get, names)) for _, _, packed in rows]
    columns = [pa.array(column, f.type) for f, column in zip(schema, zip(*cells, strict=True), strict=True)]
    columns.append(pa.array([time_ms for time_ms, _, _ in rows], pa.int64()))
    return pa.RecordBatch.from_arrays(columns, schema=schema.append(pa.field(TIMESTAMP, pa.int64())))


def called_on_run(computation: Computation[Any, Any], key: Key, batch: pa.RecordBatch, outputs_max: int) -> list[Timed]:
    """Run `process_batch` on rows of one key; what each row says that it gives.

    outputs_max: for each record. ComputationError for a batch that is out of order or too large.
    """
    found = computation.process_batch(batch, key.state(), key.timers)
    if found is None or found.num_rows == 0:
        return []
    if found.num_rows > outputs_max * batch.num_rows:
        raise _too_many(outputs_max)
    times = batch.column(TIMESTAMP)
    return _rows(found, times[0].as_py(), times[-1].as_py())


def _rows(found: pa.RecordBatch, first_ms: int, last_ms: int) -> list[Timed]:
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
    documents = [
        {n: cell for n, cell in zip(names, cells, strict=True) if cell is not None}
        for cells in (zip(*columns, strict=True) if columns else [()] * len(times))
    ]
    return list(zip(times, encode_docs(documents), strict=True))


def _values(column: pa.Array) -> list[Any]:
    """A column's values as the language has them; a null is a field that is not there."""
    if pa.types.is_timestamp(column.type):
        return [None if t is None else Date(t) for t in column.cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()]
    return list(column.to_pylist())


def yielded(found: Iterable[Document] | None, time_ms: int, outputs_max: int) -> list[Timed]:
    """The documents that a callback yielded, encoded as they are now; CodecError for what is no value of the language."""
    timed: list[Timed] = []
    for document in found or ():
        if type(document) is not dict:
            raise ComputationError(f"a computation yields documents (dicts), not a {type(document).__name__}")
        if len(timed) == outputs_max:
            raise _too_many(outputs_max)
        timed.append((time_ms, encode_doc(document)))
    return timed


def _too_many(outputs_max: int) -> ComputationError:
    return ComputationError(
        f"one callback yielded more than {outputs_max} documents; yield fewer, or set options.limits.outputsPerCall"
    )


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


def row_of(key_value: Any, value: Document, timestamp_ms: int, order: OrderKey = (0, 0)) -> Row:
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
        self._computation = computation
        self._by_event_time = order == "eventTime"
        self._limits = limits
        codec = StateCodec(computation, limits.state_bytes_max)
        self._keys = Keys(codec, groups, limits.timers_max, self._waiting, cooling)
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
        values = rows.column(VALUE)
        for data, row in self._waiting.add(rows):
            self._keys.find_or_add(data, partial(_key_value, values, row))

    def _arrive(self, rows: pa.RecordBatch, done: CallResults) -> None:
        """A2."""
        for row in _rows_of(rows):
            key = self._keys.find_or_add(row.key, partial(_valued, row))
            self._record(key, Record(key.value, row.value, row.timestamp_ms), row.order, done)
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
            record_ms = None if rows is None else rows.next_ms()
            timer = key.timers.first("event")
            if watermark_ms == MAX_TIME and record_ms is None and self._by_event_time:
                return  # A7: timers pending behind the last record fire in _end
            if rows is not None and record_ms is not None and (timer is None or record_ms <= timer.due_ms):
                self._records(key, rows, MAX_TIME if timer is None else timer.due_ms + 1, done)
            elif timer is not None and timer.due_ms < watermark_ms:
                chain = chain + 1 if timer.due_ms <= last_ms else 0
                last_ms = max(last_ms, timer.due_ms)
                if chain > self._limits.passed_timers_max:  # A9
                    self._give_up(key, timer, done)
                else:
                    self._timer(key, timer, timer.output_ms, done)
            else:
                return

    def _records(self, key: Key, rows: KeyRows, below_ms: int, done: CallResults) -> None:
        """Apply the first row, or with `process_batch` all that are below this time."""
        if self._computation.batch_schema is None:
            time_ms, order, packed = rows.take()
            self._record(key, Record(key.value, decode_doc(packed), time_ms), order, done)
            return
        run = rows.take_below(below_ms)
        self.counters.records += len(run)
        error: Exception | None = None
        together = self._guard is None or not self._guard.watching
        if together:
            error = self._try(key, run[-1][0], partial(self._together, key, rows, run), done)
        if error is not None or not together:
            # One of them may be at fault: each by itself, so that only that one becomes a dead letter.
            self.counters.records -= len(run)
            for time_ms, order, packed in run:
                self._record(key, Record(key.value, decode_doc(packed), time_ms), order, done)

    def _record(self, key: Key, record: Record, order: OrderKey, done: CallResults) -> None:
        self.counters.records += 1
        call = partial(
            self._alone if self._computation.batch_schema is not None else self._processed, key, record, order
        )
        error = self._guarded(("record", key.data, record.timestamp, order), key, record.timestamp, call, done)
        if error is not None:
            self._fail(CallbackFailure(key.value, error, record=record, order=order), done)

    def _processed(self, key: Key, record: Record, order: OrderKey) -> list[Timed]:
        del order
        found = self._computation.process(record, key.state(), key.timers)
        return yielded(found, record.timestamp, self._limits.outputs_max)

    def _alone(self, key: Key, record: Record, order: OrderKey) -> list[Timed]:
        batch = columns_of(self._batch_schema, [(record.timestamp, order, encode_doc(record.value))])
        return called_on_run(self._computation, key, batch, self._limits.outputs_max)

    def _together(self, key: Key, rows: KeyRows, run: Sequence[Stored]) -> list[Timed]:
        """The last rows that were taken. The columns of all that are reached are made at once, where each row has its types."""
        schema = self._batch_schema
        try:
            batch = rows.last_of(len(run), partial(columns_of, schema))
        except (pa.ArrowException, TypeError, OverflowError):
            batch = columns_of(schema, run)
        return called_on_run(self._computation, key, batch, self._limits.outputs_max)

    @property
    def _batch_schema(self) -> pa.Schema:
        schema = self._computation.batch_schema
        assert schema is not None, "a computation by batches has one"
        return schema

    def _timer(self, key: Key, pending: Pending, output_ms: int, done: CallResults) -> None:
        """Fire a timer. It is pending no more, even if it fails."""
        timer = Timer(pending.name, pending.time_ms, pending.domain)
        self._keys.changed(key)
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
        callback: Callable[[], Sequence[Timed]],
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
        self, key: Key, now_ms: int, callback: Callable[[], Sequence[Timed]], done: CallResults
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
                for time_ms, packed in yielded:
                    done.outputs.append(Yielded(time_ms, key.data, key.next_sequence(time_ms), packed))
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
        others = set(key.timers.all()).difference(pending)
        for timer in pending:
            if key.timers.is_pending(timer):  # not cancelled or set anew by one before it
                self._timer(key, timer, max(least_ms, timer.output_ms), done)
        for timer in key.timers.all():
            if timer not in others:  # it may be set for the time of one that has fired
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

    def _reached(self, below_ms: int, keys_max: int) -> Iterator[tuple[Key, KeyRows | None]]:
        """The keys that have something to apply below this time, in the order of their bytes, with their rows; at most `keys_max`."""
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
        done.outputs.sort(key=lambda o: o[:3])  # A6
        self.counters.outputs += len(done.outputs)
        return done


def _valued(row: Row) -> Any:
    return row.key_value


def _key_value(values: pa.BinaryArray, row: int) -> Any:
    return decode_value(values[row].as_py())


def _rows_of(rows: pa.RecordBatch) -> list[Row]:
    keys, values, packed, times, ordinals, positions, below = (column.to_pylist() for column in rows.columns)
    orders = zip(ordinals, positions, strict=True)
    return list(map(Row, keys, map(decode_value, values), packed, times, orders, below))
