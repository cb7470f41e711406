"""What a scenario is meant to give, by the oracles of `tests/oracle`, and what a run gave, in one form.

A result is a tuple of plain values; a dead letter is its record's value. Nothing here knows of faults, tasks or epochs.
"""

import base64
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness.simulation.drawing import (
    DELAY_MS,
    GAP_MS,
    HOP_MS,
    LATENESS_MS,
    SIZE_MS,
    WITHIN_MS,
    Scenario,
    Sent,
)
from tests.harness.simulation.targets import is_refused
from tests.oracle import joins, windows
from tests.oracle.windows import Late, Record, Result
from tidemark.shared.ports.log import LogRecord

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results and dead letters, each as often as it is there."""

    output: Counter[Row]
    letters: Counter[int]

    def differences(self, found: "Outcome", *, lives: int = 1) -> list[str]:
        """What another lacks, and what it has beyond, as sentences. `lives`: each may have given all of it, and the last has."""
        said = _differences("output", self.output, found.output, lives)
        return said + _differences("letters", self.letters, found.letters, lives)


def _differences(what: str, mine: Counter[Any], other: Counter[Any], lives: int) -> list[str]:
    said = []
    most = Counter({row: count * lives for row, count in mine.items()})
    for word, left in (("lost", mine - other), ("invented or repeated", other - most)):
        if left:
            some = ", ".join(str(row) for row in sorted(left, key=str)[:4])
            said.append(f"{what}: {left.total()} of {mine.total()} {word}: {some}")
    return said


def expected(scenario: Scenario) -> Outcome:
    """What must come out."""
    lanes = [_once(lane) for lane in scenario.lanes.values()]
    letters = Counter(sent.value for lane in lanes for sent in lane if sent.bad)
    splits = [[s for s in lane if not s.bad] for lane in lanes]
    if scenario.shape == "join":
        half = len(splits) // 2
        output, late = _joined(splits[:half], splits[half:])
    elif scenario.shape in ("chain", "computed"):
        output, late = _rows(scenario, splits)
    else:
        output, late = _windows(scenario, splits)
    return Outcome(output, letters + late)


def _once(lane: Sequence[Sent]) -> list[Sent]:
    """Without what a producer sent twice to it; what it sent elsewhere, too, stays, and moves its watermark alone."""
    return list({sent.value: sent for sent in lane}.values())


Key = tuple[str | None, int, int]
"""Of a window: the row's key, start and end."""


def windows_as_ran(scenario: Scenario) -> dict[Key, Row]:
    """What came out of the first window: number, sum and values, by window."""
    return _by_window(scenario, LATENESS_MS)


def windows_with_all(scenario: Scenario) -> dict[Key, Row]:
    """The same, had nothing been late."""
    return _by_window(scenario, 1 << 40)


def _by_window(scenario: Scenario, lateness_ms: int) -> dict[Key, Row]:
    lanes = [[s for s in _once(lane) if not s.bad] for lane in scenario.lanes.values()]
    results, _ = _results(scenario, lanes, lateness_ms)
    return {(r.key, r.start_ms, r.end_ms): (len(r.values), sum(r.values), r.values) for r in results}


def _windows(scenario: Scenario, splits: Sequence[Sequence[Sent]]) -> tuple[Counter[Row], Counter[int]]:
    results, late = _results(scenario, splits, LATENESS_MS)
    seen: dict[str | None, int] = defaultdict(int)
    output: Counter[Row] = Counter()
    if scenario.refuses:
        results = [result for result in results if not is_refused(len(result.values), sum(result.values))]
    for result in sorted(results, key=lambda r: r.end_ms):
        seen[result.key] += 1
        output[_result(scenario, result, seen[result.key])] += 1
    return output, Counter(item.record.value for item in late)


