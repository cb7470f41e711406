"""Records of a Kafka sink in runs: columns of one topic, in order; how they are held, divided into parts and staged.

A run costs a few list elements a record, and no object of its own: an epoch may have a hundred thousand records. They come in as many
runs as there were batches; a part has one a topic, so that its release is one batch a partition however they came.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from shared.operators.keygroups import key_groups
from shared.ports.log import RecordColumns
from shared.ports.sink import TargetRefused

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
OVERHEAD_BYTES: Final = 128
"""A record's own fields, and the batch around it when it is alone."""
Headers = tuple[tuple[str, bytes], ...]


class Run(Struct, frozen=True, array_like=True):
    """Records of one topic as they are staged: columns of equal length n ≥ 1."""

    topic: str
    values: list[bytes | None]
    keys: list[bytes | None] | None
    """None: no record has one."""
    timestamps_ms: list[int | None]
    headers: list[Headers] | None
    """None: no record has any."""

    def part(self, begin: int, end: int) -> "Run":
        """Records begin … end - 1."""
        keys = None if self.keys is None else self.keys[begin:end]
        headers = None if self.headers is None else self.headers[begin:end]
        return Run(self.topic, self.values[begin:end], keys, self.timestamps_ms[begin:end], headers)

    def sizes(self) -> Int64s:
        """See `sizes_of`."""
        return sizes_of(self.values, self.keys, self.headers)

    def without(self, rows: Container[int]) -> "Run | None":
        """All but these records; None if there are no others."""
        kept = [n for n in range(len(self.values)) if n not in rows]
        columns = self._rows(kept)
        times = [self.timestamps_ms[n] for n in kept]
        run = Run(self.topic, list(columns.values), _listed(columns.keys), times, _listed(columns.headers))
        return run if kept else None

    def by_partition(self, count: int, turn: int) -> Iterator[tuple[int, RecordColumns]]:
        """The records for each of `count` partitions, in order: by Kafka's hash of the key; without one in turn, beginning at `turn`."""
        if count == 1:
            yield 0, RecordColumns(self.values, self.keys, self.timestamps_ms, self.headers)
            return
        places = (np.arange(len(self.values), dtype=np.int64) + turn) % count
        if self.keys is not None:
            hashed = key_groups(pa.array(self.keys, pa.binary()), count).astype(np.int64)
            keyed = np.array([key is not None for key in self.keys], dtype=np.bool_)
            places = np.where(keyed, hashed, places)
        for place in np.unique(places).tolist():
            yield place, self._rows(np.flatnonzero(places == place).tolist())

    def _rows(self, rows: list[int]) -> RecordColumns:
        keys, headers = self.keys, self.headers
        return RecordColumns(
            [self.values[i] for i in rows],
            None if keys is None else [keys[i] for i in rows],
            [self.timestamps_ms[i] for i in rows],
            None if headers is None else [headers[i] for i in rows],
        )


def _listed(values: Sequence[T] | None) -> list[T] | None:
    return None if values is None else list(values)


def size_of(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """What the broker counts of one record, about; bytes."""
    size = len(value or b"") + len(key or b"") + OVERHEAD_BYTES
    return size + sum(len(name.encode()) + len(data) + 8 for name, data in headers) if headers else size


def sizes_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None
) -> Int64s:
    """`size_of` each of several; shape (n,)."""
    sizes = np.fromiter((len(v) if v else 0 for v in values), dtype=np.int64, count=len(values))
    sizes += OVERHEAD_BYTES
    if keys is not None:
        sizes += np.fromiter((len(k) if k else 0 for k in keys), dtype=np.int64, count=len(keys))
    if headers is not None:
        counted = (sum(len(name.encode()) + len(value) + 8 for name, value in h) for h in headers)
        sizes += np.fromiter(counted, dtype=np.int64, count=len(headers))
    return sizes


def joined(runs: Sequence[Run]) -> list[Run]:
    """One run a topic, in the order in which topics first come; the records of each in order."""
    by_topic: dict[str, list[Run]] = {}
    for run in runs:
        by_topic.setdefault(run.topic, []).append(run)
    return [several[0] if len(several) == 1 else _one(several) for several in by_topic.values()]


def _one(runs: Sequence[Run]) -> Run:
    none: list[None] = [None]
    nothing: list[Headers] = [()]
    keyed = any(run.keys is not None for run in runs)
    headed = any(run.headers is not None for run in runs)
    return Run(
        runs[0].topic,
        [value for run in runs for value in run.values],
        [key for run in runs for key in (run.keys or none * len(run.values))] if keyed else None,
        [time for run in runs for time in run.timestamps_ms],
        [each for run in runs for each in (run.headers or nothing * len(run.values))] if headed else None,
    )


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Run])


def encode_runs(runs: Sequence[Run]) -> bytes:
    """A part's bytes."""
    return _ENCODER.encode(runs)


def decode_runs(data: bytes) -> list[Run]:
    """The runs of a part. TargetRefused if the bytes are none."""
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise TargetRefused(
            f"staged records do not decode: {error}; was the part written by another version?"
        ) from error


@dataclass(slots=True)
class Held:
    """What was accepted and is in no part yet."""

    count: int = 0
    size_bytes: int = 0
    _runs: list[tuple[Run, Int64s]] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Records behind those that are held."""
        sizes = run.sizes()
        self._runs.append((run, sizes))
        self.count += len(sizes)
        self.size_bytes += int(sizes.sum())

    def first(self, records_max: int, bytes_max: int) -> list[Run]:
        """The first records that make a part, a run a topic: at least one, and as many as the bounds let in."""
        found: list[Run] = []
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

    def drop(self, runs: Sequence[Run]) -> None:
        """The first records, which `first` gave, are in a part."""
        gone = sum(len(run.values) for run in runs)
        left, self._runs = self._runs, []
        self.count = self.size_bytes = 0
        for run, sizes in left:
            here = min(gone, len(sizes))
            gone -= here
            if here < len(sizes):
                self._runs.append((run.part(here, len(sizes)), sizes[here:]))
                self.count += len(sizes) - here
                self.size_bytes += int(sizes[here:].sum())
