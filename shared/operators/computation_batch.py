"""What a callback of a computation gives, checked; and the fast form of `process`: a run of records of one key as columns."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.problems import ComputationError
from tidemark.shared.language.values import encode_doc
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.computation_keys import Key, Waiting

TIMESTAMP: Final = "timestamp"


def call(
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


def documents(found: Iterable[Document] | None, time_ms: int, outputs_max: int) -> list[tuple[int, Document]]:
    """What a callback yielded, checked to be documents of the language's values."""
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
