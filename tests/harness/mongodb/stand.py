"""A scripted replica set, and sources of change streams on it, one after the other; for tests of one file or another."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.harness.mongodb.streaming import StreamingServer
from tidemark.services.source.connectors.changestream import SPLIT, ChangeStream
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.stages import ChangeStreamSource
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import Document
from tidemark.shared.ports.log import LogUnavailable

T = TypeVar("T")
STAGE = ChangeStreamSource(path="$source", connection_name="m", db="d", coll=("c",))


class Stand:
    """A server, and sources on it one after the other, each from what a snapshot has."""

    def __init__(self) -> None:
        self.server = StreamingServer()
        self.executor = AsyncExecutor()
        self.known: Mapping[SplitId, KnownSplit] = {}
        self.made: list[ChangeStream] = []

    async def source(self, stage: ChangeStreamSource = STAGE, url: str | None = None) -> ChangeStream:
        made = ChangeStream(stage, url or self.server.url, self.executor, SystemClock())
        self.made.append(made)
        return made

    async def begun(self, **changed: Any) -> ChangeStream:
        source = await self.source(replace(STAGE, **changed))
        self.known = await source.found([SPLIT], first=True)
        await source.open({SPLIT: self.known[SPLIT].begin})
        return source

    async def resumed(self, position: Offset, origins: Mapping[str, str], **changed: Any) -> ChangeStream:
        """As a later generation: checked, told what the snapshot has, opened."""
        source = await self.source(replace(STAGE, **changed))
        await answered(lambda: source.check(self.known))
        source.know({SPLIT: origins})
        await source.open({SPLIT: position})
        return source

    async def close(self) -> None:
        for source in self.made:
            await source.close()
        await self.server.stop()
        await self.executor.close()


def stands(source: ChangeStream) -> tuple[Offset, Mapping[str, str]]:
    """What a checkpoint has behind all that was read."""
    position = source.status()[0].next_position
    return position, source.origins(SPLIT, position)


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a question that a task repeats while the server is away."""
    while True:
        try:
            return await ask()
        except LogUnavailable:
            continue


async def piece(source: ChangeStream, max_bytes: int = 1 << 20) -> list[RawBatch]:
    """The next read that succeeds."""
    return list(await answered(lambda: source.fetch(max_bytes, 20)))


def documents(batches: Sequence[RawBatch]) -> list[Document]:
    return [parse_json(value) for batch in batches for value in batch.values.to_pylist()]


async def events(source: ChangeStream) -> list[Document]:
    """All that is there."""
    found = documents(await piece(source))
    while not source.status()[0].at_end:
        found += documents(await piece(source))
    return found


def said(found: Sequence[Document]) -> list[tuple[str, Any]]:
    return [(event["operationType"], event.get("documentKey", {}).get("_id")) for event in found]
