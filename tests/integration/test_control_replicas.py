"""What one replica of control says is done, another shows to the next look, however far behind it reads."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.harness.installation import Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog, MemoryReader
from tidemark.shared.model.messages import ModifyProcessor
from tidemark.shared.ports.log import LogRecord

TOKEN = "a-token-of-the-tests"
CLOCK = SystemClock()
LATE_MS = 60


class LateLog(MemoryLog):
    """What its readers find they have a while later."""

    async def reader(self, *, committed_only: bool = False, follows: bool = False) -> MemoryReader:
        found = await super().reader(committed_only=committed_only, follows=follows)
        fetch = found.fetch

        async def late(max_records: int, timeout_ms: int) -> list[LogRecord]:
            records = await fetch(max_records, timeout_ms)
            if records:
                await CLOCK.sleep_ms(LATE_MS)
            return records

        found.fetch = late  # type: ignore[method-assign]
        return found


@dataclass
class Replicas:
    """The first reads at once, the second late."""

    there: Installed
    session: ClientSession
    urls: list[str]

    async def ask(self, at: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self.session.request(method, self.urls[at] + path, json=body, headers=headers) as answer:
            assert "Tidemark-Stale" not in answer.headers
            return answer.status, await answer.json()


@asynccontextmanager
async def replicas() -> AsyncIterator[Replicas]:
    executor = AsyncExecutor()
    async with installed(CLOCK, executor) as there, ClientSession() as session:
        settings = ControlSettings(port=0, engine="local", agents=False, shown_ms_max=20_000)
        logs: list[Callable[..., MemoryLog]] = [MemoryLog, LateLog]
        found = [
            ControlService(sealed(log(there.broker)), there.outside.topics, CLOCK, executor, settings, TOKEN)
            for log in logs
        ]
        running = [executor.spawn(each.run(), "control", _raise) for each in found]
        for each in found:
            await each.serving.wait()
            while each.unready():
                await CLOCK.sleep_ms(10)
        yield Replicas(there, session, [each.url for each in found])
        for each, handle in zip(found, running, strict=True):
            each.stop()
            await handle.join()


def _raise(error: BaseException) -> None:
    raise error


def document(folder: Path, connection: str = "out") -> dict[str, Any]:
    (folder / "in.json").write_text('{"n": 1}\n')
    return {
        "pipeline": [
            {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}},
            {"$emit": {"connectionName": connection, "path": "out", "format": "json"}},
        ]
    }


@pytest.mark.parametrize(("does", "looks"), [(0, 0), (0, 1), (1, 0), (1, 1)])
async def test_what_was_done_is_shown_to_the_next_look(does: int, looks: int, tmp_path: Path) -> None:
    """Created, changed, started, stopped, dropped; connections written, used by the next document and deleted."""
    path, connection = "/v1/processors/p", {"type": "files", "path": str(tmp_path)}
    async with replicas() as two:

        async def done(method: str, path: str, body: Any = None, status: int = 200) -> None:
            code, said = await two.ask(does, method, path, body)
            assert code == status, said

        async def state() -> str:
            return str((await two.ask(looks, "GET", path))[1].get("state"))

        await done("PUT", "/v1/connections/out", connection)
        assert (await two.ask(looks, "GET", "/v1/connections"))[1]["connections"] == {"out": connection}
        assert (await two.ask(looks, "POST", "/v1/validate", {"document": document(tmp_path)}))[0] == 200
        await done("POST", "/v1/processors", {"name": "p", "document": document(tmp_path)}, 201)
        assert await state() == "CREATED"
        await done("POST", f"{path}/start", {})
        assert await state() in ("STARTING", "RUNNING")
        await done("PATCH", path, {"parallelism": {"sink": 2}})
        assert (await two.ask(looks, "GET", path))[1]["parallelism"] == {"sink": 2}
        await done("POST", f"{path}/stop", {})
        assert await state() in ("STOPPING", "STOPPED")
        await two.there.when(lambda status: status.state == "STOPPED", "p")  # type: ignore[arg-type]
        assert await state() == "STOPPED"
        await done("DELETE", path)
        assert (await two.ask(looks, "GET", path))[0] == 404
        await done("DELETE", "/v1/connections/out")
        assert (await two.ask(looks, "GET", "/v1/connections"))[1]["connections"] == {}
        assert (await two.ask(looks, "POST", "/v1/validate", {"document": document(tmp_path)}))[0] == 422


async def test_a_change_of_what_does_not_run_is_shown(tmp_path: Path) -> None:
    """Its document is the one that runs next; it was shown only from the next start on, though the change was told as done."""
    async with replicas() as two:
        connections = {"out": {"type": "files", "path": str(tmp_path)}}
        first, then = ({**document(tmp_path), "connections": connections} for _ in range(2))
        then["pipeline"] = [then["pipeline"][0], {"$match": {"n": 1}}, then["pipeline"][1]]
        assert (await two.ask(0, "POST", "/v1/processors", {"name": "p", "document": first}))[0] == 201
        for changed in (then, first):
            assert (await two.ask(0, "PATCH", "/v1/processors/p", {"document": changed}))[0] == 200
            shown = (await two.ask(0, "GET", "/v1/processors/p"))[1]
            assert shown["document"]["pipeline"] == changed["pipeline"]
            plan = (await two.ask(0, "GET", "/v1/processors/p/plan"))[1]
            assert {each["name"] for each in plan["vertices"]} == {"source-1", "emit-1"}


async def test_a_client_of_messages_finds_what_it_was_told(tmp_path: Path) -> None:
    """An answer comes behind what it speaks of: the registry, read up to its end, has it."""
    async with replicas() as two:
        there = two.there
        connections = {"out": {"type": "files", "path": str(tmp_path)}}
        await there.create({**document(tmp_path), "connections": connections}, "p")  # type: ignore[arg-type]
        for number in range(10):
            request = there.client.unique()
            await there.client.request(ModifyProcessor(request, "p", None, {"sink": 1 + number % 2}))  # type: ignore[arg-type]
            assert request in dict((await there.client.statuses())["p"].answers)  # type: ignore[index]


async def test_counts_are_final_when_the_end_is_told_and_stay(tmp_path: Path) -> None:
    """They come with heartbeats, the last of them behind the end; they were 0 once no worker had the tasks any more."""
    async with replicas() as two:
        rows = [{"n": n} for n in range(5)]
        emit = {"$emit": {"path": str(tmp_path / "out"), "format": "json"}}
        asked = {"name": "p", "document": {"pipeline": [{"$source": {"documents": rows}}, emit]}, "start": True}
        assert (await two.ask(0, "POST", "/v1/processors", asked))[0] == 201
        while (await two.ask(0, "GET", "/v1/processors/p"))[1]["state"] != "FINISHED":
            pass
        for _ in range(2):
            for at in (0, 1):
                stats = (await two.ask(at, "GET", "/v1/processors/p/stats"))[1]["stats"]
                counted = stats["inputMessageCount"], stats["outputMessageCount"], stats["diagnosis"]
                assert counted == (5, 5, "not running")
            await CLOCK.sleep_ms(1_500)
