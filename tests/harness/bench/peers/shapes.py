"""What is measured: the rows of the table, each with its events, the pipeline, and how its results are found right."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tests.harness.bench.events import BEGIN_MS, EVENT_BYTES, MINUTE_MS, Int64s, Load
from tests.harness.bench.peers.clients import cells, mapped

HOP_MS: Final = 10_000
WITHIN_MS: Final = 1_000
"""Of a join."""
_ROW: Final = {
    "_id": 0, "key": "$_id", "start": {"$toLong": {"$meta": "stream.window.start"}}, "n": 1, "total": 1,
}  # fmt: skip
_DOUBLE: Final = {"$addFields": {"double": {"$multiply": ["$amount", 2]}}}


def _window(kind: str, amount: str = "$amount", **more: object) -> dict[str, Any]:
    group = {"_id": "$key", "n": {"$sum": 1}, "total": {"$sum": amount}}
    inner = [{"$group": group}, {"$project": _ROW}]
    return {kind: {"interval": {"size": 1, "unit": "minute"}, **more, "pipeline": inner}}


@dataclass(frozen=True)
class Shape:
    """One row."""

    name: str
    stages: tuple[Mapping[str, Any], ...]
    aim: int
    """Events a second."""
    events: int = 3_000_000
    keys: int = 1_000
    per_window: int = 100_000
    """Events of a minute."""
    slide_ms: int = MINUTE_MS
    more: bytes = b""
    """Further fields of each event."""
    declared: bool = True
    """Whether Tidemark's document has a schema."""
    joined: bool = False
    """Whether each event is first joined with those of its key of the second before, itself among them, read once more."""

    @property
    def windowed(self) -> bool:
        """Whether results come when windows close."""
        return not self.name.startswith("map")

    @property
    def workers(self) -> Mapping[str, int]:
        """Tidemark's processes: those that the pipeline needs."""
        return {"operator": int(self.joined), "spark": int(self.windowed), "source": 1, "sink": 1}

    def load(self, topic: str, partitions: int, scale: float) -> Load:
        """The events."""
        return Load(topic, int(self.events * scale), self.keys, self.per_window, partitions, more=self.more)

    def results(self, load: Load) -> int:
        """How many there must be."""
        return len(self._expected(load)) if self.windowed else load.events

    def check(self, load: Load, values: list[bytes], *, updates: bool) -> int:
        """How many results there are; AssertionError unless each is there, once, as it must be. updates: the last of a window counts."""
        if not self.windowed:
            expected = mapped(load)
            found = sorted(values)
            assert found == expected, _difference(expected, found)
            return len(found)
        rows = [json.loads(value) for value in values]
        kept = [row for row in rows if row["key"].startswith("key-")]
        table = [(row["start"], int(row["key"][4:]), row["n"], row["total"]) for row in kept]
        if updates:
            table = list({row[:2]: row for row in table}.values())
        found_rows = cells(np.array(table, dtype=np.int64).reshape(-1, 4), load)
        expected_rows = self._expected(load)
        assert found_rows.shape == expected_rows.shape, f"{len(found_rows)} results, expected {len(expected_rows)}"
        wrong = np.flatnonzero((found_rows != expected_rows).any(axis=1))
        assert not len(wrong), f"{len(wrong)} rows differ: {expected_rows[wrong[0]]}, found {found_rows[wrong[0]]}"
        return len(found_rows)

    def _expected(self, load: Load) -> Int64s:
        keys, amounts = load.drawn()
        times = BEGIN_MS + np.arange(load.events, dtype=np.int64) * MINUTE_MS // load.per_window
        if self.joined:
            return cells(_joined(keys, amounts, times), load)
        starts = times - times % self.slide_ms
        every = np.concatenate([starts - back for back in range(0, MINUTE_MS, self.slide_ms)])
        repeats = MINUTE_MS // self.slide_ms
        codes = (every - BEGIN_MS + MINUTE_MS) // self.slide_ms * load.keys + np.tile(keys, repeats)
        size = int(codes.max()) + 1
        counts = np.bincount(codes, minlength=size)
        sums = np.bincount(codes, weights=np.tile(amounts, repeats), minlength=size).astype(np.int64)
        there = np.flatnonzero(counts)
        begins = there // load.keys * self.slide_ms + BEGIN_MS - MINUTE_MS
        return cells(np.stack([begins, there % load.keys, counts[there], sums[there]], axis=1), load)


def _joined(keys: Int64s, amounts: Int64s, times: Int64s) -> Int64s:
    """By minute and key of the later event: how many pairs, and the sum of the earlier ones' amounts; rows as `cells` takes them."""
    order = np.lexsort((times, keys))
    keys, amounts, times = keys[order], amounts[order], times[order]
    # Keys one behind the other on one line, further apart than pairs reach.
    places = keys * (int(times[-1]) + int(times.max()) + 2 * WITHIN_MS) + times
    first, behind = np.searchsorted(places, places - WITHIN_MS), np.searchsorted(places, places, side="right")
    sums = np.concatenate([[0], np.cumsum(amounts)])
    pairs, totals = behind - first, sums[behind] - sums[first]
    minutes = times - times % MINUTE_MS
    groups, at = np.unique(np.stack([minutes, keys], axis=1), axis=0, return_inverse=True)
    counted = np.bincount(at, weights=pairs), np.bincount(at, weights=totals)
    return np.column_stack([groups, *(each.astype(np.int64) for each in counted)])


def _kibibyte() -> bytes:
    """Fields as applications have them, texts and numbers, objects and arrays, that make an event of 1,024 bytes."""
    fields = {
        "device": {"id": "a3f9c1d2-77b0-4c52-9b1e-0c6b1f0f9e11", "model": "TX-4400", "at": {"lat": 52.52, "lon": 13.405}},
        "tags": ["indoor", "calibrated", "floor-3"], "ok": True, "firmware": None,
        "readings": [{"name": f"sensor-{n}", "value": 20.5 + n, "unit": "celsius", "quality": n} for n in range(8)],
    }  # fmt: skip
    text = json.dumps(fields, separators=(",", ":"))[1:-1].encode()
    note = b',"note":"%b"'
    return b"," + text + note % (b"n" * (1024 - EVENT_BYTES - 1 - len(text) - len(note) + 2))


def _difference(expected: list[bytes], found: list[bytes]) -> str:
    first = next(((e, f) for e, f in zip(expected, found, strict=False) if e != f), None)
    return f"{len(found)} results, expected {len(expected)}; the first that differs: {first}"


_COUNTED: Final = Shape("window", (_window("$tumblingWindow"),), 4_000_000, 8_000_000)
SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape("map", (_DOUBLE,), 900_000),
        Shape("map-1k", (_DOUBLE,), 600_000, events=1_000_000, more=_kibibyte(), declared=False),
        replace(_COUNTED, name="window-1k", aim=600_000, events=2_000_000, more=_kibibyte(), declared=False),
        _COUNTED,
        replace(_COUNTED, name="window-100k", keys=100_000, aim=900_000, events=4_000_000, per_window=400_000),
        Shape(
            "hop", (_window("$hoppingWindow", hopSize={"size": 10, "unit": "second"}),), 1_500_000, slide_ms=HOP_MS,
        ),
        Shape(
            "join",
            (_window("$tumblingWindow", amount="$right.amount"),),
            300_000, events=1_000_000, joined=True,
        ),
        Shape(
            "staged",
            ({"$match": {"amount": {"$gte": 0}}}, _DOUBLE, {"$project": {"key": 1, "amount": 1}}, _window("$tumblingWindow")),
            2_000_000, 6_000_000,
        ),
    )
}  # fmt: skip
