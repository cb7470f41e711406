"""Pipelines drawn at random, as jobs of a real installation: records of ordinary producers, real processes, drained to their end.

Records come from a topic, from files that are there or still come, from files first and a topic then, or from a table and its changes;
some come twice, with an id; some meet a second stream. What comes out, into a topic (some by a schema registry), files, a Delta
table, a table of SQL or a collection, must be what the same operators give in one process without a broker, as often, dead letters
included; and the audit agrees. In the middle of their records most jobs are stopped and started, lose a process, get other numbers of
tasks, or stages more that change no row; some lose a process while they drain.

`python -m tests.harness.drawn_jobs [SEED] [JOBS] [AT ONCE]` prints each job and what differs; its status is 1 if one does.
"""

import asyncio
import contextlib
import csv
import json
import math
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiokafka
import psycopg
from deltalake import DeltaTable
from psycopg import sql

import tidemark
from tests.harness.bench.pipeline_cliffs import records, stages
from tests.harness.bench.readings import BEGIN_MS, readings, source
from tests.harness.mongodb.servers import mongodb
from tests.harness.postgres import postgres
from tests.harness.registry import Registry
from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.library.values import to_python
from tidemark.shared.adapters.mongodb import client_at
from tidemark.shared.language.avro import parse_schema, reader_of, writer_of
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import DropProcessor, ModifyProcessor, StartProcessor, StopProcessor
from tidemark.shared.ports.registry import header_of
from tidemark.shared.runtime.client import RequestRefused

WORKERS: Final = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 1, "control": 0}
_ORDERED: Final = ('"$first"', '"$last"')
"""What they give depends on the order of arrival, which several partitions do not have."""
_REQUEST: Final = 2_000_000
"""Bytes that a producer may send at once."""
_DIGITS: Final = 9
"""Sums of doubles depend on the order of their parts in the last digits."""


_ORIGINS: Final = ("topic", "topic", "registered", "files", "growing", "history", "changes")
_STEP_MS: Final = 10
"""Between the event times of two records."""
_DAYS: Final = 10 * 86_400_000
"""Milliseconds, more than all records take."""
_OTHERS: Final = 200
"""Records of a second stream: they stand in the document of the try-out, which is bounded."""
_JOINS: Final = ("inner", "left", "right", "full")
_KEYS: Final[tuple[Any, ...]] = (
    "$sensor",
    "$n",
    "$text",
    "$place",
    "$tags",
    "$nothing",
    {"$toUpper": "$unit"},
    {"a": "$value", "b": "$more"},
)
"""Of joins, sessions and computations."""
_TARGETS: Final = ("topic", "topic", "avro", "jsonSchema", "json", "csv", "parquet", "sqlite", "postgresql", "mongodb")
_KEYED: Final = ("sqlite", "postgresql", "mongodb")
"""Targets whose rows have a key."""
_ROW: Final = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "long"}],
}
_ROW_JSON: Final = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
_ROOM: Final = {
    "type": "record",
    "name": "Place",
    "fields": [{"name": "room", "type": "int"}, {"name": "floor", "type": "int"}],
}
_NULLABLE: Final = {"n": "long", "text": "string", "value": "double"}
"""Fields that some registered records lack."""
_TYPES: Final[dict[str, Any]] = {
    "sensor": "string",
    "unit": "string",
    "when": "string",
    "at": "long",
    "ok": "boolean",
    "tags": {"type": "array", "items": "string"},
    "place": _ROOM,
    **{name: ["null", each] for name, each in _NULLABLE.items()},
}
_READING: Final = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": name, "type": each} for name, each in _TYPES.items()],
}
_HEADER_BYTES: Final = 5
"""In front of a registry's record."""
_TEXT: Final = {"$convert": {"input": "$sensor", "to": "string", "onError": "?", "onNull": "-"}}
_NUMBER: Final = {"$convert": {"input": "$n", "to": "long", "onError": 0, "onNull": 1}}
_FLAT: Final = {"$project": {"_id": 0, "s": _TEXT, "n": _NUMBER}}
"""In front of targets whose columns have one type each."""
_WHOLE: Final = {"$concat": [_TEXT, "/", {"$toString": _NUMBER}]}
"""A key whose rows are equal, because which of them comes last is not said."""
_SUM: Final = [{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}]
"""When a row is there: each row counts."""


