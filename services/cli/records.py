"""Commands that read stored data: topics and their records, dead letters, checkpoints, and a try-out on a topic's newest records."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.services.audit.installed import local_installation
from tidemark.services.cli.reading import NoDocument, read_document
from tidemark.services.local.folders import BROKER_VARIABLE, NoInstallation, chosen
from tidemark.services.local.supervisor import is_running, read_state
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.released import released_files
from tidemark.services.source.connecting import records_of
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import CollectionDlq, FileDlq, KafkaDlq, Processor, parse
from tidemark.shared.language.stages import KafkaSource
from tidemark.shared.language.values import ExtendedJsonError, parse_json, to_json
from tidemark.shared.model.checkpoint import state_bytes
from tidemark.shared.model.ids import NO_EPOCH, ProcessorName, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import Document
from tidemark.shared.ports.log import Log, TopicPartition
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections
from tidemark.shared.protocol.coordinator.record import decode_kept, decode_plan
from tidemark.shared.runtime.reading import newest


@asynccontextmanager
async def _connected(data_dir: Path | None) -> AsyncIterator[Connections]:
    """Clients with the rights of the user: all of the environment, this machine, and the broker that runs on a folder, if one does."""
    values = dict(os.environ)
    with suppress(FileNotFoundError, NoInstallation):
        state = read_state(chosen(data_dir))
        if is_running(state):
            values.setdefault(BROKER_VARIABLE, str(state["kafka"]))
    connections = Connections("cli", allowed=OWNER, values=values)
    try:
        yield connections
    finally:
        await connections.close()


async def topics(file: Path | None, data_dir: Path | None) -> list[dict[str, Any]]:
    """Topics of the clusters that a document names, or of an installation's broker: partitions, and records that are kept."""
    if file is None:
        async with local_installation(chosen(data_dir)) as installed:
            return await _topics_of(installed.log, "local", internal=f"{installed.topics.prefix}.")
    processor = parse(read_document(file))
    async with _connected(data_dir) as connections:
        found = []
        for name, connection in sorted(processor.connections.items()):
            if connection.type in ("kafka", "gateway"):
                found += await _topics_of(connections.log(connections.get(processor, name)), name)
        return found


async def _topics_of(log: Log, name: str, *, internal: str = "__") -> list[dict[str, Any]]:
    """internal: topics that begin so are not asked about. Those of a processor may go at any moment, and what is gone has no offsets."""
    hidden = ("__", internal)
    counts = {
        topic: count for topic, count in sorted((await log.list_topics()).items()) if not topic.startswith(hidden)
    }
    places = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    begins, ends = (await log.begin_offsets(places), await log.end_offsets(places)) if places else ({}, {})
    kept = dict.fromkeys(counts, 0)
    for place in places:
        kept[place.topic] += ends[place] - begins[place]
    return [{"connection": name, "topic": t, "partitions": n, "records": kept[t]} for t, n in counts.items()]


_ANSWER_MS: Final = 10_000
"""How long a server of dead letters is looked for."""


async def dead_letters(name: str, data_dir: Path, limit: int) -> list[Any]:
    """The dead letters of a processor that were written last. Unreadable where the document keeps none."""
    async with local_installation(data_dir) as installed:
        processor = parse(decode_plan((await installed.row_of(ProcessorName(name))).plan).document)
        connections = Connections("cli", allowed=OWNER, values=installed.environment)
        try:
            letters = await letters_of(processor, connections, limit)
        finally:
            await connections.close()
    return [to_json(each, canonical=False) for each in letters if each.get("processorName") in (None, name)][-limit:]


