"""Expressions of sinks are evaluated beside the loop that heartbeats, stops and other tasks share."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.contract.sinks_targets import FilesWorld, HttpsWorld, KafkaWorld, MongoWorld, SqlWorld, expression
from tests.harness.mongodb.servers import Servers
from tidemark.services.library.release_world import IDENTITY, Target, batch_of
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.expressions import interpreter
from tidemark.shared.model.ids import Epoch

NAME = expression({"$concat": ["$name", ""]})


@contextmanager
def evaluated_here() -> Iterator[list[str]]:
    """The functions of the interpreter that this thread, which is the loop's, calls meanwhile."""
    found: list[str] = []

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == interpreter.__file__:
            found.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


def kafka(**options: Any) -> Callable[[Path], Any]:
    """A `$emit` into topics, with these expressions."""

    def made(_: Path) -> KafkaWorld:
        world = KafkaWorld()
        world.stage = replace(world.stage, **options)
        return world

    return made


def https(**options: Any) -> Callable[[Path], Any]:
    """A `$https` at the end, with these expressions."""

    def made(_: Path) -> HttpsWorld:
        world = HttpsWorld()
        world.stage = replace(world.stage, **options)
        return world

    return made


def files(path: Path) -> FilesWorld:
    """Files in a folder that an expression names."""
    world = FilesWorld(path, "json")
    world.encoding = replace(world.encoding, folder=NAME)
    return world


TARGETS: dict[str, Callable[[Path], Any]] = {
    "topic": kafka(topic=NAME),
    "key": kafka(key=NAME),
    "headers": kafka(headers=expression({"x": {"$toString": "$id"}})),
    "tombstone": kafka(tombstone_when=expression({"$eq": ["$id", 1]})),
    "https-path": https(subpath=NAME),
    "https-header": https(headers=(("X-Id", NAME),)),
    "folder": files,
    "table": lambda path: SqlWorld(f"sqlite:///{path}/t.db", when_not_matched=expression({"$concat": ["insert", ""]})),
}


@pytest.mark.parametrize("name", TARGETS)
async def test_an_expression_of_a_sink_leaves_the_loop_alone(name: str, tmp_path: Path) -> None:
    """Not one is evaluated on the loop's own thread, and the rows are taken."""
    await _accepts(TARGETS[name](tmp_path))


@pytest.mark.mongodb
async def test_an_expression_of_a_collection_leaves_the_loop_alone(mongodb_servers: Servers) -> None:
    """The same for `$merge` into MongoDB."""
    world = MongoWorld(mongodb_servers.replicas, when_not_matched=expression({"$concat": ["insert", ""]}))
    try:
        await _accepts(world)
    finally:
        world.close()


async def _accepts(target: Any) -> None:
    executor = AsyncExecutor()
    target.executor = executor
    checked: Target = target
    sink = checked.sink()
    try:
        await sink.open(IDENTITY, Epoch(0))
        with evaluated_here() as found:
            rejected = await sink.accept(batch_of([1, 2, 3]))
        assert not rejected
        assert found == []
        assert await sink.stage(Epoch(1), Epoch(0))
    finally:
        await sink.close()
        await executor.close()
