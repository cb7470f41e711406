"""A story written by the sink itself, in this process: commits, compactions, and attempts that end at any step."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.readers.drawing import Story
from tidemark.services.library.release_world import IDENTITY, InlineSpawner, row_of
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.filerows import CatalogTable, Encoding
from tidemark.services.sink.connectors.files import FileSink, FileSinkSettings
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of


@dataclass
class Written:
    """What lies there, and what a reader should find."""

    story: Story
    root: Path
    catalog: dict[str, Any]
    released: dict[int, Document] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    """Dead letters, with their reasons."""
    epoch: int = 0
    attempts: Any = field(default_factory=itertools.count)

    @classmethod
    def at(cls, story: Story, folder: Path) -> "Written":
        """Nothing yet."""
        return cls(story, folder / "lake" / "out", {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"})

    def sink(self, attempt: str = "") -> FileSink:
        """Another attempt, under a name of its own."""
        story, attempt = self.story, attempt or f"a{next(self.attempts)}"
        table = CatalogTable("lake/out", self.catalog)
        encoding = Encoding(
            story.form,
            story.partition_by,
            story.options,
            table,
            None,
            story.output_format,
            story.date_format,
        )
        settings = FileSinkSettings(buffer_bytes_max=story.buffer_bytes, compact_releases=story.compact)
        return FileSink(LocalDestination(self.root, attempt, fsync=False), encoding, attempt, InlineSpawner(), settings)


async def write(written: Written) -> None:
    """All epochs; `deaths` end attempts before a step, whose rows then come again."""
    sink = written.sink()
    await sink.open(IDENTITY, Epoch(0))
    for number, batches in enumerate(written.story.epochs):
        death = written.story.deaths.get(number)
        if death in ("accepted", "staged"):
            for batch in batches:
                await sink.accept(batch_of(batch))
            if death == "staged":
                await sink.stage(Epoch(written.epoch + 1), Epoch(written.epoch))
            sink = written.sink()
            await sink.open(IDENTITY, Epoch(written.epoch))
        taken = await _accepted(written, sink, batches)
        staged = await sink.stage(Epoch(written.epoch + 1), Epoch(written.epoch))
        if death == "committed":
            sink = written.sink()
            await sink.open(IDENTITY, Epoch(written.epoch + 1))
        await sink.release(row_of(written.epoch + 1, written.epoch, staged), staged)
        written.epoch += 1
        written.released |= taken
    await sink.close()


async def _accepted(written: Written, sink: FileSink, batches: list[list[Document]]) -> dict[int, Document]:
    taken: dict[int, Document] = {}
    for batch in batches:
        rejected = {found.row: found.reason for found in await sink.accept(batch_of(batch))}
        for row, document in enumerate(batch):
            if row in rejected:
                written.refused[document["id"]] = rejected[row]
            else:
                taken[document["id"]] = document
    return taken
