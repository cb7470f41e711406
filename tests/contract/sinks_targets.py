"""The targets that the sinks' contract runs on: each makes fresh sink objects on one lasting outside."""

import itertools
from pathlib import Path

from services.sink.connectors.destination import LocalDestination
from services.sink.connectors.filerows import Encoding
from services.sink.connectors.files import FileSink, FileSinkSettings
from services.sink.connectors.formats import Format
from services.sink.connectors.memory import MemorySink, MemoryTarget
from services.sink.connectors.objects import ObjectDestination
from services.sink.connectors.released import read_released_rows, released_files
from shared.ports.sink import Sink
from tests.contract.sinks_support import Inline, documents_of, encode


class MemoryWorld:
    def __init__(self) -> None:
        self.target = MemoryTarget()

    def sink(self) -> Sink:
        return MemorySink(self.target)

    async def visible(self) -> list[int]:
        return [number for batch in self.target.batches() for number in batch.column("id").to_pylist()]


class FilesWorld:
    """Read by manifests. A buffer of one byte: every batch is spilled before the next."""

    def __init__(self, root: Path, format_: Format, *, partition_by: tuple[str, ...] = (), handle_bytes_max: int = 65536) -> None:
        self.root = root / "out"
        self.encoding = Encoding(format_, documents_of, encode, partition_by)
        self.settings = FileSinkSettings(buffer_bytes_max=1, handle_bytes_max=handle_bytes_max)
        self.attempts = itertools.count()

    def sink(self) -> Sink:
        attempt = f"a{next(self.attempts)}"
        return FileSink(LocalDestination(self.root, attempt), self.encoding, attempt, Inline(), self.settings)

    async def visible(self) -> list[int]:
        return [int(row["id"]) for row in read_released_rows(str(self.root))]


class ObjectsWorld:
    """An object store in memory, by fsspec."""

    def __init__(self) -> None:
        from fsspec.implementations.memory import MemoryFileSystem

        class Separate(MemoryFileSystem):
            store: dict[str, object] = {}
            pseudo_dirs = [""]
            cachable = False

        Separate.store, Separate.pseudo_dirs = {}, [""]
        self.filesystem = Separate()
        self.attempts = itertools.count()

    def destination(self) -> ObjectDestination:
        return ObjectDestination(self.filesystem, "memory://bucket/out")

    def sink(self) -> Sink:
        return FileSink(
            self.destination(), Encoding("jsonl", documents_of, encode), f"a{next(self.attempts)}", Inline(), FileSinkSettings()
        )

    async def visible(self) -> list[int]:
        import json

        files = released_files(self.destination())
        return [json.loads(line)["id"] for released in files for line in released.data.splitlines()]
