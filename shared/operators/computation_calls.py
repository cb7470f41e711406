"""The callbacks of one computation: what each is given, and the documents that it yields, encoded.

A computation's child loads this file: nothing here takes machine code.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.problems import ComputationError
from tidemark.shared.computation.records import Record, Timer
from tidemark.shared.language.values import decode_own_doc, encode_doc, encode_docs, encoder, is_tagged
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.computation_keys import Key
from tidemark.shared.operators.computation_rows import KeyRows

TIMESTAMP: Final = "timestamp"
Timed: TypeAlias = tuple[int, bytes]
"""The time of a document, ms, and the document, encoded."""


class Calls:
    """Callbacks, each by key and what it is called for; they raise what the user's code raises, and for what is no result of theirs."""

    def __init__(self, computation: Computation[Any, Any], outputs_max: int) -> None:
        self._computation = computation
        self._outputs_max = outputs_max
        self._encode = encoder()
        schema = computation.batch_schema
        self.by_batch = schema is not None
        """It has `process_batch`: `together` for rows of a key, `record` for one that is by itself."""
        self._columns = None if schema is None else Columns(schema)
        self.record: Callable[[Key, Record, int], Sequence[Timed]] = self._process if schema is None else self._alone

    def timer(self, key: Key, timer: Timer, output_ms: int) -> Sequence[Timed]:
        """`on_timer`; its documents have this time, ms."""
        return self._yielded(self._computation.on_timer(timer, key.state(), key.timers), output_ms)

    def _process(self, key: Key, record: Record, time_ms: int) -> Sequence[Timed]:
        return self._yielded(self._computation.process(record, key.state(), key.timers), time_ms)

    def _yielded(self, found: Iterable[Document] | None, time_ms: int) -> Sequence[Timed]:
        """The documents that a callback yielded, encoded as they are now; CodecError for what is no value of the language."""
        if found is None:
            return ()
        timed: list[Timed] = []
        for document in found:
            if type(document) is not dict:
                raise ComputationError(f"a computation yields documents (dicts), not a {type(document).__name__}")
            if len(timed) == self._outputs_max:
                raise _too_many(self._outputs_max)
            packed = self._encode(document)
            _within_depth(document, packed)
            timed.append((time_ms, packed))
        return timed

    def together(self, key: Key, rows: tuple[KeyRows, int], time_ms: int) -> Sequence[Timed]:
        """`process_batch` for the last rows that were taken, so many. Of all that are reached columns are made at once, where they fit."""
        del time_ms
        made, (taken, count) = self._made, rows
        try:
            batch = taken.last_of(count, made)
        except (pa.ArrowException, TypeError, OverflowError):
            own = slice(taken.at - count, taken.at)
            batch = made(taken.of.packed[own], taken.of.times[own])
        return self._run(key, batch)

    def _alone(self, key: Key, record: Record, time_ms: int) -> Sequence[Timed]:
        return self._run(key, self._made([encode_doc(record.value)], [time_ms]))

    def _made(self, packed: Sequence[bytes], times: Sequence[int]) -> pa.RecordBatch:
        assert self._columns is not None, "a computation by batches has a schema"
        return self._columns.of(packed, times)

    def _run(self, key: Key, batch: pa.RecordBatch) -> Sequence[Timed]:
        """The outputs of `process_batch`; ComputationError for a batch that is out of order or too large."""
        found = self._computation.process_batch(batch, key.state(), key.timers)
        if found is None or found.num_rows == 0:
            return ()
        if found.num_rows > self._outputs_max * batch.num_rows:
            raise _too_many(self._outputs_max)
        times = batch.column(TIMESTAMP)
        return _rows(found, times[0].as_py(), times[-1].as_py())


class Columns:
    """Rows as `process_batch` takes them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names, self._types = schema.names, schema.types
        self._schema = schema.append(pa.field(TIMESTAMP, pa.int64()))
        renamed = {f"f{place}": name for place, name in enumerate(schema.names)}
        fields = [(field, Any, None) for field in renamed]
        # Fields that are not asked for are passed over in the bytes.
        self._read = msgspec.msgpack.Decoder(msgspec.defstruct("Fields", fields, rename=renamed, gc=False)).decode

    def of(self, packed: Sequence[bytes], times: Sequence[int]) -> pa.RecordBatch:
        """Columns of encoded documents, at least one; ArrowException, TypeError, OverflowError: a field is not of its column's type."""
        cells = zip(*map(self._cells, packed), strict=True)
        columns = [pa.array(column, kind) for column, kind in zip(cells, self._types, strict=True)]
        return pa.RecordBatch.from_arrays([*columns, pa.array(times, pa.int64())], schema=self._schema)

    def _cells(self, packed: bytes) -> tuple[Any, ...]:
        # A document is let go of before the next is made: so many at once would keep the garbage collector busy.
        if is_tagged(packed):
            return self._of_whole(packed)
        try:
            return msgspec.structs.astuple(self._read(packed))
        except (msgspec.DecodeError, UnicodeDecodeError):  # half a surrogate pair
            return self._of_whole(packed)

    def _of_whole(self, packed: bytes) -> tuple[Any, ...]:
        return tuple(map(decode_own_doc(packed).get, self._names))


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
    packed = encode_docs(documents)
    for document, each in zip(documents, packed, strict=True):
        _within_depth(document, each)
    return list(zip(times, packed, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """A column's values as the language has them; a null is a field that is not there."""
    if pa.types.is_timestamp(column.type):
        return [None if t is None else Date(t) for t in column.cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()]
    return list(column.to_pylist())


def _within_depth(document: Document, packed: bytes) -> None:
    if len(packed) > DEPTH_MAX and is_deeper(document, DEPTH_MAX):  # each level has a byte
        raise ComputationError(
            f"a computation's documents nest at most {DEPTH_MAX} deep, and one that it yields is deeper"
        )


def _too_many(outputs_max: int) -> ComputationError:
    return ComputationError(
        f"one callback yielded more than {outputs_max} documents; yield fewer, or set options.limits.outputsPerCall"
    )
