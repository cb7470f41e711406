"""Dead letters: the documents that a stage could not take, with the reason (LANGUAGE.md, Dead letters).

`dlqTime` is the record's arrival, so that a replay writes the same letter; of a row that no record is, such as a window's, the time at
which the letter is made. Partition, offset and key are told of records alone: the places of other rows are the engine's.

Letters leave on port `dlq` in the order of the rows. A document that no queue might take is cut:
the letter has its first bytes, how many there were, and where the rest is to be found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.values import render_json
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.values import Binary, Date, Document, long
from tidemark.shared.operators.base import ARRIVAL, PART, PLACE, POS, REST, SRCKEY, TS, WSTART, Out
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext, source_place

LATE: Final = "Input document arrived late."
LATE_CODE: Final = "DocumentLate"
WOULD_REFUSE: Final = "TargetWouldRefuse"
_KEPT: Final = (TS, PART, POS, ARRIVAL)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row of a batch cannot go on."""

    row: int
    reason: str
    code: str
    path: str = ""
    missed_starts_ms: tuple[int, ...] = ()
    """Starts of the windows that the row came too late for."""
    document: Document | Binary | None = None
    """What goes into `doc`; None: the row's own document."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of a batch's records, and where it begins among the orders of its split. Known at the source alone."""

    file: str
    begin: int


def dead_letters(
    batch: pa.RecordBatch,
    failures: Sequence[Failure],
    operator: str,
    context: TaskContext,
    origin: Origin | None = None,
    now_ms: int | None = None,
) -> list[Out]:
    """The letters of failed rows of a batch; nothing for none. `now_ms`: the wall clock, where rows may be no records."""
    if not failures:
        return []
    ordered = sorted(failures, key=lambda f: f.row)
    rows = batch.take(pa.array([f.row for f in ordered], type=pa.int64()))
    own = documents_of(rows) if any(f.document is None for f in ordered) else [{}] * len(ordered)
    are_records = context.rows_are_records and WSTART not in rows.schema.names
    meta = _stream_meta(rows, context, origin) if are_records else [{}] * len(ordered)
    arrivals = rows.column(ARRIVAL if ARRIVAL in rows.schema.names else TS).to_pylist()
    if now_ms is not None and not are_records:
        arrivals = [now_ms] * len(ordered)
    letters = [
        letter(failure, document if failure.document is None else failure.document, operator, context, arrival, source)
        for failure, document, arrival, source in zip(ordered, own, arrivals, meta, strict=True)
    ]
    engine = {name: rows.column(name) for name in _KEPT if name in rows.schema.names}
    return [Out(DLQ, "rows", _bounded(batch_of(letters, engine), letters, engine, context.letter_bytes_max))]


def _bounded(
    batch: pa.RecordBatch, letters: Sequence[Document], engine: Mapping[str, pa.Array], bytes_max: int
) -> pa.RecordBatch:
    """The letters with documents that every target takes: of a larger one the beginning, and its size in `docBytes`."""
    large = (pc.binary_length(batch.column(REST)).to_numpy(zero_copy_only=False) > bytes_max).tolist()
    if not any(large):
        return batch
    return batch_of(
        [_cut(each, bytes_max) if over else each for each, over in zip(letters, large, strict=True)], engine
    )


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


def letter(
    failure: Failure,
    document: Document | Binary,
    operator: str,
    context: TaskContext,
    arrival_ms: int,
    source: Mapping[str, Any],
) -> Document:
    """One dead letter."""
    out: Document = {
        "processorName": context.processor,
        "instanceName": context.instance,
        "dlqTime": Date(arrival_ms),
        "operatorName": operator,
        "errInfo": {"reason": failure.reason, "code": failure.code, "path": failure.path},
        "doc": document,
    }
    if failure.missed_starts_ms:
        out["missedWindowStartTimes"] = [Date(t) for t in failure.missed_starts_ms]
    out["_stream_meta"] = {"source": dict(source)}
    return out


def _stream_meta(rows: pa.RecordBatch, context: TaskContext, origin: Origin | None) -> list[dict[str, Any]]:
    names = rows.schema.names
    nowhere = [None] * rows.num_rows
    parts = [None if p is None or p < 0 else p for p in rows.column(PART).to_pylist()] if PART in names else nowhere
    positions = rows.column(POS).to_pylist() if POS in names else nowhere
    keys = rows.column(SRCKEY).to_pylist() if SRCKEY in names else [None] * rows.num_rows
    found = []
    for part, position, key in zip(parts, positions, keys, strict=True):
        meta: dict[str, Any] = {}
        if part is not None:
            topic, meta["partition"] = source_place(context.topic, part)
            if topic is not None:
                meta["topic"] = topic
        if position is not None and part is not None:
            meta["offset"] = long(position & PLACE)
        if origin is not None and position is not None:
            meta |= {"file": origin.file, "position": long(position - origin.begin)}
        if key is not None:
            meta["key"] = Binary(key)
        found.append(meta)
    return found
