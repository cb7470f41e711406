"""What the sources' contract runs on: each world holds numbered records in splits, and makes fresh source objects on them."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from fsspec.implementations.local import LocalFileSystem
from pyiceberg.catalog import load_catalog
from tidemark_shelf import ShelfSource
from tidemark_shelf.file import Place, ShelfFile

from tests.harness.mongodb.streaming import StreamingServer
from tests.harness.raw_log import LogRawReader
from tests.harness.registry import MemoryRegistry
from tidemark.services.gateway.writing import BatchWriter
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.source.connectors.changestream import ChangeStream
from tidemark.services.source.connectors.deltatable import DeltaVersions
from tidemark.services.source.connectors.files import FileConnector, FileSourceSettings
from tidemark.services.source.connectors.icebergtable import IcebergVersions
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings
from tidemark.services.source.connectors.plugin import PluginConnector
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.services.source.connectors.script import DocumentsConnector, ScriptConnector
from tidemark.services.source.connectors.tables import TableConnector
from tidemark.services.source.connectors.tableversions import TableVersions
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_writer import partition_of_key
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.avro import parse_schema, writer_of
from tidemark.shared.language.stages import ChangeStreamSource, KafkaSource, StartAt
from tidemark.shared.language.stages.sources.script import DataStep, WatermarkStep
from tidemark.shared.model.values import Timestamp
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.ports.registry import header_of
from tidemark.shared.ports.source import SourcePort

CLOCK = SystemClock()


class StillClock(SystemClock):
    """On which nothing takes time: a folder may be listed again at once."""

    time_ms = 0

    def monotonic_ms(self) -> int:
        """As it was set."""
        return self.time_ms


@dataclass(frozen=True)
class Beside:
    """Where sources run here."""

    executor: Executor = field(default_factory=InlineSpawner)
    clock: SystemClock = CLOCK


class World(Protocol):
    """Records `{"n": …}`; `lanes` are the numbers by split, in order."""

    @property
    def lanes(self) -> list[list[int]]: ...

    def source(self) -> SourcePort: ...

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        """Append to a lane; the next one is made if it does not exist."""
        ...


def number_of(value: bytes) -> int:
    """The number in a record."""
    found = json.loads(value)["n"]
    return int(found["$numberInt"]) if isinstance(found, dict) else int(found)


class KafkaLanes:
    """Partitions of a topic in a log in memory."""

    def __init__(self, *, start_at: StartAt = "earliest", until: StartAt | None = None) -> None:
        self.lanes: list[list[int]] = []
        self.broker = MemoryBroker(CLOCK)
        self.log = MemoryLog(self.broker)
        self.settings = KafkaSourceSettings(topics=("in",), start_at=start_at, until=until, cluster="one:9092")

    def source(self) -> KafkaConnector:
        return KafkaConnector(self.settings, self.log, LogRawReader(self.log), CLOCK)

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        if lane == len(self.lanes):
            self.lanes.append([])
            await self.grow(len(self.lanes))
        writer = await self.log.writer("feeder")
        for number in numbers:
            await (await writer.send(TopicPartition("in", lane), self.record(number)))
        await writer.flush()
        await writer.close()
        self.lanes[lane] += numbers

    def record(self, number: int) -> NewRecord:
        return NewRecord(json.dumps({"n": number}).encode())

    async def grow(self, partitions: int) -> None:
        """The topic with more partitions."""
        if partitions == 1:
            await self.log.create_topic("in", 1)
        else:
            self.broker.add_partitions("in", partitions)
        self.lanes += [[] for _ in range(partitions - len(self.lanes))]


class AvroLanes(KafkaLanes):
    """The same in Avro; odd numbers are of a later version of the schema. Keys are Avro, too."""

    def __init__(self, *, until: StartAt | None = None, **options: Any) -> None:
        super().__init__(until=until)
        self.registry = MemoryRegistry()
        fields = [{"name": "n", "type": "int"}]
        versions = [fields, [*fields, {"name": "note", "type": ["null", "string"], "default": None}]]
        trees = [{"type": "record", "name": "N", "fields": each} for each in versions]
        self.numbers = [self.registry.content.add("in-value", tree) for tree in trees]
        self.writers = [writer_of(parse_schema(tree)) for tree in trees]
        self.key_number = self.registry.content.add("in-key", "string")
        self.stage = KafkaSource(
            path="$source",
            connection_name="k",
            topics=("in",),
            registry="r",
            key_format="schemaRegistry",
            **options,
        )

    def source(self) -> KafkaConnector:
        records = RegisteredRecords(
            self.registry, InlineSpawner(), 1024, keys=True, keys_must=self.stage.key_format_error == "dlq"
        )
        return KafkaConnector(self.settings, self.log, LogRawReader(self.log), CLOCK, records)

    def record(self, number: int) -> NewRecord:
        version = number % 2
        value = header_of(self.numbers[version]) + self.writers[version]({"n": number})
        return NewRecord(value, header_of(self.key_number) + writer_of(parse_schema("string"))("k"))


class GatewayLanes(KafkaLanes):
    """The same, written by the gateway: each batch is a transaction, whose marker takes a place in the log."""

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        if lane == len(self.lanes):
            self.lanes.append([])
            await self.grow(len(self.lanes))
        count = len(self.lanes)
        key = next(key for key in map(b"k%d".__mod__, range(1000)) if partition_of_key(key, count) == lane)
        writer = BatchWriter(self.log, CLOCK, "g", writers=1, topics_age_ms_max=0)
        for begin in range(0, len(numbers), 3):
            batch = [NewRecord(json.dumps({"n": n}).encode(), key) for n in numbers[begin : begin + 3]]
            await writer.write("in", count, batch)
        await writer.close()
        self.lanes[lane] += numbers


class FileLanes:
    """Files of a folder, numbered from `00`."""

    def __init__(self, root: Path, format_: str, *, ordered: bool, follow: bool) -> None:
        self.root = root / "in"
        self.root.mkdir()
        self.format, self.ordered, self.grows = format_, ordered, follow
        self.files: list[list[int]] = []

    @property
    def lanes(self) -> list[list[int]]:
        return [[n for file in self.files for n in file]] if self.ordered else self.files

    def source(self) -> FileConnector:
        settings = FileSourceSettings(
            glob=f"{self.root}/*.{self.format}",
            format=self.format,  # type: ignore[arg-type]
            ordered=self.ordered,
            follow=self.grows,
            types={"n": "int"},
            poll_ms=1,
        )
        return FileConnector(settings, LocalFileSystem(), InlineSpawner(), StillClock(), lambda _: None)

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        file = len(self.files) - 1 if self.ordered and lane == 0 and self.files else lane
        if file == len(self.files):
            self.files.append([])
        self.files[file] += numbers
        path = self.root / f"{file:02d}.{self.format}"
        if self.format == "parquet":
            pq.write_table(pa.table({"n": pa.array(self.files[file], pa.int64())}), path, row_group_size=3)
            return
        lines = [f'{{"n": {n}}}' if self.format == "json" else f"{n},x" for n in self.files[file]]
        header = ["n,s"] if self.format == "csv" else []
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(line + "\n" for line in header + lines))
        temporary.replace(path)


class TableLanes:
    """Commits of a table; `ordered` all are one lane, else each is one."""

    def __init__(self, root: Path, kind: str, *, ordered: bool, follow: bool) -> None:
        self.root, self.kind = root, kind
        self.ordered, self.grows = ordered, follow
        self.commits: list[list[int]] = []

    @property
    def lanes(self) -> list[list[int]]:
        return [[n for commit in self.commits for n in commit]] if self.ordered else self.commits

    def source(self) -> TableConnector:
        versions = table_at(self.root, self.kind)
        return TableConnector(versions, InlineSpawner(), CLOCK, ordered=self.ordered, follow=self.grows, poll_ms=1)

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        del lane
        rows = pa.table({"n": pa.array(numbers, pa.int64())})
        self.commits.append([*numbers])
        if self.kind == "delta":
            write_deltalake(self.root / "t", rows, mode="append")
            return
        catalog = load_catalog(**catalog_in(self.root))
        catalog.create_namespace_if_not_exists("n")
        catalog.create_table_if_not_exists("n.t", rows.schema).append(rows)
        catalog.close()


def catalog_in(root: Path) -> dict[str, str]:
    """The properties of a catalog in a folder."""
    return {"name": "c", "type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/tables"}


def table_at(root: Path, kind: str) -> TableVersions:
    """The table `t` of a folder, or `n.t` of its catalog."""
    if kind == "iceberg":
        return IcebergVersions(("n", "t"), catalog_in(root), lambda _: None)
    return DeltaVersions(LocalFileSystem(), str(root / "t"), lambda _: None)


class PluginLanes:
    """Shelves of the example of a plug-in's source."""

    def __init__(self, folder: Path, *, follow: bool, plugin: type[ShelfSource] = ShelfSource) -> None:
        self.lanes: list[list[int]] = []
        self.follow = follow
        self.plugin = plugin
        self.file = str(folder / "shelf.db")

    def source(self) -> PluginConnector:
        return PluginConnector(
            lambda: make_of("shelf", self.plugin, {"follow": self.follow}, {"file": self.file}),
            "a plug-in",
            InlineSpawner(),
            CLOCK,
        )

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        if lane == len(self.lanes):
            self.lanes.append([])
        ShelfFile(Place(self.file)).close()
        with closing(sqlite3.connect(self.file)) as db, db:
            db.executemany(
                "INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)",
                [(f"s{lane}", number, json.dumps({"n": number})) for number in numbers],
            )
        self.lanes[lane] += numbers