async def letters_of(processor: Processor, connections: Connections, limit: int) -> list[Document]:
    """The newest dead letters, oldest first. NoDocument where the document keeps none."""
    match processor.options.dlq:
        case KafkaDlq(connection_name, topic):
            log = connections.log(connections.get(processor, connection_name))
            return [_document(record.value) for record in await newest(log, topic, limit)]
        case FileDlq(path, connection_name):
            place, _ = connections.place_of(processor, connection_name, path, "options.dlq")
            files = released_files(LocalDestination(place.removeprefix("file://"), "dlq"))
            return [_document(line) for released in files for line in released.data.splitlines()]
        case CollectionDlq(connection_name, db, coll):
            url = str(connections.get(processor, connection_name).settings["url"])
            return await asyncio.to_thread(_letters_in, url, db, coll, limit)
        case None:
            raise NoDocument("the processor keeps no dead letters: options.dlq of its document names a place for them")


def _letters_in(url: str, db: str, coll: str, limit: int) -> list[Document]:
    """The newest of a collection, oldest first: ids begin with the time at which they were made."""
    from tidemark.shared.adapters.mongodb import client_at, from_bson

    client = client_at(url, _ANSWER_MS)
    try:
        found = [from_bson(each) for each in client[db][coll].find().sort("_id", -1).limit(limit)]
    finally:
        client.close()
    return [{name: value for name, value in each.items() if name != "_id"} for each in reversed(found)]


def _document(data: bytes | None) -> Document:
    found = parse_json(data or b"null")
    return found if type(found) is dict else {"doc": found}


async def checkpoints(name: str, data_dir: Path) -> list[dict[str, Any]]:
    """The checkpoints of a processor that are kept, oldest first; `name`: where a user gave it one."""
    async with local_installation(data_dir) as installed:
        row = await installed.row_of(ProcessorName(name))
        names = {each.epoch: each.name for each in decode_kept(row.extra).checkpoints}
        return [
            {
                "epoch": commit.epoch,
                "generation": commit.generation,
                "tasks": len(commit.tasks),
                "final": commit.final,
                "name": names.get(commit.epoch),
                "stateBytes": sum(state_bytes(task.parts, task.blobs) for task in commit.tasks),
            }
            for commit in await installed.store.commits(row.job, NO_EPOCH)
        ]


async def _as_json(
    processor: Processor, source: KafkaSource, connections: Connections, values: Sequence[bytes]
) -> Sequence[bytes]:
    """Records' values as the source reads them: with a registry or a format, what is none of its records stays as it is."""
    executor, count = AsyncExecutor(), len(values)
    records = records_of(connections, processor, source, executor)
    if records is None:
        return values
    places = np.arange(count, dtype=np.int64)
    try:
        found = await records.decoded(RawBatch(SplitId("sample"), 0, places, places, pa.array(values, pa.binary())))
    finally:
        await executor.close()
    return [value.as_py() for value in found.values]


async def sampled(file: Path, data_dir: Path | None, limit: int) -> tuple[str, list[Document], int]:
    """A document's text, the newest records of its source's topics as documents, and how many were none. Unreadable."""
    text = read_document(file)
    processor = parse(text)
    source = processor.source
    if not isinstance(source, KafkaSource):
        raise NoDocument(
            f"{file}: try reads the newest records of a topic, and {processor.pipeline[0].path} reads none;"
            f" `tidemark process {file}` tries its own input out"
        )
    async with _connected(data_dir) as connections:
        log = connections.log(connections.get(processor, source.connection_name))
        missing: Sequence[str] = sorted(set(source.topics) - (await log.list_topics()).keys())
        if missing:
            cluster = connections.kafka_settings(connections.get(processor, source.connection_name)).bootstrap
            raise NoDocument(f"{source.path}.topic: the topic {missing[0]} is not in the cluster {cluster}")
        records = [record for topic in source.topics for record in await newest(log, topic, limit)]
        records = sorted(records, key=lambda record: record.timestamp_ms)[-limit:]
        values = await _as_json(processor, source, connections, [record.value or b"" for record in records])
    documents: list[Document] = []
    for data in values:
        try:
            value = parse_json(data)
        except ExtendedJsonError:
            continue
        if type(value) is dict:
            documents.append(value)
    return text, documents, len(records) - len(documents)
