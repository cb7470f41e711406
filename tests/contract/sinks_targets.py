"""The targets that the sinks' contract runs on: each makes fresh sink objects on one lasting outside."""

import itertools
import json
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from tidemark_shelf import ShelfSink

from tests.harness.registry import MemoryRegistry
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.sink.connectors.destination import LocalDestination, sha256
from tidemark.services.sink.connectors.filerows import CatalogTable, Encoding
from tidemark.services.sink.connectors.files import FileSink, FileSinkSettings
from tidemark.services.sink.connectors.https import HttpsSink
from tidemark.services.sink.connectors.kafka import KafkaSink, KafkaSinkSettings
from tidemark.services.sink.connectors.kafkamarkers import MarkerReading
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.memory import MemorySink, MemoryTarget
from tidemark.services.sink.connectors.mongodbsettings import MongoSinkSettings
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.services.sink.connectors.plugin import PluginSink
from tidemark.services.sink.connectors.registered import RegisteredForms
from tidemark.services.sink.connectors.released import read_released_rows, released_files
from tidemark.services.sink.connectors.sql import SqlSink, SqlSinkSettings, engine_of
from tidemark.services.sink.connectors.staging import BlobNamer, PartStore
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.avro import parse_schema, reader_of
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import RegisteredSchema
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.protobuf.reading import reader_of as message_reader_of
from tidemark.shared.language.stages import Connection, EmitFormat, HttpsEmit, KafkaEmit, Merge
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.ids import Offset
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.ports.blobs import BlobUnavailable, Note
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.http import HttpAnswer, HttpRequest
from tidemark.shared.ports.log import Log, LogRecord, TopicPartition
from tidemark.shared.ports.registry import MAGIC
from tidemark.shared.ports.sink import SinkPort
from tidemark.shared.process.protobuf_compiler import compiled
from tidemark.shared.runtime.requests import Asking
from tidemark.shared.runtime.settings import LookupSettings


class MemoryWorld:
    def __init__(self) -> None:
        self.target = MemoryTarget()

    def sink(self) -> SinkPort:
        return MemorySink(self.target)

    async def visible(self) -> list[int]:
        return [number for batch in self.target.batches() for number in batch.column("id").to_pylist()]


