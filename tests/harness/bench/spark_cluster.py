"""`python -m tests.harness.bench.spark_cluster ROWS [EXECUTORS]`: a step over one window of so many partials on a cluster.

Executors have one core each. Each key is in two segments. Tells time, processor time and memory of the executors, and checks how many
rows come out.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness.bench.documents import windowed
from tests.harness.spark_cluster import CONF, SparkCluster, spark_cluster
from tidemark.shared.language.documents import parse
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.step import Times
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import StepHead, plan_processor
from tidemark.spark_stages.manifest import StageState, StateSegment
from tidemark.spark_stages.segments import write_segment
from tidemark.spark_stages.session import open_session, warm_up
from tidemark.spark_stages.step import SparkStep

SEGMENT_ROWS = 1_000_000
DIGITS = 12
SAMPLE_S = 0.5


def keys(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """`key-` and twelve digits, without an object a key."""
    text = np.empty((len(numbers), 4 + DIGITS), dtype=np.uint8)
    text[:, :4] = np.frombuffer(b"key-", dtype=np.uint8)
    for place in range(DIGITS):
        text[:, 4 + place] = numbers // 10 ** (DIGITS - 1 - place) % 10 + ord("0")
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * (4 + DIGITS)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def stored(root: Path, plan: WindowPlan, rows: int) -> list[StateSegment]:
    """Segments of one window; the keys of the second half are those of the first, in another order."""
    length, found = plan.length_ms, []
    for begin in range(0, rows, SEGMENT_ROWS):
        numbers = np.arange(begin, min(rows, begin + SEGMENT_ROWS), dtype=np.int64)
        named = numbers if begin < rows // 2 else (numbers - rows // 2) * 7_919 % (rows // 2)
        zeros = np.zeros(len(numbers), dtype=np.int64)
        columns = [zeros, zeros + length, keys(named), zeros + 1, numbers]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, plan.partial_schema, strict=True)]
        name = f"in/{begin}.parquet"
        size, digest = write_segment(str(root), name, pa.Table.from_arrays(arrays, schema=plan.partial_schema))
        found.append(StateSegment(name, len(numbers), size, digest, 0, length))
    return found


class Watched(threading.Thread):
    """Processor time and memory of the executors, with their Python workers."""

    def __init__(self, cluster: SparkCluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.ended = cluster, threading.Event()
        self.peak_mib = 0.0
        self.used_s: dict[int, float] = {}

    def run(self) -> None:
        """Until `ended`."""
        while not self.ended.wait(SAMPLE_S):
            total = 0.0
            for executor in self.cluster.executors():
                for process in [executor, *executor.children(recursive=True)]:
                    try:
                        times, pages = process.cpu_times(), process.memory_full_info()
                    except psutil.Error:
                        continue  # it has ended meanwhile
                    self.used_s[process.pid] = times.user + times.system
                    total += pages.pss / 2**20
            self.peak_mib = max(self.peak_mib, total)


def main(rows: int, executors: int) -> None:
    """Run, and say."""
    vertices = plan_processor(parse(windowed("a", "b", epoch_ms=100))).vertices
    head = next(v.head for v in vertices if isinstance(v.head, StepHead))
    plan = WindowPlan(head.step.window)
    with tempfile.TemporaryDirectory() as folder, spark_cluster(Path(folder) / "spark", executors, "2g") as cluster:
        root = Path(folder) / "blobs"
        segments = stored(root, plan, rows)
        conf = dict(each.split("=", 1) for each in CONF) | {"spark.executor.memory": "1g"}
        session = open_session("bench", cluster.url, conf)
        warm_up(session)
        step = SparkStep(session, plan, str(root), NOWHERE, 128)
        watched = Watched(cluster)
        watched.start()
        began = time.monotonic()
        result = step(StageState(tuple(segments)), (), Times(MIN_TIME, MAX_TIME, 0, 7), "out/x", arrived=False)
        took_s = time.monotonic() - began
        watched.ended.set()
        watched.join()
        out = [pq.read_table(root / each.name) for each in result.outs]
        total = sum(table.num_rows for table in out)
        assert total == rows // 2, f"{total:,} rows came out, expected {rows // 2:,}"
        sys.stdout.write(
            f"{rows:,} partials, {sum(s.size_bytes for s in segments) / 2**20:.0f} MiB, on {executors} executors of 1 core:"
            f" {took_s:.0f} s, {sum(watched.used_s.values()):.0f} s of processor time, {watched.peak_mib:.0f} MiB,"
            f" {len(out)} segments of {total:,} rows\n"
        )
        session.stop()


if __name__ == "__main__":
    main(int(sys.argv[1].replace("_", "")), int(sys.argv[2]) if len(sys.argv) > 2 else 2)
