# ruff: noqa: N802 -- a test carries its rule's name
"""The file sink through s3fs, against the part of S3's interface that it needs (protocol, S4)."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import s3fs

from tests.contract.sinks_s3 import Store, s3
from tidemark.services.library.release_world import InlineSpawner, Task, World, crash_after, haunt
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.services.sink.connectors.released import released_files
from tidemark.shared.ports.sink import SinkPort, TargetUnavailable


class S3World:
    def __init__(self, store: Store, endpoint: str) -> None:
        self.store = store
        self.attempts = itertools.count()

        self.filesystem: Any = s3fs.S3FileSystem(
            key="k",
            secret="s",
            endpoint_url=endpoint,
            client_kwargs={"region_name": "us-east-1"},
            config_kwargs={"s3": {"addressing_style": "path"}, "request_checksum_calculation": "when_required"},
            skip_instance_cache=True,
        )

    def destination(self) -> ObjectDestination:
        return ObjectDestination(self.filesystem, "s3://bucket/out")

    def sink(self) -> SinkPort:
        return FileSink(self.destination(), Encoding("json"), f"a{next(self.attempts)}", InlineSpawner())

    async def visible(self) -> list[int]:
        files = released_files(self.destination())
        return [json.loads(line)["id"] for released in files for line in released.data.splitlines()]


@pytest.fixture(params=[True, False], ids=["s3", "names-no-condition"])
def target(request: pytest.FixtureRequest) -> Iterator[S3World]:
    with s3(names_condition=request.param) as (store, endpoint):
        yield S3World(store, endpoint)


@pytest.mark.parametrize("first", ["stage", "commit"])
async def test_exactly_once_with_zombies_on_an_object_store(target: S3World, first: str) -> None:
    """Crash, zombie and successor on S3: committed rows once, by manifests created only if absent."""
    world = World(target)
    old = Task(world)
    await old.start()
    await old.epoch()
    await crash_after(old, first)
    new = Task(world)
    await new.start()
    await haunt(old)
    await new.epoch()
    await world.complete()
    assert target.store.conditional_puts > 0


async def test_S4_a_manifest_whose_answer_was_lost_is_recognised(target: S3World) -> None:
    """A put that was done but answered as failed is tried again, refused as present, and found to be the same."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    refused = target.store.refused
    target.store.lose_answers = 1  # the manifest's: files get their names by copies
    try:
        await task.release()
    except TargetUnavailable:
        await task.release()
    assert target.store.refused > refused
    await world.complete()