class PluginWorld:
    """The example of a plug-in's sink, two documents in a write."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "shelf.db"
        self.blobs = MemoryBlobs()
        self.executor: Executor = InlineSpawner()
        self.attempts = itertools.count()
        self.needs = ""

    def sink(self) -> PluginSink:
        store = PartStore(self.blobs, names_for(f"a{next(self.attempts)}"), inline_bytes_max=100)
        return PluginSink(self.make, "a plug-in", store, self.executor, part_rows_max=2)

    def make(self) -> ShelfSink:
        return make_of("shelf", ShelfSink, {"shelf": "out", "needs": self.needs}, {"file": str(self.file)})

    async def visible(self) -> list[int]:
        with closing(sqlite3.connect(self.file)) as db:
            rows = db.execute("SELECT document FROM documents WHERE shelf = 'out' ORDER BY n").fetchall()
        return [json.loads(document)["id"] for (document,) in rows]


class FilesWorld:
    """Read by manifests. A buffer of one byte: every batch is spilled before the next."""

    def __init__(
        self, root: Path, format_: EmitFormat, *, partition_by: tuple[str, ...] = (), handle_bytes_max: int = 65536
    ) -> None:
        self.root = root / "out"
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}
        self.encoding = Encoding(format_, partition_by, table=CatalogTable("lake/out", catalog))
        self.settings = FileSinkSettings(buffer_bytes_max=1, handle_bytes_max=handle_bytes_max, volume_manifests=1)
        self.attempts = itertools.count()
        self.executor: Executor = InlineSpawner()

    def sink(self) -> SinkPort:
        attempt = f"a{next(self.attempts)}"
        return FileSink(LocalDestination(self.root, attempt), self.encoding, attempt, self.executor, self.settings)

    async def visible(self) -> list[int]:
        return [int(row["id"]) for row in read_released_rows(str(self.root), encoding=self.encoding)]


class ObjectsWorld:
    """An object store in memory, by fsspec."""

    def __init__(self) -> None:
        from fsspec.implementations.memory import MemoryFileSystem

        # Its content is shared by all of the process: a type of its own keeps worlds apart.
        separate: Any = type("Separate", (MemoryFileSystem,), {"store": {}, "pseudo_dirs": [""], "cachable": False})
        self.filesystem = separate()
        self.attempts = itertools.count()
        self.executor: Executor = InlineSpawner()

    def destination(self) -> ObjectDestination:
        return ObjectDestination(self.filesystem, "memory://bucket/out")

    def sink(self) -> SinkPort:
        return FileSink(
            self.destination(),
            Encoding("json"),
            f"a{next(self.attempts)}",
            self.executor,
            FileSinkSettings(),
        )

    async def visible(self) -> list[int]:
        files = released_files(self.destination())
        return [json.loads(line)["id"] for released in files for line in released.data.splitlines()]


class MemoryBlobs:
    """A blob store; names are taken once."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.away = False
        self.gets_left: int | None = None
        """So many answers, then none; None: no bound."""

    async def put(self, name: str, data: bytes) -> BlobRef:
        if self.away:
            raise BlobUnavailable("blobs: away")
        assert name not in self.objects, f"blob {name} is written twice"
        self.objects[name] = data
        return BlobRef(name, len(data), sha256(data))

    async def get(self, ref: BlobRef) -> bytes:
        if self.away:
            raise BlobUnavailable("blobs: away")
        if self.gets_left is not None:
            if not self.gets_left:
                raise BlobUnavailable("blobs: away")
            self.gets_left -= 1
        return self.objects[ref.name]

    async def folders(self) -> list[str]:
        raise AssertionError("sinks look for no jobs")

    async def list(self, prefix: str) -> list[str]:
        return [name for name in self.objects if name.startswith(prefix)]

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    async def seal(self, name: str) -> BlobRef:
        raise AssertionError("sinks seal nothing")

    def note(self, name: str) -> Note:
        raise AssertionError("sinks leave no notes")

    async def read_note(self, name: str) -> bytes:
        raise AssertionError("sinks leave no notes")

    def uri(self, name: str) -> str:
        raise AssertionError("sinks hand no names to others")


def names_for(label: str) -> BlobNamer:
    """Attempt-unique blob names, as the service makes them."""
    count = itertools.count()
    return lambda epoch: f"job/emit/1/{epoch}/{label}-{next(count)}"


def expression(tree: object) -> Expr:
    """A parsed expression."""
    problems = Problems()
    parsed = parse_expression(tree, "test", Scope(problems))
    assert not problems.errors
    return parsed


class KafkaWorld:
    """Topics on any log, read committed. Small parts: an epoch has several, some in the blob store."""

    fetch_ms = 0
    silent_max = 2

    def __init__(
        self, log: Log | None = None, *, topic: str = "out", partitions: int = 2, part_records: int = 2
    ) -> None:
        self.log: Log = log or MemoryLog(MemoryBroker(SystemClock()))
        self.blobs = MemoryBlobs()
        self.topic, self.partitions = topic, partitions
        self.settings = KafkaSinkSettings(
            part_records_max=part_records, reading=MarkerReading(fetch_wait_ms=50, silent_fetches_max=200)
        )
        self.takes = Takes(new_topic_partitions=partitions)
        self.stage = KafkaEmit(path="$emit", connection_name="c", topic=expression(topic), key=expression("$name"))
        self.attempts = itertools.count()
        self.executor: Executor = InlineSpawner()
        self.clock: Clock = SystemClock()

    def sink(self) -> KafkaSink:
        store = PartStore(self.blobs, names_for(f"a{next(self.attempts)}"), inline_bytes_max=700)
        return KafkaSink(RecordMaker(self.stage, self.takes), self.log, store, self.clock, self.executor, self.settings)

    async def records(self, topic: str | None = None) -> list[LogRecord]:
        """All committed records of a topic."""
        topic = topic or self.topic
        count = (await self.log.list_topics()).get(topic, 0)
        places = [TopicPartition(topic, number) for number in range(count)]
        if not places:
            return []
        ends = await self.log.end_offsets(places)
        reader = await self.log.reader(committed_only=True)
        try:
            await reader.assign(dict.fromkeys(places, Offset(0)))
            found: list[LogRecord] = []
            silent = 0
            # What is open is not waited for: a reader sees what is committed.
            while any(reader.position(place) < ends[place] for place in places) and silent < self.silent_max:
                more = await reader.fetch(1000, self.fetch_ms)
                silent = 0 if more else silent + 1
                found += more
            return found
        finally:
            await reader.close()

    async def visible(self) -> list[int]:
        return [json.loads(record.value or b"")["id"] for record in await self.records()]


