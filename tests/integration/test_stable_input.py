# ruff: noqa: N802 -- a test carries its rule's name
"""A stage that answers otherwise when it is asked again, before effects outside: no effect ever has two answers (R3).

What a stage answered counts from the commit on: nothing of an attempt that was not committed is released or used, and what was committed
is released as it was staged, not computed again. By the real services, on memory and virtual time.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, installed, released
from tidemark.services.sink.service import SinkService
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask, Moment, Phase, Service

CUSTOMERS = 7
SINKS = ("first", "second")


class Broken(Exception):
    """What the task of the second sink fails with."""


@dataclass
class Effects:
    """What readers of both outputs have ever seen, and a fault: the second sink's task fails once, at a phase, with rows at hand."""

    folder: Path
    phase: Phase
    armed: bool = False
    broke: int = 0
    seen: dict[int, set[Any]] = field(default_factory=lambda: defaultdict(set))
    """By record: all answers, in whichever output, whenever."""

    def look(self) -> None:
        """As a reader does, who may come at any moment."""
        for sink in SINKS:
            for row in released(self.folder / sink):
                answer = row["answer"]
                self.seen[row["n"]].add(answer if isinstance(answer, int) else answer[0]["name"])

    def passing(self, context: AssignedTask, rows: Callable[[], int], phase: Phase) -> None:
        """A phase of a sink's task."""
        self.look()
        if self.armed and phase == self.phase and context.assign.vertex == "emit-2" and rows():
            self.armed = False
            self.broke += 1
            self.rename()
            raise Broken(phase)

    def rename(self) -> None:
        """Who asks the database again gets other answers."""
        with closing(sqlite3.connect(self.folder / "customers.db")) as database, database:
            database.execute("UPDATE customer SET name = name || '+'")


class Watched:
    """The service of sinks, whose phases are seen."""

    name = "sink"

    def __init__(self, service: Service, effects: Effects) -> None:
        self._service = service
        self._effects = effects

    async def build(self, context: AssignedTask) -> TaskBody:
        """Its body."""
        body: TaskBody

        def passing(moment: Moment) -> None:
            self._effects.passing(context, lambda: body.counters()["rows"], moment.phase)

        body = await self._service.build(replace(context, outside=replace(context.outside, passing=passing)))
        return body

    async def close(self) -> None:
        """The service's."""
        await self._service.close()


DRAWING: dict[str, Any] = {"$compute": {"class": "tests.harness.computations:Draws", "key": "$k", "order": "arrival"}}
"""A computation that numbers what it sees."""
LOOKING_UP: dict[str, Any] = {
    "$lookup": {
        "from": {"connectionName": "db", "table": "customer"},
        "localField": "k",
        "foreignField": "id",
        "as": "answer",
    }
}
"""A table that somebody else writes."""


def document(folder: Path, stage: dict[str, Any]) -> dict[str, Any]:
    """The stage, and two outputs of what it gives."""
    first, second = ({"$emit": {"path": str(folder / sink), "format": "json"}} for sink in SINKS)
    return {
        "name": NAME,
        "connections": {"db": {"type": "sql", "url": f"sqlite:///{folder / 'customers.db'}"}},
        "pipeline": [
            {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}},
            stage,
            first,
            second,
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


def add(folder: Path, begin: int, end: int) -> None:
    """Records with these numbers."""
    with (folder / "in.json").open("a") as out:
        out.writelines(json.dumps({"n": n, "k": n % CUSTOMERS}) + "\n" for n in range(begin, end))


async def tell(world: VirtualWorld, effects: Effects, stage: dict[str, Any]) -> int:
    """Some records, a task that fails with more of them at hand, the rest; how many generations there were."""
    folder = effects.folder
    add(folder, 0, 20)

    def watched(service: Service) -> Service:
        return Watched(service, effects) if isinstance(service, SinkService) else service

    async with installed(world.clock, world.executor, wrap=watched) as there:
        await there.create(document(folder, stage))
        await there.start()
        await there.committed()
        effects.armed = True
        add(folder, 20, 40)
        await there.when(lambda status: status.generation == 2 and status.state == "RUNNING")
        add(folder, 40, 60)
        await there.committed(3)
        return (await there.stop(drain=True)).generation


@pytest.mark.parametrize("phase", ["staged", "releasing"])
@pytest.mark.parametrize("stage", [DRAWING, LOOKING_UP], ids=["$compute", "$lookup"])
def test_R3_an_effect_has_one_input_whatever_a_stage_answers_when_asked_again(
    tmp_path: Path, stage: dict[str, Any], phase: Phase
) -> None:
    """Failed before the commit or behind it: of each record both outputs have the same answer, once, and never had another."""
    (tmp_path / "in.json").write_text("")
    with closing(sqlite3.connect(tmp_path / "customers.db")) as database, database:
        database.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT)")
        database.executemany("INSERT INTO customer VALUES (?, ?)", [(i, f"c{i}") for i in range(CUSTOMERS)])
    effects = Effects(tmp_path, phase)
    generations = run_virtual(lambda world: tell(world, effects, stage))
    effects.look()
    assert (effects.broke, generations) == (1, 2)
    assert sorted(effects.seen) == list(range(60))
    several = {n: answers for n, answers in effects.seen.items() if len(answers) > 1}
    assert not several, "a reader has seen two answers"
    for sink in SINKS:
        assert sorted(row["n"] for row in released(tmp_path / sink)) == list(range(60))