_NEUTRAL: Final[tuple[list[Any], ...]] = (
    [{"$match": {}}],
    [{"$match": {"$expr": True}}],
    [{"$addFields": {"added": {"$add": [1, 2]}}}, {"$unset": "added"}],
    [{"$replaceRoot": {"newRoot": "$$ROOT"}}],
    [{"$redact": "$$KEEP"}],
)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Places:
    """Where targets and sources are: a folder, and URLs of servers."""

    folder: Path
    postgresql: str
    mongodb: str
    registry: str
    reading: int
    """The number of `_READING` in the registry."""


@dataclass(frozen=True)
class Job:
    """One drawn pipeline with its records and the way in which a producer sends them."""

    name: str
    pipeline: list[Any]
    values: list[bytes]
    origin: str
    """Where records come from: "topic"; "files" that are there at the start; "growing" folders; "history", files and then a topic;
    "changes", documents in a table; "registered", a topic of Avro."""
    repeats: list[int]
    """Places in `values` of the records that a producer sends once more, into any partition."""
    partitions: int
    outputs: int
    settings: dict[str, Any]
    parallelism: dict[str, int]
    checkpoint: dict[str, Any]
    watermark: dict[str, Any]
    """Nothing is late, because each partition is in the order of time or because the delay is longer than all records."""
    between: list[str]
    """What happens in the middle of the records, in order: "stop" and start, "rescale", "modify", or "kill" of a process."""
    last: str = ""
    """What happens behind the order to drain: nothing, or "kill"."""
    target: str = "topic"
    config: dict[str, Any] = field(default_factory=dict)
    """Of `$emit` into a topic."""
    matched: Any = "replace"
    """Of `$merge`."""
    synced: bool = True
    """Of changes: rows come before them."""
    places: Places = Places(Path(), "", "", "", 0)

    @property
    def folder(self) -> Path:
        """Of files."""
        return self.places.folder

    @property
    def table(self) -> str:
        """In any database; also a slot and a publication."""
        return self.name.replace("-", "_")

    def document(self) -> dict[str, Any]:
        """As a user writes it."""
        return self._with(self._placed(self.pipeline[0]["$source"]), self._others_from_a_topic)

    def changed(self, chooser: random.Random) -> dict[str, Any]:
        """The document with stages more that change no row, and another interval of checkpoints."""
        document = self.document()
        for _ in range(chooser.randint(1, 3)):
            place = chooser.randint(1, len(document["pipeline"]) - 1)
            document["pipeline"][place:place] = chooser.choice(_NEUTRAL)
        document["options"]["checkpoint"] = _checkpoint(chooser)
        return document

    def alone(self) -> dict[str, Any]:
        """For a try-out, which is given the records: a second stream's stand in the document."""
        return self._with(self._timed(self.pipeline[0]["$source"]), self._others_as_documents)

    def _with(self, source: dict[str, Any], other: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        return {
            "connections": {
                "c": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
                "files": {"type": "files", "path": str(self.folder)},
                "sqlite": {"type": "sql", "url": f"sqlite:///{self.database}"},
                "postgresql": {"type": "sql", "url": self.places.postgresql},
                "mongodb": {"type": "mongodb", "url": self.places.mongodb},
                "registry": {"type": "schemaRegistry", "schemaRegistryUrls": [self.places.registry]},
            },
            "pipeline": [
                {"$source": source},
                *([{"$replaceRoot": {"newRoot": "$fullDocument.doc"}}] if self.origin == "changes" else []),
                *(_other_sources(s, other) for s in self.pipeline[1:]),
                *self._tail(),
            ],
            "options": {
                "checkpoint": self.checkpoint,
                "dlq": {"connectionName": "c", "topic": f"{self.name}-dlq"},
            },
        }

    def _timed(self, source: dict[str, Any]) -> dict[str, Any]:
        ids = {"recordId": "$at", "recordIdHorizon": {"size": 10, "unit": "day"}} if self.repeats else {}
        time = {"timeField": {"$toDate": "$fullDocument.doc.at"}} if self.origin == "changes" else {}
        return {**source, "watermark": self.watermark, **ids, **time}

    def _placed(self, source: dict[str, Any]) -> dict[str, Any]:
        timed, start = self._timed(source), {"auto_offset_reset": "earliest"}
        del timed["connectionName"], timed["topic"]
        # Each file is in the order of time, but what follows one another of several files is not.
        ordered = self.partitions == 1
        path = {"connectionName": "files", "path": f"{self.name}-in/*.json", "format": "json", "ordered": ordered}
        topic = {"connectionName": "c", "topic": f"{self.name}-in", "config": start}
        match self.origin:
            case "topic":
                return {**timed, **topic}
            case "registered":
                return {**timed, **topic, "schemaRegistry": {"connectionName": "registry"}}
            case "changes":
                sync = {"initialSync": {"enable": True}} if self.synced else {}
                return {**timed, "connectionName": "postgresql", "publication": self.table, "slot": self.table, **sync}
            case "history":
                switch = {"$date": {"$numberLong": str(BEGIN_MS + _STEP_MS * self.middle)}}
                return {"history": {**timed, **path}, "then": {**timed, **topic}, "switchAt": switch}
            case _:
                return {**timed, **path, "follow": self.origin == "growing"}

    def _others_from_a_topic(self, source: dict[str, Any]) -> dict[str, Any]:
        start = {"auto_offset_reset": "earliest"}
        return {**source, "topic": f"{self.name}-others", "config": start, "watermark": self.watermark}

    def _others_as_documents(self, source: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in source.items() if name in ("timeField", "schema")}
        return {**kept, "documents": self.others, "watermark": self.watermark}

    @property
    def others(self) -> list[dict[str, Any]]:
        """The records of a second stream, if there is one."""
        streams = any("$join" in stage or "$union" in stage for stage in self.pipeline)
        return readings(_OTHERS, len(self.values)) if streams else []

    @property
    def middle(self) -> int:
        """The number of records before that in whose middle something happens, and at which a history ends."""
        return len(self.values) // 2

    @property
    def database(self) -> Path:
        """A file of SQLite."""
        return self.folder / f"{self.name}.db"

    def _tail(self) -> list[Any]:
        topic = {"connectionName": "c", "topic": f"{self.name}-out", "config": self.config}
        match self.target:
            case "topic":
                return [{"$emit": topic}]
            case "avro" | "jsonSchema":
                schema = ("avro", _ROW) if self.target == "avro" else ("json", _ROW_JSON)
                schemas = {
                    "connectionName": "registry",
                    "valueSchema": dict(zip(("type", "schema"), schema, strict=True)),
                }
                return [_FLAT, {"$emit": {**topic, "config": {}, "schemaRegistry": schemas}}]
            case "json" | "csv" | "parquet":
                emit = {"$emit": {"connectionName": "files", "path": self.name, "format": self.target}}
                return [emit] if self.target == "json" else [_FLAT, emit]
            case "mongodb":
                into, key = {"connectionName": "mongodb", "db": "drawn", "coll": self.table}, "_id"
            case _:
                into, key = {"connectionName": self.target, "table": self.table}, "s"
        rows = {"_id": 0, key: _WHOLE if self.matched == "replace" else _TEXT, "n": _NUMBER}
        return [{"$project": rows}, {"$merge": {"into": into, "on": [key], "whenMatched": self.matched}}]

    def prepare(self) -> None:
        """What a user makes before: a folder of files that may still be empty, tables, a slot."""
        (self.folder / f"{self.name}-in").mkdir()
        if self.target == "sqlite":
            with sqlite3.connect(self.database) as connection:
                connection.execute(f"CREATE TABLE {self.table} (s TEXT PRIMARY KEY, n BIGINT)")
        with psycopg.connect(self.places.postgresql, autocommit=True) as server:
            if self.target == "postgresql":
                server.execute(sql.SQL("CREATE TABLE {} (s text PRIMARY KEY, n bigint)").format(self._table))
            if self.origin == "changes":
                server.execute(sql.SQL("CREATE TABLE {} (id serial PRIMARY KEY, doc json)").format(self._read))
                server.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(self._table, self._read))
                server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.table])

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.table)

    @property
    def _read(self) -> sql.Identifier:
        return sql.Identifier(f"{self.table}_in")

    def insert(self, values: list[bytes]) -> None:
        """Records as rows of the table, in transactions of several."""
        chooser = random.Random(self.name)
        with psycopg.connect(self.places.postgresql, autocommit=True) as server, server.cursor() as cursor:
            place = 0
            while place < len(values):
                some = values[place : place + chooser.choice([1, 30, 1000])]
                place += len(some)
                with server.transaction():
                    statement = sql.SQL("INSERT INTO {} (doc) VALUES (%s)").format(self._read)
                    cursor.executemany(statement, [[value.decode()] for value in some])

    def clear(self) -> None:
        """A server has few slots."""
        if self.origin == "changes":
            with psycopg.connect(self.places.postgresql, autocommit=True) as server:
                server.execute("SELECT pg_drop_replication_slot(%s)", [self.table])

    def parts(self) -> tuple[list[bytes], list[bytes]]:
        """The records in front of the middle, and those behind it, with what comes again."""
        return self.values[: self.middle], [*self.values[self.middle :], *(self.values[n] for n in self.repeats)]

    def overlapping(self) -> tuple[list[bytes], list[bytes]]:
        """What a history and a topic hold: both have the records near the middle, in which the history ends."""
        overlap = self.middle // 3
        return self.values[: self.middle + overlap], self.values[self.middle - overlap :]

    def sent(self, values: list[bytes]) -> list[bytes]:
        """As they lie in the topic."""
        if self.origin != "registered":
            return values
        write, header = writer_of(parse_schema(_READING)), header_of(self.places.reading)
        return [header + write(parse_json(value)) for value in values]

    def put(self, number: int, values: list[bytes]) -> None:
        """As files, a file a partition, each of which appears whole."""
        for part in range(self.partitions):
            name = f"{number}-{part}.json"
            (self.folder / f"{self.name}.{name}").write_bytes(
                b"".join(v + b"\n" for v in values[part :: self.partitions])
            )
            (self.folder / f"{self.name}.{name}").rename(self.folder / f"{self.name}-in" / name)

    def found(self) -> list[Any]:
        """The rows of files and tables."""
        folder = self.folder / self.name
        # A process that was killed may have left staged files.
        files = [p for p in sorted(folder.rglob(f"*.{self.target}*")) if p.relative_to(folder).parts[0][0] != "_"]
        match self.target:
            case "json":
                return [to_python(parse_json(line)) for p in files for line in p.read_bytes().splitlines()]
            case "csv":
                return [dict(row) for p in files for row in csv.DictReader(p.read_text().splitlines())]
            case "parquet":
                table = DeltaTable(str(folder)).to_pyarrow_table() if DeltaTable.is_deltatable(str(folder)) else None
                return [] if table is None else table.to_pylist()
            case "mongodb":
                with client_at(self.places.mongodb, 10_000) as client:
                    return [{"s": row["_id"], "n": int(row["n"])} for row in client["drawn"][self.table].find()]
            case "postgresql":
                with psycopg.connect(self.places.postgresql) as server:
                    rows = server.execute(sql.SQL("SELECT s, n FROM {}").format(self._table)).fetchall()
            case _:
                with sqlite3.connect(self.database) as connection:
                    rows = connection.execute(f"SELECT s, n FROM {self.table}").fetchall()
        return [{"s": s, "n": n} for s, n in rows]

    def wanted(self, documents: list[Any]) -> list[Any]:
        """The rows of files and tables, as `found` reads them."""
        if self.target in _KEYED:
            rows = [(row["_id" if self.target == "mongodb" else "s"], int(row["n"])) for row in documents]
            sums: Counter[str] = Counter()
            for key, number in rows:
                sums[key] = number if self.matched == "replace" else sums[key] + number
            return [{"s": key, "n": number} for key, number in sums.items()]
        if self.target == "csv":
            return [{"s": document["s"], "n": str(int(document["n"]))} for document in documents]
        return documents


