"""Control asks the coordinator for the tasks that a document wants: it gives them behind a checkpoint, or says why not, once."""

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.harness.installation import NAME, Installed, installed, released
from tests.harness.sealing import sealed
from tidemark.services.control.audit import Audit
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.scaling import Scaling
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual

REPLICAS = 2
GROUP = {"$group": {"_id": "$n", "count": {"$sum": 1}}}
WINDOW = {"$tumblingWindow": {"interval": {"size": 10, "unit": "second"}, "pipeline": [GROUP]}}


def document(folder: Path, tasks: dict[str, Any]) -> dict[str, Any]:
    time = {"$toDate": {"$toLong": "$t"}}
    source = {"path": str(folder / "in.json"), "format": "json", "follow": True, "timeField": time}
    return {
        "pipeline": [{"$source": source}, WINDOW, {"$emit": {"path": str(folder / "out"), "format": "json"}}],
        "options": {"tasks": tasks, "checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


def followed(story: Callable[[Installed, list[Audit]], Coroutine[Any, Any, None]]) -> None:
    """Run a story beside replicas of control, on virtual time."""

    def broken(error: BaseException) -> None:
        raise error

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            settings, audits, handles = ControlSettings(scale_after_ms=3_000), [], []
            for _ in range(REPLICAS):
                log = sealed(MemoryLog(there.broker))
                model, audit = ReadModel(log, there.outside.topics, world.clock, settings), Audit(world.clock)
                scaling = Scaling(model, there.client, world.clock, world.executor, settings, audit)
                handles += [*model.start(world.executor, broken), world.executor.spawn(scaling.run(), "scale", broken)]
                audits.append(audit)
            await story(there, audits)
            for handle in handles:
                handle.cancel()
                await handle.join()

    run_virtual(main)


def test_a_processor_has_as_many_tasks_as_its_document_wants(tmp_path: Path) -> None:
    """One change, however many replicas ask; what came before it is counted with what came after it, once."""
    (tmp_path / "in.json").write_text("".join(json.dumps({"t": 1_000, "n": n}) + "\n" for n in range(20)))

    async def story(there: Installed, audits: list[Audit]) -> None:
        # With windows on operators nothing of it runs on Spark: a bound for it restarts nothing.
        await there.create(document(tmp_path, {"sink": {"min": 3, "max": 4}, "spark": {"min": 2, "max": 2}}))
        await there.start()
        status = await there.when(lambda s: s.state == "RUNNING" and s.parallelism == {"sink": 3})
        status = await there.when(lambda s: s.state == "RUNNING" and s.generation > 1)
        assert [index for vertex, index, _ in status.tasks if vertex == "emit-1"] == [0, 1, 2]
        with (tmp_path / "in.json").open("a") as out:
            out.writelines(json.dumps({"t": 2_000, "n": n}) + "\n" for n in range(20))
        await there.clock.sleep_ms(20_000)
        assert (await there.stop(drain=True)).generation == 2
        assert [deed["what"] for audit in audits for deed in audit.deeds] == ["scale sink=3"] * REPLICAS
        assert sorted(row["_id"] for row in released(tmp_path / "out")) == list(range(20))
        assert {row["count"] for row in released(tmp_path / "out")} == {2}

    followed(story)


def test_a_refusal_is_noted_and_not_asked_for_again(tmp_path: Path) -> None:
    """More tasks than the installation allows are the coordinator's to refuse; the processor runs as it did."""
    (tmp_path / "in.json").write_text("")

    async def story(there: Installed, audits: list[Audit]) -> None:
        await there.create(document(tmp_path, {"operator": {"min": 900, "max": 900}}))
        await there.start()
        await there.clock.sleep_ms(20_000)
        for audit in audits:
            (deed,) = audit.deeds
            assert (deed["what"], deed["status"]) == ("scale operator=900", 409)
            assert "parallelism.operator: expected 1 to" in deed["finding"]
        status = (await there.client.statuses())[NAME]
        assert (status.state, status.generation, status.parallelism) == ("RUNNING", 1, {})

    followed(story)
