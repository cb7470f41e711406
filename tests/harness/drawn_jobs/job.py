"""One drawn pipeline, with the places that its records come from and its rows go to."""

import csv
import json
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgpack
import psycopg
from deltalake import DeltaTable
from psycopg import sql

from tests.harness.bench.readings import BEGIN_MS, readings
from tests.harness.drawn_jobs.servers import TWICE, Breaking, Told, Weather
from tidemark.services.library.documents import to_python
from tidemark.shared.adapters.mongodb import client_at
from tidemark.shared.language.avro import parse_schema, writer_of
from tidemark.shared.language.protobuf.reading import reader_of as message_reader_of
from tidemark.shared.language.protobuf.writing import writer_of as message_writer_of
from tidemark.shared.language.values import parse_json
from tidemark.shared.ports.registry import header_of
from tidemark.shared.process.protobuf_compiler import compiled

_STEP_MS: Final = 10
"""Between the event times of two records."""
_OTHERS: Final = 200
"""Records of a second stream: they stand in the document of the try-out, which is bounded."""
KEYED: Final = ("sqlite", "postgresql", "mongodb")
"""Targets whose rows have a key."""
ROW: Final = {
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
NULLABLE: Final = {"n": "long", "text": "string", "value": "double"}
"""Fields that some registered records lack."""
_TYPES: Final[dict[str, Any]] = {
    "sensor": "string",
    "unit": "string",
    "when": "string",
    "at": "long",
    "ok": "boolean",
    "tags": {"type": "array", "items": "string"},
    "place": _ROOM,
    **{name: ["null", each] for name, each in NULLABLE.items()},
}
READING: Final = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": name, "type": each} for name, each in _TYPES.items()],
}
LATER: Final = {
    **READING,
    "fields": [
        *({"name": name, "type": each} for name, each in _TYPES.items() if name != "unit"),
        {"name": "extra", "type": ["null", "long"], "default": None},
    ],
}
"""The schema a release later: a field less, and one more."""
MESSAGE: Final = """syntax = "proto3";
message Reading {
  string sensor = 1; string unit = 2; string when = 3; int64 at = 4; bool ok = 5; repeated string tags = 6; Place place = 7;
  optional int64 n = 8; optional string text = 9; optional double value = 10;
}
message Place { int32 room = 1; int32 floor = 2; }
"""
_ROW_MESSAGE: Final = 'syntax = "proto3"; message Row { string s = 1; int64 n = 2; }'
FORMS: Final[dict[str, tuple[str, Any]]] = {
    "avro": ("AVRO", READING),
    "later": ("AVRO", LATER),
    "json": ("JSON", {"type": "object"}),
    "message": ("PROTOBUF", MESSAGE),
}
"""In which records of one topic come: the registry's kind and schema."""
HEADER_BYTES: Final = 5
"""In front of a registry's record."""
_TEXT: Final = {"$convert": {"input": "$sensor", "to": "string", "onError": "?", "onNull": "-"}}
_NUMBER: Final = {"$convert": {"input": "$n", "to": "long", "onError": 0, "onNull": 1}}
_WAITS: Final = {"connectionTimeoutSec": 1, "requestTimeoutSec": 1}
_ASKED: Final = {
    "$https": {
        "connectionName": "told", "path": "twice", "parameters": {"n": _NUMBER}, "as": "asked", "onError": "ignore",
        "config": _WAITS,
    }
}  # fmt: skip
_ANSWERED: Final = {
    "$addFields": {
        "asked": {"$cond": [{"$eq": [{"$mod": [_NUMBER, TWICE]}, 0]}, "$$REMOVE", {"n": {"$multiply": [_NUMBER, 2]}}]}
    }
}
SENSORS: Final = [{"_id": f"s{n:03d}", "made": n} for n in range(0, 100, 3)]
"""What a collection says of some of them."""


def _looked_up(table: dict[str, Any]) -> dict[str, Any]:
    return {"$lookup": {"from": table, "localField": "sensor", "foreignField": "_id", "as": "asked"}}


