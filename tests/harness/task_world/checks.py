"""What must hold of everything that has been committed and released, whatever happened on the way."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.harness.task_world.actor import Taken
from tests.harness.task_world.bodies import OperatorBody, Script, SourceBody, expected_sums
from tests.harness.task_world.plan import Layout, Row
from tidemark.shared.model.ids import Epoch, TaskId


@dataclass
class Commit:
    """A committed checkpoint."""

    epoch: Epoch
    predecessor: Epoch
    layout: Layout
    tasks: dict[TaskId, Taken]
    in_flight: int = 0
    """Rows that channels still carried of it, into vertices that did not wait for barriers (C13)."""

    def aligned(self) -> bool:
        """No channel has state."""
        inputs = [i for taken in self.tasks.values() for i in taken.protocol.inputs]
        return all(c.last_barrier == self.epoch for i in inputs for c in i.channels)

    def staged(self, task: TaskId) -> tuple[Row, ...]:
        return self.tasks[task].staged if task in self.tasks else ()


def check_prefix(commits: Sequence[Commit], script: Script) -> None:
    """Exactly once: what all commits together release is what the committed positions determine."""
    commit = commits[-1]
    positions: dict[int, int] = {}
    for taken in commit.tasks.values():
        if isinstance(taken.body, SourceBody):
            positions.update(taken.body.positions)
    rows = [row for c in commits for task in sorted(c.tasks) for row in c.staged(task)]
    expected = expected_sums(script, positions)
    direct = {key: _accumulated(values) for key, values in _series(rows, "raw").items()}
    sums = _series(rows, "sum")
    if not commit.aligned():
        assert sums.keys() <= expected.keys()
        expected_sums_ = {key: expected[key][: len(values)] for key, values in sums.items()}
    else:
        expected_sums_ = expected
    for found, due in ((sums, expected_sums_), (direct, expected)):
        assert found == due, f"commit {commit.epoch} releases {found}; {positions} determine {due}"
    once = Counter((r.kind, r.split, r.key, r.ts if r.kind == "win" else 0) for r in rows if r.kind in ("win", "timer"))
    assert not once or max(once.values()) == 1, f"commit {commit.epoch}: fired twice: {once.most_common(1)}"
    open_now = sum(
        n for t in commit.tasks.values() if isinstance(t.body, OperatorBody) for n in t.body.windows.values()
    )
    told = sum(r.number for r in rows if r.kind in ("win", "late"))
    records = sum(positions.values())
    where = (
        f"commit {commit.epoch}: {told} counted, {open_now} open, {commit.in_flight} in flight, of {records} records"
    )
    assert told + open_now + commit.in_flight == records, where


def check_end(rows: Sequence[Row], script: Script) -> None:
    """Everything is out."""
    records = sum(len(r) for r in script.values())
    keys = {(split, r.key) for split, records_ in script.items() for r in records_}
    assert all(sum(1 for r in rows if r.kind == kind) == records for kind in ("sum", "raw"))
    assert sum(r.number for r in rows if r.kind in ("win", "late")) == records
    assert {(r.split, r.key) for r in rows if r.kind == "timer"} == keys


def _series(rows: Sequence[Row], kind: str) -> dict[tuple[int, int], list[int]]:
    series: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        if row.kind == kind:
            series.setdefault((row.split, row.key), []).append(row.number)
    return series


def _accumulated(values: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(values))