def _results(scenario: Scenario, splits: Sequence[Sequence[Sent]], lateness_ms: int) -> tuple[list[Result], list[Late]]:
    given = [
        [Record(split, number, s.time_ms, s.key, s.value, not s.again) for number, s in enumerate(lane)]
        for split, lane in enumerate(splits)
    ]
    match scenario.shape:
        case "sessions":
            return windows.sessions(given, DELAY_MS, GAP_MS, lateness_ms)
        case "hopping":
            return windows.hopping(given, DELAY_MS, SIZE_MS, HOP_MS, 0, lateness_ms)
        case _:
            return windows.hopping(given, DELAY_MS, SIZE_MS, SIZE_MS, 0, lateness_ms)


def _result(scenario: Scenario, result: Result, seen: int) -> Row:
    row: Row = (result.key, result.start_ms, len(result.values), sum(result.values))
    if scenario.target == "sql":
        return row
    values = tuple(sorted(result.values)) if scenario.union else result.values
    return (*row, values, seen) if scenario.shape == "marked" else (*row, values)


def _rows(scenario: Scenario, splits: Sequence[Sequence[Sent]]) -> tuple[Counter[Row], Counter[int]]:
    if scenario.shape == "chain":
        return Counter(
            (s.key, s.value, s.value + 1) for lane in splits for s in lane if s.value % 3 and not s.again
        ), Counter()
    given = [
        [joins.Row(split, number, s.time_ms, s.key, s.value, not s.again) for number, s in enumerate(lane)]
        for split, lane in enumerate(splits)
    ]
    taken, late = joins.on_time(given, DELAY_MS)
    seen: dict[Any, int] = defaultdict(int)
    output: Counter[Row] = Counter()
    for row in sorted(taken, key=lambda r: (r.time_ms, r.split, r.position)):
        seen[row.key] += 1
        output[row.key, row.value, seen[row.key]] += 1
    return output, Counter(row.value for row in late)


def _joined(left: Sequence[Sequence[Sent]], right: Sequence[Sequence[Sent]]) -> tuple[Counter[Row], Counter[int]]:
    sides = [
        [
            [joins.Row(split, n, s.time_ms, s.key, s.value, not s.again) for n, s in enumerate(lane)]
            for split, lane in enumerate(side)
        ]
        for side in (left, right)
    ]
    (ours, late_left), (theirs, late_right) = (joins.on_time(side, DELAY_MS) for side in sides)
    pairs = joins.joined(ours, theirs, *WITHIN_MS, "full")
    return Counter((p.left, p.right) for p in pairs), Counter(r.value for r in late_left + late_right)


# --- what a run gave ------------------------------------------------------------------------------------------------------


def row_of(scenario: Scenario, found: dict[str, Any]) -> Row:
    """A released document in the form of the expected ones."""
    match scenario.shape:
        case "chain":
            return found["k"], found["v"], found["w"]
        case "computed":
            return found["k"], found["v"], found["seen"]
        case "join":
            right = found["r"]
            return found.get("v"), None if right is None else right["v"]
    values = tuple(sorted(found["vs"])) if scenario.union else tuple(found["vs"])
    row = (found["_id"], _int(found["at"]), found["n"], found["s"], values)
    return (*row, found["seen"]) if scenario.shape == "marked" else row


def _int(value: Any) -> int:
    return int(value["$numberLong"]) if isinstance(value, dict) else int(value)


def letter_of(found: dict[str, Any]) -> int:
    """The value of the record that a dead letter is about."""
    document = found["doc"]
    if "v" in document:
        return _int(document["v"])
    return int(base64.b64decode(document["$binary"]["base64"]).removeprefix(b'{"v": '))


def documents(records: Sequence[LogRecord]) -> list[dict[str, Any]]:
    """Of a topic."""
    return [json.loads(record.value or b"") for record in records]


def lines(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The released rows of a folder: the union of its manifests, loose and in volumes, each of whose files is there."""
    manifests = [json.loads(data) for name, data in files.items() if name.startswith("_manifests/")]
    for name, data in files.items():
        if name.startswith("_volumes/"):
            manifests += json.loads(gzip.decompress(data))["manifests"]
    once = {(manifest["identity"], manifest["epoch"]): manifest for manifest in manifests}
    return [
        json.loads(line)
        for _, manifest in sorted(once.items())
        for listed in manifest["files"]
        for line in files[listed["name"]].splitlines()
    ]