ASKS: Final[dict[str, tuple[Any, Any]]] = {
    "https": (_ASKED, _ANSWERED),
    "mongodb": (
        _looked_up({"connectionName": "mongodb", "db": "drawn", "coll": "sensors"}),
        _looked_up({"documents": SENSORS}),
    ),
}
"""Stages that ask a server about each record, and what says the same without it."""
_FLAT: Final = {"$project": {"_id": 0, "s": _TEXT, "n": _NUMBER}}
"""In front of targets whose columns have one type each."""
_WHOLE: Final = {"$concat": [_TEXT, "/", {"$toString": _NUMBER}]}
"""A key whose rows are equal, because which of them comes last is not said."""
_NEUTRAL: Final[tuple[list[Any], ...]] = (
    [{"$match": {}}],
    [{"$match": {"$expr": True}}],
    [{"$addFields": {"added": {"$add": [1, 2]}}}, {"$unset": "added"}],
    [{"$replaceRoot": {"newRoot": "$$ROOT"}}],
    [{"$redact": "$$KEEP"}],
)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Places:
    """Where targets and sources are: a folder, and URLs of servers."""

    folder: Path
    postgresql: str
    mongodb: str
    registry: str
    numbers: dict[str, int]
    """Of `FORMS` in the registry."""
    breaking: str
    """The same MongoDB, by a way that breaks."""
    told: Told
    way: Breaking | None = None
    """That which breaks."""


