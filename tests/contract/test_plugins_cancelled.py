"""A call of a plug-in's object whose wait is cancelled goes on upon its thread: nothing else is done with the object until it ends."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tidemark_shelf import ShelfLookup, ShelfSink, ShelfSource
from tidemark_shelf.file import Place, ShelfFile

from tests.contract.sinks_targets import PluginWorld
from tests.harness.opening import open_splits
from tidemark.plugins import Batch, Document, Found, Value
from tidemark.services.library.release_world import InlineSpawner, Task, World
from tidemark.services.operator.tables.plugin import PluggedTable
from tidemark.services.source.connectors.plugin import PluginConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.runtime.settings import LookupSettings

ALL_S: Final = 30
"""Until a test says that something waits which should not."""


class Gate:
    """Where a call waits; and what was done with objects."""

    def __init__(self) -> None:
        self.entered, self.open, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.done: list[str] = []

    def wait(self, doing: str) -> None:
        self.done.append(f"{doing} begins")
        self.entered.set()
        self.open.wait()
        self.done.append(f"{doing} ends")

    def close(self) -> None:
        self.done.append("closed")
        self.closed.set()


gate = Gate()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gate.__init__()  # type: ignore[misc]


class WaitingSink(ShelfSink):
    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        if documents:
            gate.wait("write")
        super().write(identity, documents, marker, after)

    def close(self) -> None:
        gate.close()
        super().close()


class WaitingSource(ShelfSource):
    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        gate.wait("read")
        return super().read(split, position, max_bytes)

    def close(self) -> None:
        gate.close()
        super().close()


class WaitingLookup(ShelfLookup):
    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        gate.wait("find")
        return super().find(fields, wanted)

    def close(self) -> None:
        gate.close()
        super().close()


class WaitingWorld(PluginWorld):
    def make(self) -> ShelfSink:
        return make_of("shelf", WaitingSink, {"shelf": "out"}, {"file": str(self.file)})


async def cancelled(work: Awaitable[Any], close: Awaitable[None]) -> None:
    """Cancel it behind the gate and close; both end while the gate is shut. Then open it and wait until the object is closed."""
    waiting = asyncio.ensure_future(work)
    await asyncio.to_thread(gate.entered.wait)
    try:
        waiting.cancel()
        await asyncio.wait([waiting], timeout=ALL_S)
        assert waiting.cancelled(), "a cancelled call is waited for"
        await asyncio.wait_for(close, ALL_S)
    finally:
        gate.open.set()
    assert await asyncio.to_thread(gate.closed.wait, ALL_S), "the object is not closed"


async def test_a_sinks_object_is_closed_behind_a_cancelled_write(tmp_path: Path) -> None:
    """And the write's documents, which it committed in the end, do not come again."""
    target = WaitingWorld(tmp_path)
    target.executor = executor = AsyncExecutor()
    world = World(target)
    task = Task(world)
    for step in (task.start, task.accept, task.stage, task.commit):
        await step()
    gate.done.clear()
    await cancelled(task.release(), task.sink.close())
    assert gate.done == ["write begins", "write ends", "closed"]
    await executor.close()
    target.executor = InlineSpawner()
    await Task(world).start()
    await world.complete()


async def test_a_sources_object_is_closed_behind_a_cancelled_read(tmp_path: Path) -> None:
    """And nobody who stops waits for it."""
    place = str(tmp_path / "shelf.db")
    ShelfFile(Place(place)).close()
    executor = AsyncExecutor()
    source = PluginConnector(
        lambda: make_of("shelf", WaitingSource, {"follow": True}, {"file": place}), "shelf", executor, SystemClock()
    )
    with_rows = ShelfFile(Place(place))
    with with_rows.changed() as db:
        db.execute("INSERT INTO documents (shelf, added_ms, document) VALUES ('a', 0, '{}')")
    with_rows.close()
    await open_splits(source)
    gate.done.clear()
    await cancelled(source.fetch(1000, 10), source.close())
    assert gate.done == ["read begins", "read ends", "closed"]
    await executor.close()


async def test_a_lookups_object_is_closed_behind_a_cancelled_question(tmp_path: Path) -> None:
    """As a source's: a task that is taken away does not wait for an answer."""
    executor = AsyncExecutor()
    file = {"file": str(tmp_path / "shelf.db")}
    table = PluggedTable(
        lambda: make_of("shelf", WaitingLookup, {"shelf": "in"}, file), "shelf", executor, LookupSettings()
    )
    await cancelled(table.find((), [()]), table.close())
    assert gate.done == ["find begins", "find ends", "closed"]
    await executor.close()