def drawn(seed: int, places: Places) -> Job:
    """The job of a seed."""
    chooser = random.Random(seed)
    pipeline: list[Any] = []
    # What looks at the clock differs from one moment to the next.
    while not pipeline or "$$NOW" in json.dumps(pipeline):
        middle = stages(chooser)
        if chooser.random() < 0.3:
            middle += stages(chooser)
        if chooser.random() < 0.1:
            other = [source(declared=chooser.random() < 0.5), {"$match": {"n": {"$gte": 0}}}]
            middle.append({"$union": {"pipelines": [other]}})
        if chooser.random() < 0.2:
            middle.append({"$compute": {"class": "tests.harness.computations:Marks", "key": chooser.choice(_KEYS)}})
        if chooser.random() < 0.3:
            chooser.shuffle(middle)
        pipeline = [source(declared=chooser.random() < 0.5), *(_varied(chooser, stage) for stage in middle)]
    ordered = any(word in json.dumps(pipeline) for word in _ORDERED)
    values = records(chooser, chooser.choice([1, 37, 1000, 5000])).values.to_pylist()
    origin = chooser.choice(_ORIGINS)
    if origin in ("changes", "registered"):
        pipeline[0] = source(declared=False)
    if origin == "registered":
        values = _registrable(chooser, len(values))
    again = chooser.choice([0, 0, 1, 50]) if origin not in ("history", "changes") else 0
    repeats = [chooser.randrange(len(values)) for _ in range(again)]
    tasks = {"source": chooser.choice([1, 2]), "operator": chooser.choice([1, 2]), "sink": chooser.choice([1, 2])}
    return Job(
        name=f"drawn-{seed}",
        pipeline=pipeline,
        values=values,
        origin=origin,
        repeats=repeats,
        partitions=1 if ordered else chooser.choice([1, 3, 8]),
        outputs=chooser.choice([1, 4]),
        settings={
            "compression_type": chooser.choice([None, "gzip", "snappy", "lz4", "zstd"]),
            "linger_ms": chooser.choice([0, 5, 100]),
            "max_batch_size": chooser.choice([1, 1000, 1_000_000]),
        },
        parallelism={} if ordered else tasks,
        checkpoint=_checkpoint(chooser),
        # A file of a folder that grows may be found when another one has been read to its end.
        watermark=_watermark(_DAYS if origin == "growing" else chooser.choice([_DAYS, 0, 0, 70])),
        between=chooser.choices(
            ["kill", "modify", "stop", "stop" if ordered else "rescale"], k=chooser.choice([0, 1, 1, 2, 3])
        ),
        last=chooser.choice(["", "", "kill"]),
        target=chooser.choice(_TARGETS),
        config=_config(chooser),
        matched=chooser.choice(["replace", _SUM]),
        synced=chooser.random() < 0.7,
        places=places,
    )