@dataclass(frozen=True)
class Job:
    """One drawn pipeline with its records and the way in which a producer sends them."""

    name: str
    pipeline: list[Any]
    values: list[bytes]
    origin: str
    """Where records come from: "topic"; "files" that are there at the start; "growing" folders; "history", files and then a topic;
    "changes", documents in a table; "registered", a topic of a registry's schemas; "packed", a topic of MessagePack."""
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
    """What happens in the middle of the records, in order: "stop" and start, "rescale", "modify", "resize" (other numbers of tasks while
    it is stopped), "both" (other stages and other numbers), or "kill" of a process."""
    pause_s: float = 2.0
    """The longest time in front of and behind each of these."""
    slowly: bool = False
    """Records in front of the middle come bit by bit meanwhile."""
    last: str = ""
    """What happens behind the order to drain: nothing, or "kill"."""
    target: str = "topic"
    config: dict[str, Any] = field(default_factory=dict)
    """Of `$emit` into a topic."""
    matched: Any = "replace"
    """Of `$merge`."""
    synced: bool = True
    """Of changes: rows come before them."""
    forms: tuple[str, ...] = ("avro",)
    """Of registered records, in turn."""
    run: int = 1
    """So many of one form come one behind the other."""
    asks: str = ""
    """Which of `ASKS` stands behind the source."""
    early: bool = False
    """A topic behind a history has its records before the job begins."""
    bounds: dict[str, Any] = field(default_factory=dict)
    """`options.tasks`."""
    places: Places = Places(Path(), "", "", "", {}, "", Told(Weather(0)))

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
        return self._with(self._placed(self.pipeline[0]["$source"]), self._others_from_a_topic, 0)

    def changed(self, chooser: random.Random) -> dict[str, Any]:
        """The document with stages more that change no row, and another interval of checkpoints."""
        document = self.document()
        for _ in range(chooser.randint(1, 3)):
            place = chooser.randint(1, len(document["pipeline"]) - 1)
            document["pipeline"][place:place] = chooser.choice(_NEUTRAL)
        document["options"]["checkpoint"] = checkpoint(chooser)
        return document

    def alone(self) -> dict[str, Any]:
        """For a try-out, which is given the records: a second stream's stand in the document."""
        return self._with(self._timed(self.pipeline[0]["$source"]), self._others_as_documents, 1)

    def _with(
        self, source: dict[str, Any], other: Callable[[dict[str, Any]], dict[str, Any]], alone: int
    ) -> dict[str, Any]:
        return {
            "connections": {
                "c": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
                "files": {"type": "files", "path": str(self.folder)},
                "sqlite": {"type": "sql", "url": f"sqlite:///{self.database}"},
                "postgresql": {"type": "sql", "url": self.places.postgresql},
                "mongodb": {"type": "mongodb", "url": self.places.breaking},
                "told": {"type": "https", "url": self.places.told.url},
                "registry": {"type": "schemaRegistry", "schemaRegistryUrls": [self.places.registry]},
            },
            "pipeline": [
                {"$source": source},
                *([{"$replaceRoot": {"newRoot": "$fullDocument.doc"}}] if self.origin == "changes" else []),
                *([ASKS[self.asks][alone]] if self.asks else []),
                *(_other_sources(s, other) for s in self.pipeline[1:]),
                *self._tail(),
            ],
            "options": {
                "checkpoint": self.checkpoint,
                "dlq": {"connectionName": "c", "topic": f"{self.name}-dlq"},
                **({"tasks": self.bounds} if self.bounds else {}),
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
            case "packed":
                return {**timed, **topic, "format": "messagePack"}
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
            case "https":
                tell = {"connectionName": "told", "path": f"told/{self.name}", "method": "POST", "config": _WAITS}
                return [{"$https": tell}]
            case "avro" | "jsonSchema" | "protobuf":
                schema = {
                    "avro": ("avro", ROW),
                    "jsonSchema": ("json", _ROW_JSON),
                    "protobuf": ("protobuf", _ROW_MESSAGE),
                }[self.target]
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

    def halves(self) -> tuple[list[bytes], list[bytes]]:
        """The records of a history and of its topic, or those in front of the middle and those behind it, with what comes again."""
        return self._overlapping() if self.origin == "history" else self._parts()

    def _parts(self) -> tuple[list[bytes], list[bytes]]:
        return self.values[: self.middle], [*self.values[self.middle :], *(self.values[n] for n in self.repeats)]

    def _overlapping(self) -> tuple[list[bytes], list[bytes]]:
        # Both have the records near the middle, in which the history ends.
        overlap = self.middle // 3
        return self.values[: self.middle + overlap], self.values[self.middle - overlap :]

    def sent(self, values: list[bytes]) -> list[bytes]:
        """As they lie in the topic."""
        if self.origin == "packed":
            return [msgpack.packb(json.loads(value)) for value in values]
        if self.origin != "registered":
            return values
        return [self._record(value) for value in values]

    def partition_of(self, place: int, value: bytes) -> int:
        """Where the record at a place of those that are sent together goes."""
        return place % self.partitions

    def _record(self, value: bytes) -> bytes:
        document = parse_json(value)
        form = form_of(int(document["at"]), self.forms, self.run)
        return header_of(self.places.numbers[form]) + written(form, document, value)

    def put(self, number: int, values: list[bytes]) -> None:
        """As files, a file a partition, each of which appears whole."""
        for part in range(self.partitions):
            name = f"{number:02d}-{part}.json"
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
        if self.target in KEYED:
            rows = [(row["_id" if self.target == "mongodb" else "s"], int(row["n"])) for row in documents]
            sums: Counter[str] = Counter()
            for key, number in rows:
                sums[key] = number if self.matched == "replace" else sums[key] + number
            return [{"s": key, "n": number} for key, number in sums.items()]
        if self.target == "csv":
            return [{"s": document["s"], "n": str(int(document["n"]))} for document in documents]
        return documents


def form_of(at: int, forms: tuple[str, ...], run: int) -> str:
    """The form of a record with this time."""
    return forms[at // _STEP_MS // run % len(forms)]


def written(form: str, document: Any, text: bytes) -> bytes:
    """A record behind its number."""
    return text if form == "json" else _writer(form)(document)


@cache
def _writer(form: str) -> Callable[[Any], bytes]:
    if form == "message":
        return message_writer_of(compiled(MESSAGE, {}), "Reading")
    return writer_of(parse_schema(FORMS[form][1]))


@cache
def message_reader(text: str = _ROW_MESSAGE) -> Callable[[bytes], bytes]:
    """From a message behind its number to JSON."""
    return message_reader_of(compiled(text, {}))


def _other_sources(stage: Any, other: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The stage with another source of its second stream."""
    match stage:
        case {"$join": {"from": [first, *rest], **options}}:
            return {"$join": {**options, "from": [{"$source": other(first["$source"])}, *rest]}}
        case {"$union": {"pipelines": [[first, *rest]]}}:
            return {"$union": {"pipelines": [[{"$source": other(first["$source"])}, *rest]]}}
        case _:
            return stage


def checkpoint(chooser: random.Random) -> dict[str, Any]:
    """Aligned, or after a time not."""
    found: dict[str, Any] = {"interval": {"size": chooser.choice([200, 1000, 5000]), "unit": "ms"}}
    if chooser.random() < 0.5:
        found["alignmentTimeout"] = {"size": chooser.choice([0, 50]), "unit": "ms"}
    return found
