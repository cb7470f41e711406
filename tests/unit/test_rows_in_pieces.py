"""Rows that an operator copies go on in pieces: a column of Arrow's has room for 2 GiB, and copies soon take more."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.bench.line import Line
from tests.harness.bench.readings import BEGIN_MS, SPLIT, document, source
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.pieces import ranges, row_bytes

TIMES = [BEGIN_MS + 1_000 * n for n in range(20)]


def through(records: list[dict[str, Any]], *stages: dict[str, Any]) -> list[Any]:
    """What comes out of a pipeline."""
    values = pa.array([json.dumps(record).encode() for record in records], pa.binary())
    numbers = np.arange(len(records), dtype=np.int64)
    line = Line(document([source(declared=False), *stages]))
    raw = RawBatch(split=SPLIT, partition=0, positions=numbers, timestamps_ms=numbers, values=values)
    return [found for batch in line.run(raw) for found in documents_of(batch)]


@pytest.mark.parametrize("hop", [1, 7])
def test_rows_of_large_documents_enter_thousands_of_windows(hop: int) -> None:
    """20 documents of 35 kB in 3,600 windows each are 2.5 GB."""
    count = [{"$group": {"_id": None, "n": {"$sum": 1}}}]
    window = {"interval": {"size": 3_600, "unit": "second"}, "hopSize": {"size": hop, "unit": "second"}}
    found = through(
        [{"at": at, "text": "x" * 35_000} for at in TIMES], {"$hoppingWindow": {**window, "pipeline": count}}
    )
    entered = [start for at in TIMES for start in range(at // 1_000 - 3_599, at // 1_000 + 1) if start % hop == 0]
    assert len(found) == len(set(entered))
    assert sum(each["n"] for each in found) == len(entered)


def test_ranges_hold_so_much_or_one_element() -> None:
    """Each element is in one range, in order."""
    for sizes, most, expected in (
        ([], 5, []),
        ([1, 2, 3, 4], 5, [(0, 2), (2, 3), (3, 4)]),
        ([9, 9], 5, [(0, 1), (1, 2)]),
        ([0, 0, 0], 0, [(0, 3)]),
        ([1] * 10, 100, [(0, 10)]),
    ):
        assert ranges(np.array(sizes, dtype=np.int64), most) == expected


def test_bytes_of_rows_are_those_of_their_columns() -> None:
    """Of texts, documents, nested columns and numbers; nulls have none of their own."""
    batch = pa.RecordBatch.from_pydict({"t": ["a" * 100, None], "n": [1, None], "l": [[1, 2], [3, 4]]})
    found = row_bytes(batch)
    assert found[0] - found[1] == 100
    assert found[1] >= 3 * 8 + 16
