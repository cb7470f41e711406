"""Dead letters: the documents that a stage could not take, with the reason (LANGUAGE.md, Dead letters).

`dlqTime` is the record's arrival, so that a replay writes the same letter; of a row that no record is, such as a window's, the time at
which the letter is made. Partition, offset and key are told of records alone: the places of other rows are the engine's.

Letters leave on port `dlq` in the order of the rows. A document that no queue might take is cut:
the letter has its first bytes, how many there were, and where the rest is to be found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.values import decode_doc, encode_value, render_json
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, Binary, Date, Document, Long, Value, long
from tidemark.shared.operators.base import AGAIN, ARRIVAL, PART, PLACE, POS, REST, SRCKEY, TS, WSTART, Out
from tidemark.shared.operators.batches import NO_FIELDS, is_untyped, rest_of
from tidemark.shared.operators.context import TaskContext, source_place

LATE: Final = "Input document arrived late."
LATE_CODE: Final = "DocumentLate"
WOULD_REFUSE: Final = "TargetWouldRefuse"
_KEPT: Final = (TS, PART, POS, ARRIVAL)
_HEADS: Final = [encode_value(dict.fromkeys(map(str, range(n))))[:1] for n in range(16)]
"""The first byte of an encoded object of n fields."""


class RowFailure(NamedTuple):
    """Why a row of a batch cannot go on."""

    row: int
    reason: str
    code: str
    path: str = ""
    missed_starts_ms: tuple[int, ...] = ()
    """Starts of the windows that the row came too late for."""
    document: Document | Binary | None = None
    """The value of `doc`; None: the row's own document."""


class Cause(NamedTuple):
    """Why a row failed, as `errInfo` says it."""

    reason: str
    code: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of many rows, as columns of one length n: most have one of a few causes."""

    rows: npt.NDArray[np.int64]
    causes: Sequence[Cause]
    places: npt.NDArray[np.int64]
    """Shape (n,): where the cause of each stands in `causes`."""
    documents: pa.BinaryArray | None = None
    """The values of `doc`, encoded; null, or None for all: the row's own document."""
    missed: pa.BinaryArray | None = None
    """Starts of missed windows, encoded, null for none; None: none has any."""

    def __len__(self) -> int:
        """How many."""
        return len(self.rows)

    def __iter__(self) -> Iterator[RowFailure]:
        """Row and cause of each."""
        for row, place in zip(self.rows.tolist(), self.places.tolist(), strict=True):
            yield RowFailure(row, *self.causes[place])

    @classmethod
    def alike(cls, rows: npt.NDArray[np.int64], cause: Cause) -> "Failures":
        """Rows that failed for one cause."""
        return cls(rows, (cause,), np.zeros(len(rows), dtype=np.int64))

    @classmethod
    def of(cls, failures: Sequence[RowFailure]) -> "Failures":
        """Failures that were found one by one."""
        causes: dict[Cause, int] = {}
        places = [causes.setdefault(Cause(f.reason, f.code, f.path), len(causes)) for f in failures]
        documents = missed = None
        if any(f.document is not None for f in failures):
            documents = pa.array(
                [None if f.document is None else encode_value(f.document) for f in failures], pa.binary()
            )
        if any(f.missed_starts_ms for f in failures):
            starts = [[Date(t) for t in f.missed_starts_ms] for f in failures]
            missed = pa.array([encode_value(each) if each else None for each in starts], pa.binary())
        return cls(_int64s([f.row for f in failures]), tuple(causes), _int64s(places), documents, missed)

    @classmethod
    def of_errors(cls, errors: Mapping[int, ExpressionError], path: str) -> "Failures":
        """Rows on which an expression failed; `path` where an error has no place of its own."""
        known: dict[ExpressionError, int] = {}
        places = [known.setdefault(error, len(known)) for error in errors.values()]
        causes = [Cause(e.reason, e.code, e.path or path) for e in known]
        return cls(_int64s(list(errors)), causes, _int64s(places)).in_order()

    @classmethod
    def joined(cls, parts: Sequence["Failures"]) -> "Failures":
        """Failures of different rows, none with a document or windows of its own, in the order of the rows."""
        begins = np.cumsum([0, *(len(part.causes) for part in parts)])
        places = [part.places + begin for part, begin in zip(parts, begins.tolist(), strict=False)]
        causes = [cause for part in parts for cause in part.causes]
        return cls(np.concatenate([part.rows for part in parts]), causes, np.concatenate(places)).in_order()

    def without(self, rows: pa.BooleanArray) -> "Failures":
        """Those of other rows than these."""
        kept = ~rows.fill_null(False).to_numpy(zero_copy_only=False)[self.rows]
        cells = [None if each is None else each.filter(pa.array(kept)) for each in (self.documents, self.missed)]
        return Failures(self.rows[kept], self.causes, self.places[kept], *cells)

    def in_order(self) -> "Failures":
        """The same in the order of the rows."""
        if bool((self.rows[1:] >= self.rows[:-1]).all()):
            return self
        order = np.argsort(self.rows, kind="stable")
        cells = [None if each is None else each.take(pa.array(order)) for each in (self.documents, self.missed)]
        return Failures(self.rows[order], self.causes, self.places[order], *cells)