def _registrable(chooser: random.Random, count: int) -> list[bytes]:
    """Records that a schema describes, some of whose fields are null in some of them."""
    found = readings(count, chooser.randrange(1000))
    part = chooser.choice([0.0, 0.01, 0.5])
    for each in found:
        each |= {name: None for name in _NULLABLE if chooser.random() < part}
    return [json.dumps(each).encode() for each in found]


def _varied(chooser: random.Random, stage: Any) -> Any:
    """The stage with keys that some documents lack or have of another type, a join of any type, a window of any size and place."""
    match stage:
        case {"$join": join}:
            within = {side: _span(chooser) for side in chooser.choice([["before"], ["after"], ["before", "after"]])}
            keys = {"leftKey": chooser.choice(_KEYS), "rightKey": chooser.choice(_KEYS)}
            if chooser.random() < 0.5:
                keys = dict.fromkeys(keys, "$sensor")
            return {"$join": {**join, **keys, "within": within, "type": chooser.choice(_JOINS)}}
        case {"$sessionWindow": window}:
            return {"$sessionWindow": {**window, "partitionBy": chooser.choice(_KEYS), "gap": _span(chooser)}}
        case {"$tumblingWindow": window}:
            offset = {"offsetFromUtc": chooser.choice([-3, 0, 7]), "unit": "ms"}
            return {"$tumblingWindow": {**window, "interval": _span(chooser), "offset": offset}}
        case _:
            return stage