class ScriptLanes:
    """Steps of a script over partitions, with watermarks in between."""

    def __init__(self) -> None:
        self.lanes: list[list[int]] = []
        self.steps: list[DataStep | WatermarkStep] = []

    def source(self) -> ScriptConnector:
        return ScriptConnector(self.steps, CLOCK)

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        if lane == len(self.lanes):
            self.lanes.append([])
        for number in numbers:
            self.steps.append(DataStep({"n": number}, lane))
            if number % 3 == 0:
                self.steps.append(WatermarkStep(number, None))
        self.lanes[lane] += numbers


class ChangeLanes:
    """Inserts into one collection of a replica set, beside those into another."""

    def __init__(self) -> None:
        self.lanes: list[list[int]] = [[]]
        self.server = StreamingServer()
        self.made: list[ChangeStream] = []
        self.executor = AsyncExecutor()

    def source(self) -> ChangeStream:
        stage = ChangeStreamSource(
            path="$source",
            connection_name="m",
            db="d",
            coll=("c",),
            start_at_operation_time=Timestamp(0, 1),
            full_document_only=True,
        )
        self.made.append(ChangeStream(stage, self.server.url, self.executor, CLOCK))
        return self.made[-1]

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        if not self.server.entries:
            await self.server.start()
        for number in numbers:
            self.server.insert("d", "c", number, n=number)
            self.server.insert("d", "other", number)
        self.lanes[0] += numbers

    async def close(self) -> None:
        for source in self.made:
            await source.close()
        await self.server.stop()
        await self.executor.close()


class DocumentLanes:
    """One split of documents."""

    def __init__(self) -> None:
        self.lanes: list[list[int]] = [[]]

    def source(self) -> DocumentsConnector:
        return DocumentsConnector([{"n": number} for number in self.lanes[0]], CLOCK)

    async def add(self, lane: int, numbers: Sequence[int]) -> None:
        self.lanes[0] += numbers
