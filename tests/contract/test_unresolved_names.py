# ruff: noqa: N802 -- a test carries its rule's name
"""A name that no server resolves is an outage of what it names, for each adapter with its real client: time mends it (C10).

What follows from such an error for 30 s, ten minutes and three hours is in `tests/outages`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.contract.sinks_targets import MemoryBlobs, expression, names_for
from tidemark.services.operator.tables.files import FileTable
from tidemark.services.operator.tables.sql import SqlTable, engine_of
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.files import FileSink, FileSinkSettings
from tidemark.services.sink.connectors.kafka import KafkaSink, KafkaSinkSettings
from tidemark.services.sink.connectors.kafkarecords import RecordMaker
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.services.sink.connectors.sql import SqlSink, SqlSinkSettings, engine_at
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.services.source.connectors.filecursors import Files
from tidemark.services.source.connectors.filereaders import reader_of
from tidemark.services.source.connectors.files import FileConnector, FileSourceSettings
from tidemark.shared.adapters.blobs import S3Blobs
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.stages import KafkaEmit, Merge
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.shared.model.ids import Epoch, JobId, VertexId
from tidemark.shared.ports.commits import StoreUnavailable
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.ports.sink import Identity
from tidemark.shared.process.connections import filesystem_at
from tidemark.shared.runtime.settings import LookupSettings

HOST = "nowhere.invalid"
"""No server may resolve what ends so (RFC 6761), whichever is asked, and whether one answers."""
KAFKA = KafkaSettings(bootstrap=f"{HOST}:9092", request_timeout_ms=500, delivery_timeout_ms=1_000, outage_after_ms=200)
POSTGRES = f"postgresql://user@{HOST}/db"
S3: dict[str, Any] = {"endpoint_url": f"http://{HOST}:9000", "key": "key", "secret": "secret"}
IDENTITY = Identity(JobId("job"), VertexId("emit-1"), 0)
PLACE = TopicPartition("t", 0)


def _parts() -> PartStore:
    return PartStore(MemoryBlobs(), names_for("a"), inline_bytes_max=700)


async def _log(call: Callable[[KafkaLog], Awaitable[Any]]) -> None:
    log = KafkaLog(KAFKA)
    try:
        await call(log)
    finally:
        await log.close()


async def _listed(_: AsyncExecutor) -> None:
    await _log(lambda log: log.list_topics())


async def _ends(_: AsyncExecutor) -> None:
    await _log(lambda log: log.end_offsets([PLACE]))


async def _writer(_: AsyncExecutor) -> None:
    await _log(lambda log: log.writer("w"))


async def _transactions(_: AsyncExecutor) -> None:
    await _log(lambda log: log.transactional_writer("t"))


async def _reader(_: AsyncExecutor) -> None:
    await _log(lambda log: log.reader())


async def _source(_: AsyncExecutor) -> None:
    await RawReader(KAFKA).start()


async def _topic(executor: AsyncExecutor) -> None:
    stage = KafkaEmit(path="$emit", connection_name="c", topic=expression("out"))
    sink = KafkaSink(RecordMaker(stage), KafkaLog(KAFKA), _parts(), SystemClock(), executor, KafkaSinkSettings())
    await sink.open(IDENTITY, Epoch(0))


async def _store(_: AsyncExecutor) -> None:
    await SqlCommitStore(POSTGRES).open()


async def _blob_put(executor: AsyncExecutor) -> None:
    await S3Blobs("s3://bucket/blobs", executor, **S3).put("a/b", b"")


async def _blob_list(executor: AsyncExecutor) -> None:
    await S3Blobs("s3://bucket/blobs", executor, **S3).list("a")


async def _table(executor: AsyncExecutor) -> None:
    stage = Merge(path="$merge", connection_name="c", table="t", on=("k",))
    settings = SqlSinkSettings()
    await SqlSink(stage, engine_at(POSTGRES, settings), _parts(), executor, settings).open(IDENTITY, Epoch(0))


async def _lookup(executor: AsyncExecutor) -> None:
    settings = LookupSettings()
    await SqlTable(engine_of(POSTGRES, {}, settings.wait_ms_max), "t", executor, settings).columns()


async def _listing(executor: AsyncExecutor) -> None:
    filesystem, path = filesystem_at("s3://bucket/in", "$source", S3)
    settings = FileSourceSettings(glob=f"{path}/*.json", format="json", types={})
    await FileConnector(settings, filesystem, executor, SystemClock(), lambda _: None).files()


async def _reading(executor: AsyncExecutor) -> None:
    filesystem, path = filesystem_at("s3://bucket/in.json", "$source", S3)
    cursor = Files(filesystem, path, 1, lambda _: None)
    await executor.blocking(lambda: cursor.read(reader_of("json", {}, 1_000), path, 0, 1_000, grows=False))


async def _held(executor: AsyncExecutor) -> None:
    filesystem, path = filesystem_at("s3://bucket/table.json", "$lookup", S3)
    await FileTable(filesystem, path, executor, SystemClock(), LookupSettings()).find((), ())


def _files(format_: Any) -> Callable[[AsyncExecutor], Awaitable[None]]:
    async def opened(executor: AsyncExecutor) -> None:
        filesystem, path = filesystem_at("s3://bucket/out", "$emit", S3)
        sink = FileSink(ObjectDestination(filesystem, path), Encoding(format_), "a", executor, FileSinkSettings())
        await sink.open(IDENTITY, Epoch(0))

    return opened


CALLS: dict[str, Callable[[AsyncExecutor], Awaitable[None]]] = {
    "log: topics": _listed,
    "log: offsets": _ends,
    "log: writer": _writer,
    "log: transactions": _transactions,
    "log: reader": _reader,
    "source: topic": _source,
    "target: topic": _topic,
    "store": _store,
    "blobs: put": _blob_put,
    "blobs: list": _blob_list,
    "target: table": _table,
    "lookup": _lookup,
    "lookup: S3": _held,
    "source: S3, listing": _listing,
    "source: S3, reading": _reading,
    "target: lines in S3": _files("json"),
    "target: Delta in S3": _files("parquet"),
}


WAITED = StoreUnavailable
"""A coordinator waits for its store itself."""


@pytest.fixture
async def executor() -> AsyncIterator[AsyncExecutor]:
    made = AsyncExecutor()
    yield made
    await made.close()


@pytest.mark.parametrize("call", CALLS)
async def test_C10_a_name_that_nobody_resolves_is_an_outage(call: str, executor: AsyncExecutor) -> None:
    """The error says that waiting may help."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which error it is depends on the port
        await CALLS[call](executor)
    assert is_outage(raised.value) or isinstance(raised.value, WAITED), repr(raised.value)
    assert not is_lasting(raised.value)
