"""Records of a Kafka sink in runs: columns of one topic, in order; how they are held, divided into parts and staged.

They come in as many runs as there were batches; a part has one a topic, so that its release is one batch a partition however they came.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled.documents import buffers
from tidemark.shared.model.formats import STAGED_RECORDS, Codec, FormatError
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.ports.log import HEADERS, RecordColumns
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.wire.arrow import decode_batch, stream_of
from tidemark.shared.wire.limits import DEFAULT, WireError

Int64s = npt.NDArray[np.int64]
OVERHEAD_BYTES: Final = 128
"""A record's own fields, and the batch around it when it is alone."""
_HEADER_BYTES: Final = 8
"""A header's own lengths."""
_VALUE, _KEY, _TIME, _HEADERS = "value", "key", "time", "headers"
_KINDS: Final = {_KEY: pa.binary(), _TIME: pa.int64(), _HEADERS: HEADERS}


@dataclass(frozen=True, slots=True)
class TopicRun:
    """Records of one topic, n ≥ 1."""

    topic: str
    columns: RecordColumns

    def __len__(self) -> int:
        return len(self.columns)

    def part(self, begin: int, end: int) -> "TopicRun":
        """Records begin … end - 1."""
        return TopicRun(self.topic, self.columns[begin:end])

    def without(self, rows: Collection[int]) -> "TopicRun | None":
        """All but these records; None if there are no others."""
        kept = np.setdiff1d(np.arange(len(self), dtype=np.int64), np.fromiter(rows, np.int64, len(rows)))
        return TopicRun(self.topic, self.columns.take(kept)) if len(kept) else None

    def by_partition(self, count: int, turn: int) -> Iterator[tuple[int, RecordColumns]]:
        """The records for each of `count` partitions, in order: by Kafka's hash of the key; without one in turn, beginning at `turn`."""
        if count == 1:
            yield 0, self.columns
            return
        places = (np.arange(len(self), dtype=np.int64) + turn) % count
        keys = self.columns.keys
        if keys is not None:
            keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            places = np.where(keyed, key_groups(keys, count).astype(np.int64), places)
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], np.arange(count + 1))
        for place in range(count):
            if bounds[place] < bounds[place + 1]:
                yield place, self.columns.take(order[bounds[place] : bounds[place + 1]])


def sizes_of(columns: RecordColumns) -> Int64s:
    """The size of each record as the broker counts it, about; bytes, shape (n,)."""
    sizes = _lengths(columns.values) + OVERHEAD_BYTES
    if columns.keys is not None:
        sizes += _lengths(columns.keys)
    if columns.headers is not None:
        bounds = columns.headers.offsets.to_numpy(zero_copy_only=False)
        headers = columns.headers.values
        each = _lengths(headers.field(0)) + _lengths(headers.field(1)) + _HEADER_BYTES
        sizes += np.diff(np.concatenate(([0], np.cumsum(each)))[bounds])
    return sizes


def _lengths(column: pa.Array) -> Int64s:
    """Bytes of each cell, shape (n,); 0 of null."""
    found: Int64s = np.diff(buffers(column)[1])
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), found, 0) if column.null_count else found


def joined(runs: Sequence[TopicRun]) -> list[TopicRun]:
    """One run a topic, in the order in which topics first come; the records of each in order."""
    by_topic: dict[str, list[RecordColumns]] = {}
    for run in runs:
        by_topic.setdefault(run.topic, []).append(run.columns)
    return [TopicRun(topic, several[0] if len(several) == 1 else _one(several)) for topic, several in by_topic.items()]


def _one(several: Sequence[RecordColumns]) -> RecordColumns:
    def column(name: str, kind: pa.DataType) -> pa.Array | None:
        found = [getattr(columns, name) for columns in several]
        if all(each is None for each in found):
            return None
        parts = zip(found, several, strict=True)
        return pa.concat_arrays([pa.nulls(len(columns), kind) if each is None else each for each, columns in parts])

    keys, times = column("keys", pa.binary()), column("timestamps_ms", pa.int64())
    return RecordColumns(column("values", pa.binary()), keys, times, column("headers", HEADERS))


_CODEC: Final[Codec[list[tuple[str, memoryview]]]] = Codec(STAGED_RECORDS, list[tuple[str, memoryview]])


def encode_runs(runs: Sequence[TopicRun]) -> bytes:
    """A part's bytes: of each run the topic, and its columns as an IPC stream."""
    return _CODEC.encode([(run.topic, stream_of(_batch(run.columns))) for run in runs])


def _batch(columns: RecordColumns) -> pa.RecordBatch:
    others = {_KEY: columns.keys, _TIME: columns.timestamps_ms, _HEADERS: columns.headers}
    return pa.RecordBatch.from_pydict({_VALUE: columns.values, **{n: c for n, c in others.items() if c is not None}})


def decode_runs(data: bytes) -> list[TopicRun]:
    """The runs of a part. TargetRefused if the bytes are none."""
    try:
        limits = replace(DEFAULT, batch_bytes_max=max(1, len(data)))
        return [TopicRun(topic, _columns(decode_batch(ipc, limits))) for topic, ipc in _CODEC.decode(data)]
    except (FormatError, WireError) as error:
        raise TargetRefused(str(error)) from error


def _columns(batch: pa.RecordBatch) -> RecordColumns:
    names = batch.schema.names
    return RecordColumns(batch.column(_VALUE), *(batch.column(n) if n in names else None for n in _KINDS))


@dataclass(slots=True)
class HeldRuns:
    """Accepted records that are in no part yet."""

    count: int = 0
    size_bytes: int = 0
    _runs: list[tuple[TopicRun, Int64s]] = field(default_factory=list)

    def add(self, run: TopicRun) -> None:
        """Records behind those that are held."""
        sizes = sizes_of(run.columns)
        self._runs.append((run, sizes))
        self.count += len(sizes)
        self.size_bytes += int(sizes.sum())

    def first(self, records_max: int, bytes_max: int) -> list[TopicRun]:
        """The first records that make a part, a run a topic: at least one, and as many as the bounds let in."""
        found: list[TopicRun] = []
        count = size = 0
        for run, sizes in self._runs:
            reached = size + np.cumsum(sizes)
            fits = min(int(np.searchsorted(reached, bytes_max, side="right")), records_max - count)
            fits = max(fits, 0 if found else 1)
            if fits:
                found.append(run.part(0, fits))
                count += fits
                size = int(reached[fits - 1])
            if fits < len(sizes):
                break
        return joined(found)

    def drop(self, runs: Sequence[TopicRun]) -> None:
        """The first records, which `first` gave, are in a part."""
        gone = sum(len(run) for run in runs)
        left, self._runs = self._runs, []
        self.count = self.size_bytes = 0
        for run, sizes in left:
            here = min(gone, len(sizes))
            gone -= here
            if here < len(sizes):
                self._runs.append((run.part(here, len(sizes)), sizes[here:]))
                self.count += len(sizes) - here
                self.size_bytes += int(sizes[here:].sum())