def _int64s(numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of a batch's records, and where it begins among the orders of its split. Known at the source alone."""

    file: str
    begin: int


def dead_letters(
    batch: pa.RecordBatch,
    failures: Sequence[RowFailure] | Failures,
    operator: str,
    context: TaskContext,
    origin: Origin | None = None,
    now_ms: int | None = None,
) -> list[Out]:
    """The letters of failed rows of a batch; nothing for none. `now_ms`: the wall clock, where rows may be no records."""
    if not failures:
        return []
    failed = (failures if isinstance(failures, Failures) else Failures.of(failures)).in_order()
    if AGAIN in batch.schema.names:
        failed = failed.without(batch.column(AGAIN))
    count = len(failed)
    if not count:
        return []
    rows = batch if np.array_equal(failed.rows, np.arange(batch.num_rows)) else batch.take(pa.array(failed.rows))
    are_records = context.rows_are_records and WSTART not in rows.schema.names
    arrivals = rows.column(ARRIVAL if ARRIVAL in rows.schema.names else TS)
    if now_ms is not None and not are_records:
        arrivals = pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    source = _source(rows, context, origin) if are_records else {}
    parts = {
        "processorName": _same(context.processor, count),
        "instanceName": _same(context.instance, count),
        "dlqTime": _whole(Date, arrivals),
        "operatorName": _same(operator, count),
        "errInfo": _told(failed.causes).take(pa.array(failed.places)),
        "doc": _documents(rows, failed.documents),
    }
    if failed.missed is not None:
        parts["missedWindowStartTimes"] = failed.missed
    parts["_stream_meta"] = _objects({"source": _objects(source, count)}, count)
    letters = _objects(parts, count)
    engine = {name: rows.column(name) for name in _KEPT if name in rows.schema.names}
    return [Out(DLQ, "rows", _bounded(letters, engine, context.letter_bytes_max))]


def _documents(rows: pa.RecordBatch, given: pa.BinaryArray | None) -> pa.BinaryArray:
    """The `doc` of each row's dead letter, encoded."""
    if given is not None and not given.null_count:
        return given
    if is_untyped(rows):
        own = rows.column(REST).fill_null(NO_FIELDS)
    else:
        from tidemark.shared.operators.encoded import encoded  # noqa: PLC0415 - machine code: computations' children load none

        own = encoded(rows)
    return own if given is None else pc.coalesce(given, own)


def _told(causes: Sequence[Cause]) -> pa.BinaryArray:
    """Causes, encoded. A reason may quote half a surrogate pair, which Arrow's texts do not take."""
    texts = {
        name: pa.array([text.encode("utf-8", "surrogatepass") for text in part], pa.binary())
        for name, part in zip(Cause._fields, zip(*causes, strict=True), strict=True)
    }
    return _objects({name: _behind_heads(part, lambda size: " " * size) for name, part in texts.items()}, len(causes))


def _objects(parts: Mapping[str, pa.BinaryArray], count: int) -> pa.BinaryArray:
    """An object a row, of encoded parts; a missing one is left out."""
    fields = np.zeros(count, np.int64)
    pieces: list[pa.Scalar | pa.BinaryArray] = []
    for name, part in parts.items():
        before = pa.scalar(encode_value(name), pa.binary())
        fields += part.is_valid().to_numpy(zero_copy_only=False) if part.null_count else 1
        pieces += [pc.binary_join_element_wise(before, part, b"")] if part.null_count else [before, part]
    return pc.binary_join_element_wise(
        pa.array(_HEADS, pa.binary()).take(pa.array(fields)),
        *pieces,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )


def _same(value: Value, count: int) -> pa.BinaryArray:
    return pa.repeat(pa.scalar(encode_value(value), pa.binary()), count)


def _cells(given: Sequence[str | int | None]) -> pa.BinaryArray:
    """Values, encoded; None for a missing one."""
    return pa.array([None if value is None else encode_value(value) for value in given], pa.binary())


def _whole(kind: type[Date | Long], cells: pa.Array) -> pa.BinaryArray:
    """Whole numbers, encoded; a null one missing."""
    numbers = cells.fill_null(0).to_numpy()
    if kind is Long and not ((numbers >= INT32_MIN) & (numbers <= INT32_MAX)).all():
        return pa.array([None if n is None else encode_value(long(n)) for n in cells.to_pylist()], pa.binary())
    head = np.frombuffer(encode_value(kind(0))[:-8], np.uint8)  # its number follows, in eight bytes
    out = np.empty((len(numbers), len(head) + 8), np.uint8)
    out[:, : len(head)], out[:, len(head) :] = head, numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    found = pa.FixedSizeBinaryArray.from_buffers(pa.binary(out.shape[1]), len(out), [None, pa.py_buffer(out)])
    return pc.if_else(cells.is_valid(), found.cast(pa.binary()), None)


def _bounded(letters: pa.BinaryArray, engine: Mapping[str, pa.Array], bytes_max: int) -> pa.RecordBatch:
    """The letters with documents that every target takes: of a larger one the beginning, and its size in `docBytes`."""
    large = pc.greater(pc.binary_length(letters), bytes_max)
    if pc.any(large).as_py():
        cut = rest_of([_cut(decode_doc(each), bytes_max) for each in letters.filter(large).to_pylist()])
        letters = pc.replace_with_mask(letters, large, cut)
    return pa.RecordBatch.from_arrays([letters, *engine.values()], names=[REST, *engine])


def _cut(letter: Document, bytes_max: int) -> Document:
    """Key and reason, too: a user's exception may quote anything."""
    document, info, source = letter["doc"], letter["errInfo"], letter["_stream_meta"]["source"]
    data = bytes(document) if isinstance(document, Binary) else render_json(document, canonical=False)
    if len(data) > bytes_max:
        letter = {**letter, "doc": Binary(data[:bytes_max]), "docBytes": long(len(data))}
    if "key" in source:
        source = {**source, "key": Binary(source["key"][: bytes_max // 4])}
    info = {**info, "reason": info["reason"][: bytes_max // 4]}
    return {**letter, "errInfo": info, "_stream_meta": {**letter["_stream_meta"], "source": source}}


def _source(rows: pa.RecordBatch, context: TaskContext, origin: Origin | None) -> dict[str, pa.BinaryArray]:
    """Where records came from, as far as each is known."""
    names, count = rows.schema.names, rows.num_rows
    known = pa.nulls(count, pa.bool_())
    found: dict[str, pa.BinaryArray] = {}
    if PART in names:
        parts = rows.column(PART)
        known = pc.if_else(pc.greater_equal(parts, 0), True, None)
        coded = pc.if_else(known, parts, None).dictionary_encode()
        places = [source_place(context.topic, part) for part in coded.dictionary.to_pylist()]
        found["partition"] = _cells([part for _, part in places]).take(coded.indices)
        found["topic"] = _cells([topic for topic, _ in places]).take(coded.indices)
    if POS in names:
        positions = rows.column(POS)
        found["offset"] = _whole(Long, pc.if_else(known, pc.bit_wise_and(positions, PLACE), None))
        if origin is not None:
            there = positions.is_valid()
            found["file"] = pc.if_else(there, _same(origin.file, count), None)
            found["position"] = _whole(Long, pc.subtract(positions, origin.begin))
    if SRCKEY in names:
        found["key"] = binaries(rows.column(SRCKEY))
    return found


def binaries(cells: pa.BinaryArray) -> pa.BinaryArray:
    """Bytes as values, encoded; a null one missing."""
    return _behind_heads(cells, lambda size: Binary(bytes(size)))


def _behind_heads(cells: pa.BinaryArray, alike: Callable[[int], Value]) -> pa.BinaryArray:
    """Bytes of values, encoded: what stands before them depends on their length alone. alike: some value with so many bytes."""
    lengths = pc.binary_length(cells).dictionary_encode()
    sizes = lengths.dictionary.to_pylist()
    heads = pa.array([encode_value(alike(size))[: -size or None] for size in sizes], pa.binary())
    return pc.binary_join_element_wise(heads.take(lengths.indices), cells, b"")
