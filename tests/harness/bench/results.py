"""Reads what a pipeline gave out and compares it, row for row, with what was computed apart from it."""

import json
from datetime import datetime

import numpy as np

from tests.harness.bench.events import BEGIN_MS, MINUTE_MS, Load
from tidemark.shared.ports.log import Log, TopicPartition


class Inexact(AssertionError):
    """The results are not those of the events: says how many rows differ, and shows one."""


async def values_of(log: Log, topic: str) -> list[bytes]:
    """All committed values of a topic, partition by partition."""
    found: list[bytes] = []
    partitions = [TopicPartition(topic, number) for number in range((await log.list_topics())[topic])]
    ends = await log.end_offsets(partitions)
    reader = await log.reader(committed_only=True)
    try:
        await reader.assign(await log.begin_offsets(partitions))
        while any(reader.position(p) < ends[p] for p in partitions):
            found += [record.value or b"" for record in await reader.fetch(100_000, 1_000)]
    finally:
        await reader.close()
    return found


def check(load: Load, values: list[bytes]) -> int:
    """How many result rows there are; Inexact unless they are the expected ones, each once."""
    rows = json.loads(b"[" + b",".join(values) + b"]")
    counts, sums = load.expected_columns()
    starts: dict[str, int] = {}
    for row in rows:
        text = row["start"]["$date"]
        if text not in starts:
            starts[text] = round(datetime.fromisoformat(text).timestamp() * 1000)
    first = np.array([starts[row["start"]["$date"]] for row in rows], dtype=np.int64)
    keys = np.array([row["key"].removeprefix("key-") for row in rows]).astype(np.int64)
    cells = (first - BEGIN_MS) // MINUTE_MS * load.keys + keys
    got_counts, got_sums = np.zeros_like(counts), np.zeros_like(sums)
    np.add.at(got_counts, cells, [row["n"] for row in rows])
    np.add.at(got_sums, cells, [row["total"] for row in rows])
    wrong = np.flatnonzero((got_counts != counts) | (got_sums != sums))
    repeated = len(cells) - len(np.unique(cells))
    if len(wrong) or repeated:
        at = int(wrong[0]) if len(wrong) else -1
        shown = (divmod(at, load.keys), int(counts[at]), int(got_counts[at]), int(sums[at]), int(got_sums[at]))
        message = (
            f"{load.topic}: {len(wrong)} of {int((counts > 0).sum())} rows differ, {repeated} are repeated; "
            f"((window, key), count, found, sum, found): {shown}"
        )
        raise Inexact(message)
    return len(rows)