class AvroWorld(KafkaWorld):
    """The same, with values and keys of a schema registry."""

    value: ClassVar[dict[str, Any]] = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "even", "type": "boolean"},
        ],
    }

    def __init__(self, log: Log | None = None, **options: Any) -> None:
        super().__init__(log)
        self.registry = MemoryRegistry()
        schemas = [
            RegisteredSchema(type="avro", text=json.dumps(tree), name=name, **options)
            for tree, name in ((self.value, "Row"), ("string", "string"))
        ]
        self.stage = replace(self.stage, registry="r", value_schema=schemas[0], key_schema=schemas[1])

    def sink(self) -> KafkaSink:
        store = PartStore(self.blobs, names_for(f"a{next(self.attempts)}"), inline_bytes_max=700)
        forms = RegisteredForms(self.registry, self.stage, InlineSpawner())
        return KafkaSink(
            RecordMaker(self.stage, self.takes, forms), self.log, store, SystemClock(), self.executor, self.settings
        )

    async def documents(self) -> list[dict[str, Any]]:
        """All committed values, read by the schemas that they name."""
        found = []
        for record in await self.records():
            data = record.value or b""
            assert data[0] == MAGIC
            schema = await self.registry.schema(int.from_bytes(data[1:5], "big"))
            read: dict[str, Any] = parse_json(reader_of(parse_schema(json.loads(schema.text)))(data[5:]))
            found.append(read)
        return found

    async def visible(self) -> list[int]:
        return [int(document["id"]) for document in await self.documents()]


@cache
def _reader_of_messages(text: str) -> Callable[[bytes], bytes]:
    """Of a schema, which takes a process to compile."""
    return message_reader_of(compiled(text, {}))


class ProtobufWorld(AvroWorld):
    """The same, with values of Protobuf."""

    text: ClassVar[str] = (
        'syntax = "proto3"; package x; message No {} message Row { int64 id = 1; string name = 2; bool even = 3; }'
    )

    def __init__(self, log: Log | None = None) -> None:
        super().__init__(log)
        schema = RegisteredSchema(type="protobuf", text=self.text, name="x.Row")
        self.stage = replace(self.stage, value_schema=schema)

    async def documents(self) -> list[dict[str, Any]]:
        """All committed values, read by the schema that they name."""
        found = []
        for record in await self.records():
            data = record.value or b""
            schema = await self.registry.schema(int.from_bytes(data[1:5], "big"))
            read: dict[str, Any] = parse_json(_reader_of_messages(schema.text)(data[5:]))
            found.append(read)
        return found


class KeepingServer:
    """A server that keeps idempotency keys: what it was told under a key it is told once. `fails`: what becomes of the next requests."""

    def __init__(self) -> None:
        self.told: dict[str, bytes] = {}
        self.requests: list[HttpRequest] = []
        self.fails: list[Exception | int] = []

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        failure = self.fails.pop(0) if self.fails else 200
        if isinstance(failure, int) and failure != 200:
            return HttpAnswer(failure, "", b"no")
        body = self.told.setdefault(dict(request.headers)["Idempotency-Key"], request.body or b"")
        assert body == request.body
        if isinstance(failure, Exception):
            raise failure  # the answer is lost
        return HttpAnswer(200, "", b"")

    async def close(self) -> None: ...


