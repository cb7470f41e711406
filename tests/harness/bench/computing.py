"""What a record costs in a computation's own process, by shape: `python -m tests.harness.bench.computing --records 200000`.

Rows come as the worker sends them, in batches, each followed by its watermark; there is a snapshot at the end. Processor time alone.
"""

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.harness.bench.computed import Counts, CountsOfBatch, Quiet
from tidemark.services.operator.child import _YOUNG_OBJECTS
from tidemark.shared.computation import Computation, make_computation
from tidemark.shared.language.values import canonical_key, encode_doc, encode_value
from tidemark.shared.operators.computation import KeyedComputation
from tidemark.shared.operators.computation_rows import ROWS

SHAPES: Final[Mapping[str, tuple[type[Computation[Any, Any]], int, int]]] = {
    "process, 1,000 keys": (Counts, 1_000, 4_000),
    "process, 100,000 keys": (Counts, 100_000, 4_000),
    "process_batch, 100 keys": (CountsOfBatch, 100, 4_000),
    "process_batch, 1,000 keys": (CountsOfBatch, 1_000, 4_000),
    "process_batch, 100,000 keys": (CountsOfBatch, 100_000, 4_000),
    "process, a timer each, 1,000 keys": (Quiet, 1_000, 4_000),
    "process, a record a batch, 1,000 keys": (Counts, 1_000, 1),
}
"""By name: the class, how many keys, and rows of a batch."""


def batches_of(count: int, keys: int, rows: int) -> list[tuple[pa.RecordBatch, int]]:
    """Rows in the order of time, ten a millisecond, keys drawn at random; and the watermark behind each batch, ms."""
    drawn = np.random.default_rng(7).integers(0, keys, count).tolist()
    times = [n // 10 for n in range(count)]
    cells = [
        (canonical_key(name), encode_value(name), encode_doc({"sensor": name, "ts": at, "amount": n % 97}), at, 0, n, 0)
        for n, (name, at) in enumerate(zip((f"sensor-{key:06d}" for key in drawn), times, strict=True))
    ]
    found = []
    for begin in range(0, count, rows):
        columns = zip(*cells[begin : begin + rows], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        found.append((pa.RecordBatch.from_arrays(arrays, schema=ROWS), times[min(begin + rows, count) - 1]))
    return found


def measured(kind: type[Computation[Any, Any]], batches: list[tuple[pa.RecordBatch, int]]) -> tuple[float, float, int]:
    """Processor time, us a record: of the records, and of the snapshot; how many documents came out."""
    task = KeyedComputation(make_computation(kind))
    count, said = sum(rows.num_rows for rows, _ in batches), 0
    began = time.process_time_ns()
    for rows, watermark_ms in batches:
        task.on_batch(rows)
        outputs = task.on_watermark(watermark_ms).outputs
        said += len(outputs)
    spent = time.process_time_ns() - began
    task.snapshot()
    return spent / count / 1e3, (time.process_time_ns() - began - spent) / count / 1e3, said


def main() -> None:
    """Print each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    gc.set_threshold(_YOUNG_OBJECTS)
    for name, (kind, keys, rows) in SHAPES.items():
        if given.only not in name:
            continue
        batches = batches_of(given.records if rows > 1 else given.records // 20, keys, rows)
        if given.profile:
            profile = cProfile.Profile()
            profile.runcall(measured, kind, batches)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            continue
        found = [measured(kind, batches) for _ in range(given.rounds)]
        us, snapshot = min(each[0] for each in found), min(each[1] for each in found)
        print(f"{name}: {us:.2f} us a record, snapshot {snapshot:.2f}; {found[0][2]} documents", flush=True)


if __name__ == "__main__":
    main()
