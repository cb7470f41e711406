"""What rows of a `$join` cost in memory and on the disk, in the operator alone: `python -m tests.harness.bench.joins --rows 10000000`.

Each row has a key of its own, and 90 bytes of document. `ahead`: all left rows come before the first right one, so all of them wait.
`span`: both sides come together, and each row may find a match for as long as half of the rows take. `--every`: after so many rows a
snapshot is taken and stored, with the bounds of a task; its time and memory are part of the figures.
"""

import argparse
import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tests.harness.bench.machine import described
from tidemark.services.operator.shelved import shelved
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.checkpoint import TaskHandle, TaskProtocolState
from tidemark.shared.model.ids import Epoch, Generation, JobId, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import Ack
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import ARRIVAL, GROUP, KEY, PART, POS, TS
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.cells import canonical_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.operators.specs import JoinSpec
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.state import StateBounds, StateStore, blobs_of
from tidemark.shared.wire.messages import encode_message

_BATCH: Final = 5_000
_GROUPS: Final = 128
_PIECE_S: Final = 0.05
_JOB, _VERTEX = JobId("0" * 32), VertexId("join-1")
_GIVEN: Final = RuntimeSettings()
_BOUNDS: Final = StateBounds(
    _GIVEN.state_inline_bytes_max, _GIVEN.state_blobs_max, _GIVEN.state_blob_bytes_max, _GIVEN.state_parts_max
)
_BASE: Final = batch_of([{"pad": "x" * 60, "n": i} for i in range(_BATCH)], {})


def _batch(first: int) -> pa.RecordBatch:
    numbers = pa.array(np.arange(first, first + _BATCH))
    keys = canonical_column(numbers, pa.field("k", pa.int64()))
    columns = dict(zip(_BASE.schema.names, _BASE.columns, strict=True)) | {
        TS: numbers, ARRIVAL: numbers, POS: numbers, PART: pa.array(np.zeros(_BATCH, np.int32)),
        KEY: keys, GROUP: pa.array(key_groups(keys, _GROUPS)),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _steps(rows: int, shape: str) -> Iterator[tuple[str, int, bool]]:
    """(side, the first row of a batch, whether the watermark follows)."""
    if shape == "ahead":
        yield from (("left", first, False) for first in range(0, rows, _BATCH))
    for first in range(0, rows, _BATCH):
        if shape == "span":
            yield "left", first, False
        yield "right", first, True


def _anonymous_mib() -> int:
    """Memory of this process that is no mapped file."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) >> 10


@dataclass(slots=True)
class _Run:
    operator: JoinOperator
    items: int = 16
    out: int = 0

    written: int = 0
    """Bytes of all snapshots."""
    parts_max: int = 0
    ack_bytes_max: int = 0

    async def snapshot(self, state: StateStore, epoch: Epoch) -> None:
        """As a task's driver does."""
        changed = self.operator.snapshot()
        self.written += sum(map(len, filter(None, changed.values())))
        parts = await state.store(epoch, changed)
        listed = await state.listed(epoch, parts)
        blobs = (*blobs_of(parts), *(() if listed is None else (listed,)))
        handle = TaskHandle(_VERTEX, 0, TaskProtocolState(), () if listed else parts, blobs, listed=listed)
        self.parts_max = max(self.parts_max, len(parts))
        self.ack_bytes_max = max(
            self.ack_bytes_max,
            len(encode_message(Ack(WorkerIncarnation("0" * 32), _JOB, Generation(1), epoch, handle))),
        )

    def advance(self, watermark_ms: int) -> None:
        """In pieces, as a task's body does."""
        unfinished = True
        while unfinished:
            began = time.perf_counter()
            outs, unfinished = self.operator.on_watermark_piece(watermark_ms, self.items)
            took = time.perf_counter() - began
            self.out += sum(out.batch.num_rows for out in outs)
            if took > _PIECE_S:
                self.items = max(1, self.items // 2)
            elif unfinished and 2 * took < _PIECE_S:
                self.items = min(2 * self.items, 1 << 20)


def measured(rows: int, shape: str, kind: str, memory_bytes: int, every: int) -> dict[str, float]:
    """Processor time a row, µs, without making the rows; the most memory and disk, MiB; rows that came out; what snapshots took."""
    span = rows // 2 if shape == "span" else 1_000
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        context = TaskContext(join_bytes_max=memory_bytes, shelve=partial(shelved, Path(folder)))
        run = _Run(JoinOperator(JoinSpec("join", kind, span, span, "r"), context))  # type: ignore[arg-type]
        executor = AsyncExecutor()
        blobs = DirectoryBlobs(Path(folder, "blobs"), executor, fsync=False)
        state = StateStore(blobs, _JOB, _VERTEX, Generation(1), lambda: uuid.uuid4().hex, _BOUNDS)
        before_mib, most_mib, disk, spent_s = _anonymous_mib(), 0, 0, 0.0
        for number, (side, first, follows) in enumerate(_steps(rows, shape), start=1):
            batch = _batch(first)
            began = time.process_time()
            run.operator.on_batch(batch, "rows", side)
            if follows:
                run.advance(first + _BATCH)
            if every and number * _BATCH % every == 0:
                loop.run(run.snapshot(state, Epoch(number)))
            spent_s += time.process_time() - began
            most_mib = max(most_mib, _anonymous_mib() - before_mib)
            disk = max(disk, run.operator.counters()["diskBytes"])
        began = time.process_time()
        run.advance(MAX_TIME)
        spent_s += time.process_time() - began
    return {
        "us_a_row": spent_s / rows / 2 * 1e6, "memory_mib": most_mib, "disk_mib": disk >> 20, "out": run.out,
        "written_mib": run.written >> 20, "parts": run.parts_max, "ack_kib": run.ack_bytes_max >> 10,
    }  # fmt: skip


def main() -> None:
    """Print one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each side")
    parser.add_argument("--shape", choices=("ahead", "span"), default="ahead")
    parser.add_argument("--kind", choices=("inner", "left", "right", "full"), default="inner")
    parser.add_argument("--memory", type=int, default=256 << 20, help="join_bytes_max")
    parser.add_argument("--every", type=int, default=0, help="rows of both sides; 0: no snapshots")
    given = parser.parse_args()
    found = measured(given.rows, given.shape, given.kind, given.memory, given.every)
    print(json.dumps({**vars(given), **found, **described()}))


if __name__ == "__main__":
    main()