class HttpsWorld:
    """What a server with keys was told. Small parts: an epoch has several, some in the blob store."""

    def __init__(self, *, on_error: Literal["fail", "ignore"] = "fail", part_requests: int = 2) -> None:
        self.server = KeepingServer()
        self.log: Log = MemoryLog(MemoryBroker(SystemClock()))
        self.blobs = MemoryBlobs()
        self.stage = HttpsEmit(path="$https", connection_name="c", method="POST", on_error=on_error, parallelism=2)
        self.executor: Executor = AsyncExecutor()
        self.connection = Connection("c", "https", {"url": "http://server/v1", "headers": {"X-Key": "secret"}})
        self.part_requests = part_requests
        self.attempts = itertools.count()

    def sink(self) -> HttpsSink:
        attempt = f"a{next(self.attempts)}"
        store = PartStore(self.blobs, names_for(attempt), inline_bytes_max=300)
        times = LookupSettings(retry_ms=1, retry_ms_max=1, wait_ms_max=0)
        asking = Asking(self.stage, self.connection, self.server, SystemClock(), self.executor, times)
        settings = KafkaSinkSettings(reading=MarkerReading(fetch_wait_ms=50, silent_fetches_max=200))
        return HttpsSink(asking, self.log, store, attempt, settings, self.part_requests)

    async def visible(self) -> list[int]:
        return [json.loads(body)["id"] for body in self.server.told.values()]


class MongoWorld:
    """A collection `rows` with a unique index on `id`, in a database of its own."""

    def __init__(self, url: str, *, part_bytes: int = 60, answer_ms: int = 2_000, **options: Any) -> None:
        from tidemark.shared.adapters.mongodb import client_at

        self.client = client_at(url, answer_ms)
        self.database = f"t{secrets.token_hex(6)}"
        self.collection = self.client[self.database]["rows"]
        self.blobs = MemoryBlobs()
        stage = Merge(path="$merge", connection_name="c", table=f"{self.database}.rows", on=("id",))
        self.stage = replace(stage, **options)
        if self.stage.on == ("id",):
            self.collection.create_index("id", unique=True)
        self.settings = MongoSinkSettings(part_bytes_max=part_bytes, answer_ms=answer_ms)
        self.attempts = itertools.count()
        self.executor: Executor = InlineSpawner()

    def sink(self) -> SinkPort:
        from tidemark.services.sink.connectors.mongodb import MongoSink

        store = PartStore(self.blobs, names_for(f"a{next(self.attempts)}"), inline_bytes_max=100)
        return MongoSink(self.stage, self.client, store, self.executor, self.settings)

    def documents(self) -> list[dict[str, Any]]:
        """All documents in order, without the server's own _id."""
        from tidemark.shared.adapters.mongodb import from_bson

        return [
            {name: value for name, value in from_bson(found).items() if name != "_id" or "_id" in self.stage.on}
            for found in self.collection.find().sort(self.stage.on[0], 1)
        ]

    async def visible(self) -> list[int]:
        return [document["id"] for document in self.documents()]

    def close(self) -> None:
        self.client.drop_database(self.database)
        self.client.close()


class SqlWorld:
    """A table `rows` with primary key `id`, in any database."""

    def __init__(self, url: str, *, part_bytes: int = 60, **options: Any) -> None:
        self.engine = engine_of(url, SqlSinkSettings(lock_wait_ms=200))
        with self.engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE rows (id BIGINT PRIMARY KEY, name VARCHAR(20), even BOOLEAN, note TEXT DEFAULT 'none')"
            )
        self.blobs = MemoryBlobs()
        self.stage = Merge(path="$merge", connection_name="c", table="rows", on=("id",), **options)
        self.settings = SqlSinkSettings(part_bytes_max=part_bytes, lock_wait_ms=200)
        self.attempts = itertools.count()
        self.executor: Executor = InlineSpawner()

    def sink(self) -> SqlSink:
        store = PartStore(self.blobs, names_for(f"a{next(self.attempts)}"), inline_bytes_max=100, kept_bytes_max=0)
        return SqlSink(self.stage, self.engine, store, self.executor, self.settings)

    def table(self) -> list[tuple[Any, ...]]:
        """All rows in order."""
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql("SELECT * FROM rows ORDER BY id")]

    async def visible(self) -> list[int]:
        return [row[0] for row in self.table()]