def _span(chooser: random.Random) -> dict[str, Any]:
    return {"size": chooser.choice([10, 70, 1000, 7000]), "unit": "ms"}


def _other_sources(stage: Any, other: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The stage with another source of its second stream."""
    match stage:
        case {"$join": {"from": [first, *rest], **options}}:
            return {"$join": {**options, "from": [{"$source": other(first["$source"])}, *rest]}}
        case {"$union": {"pipelines": [[first, *rest]]}}:
            return {"$union": {"pipelines": [[{"$source": other(first["$source"])}, *rest]]}}
        case _:
            return stage


def _checkpoint(chooser: random.Random) -> dict[str, Any]:
    """Aligned, or after a time not."""
    found: dict[str, Any] = {"interval": {"size": chooser.choice([200, 1000, 5000]), "unit": "ms"}}
    if chooser.random() < 0.5:
        found["alignmentTimeout"] = {"size": chooser.choice([0, 50]), "unit": "ms"}
    return found


def _watermark(delay_ms: int) -> dict[str, Any]:
    return {"strategy": "boundedDisorder", "maxDelay": {"size": delay_ms, "unit": "ms"}}


def _config(chooser: random.Random) -> dict[str, Any]:
    """Of `$emit`: keys and headers that no document lacks."""
    found: dict[str, Any] = {}
    if chooser.random() < 0.5:
        found["key"] = chooser.choice(
            ["$sensor", "$place.room", {"a": "$n", "b": "$tags"}, {"$ifNull": ["$text", "$n"]}]
        )
    if chooser.random() < 0.3:
        found["headers"] = chooser.choice(
            [{"a": "$sensor", "b": "$place"}, {"a": "b"}, [{"k": "a", "v": {"$ifNull": ["$n", 0]}}]]
        )
    if chooser.random() < 0.5:
        found["outputFormat"] = chooser.choice(["canonicalJson", "relaxedJson"])
    return found


def _plain(value: Any) -> Any:
    """Rounded, lists without their order."""
    if isinstance(value, float):
        return value if not math.isfinite(value) or value == 0 else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted((_plain(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True, default=str))
    return value


def _counted(rows: list[Any]) -> Counter[str]:
    return Counter(json.dumps(_plain(row), sort_keys=True, default=str) for row in rows)


async def _topic(there: Installation, topic: str) -> list[Any]:
    return [to_python(parse_json(r.value or b"null")) async for r in committed_records(there.log, topic)]


async def _registered(there: Installation, job: Job) -> list[Any]:
    read = reader_of(parse_schema(_ROW))
    values = [(r.value or b"")[_HEADER_BYTES:] async for r in committed_records(there.log, f"{job.name}-out")]
    return [to_python(parse_json(read(value) if job.target == "avro" else value)) for value in values]


async def run(there: Installation, folder: Path, job: Job) -> list[str]:
    """What differs; nothing where all is as it must be."""
    name = ProcessorName(job.name)
    topics = {f"{name}-in": job.partitions, f"{name}-others": 1, f"{name}-out": job.outputs, f"{name}-dlq": 1}
    for topic, partitions in topics.items():
        await there.log.create_topic(topic, partitions, {"retention.ms": "-1"})
    job.prepare()
    first, second = job.overlapping() if job.origin == "history" else job.parts()
    if job.origin == "files":
        job.put(0, first)
        job.put(1, second)
    if job.origin == "history":
        job.put(0, first)
    if job.origin == "changes":
        await asyncio.to_thread(job.insert, first)
    await there.ensure_started(name, json.dumps(job.document()), job.parallelism)
    bootstrap = there.cluster.bootstrap
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=_REQUEST, **job.settings) as out:
        await _sent(out, f"{name}-others", [json.dumps(each).encode() for each in job.others], 1)
        if job.origin in ("topic", "registered"):
            await _sent(out, f"{name}-in", job.sent(first), job.partitions)
        if job.origin == "growing":
            job.put(0, first)
        await _disturbed(there, job)
        if job.origin in ("topic", "history", "registered"):
            await _sent(out, f"{name}-in", job.sent(second), job.partitions)
        if job.origin == "growing":
            job.put(1, second)
        if job.origin == "changes":
            await asyncio.to_thread(job.insert, second)
    if await _until(there, name, "RUNNING", "FAILED", "FINISHED") == "RUNNING":
        # Files that were there at the start end by themselves, beside a second stream or just before they are told to.
        with contextlib.suppress(RequestRefused):
            await there.client.request(StopProcessor(there.client.unique(), name, drain=True))
        if job.last:
            _kill(there, random.Random(job.name))
    status = await there.until_ended(name)
    if status.state != "FINISHED":
        return [f"{status.state}: {status.reason}"]
    return await _compared(there, folder, job)


async def _sent(out: aiokafka.AIOKafkaProducer, topic: str, values: list[bytes], partitions: int) -> None:
    await asyncio.gather(*[await out.send(topic, value, partition=n % partitions) for n, value in enumerate(values)])


async def _until(there: Installation, name: ProcessorName, *states: str) -> str:
    async for status in there.client.watch(name):
        if status.state in states:
            return status.state
    message = "the registry ended"
    raise RuntimeError(message)


async def _disturbed(there: Installation, job: Job) -> None:
    """What happens in the middle, each some time after what was before it."""
    name, chooser = ProcessorName(job.name), random.Random(job.name)
    for what in job.between:
        if await _until(there, name, "RUNNING", "FAILED", "FINISHED") != "RUNNING":
            return
        await asyncio.sleep(chooser.random() * 2)
        with contextlib.suppress(RequestRefused):  # it has ended
            match what:
                case "kill":
                    _kill(there, chooser)
                case "modify":
                    await _modify(there, job, chooser)
                case "rescale":
                    tasks = {service: chooser.choice([1, 2]) for service in job.parallelism}
                    await there.client.request(ModifyProcessor(there.client.unique(), name, parallelism=tasks))
                case _:
                    await there.client.request(StopProcessor(there.client.unique(), name))
                    if (await there.until_ended(name)).state == "STOPPED":
                        await there.client.request(StartProcessor(there.client.unique(), name))
        await asyncio.sleep(chooser.random() * 2)


def _kill(there: Installation, chooser: random.Random) -> None:
    # Not the broker: a producer's own records may be lost with it, by its settings.
    places = {place: pid for place, pid in there.cluster.pids().items() if place != "broker"}
    with contextlib.suppress(ProcessLookupError):  # another job's kill was first
        os.kill(places[chooser.choice(sorted(places))], signal.SIGKILL)


async def _modify(there: Installation, job: Job, chooser: random.Random) -> None:
    changed = json.dumps(job.changed(chooser))
    try:
        await there.client.request(ModifyProcessor(there.client.unique(), ProcessorName(job.name), changed))
    except RequestRefused as error:
        _say(f"{job.name}: not changed: {error}")


async def _compared(there: Installation, folder: Path, job: Job) -> list[str]:
    letters = await _topic(there, f"{job.name}-dlq")
    alone = await asyncio.to_thread(_alone, job)
    if job.target == "topic":
        rows, wanted = await _topic(there, f"{job.name}-out"), alone.documents
    elif job.target in ("avro", "jsonSchema"):
        rows, wanted = await _registered(there, job), alone.documents
    else:
        rows, wanted = await asyncio.to_thread(job.found), job.wanted(alone.documents)
    found = _differ("rows", _counted(rows), _counted(wanted))
    got, reasons = _reasons(letters), _reasons(alone.dead_letters)
    if job.repeats or job.origin == "history":
        # A record that cannot be decoded has no id and no event time: it is a dead letter as often as it is read.
        got = Counter(
            {reason: min(count, reasons[reason]) if reasons[reason] else count for reason, count in got.items()}
        )
    found += _differ("dead letters", got, reasons)
    try:
        audited: Audited = await audit_local(ProcessorName(job.name), folder)
    except NotAuditable as error:
        _say(f"{job.name}: not audited: {error}")
    except AuditFailed as error:
        found.append(f"audit: {error}")
    else:
        if audited.records != len(job.values) + len(job.repeats):
            found.append(f"audit: {audited.records} records for {len(job.values)} and {len(job.repeats)} again")
    came = f"{len(job.values)} records of {job.origin}, {len(rows)} rows into {job.target}, {len(letters)} dead letters"
    _say(f"{job.name}: {came} {' '.join([*job.between, job.last and 'kill behind the drain'])}")
    return found


def _alone(job: Job) -> tidemark.TryOutResult:
    values = [to_python(parse_json(value)) for value in job.values]
    if job.origin == "changes":
        values = [{"fullDocument": {"doc": value}} for value in values]
    return tidemark.try_out(job.alone(), values)


def _reasons(letters: list[Any]) -> Counter[str]:
    return Counter(str(letter["errInfo"]["reason"]) for letter in letters)


def _differ(what: str, got: Counter[str], wanted: Counter[str]) -> list[str]:
    if got == wanted:
        return []
    more, less = _few(got - wanted), _few(wanted - got)
    return [f"{what}: {got.total()} for {wanted.total()}; more: {more}; missing: {less}"]


def _few(counter: Counter[str]) -> str:
    return "; ".join(f"{n} x {text[:300]}" for text, n in counter.most_common(3)) or "none"


async def jobs(seeds: Iterable[int], folder: Path, at_once: int) -> dict[int, list[str]]:
    """Each seed's job on an installation of their own: what differs, of those where something does."""
    turn, wrong, targets = asyncio.Semaphore(at_once), {}, folder / "targets"
    targets.mkdir()

    async def one(there: Installation, seed: int, places: Places) -> None:
        async with turn:
            job = drawn(seed, places)
            found = await run(there, folder, job)
            if found:
                wrong[seed] = found
                _say("\n  ".join([f"{job.name} differs:", *found, json.dumps(job.document())]))
            await there.client.request(DropProcessor(there.client.unique(), ProcessorName(job.name)))
            await asyncio.to_thread(job.clear)

    async with _servers(targets) as places, installation(folder, {}, WORKERS) as there:
        await asyncio.gather(*(one(there, seed, places) for seed in seeds))
    return wrong


@contextlib.asynccontextmanager
async def _servers(folder: Path) -> AsyncIterator[Places]:
    registry = await Registry().start()
    try:
        with postgres(logical=True) as url, mongodb() as servers:
            yield Places(folder, url, servers.replicas, registry.url, registry.add("readings", _READING))
    finally:
        await registry.stop()


def main(seed: int = 1, count: int = 20, at_once: int = 3) -> int:
    """1 if a job differs."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(jobs(range(seed, seed + count), Path(folder), at_once))
    _say(f"{count} jobs, {len(wrong)} differ: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))
