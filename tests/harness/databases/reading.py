"""A source of changes that is read in pieces, and given up and resumed at any position that a checkpoint may have."""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tidemark.services.source.connectors.pgslot import PostgresSettings
from tidemark.services.source.connectors.postgres import SPLIT, PostgresConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.log import LogUnavailable


@dataclass
class Reading:
    """The events that were read, with their positions."""

    url: str
    slot: str
    executor: Executor
    rng: random.Random
    settings: dict[str, Any]
    events: list[tuple[int, Document]] = field(default_factory=list)
    waits: str = ""
    """The last sentence about what it waited for."""
    _source: PostgresConnector | None = None
    _known: dict[Any, KnownSplit] = field(default_factory=dict)
    _before: list[Offset] = field(default_factory=list)

    def _made(self) -> PostgresConnector:
        settings = PostgresSettings(
            url=self.url, publication="p", slot=self.slot, connection_name="shop", poll_ms=1, **self.settings
        )
        return PostgresConnector(settings, self.executor, SystemClock())

    @property
    def source(self) -> PostgresConnector:
        """The present one."""
        assert self._source is not None
        return self._source

    async def begin(self) -> None:
        """From where the slot stands."""
        self._source = self._made()
        self._known = dict(await self.source.found([SPLIT], first=True))
        await self.source.open({SPLIT: self._known[SPLIT].begin})
        self._before = [self._known[SPLIT].begin] * 2

    def at(self) -> Offset:
        """The next position."""
        return self.source.status()[0].next_position

    def holds(self) -> bool:
        """Whether it keeps tables from being altered: their rows are being read."""
        reader = self.source._reader
        return reader is not None and reader.tables is not None and not reader.tables.is_done()

    async def read(self) -> bool:
        """A piece; returns whether it is the last one."""
        try:
            batches = await self.source.fetch(self.rng.choice((1, 300, 2000, 1 << 20)), 1)
        except LogUnavailable as error:
            self.waits = str(error)
            return False
        self._before = [self._before[-1], self.at()]
        for batch in batches:
            places = batch.positions.tolist()
            assert places == list(range(places[0], places[-1] + 1)), places
            self.events += zip(places, map(parse_json, batch.values.to_pylist()), strict=True)
        return self.source.status()[0].at_end

    async def resume(self) -> None:
        """From somewhere in the last piece, perhaps with the slot advanced so far."""
        place = Offset(self.rng.randint(self._before[0], self.at()))
        origins = dict(self.source.origins(SPLIT, place))
        if self.rng.random() < 0.7:
            await self.source.note("g", {SPLIT: place})
            with suppress(LogUnavailable):
                await self.source.fetch(100, 1)
        await self.source.close()
        self.events = [each for each in self.events if each[0] < place]
        self._source = self._made()
        try:
            await self.source.check(self._known)
        except LogUnavailable as error:
            self.waits = str(error)
        self.source.know({SPLIT: origins})
        await self.source.open({SPLIT: place})
        self._before = [place] * 2

    async def drain(self) -> Offset:
        """Let it end where the changes end by now."""
        end = (await self.source.ends({SPLIT: self.at()}))[SPLIT]
        assert end is not None
        self.source.end_at({SPLIT: end})
        return end

    async def finish(self) -> None:
        """Read up to where it ends."""
        while not self.source.status()[0].finished:
            await self.read()
