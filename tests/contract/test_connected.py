"""`tidemark check --connect`: what a document names is looked at where it is, on every kind of target that there is."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from tests.harness.mongodb.servers import Servers
from tidemark.services.cli import connected
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.cli.run import check_surroundings
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.problems import DocumentError

_OWN: dict[str, Any] = {"$source": {"documents": [{"a": 1, "id": 1, "name": "n"}]}}


async def _found(connection: dict[str, Any], *stages: dict[str, Any], **options: Any) -> list[DocumentError]:
    document = {"connections": {"c": connection}, "pipeline": list(stages), "options": options}
    return await refused_by_what_is_there(parse(document))


def _merge(table: str, on: str) -> dict[str, Any]:
    return {"$merge": {"into": {"connectionName": "c", "table": table}, "on": on}}


@pytest.fixture
def database(url: str) -> dict[str, Any]:
    """A connection to a database with a table `t` (id, name not null, note)."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("create table t (id integer primary key, name varchar(20) not null, note text)"))
    engine.dispose()
    return {"type": "sql", "url": url}


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([_merge("t", "id")], []),
        ([{"$project": {"_id": 0, "id": "$a", "name": "$b"}}, _merge("t", "id")], []),
        ([_merge("nowhere", "id")], ["pipeline[1].$merge into nowhere: no such table"]),
        ([_merge("t", "name")], ["`on` is (name), which is no unique key of the table; the table has id"]),
        (
            [{"$project": {"_id": 0, "id": "$a", "nmae": "$b"}}, _merge("t", "id")],
            ["name: the column takes no null, and no document has", "nmae: the table has no such column"],
        ),
        ([{"$lookup": {"from": {"connectionName": "c", "table": "t"}, "localField": "a", "foreignField": "id", "as": "x"}}], []),
        (
            [{"$lookup": {"from": {"connectionName": "c", "table": "t"}, "localField": "a", "foreignField": "ix", "as": "x"}}],
            ["foreignField: the table has no column ix; it has id, name, note"],
        ),
        (
            [{"$lookup": {"from": {"connectionName": "c", "table": "no"}, "localField": "a", "foreignField": "id", "as": "x"}}],
            ["table no: no such table or view"],
        ),
    ],
)  # fmt: skip
async def test_tables_columns_and_unique_keys(database: dict[str, Any], stages: list[Any], said: list[str]) -> None:
    """Each is looked at in the database, and every error told with the stage."""
    found = [str(error) for error in await _found(database, _OWN, *stages)]
    assert len(found) == len(said), found
    for text, wanted in zip(found, said, strict=True):
        assert wanted in text
        assert "pipeline[" in text


@pytest.mark.mongodb
async def test_collections_and_what_a_server_can_do(mongodb_servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, and whether the server has the transactions that a stage needs; a lookup's collection; a server that is away."""
    into = {"connectionName": "c", "db": "checked", "coll": "rows"}
    asks = {"$lookup": {"from": into, "localField": "a", "foreignField": "b", "as": "x"}}
    for url, pipelined in ((mongodb_servers.alone, 1), (mongodb_servers.replicas, 0)):
        server = {"type": "mongodb", "url": url}
        assert await _found(server, _OWN, asks, {"$merge": {"into": into}}) == []
        assert await _found(server, _OWN, {"$emit": into}) == []
        (error,) = await _found(server, _OWN, {"$merge": {"into": into, "on": "a"}})
        assert "no unique key of the collection" in str(error)
        counted = {"into": into, "whenMatched": [{"$set": {"n": {"$add": ["$n", 1]}}}]}
        assert len(await _found(server, _OWN, {"$merge": counted})) == pipelined
    monkeypatch.setattr(connected, "ANSWER_S_MAX", 2)
    away = {"type": "mongodb", "url": "mongodb://me:hunter2@127.0.0.1:9/"}
    (error,) = await _found(away, _OWN, {"$emit": into})
    assert "answer" in str(error) or "127.0.0.1:9" in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.kafka
async def test_topics(kafka_broker: str, unique_name: Callable[[str], str]) -> None:
    """One that is read has to be there, one that is written may be made if the connection has it so; the cluster is named."""
    there, gone, compacted = unique_name("there"), unique_name("gone"), unique_name("compacted")
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker, client="test"))
    await log.create_topic(there, 2)
    await log.create_topic(compacted, 1, {"cleanup.policy": "compact"})
    await log.close()
    kafka = {"type": "kafka", "bootstrapServers": kafka_broker}

    def through(source: str, sink: str, **emit: Any) -> list[dict[str, Any]]:
        target = {"connectionName": "c", "topic": sink, **emit}
        return [{"$source": {"connectionName": "c", "topic": source}}, {"$emit": target}]

    assert await _found(kafka, *through(there, gone), dlq={"connectionName": "c", "topic": there}) == []
    (error,) = await _found(kafka, *through(gone, there))
    assert f"pipeline[0].$source: $source.topic: {gone} not found in the cluster {kafka_broker}" in str(error)
    (error,) = await _found(kafka, *through(there, compacted))
    assert "is compacted, and records have no key" in str(error)
    assert await _found(kafka, *through(there, compacted, config={"key": "$a"})) == []
    (error,) = await _found({**kafka, "config": {"emit_topic_partitions": 0}}, *through(there, gone))
    assert f"{gone} is not in the cluster {kafka_broker}" in str(error)


async def test_what_does_not_answer_is_named_and_hides_nothing() -> None:
    """A broker and a database where nobody listens: both are told, without the password."""
    connections = {
        "k": {"type": "kafka", "bootstrapServers": "127.0.0.1:9"},
        "s": {"type": "sql", "url": "postgresql://me:hunter2@127.0.0.1:9/db"},
    }
    into = {"connectionName": "s", "table": "t"}
    pipeline = [{"$source": {"connectionName": "k", "topic": "t"}}, {"$merge": {"into": into, "on": "id"}}]
    found = await refused_by_what_is_there(parse({"connections": connections, "pipeline": pipeline}))
    assert [error.path.partition(".")[0] or str(error)[:11] for error in found] == ["pipeline[0]", "pipeline[1]"]
    assert "127.0.0.1" in str(found[0])
    assert "hunter2" not in str(found)


async def test_a_server_of_https_takes_connections_and_speaks_tls() -> None:
    """It is asked nothing: a request might do something there."""
    asked: list[bytes] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    asks, tells = {"$https": {"connectionName": "c", "as": "x"}}, {"$https": {"connectionName": "c"}}
    assert await _found({"type": "https", "url": f"http://{address}/v1"}, _OWN, asks, tells) == []
    assert not any(asked)
    server.close()
    for url, said in ((f"http://{address}", "Connect call failed"), ("http://nowhere.invalid", "nowhere.invalid:80")):
        found = [str(error) for error in await _found({"type": "https", "url": url}, _OWN, asks, tells)]
        assert [error.partition(":")[0] for error in found] == ["pipeline[1].$https", "pipeline[2].$https"]
        assert all("is not reached" in error and said in error for error in found), found


async def test_files_and_folders(tmp_path: Path) -> None:
    """A glob that nothing matches, a lookup's file, and folders that cannot be written to."""
    closed, plain = tmp_path / "closed", tmp_path / "plain"
    plain.write_text("{}")
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    files = {"type": "files", "path": str(tmp_path)}
    reads = {"$source": {"connectionName": "c", "path": "*.json", "format": "json"}}
    writes = {"$emit": {"connectionName": "c", "path": "plain/out", "format": "json"}}
    asks = {"$lookup": {"from": {"connectionName": "c", "table": "t.json"}, "localField": "a", "foreignField": "b", "as": "x"}}  # fmt: skip
    found = [str(error) for error in await _found(files, reads, asks, writes, dlq={"path": str(closed / "x")})]
    assert "expected at least one file that matches" in found[0]
    assert "t.json: no such file" in found[1]
    assert "plain is a file; the output is a folder" in found[2]
    assert [text for text in found[3:] if "nothing may be written there" not in text] == []
    assert len(found) == (3 if os.access(closed, os.W_OK) else 4)  # root may write anywhere


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"path": "t", "format": "parquet"}, []),
        ({"path": "t/n=1/*.parquet", "format": "parquet"}, ["is part of the Delta Lake table"]),
        ({"path": "t", "format": "parquet", "follow": True, "ordered": False}, ["leave ordered: false away"]),
        (
            {"path": "no/t", "format": "iceberg"},
            ["no.t: there is no catalog in the database that the connection names"],
        ),
        ({"path": "a/t", "format": "iceberg"}, ["a.t: the catalog has no table of this name"]),
    ],
)
async def test_tables_that_are_read(tmp_path: Path, source: dict[str, Any], said: list[str]) -> None:
    """A table that is there and can be read, and what is none."""
    write_deltalake(tmp_path / "t", pa.table({"n": [1], "m": [2]}), partition_by=["n"])
    if source["path"] == "a/t":
        _iceberg(tmp_path)
    lake = {"type": "files", "path": str(tmp_path), "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}}
    found = await _found(
        lake, {"$source": {"connectionName": "c", **source}}, {"$emit": {"path": "o", "format": "json"}}
    )
    assert [wanted in str(error) for error, wanted in zip(found, said, strict=True)] == [True] * len(said)


def _delta(root: Path) -> None:
    write_deltalake(root / "divided", pa.table({"n": [1], "m": [2]}), partition_by=["n"])
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.int64())])
    write_deltalake(root / "strict", pa.table({"n": [1], "m": [2]}, schema=strict))
    write_deltalake(root / "bound", pa.table({"n": [1]}))
    DeltaTable(root / "bound").alter.add_constraint({"positive": "n > 0"})


def _iceberg(root: Path) -> None:
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{root}/c.db")
    catalog.create_namespace("a")
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.int64())])
    catalog.create_table("a.strict", strict, location=f"file://{root}/a/strict")
    catalog.create_table("a.moved", strict, location=f"file://{root}/elsewhere")
    catalog.close()


@pytest.mark.parametrize(
    ("projected", "emit", "said"),
    [
        (("n", "m"), {"path": "none", "format": "parquet"}, []),
        (("n", "m"), {"path": "divided", "format": "parquet", "partitionBy": ["n"]}, []),
        (("n", "m"), {"path": "divided", "format": "parquet"}, ["is divided by ['n'], and partitionBy of $emit says none"]),
        (("n", "k"), {"path": "strict", "format": "parquet"}, []),
        (("m", "k"), {"path": "strict", "format": "parquet"}, ["n: the column takes no null, and no document has it"]),
        ((), {"path": "strict", "format": "parquet"}, []),
        (("n",), {"path": "bound", "format": "parquet"}, ["the table has the constraint positive"]),
        (("n",), {"path": "a/none", "format": "iceberg"}, []),
        (("n",), {"path": "a/strict", "format": "iceberg"}, []),
        (("m",), {"path": "a/strict", "format": "iceberg"}, ["n: the column takes no null, and no document has it"]),
        (("n",), {"path": "a/moved", "format": "iceberg"}, ["expected it in the folder that $emit names"]),
        (("n",), {"path": "divided/x.parquet/y", "format": "parquet"}, ["is a file"]),
    ],
)  # fmt: skip
async def test_tables_that_are_written(
    tmp_path: Path, projected: tuple[str, ...], emit: dict[str, Any], said: list[str]
) -> None:
    """A table that is there is opened: what it asks of rows that these never have, or of a sink what none does."""
    _delta(tmp_path)
    _iceberg(tmp_path)
    (tmp_path / "divided" / "x.parquet").write_bytes(b"")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    lake = {"type": "files", "path": str(tmp_path), "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}}
    stages = [{"$project": {"_id": 0, **dict.fromkeys(projected, "$a")}}] if projected else []
    found = [str(error) for error in await _found(lake, _OWN, *stages, {"$emit": {"connectionName": "c", **emit}})]
    assert len(found) == len(said), found
    for text, wanted in zip(found, said, strict=True):
        assert wanted in text
        assert "pipeline[" in text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_a_field_of_metadata_is_known_to_come(tmp_path: Path) -> None:
    """Options, too, give documents a field that a table may need."""
    meta = pa.field("meta", pa.struct([pa.field("source", pa.string())]), nullable=False)
    DeltaTable.create(tmp_path / "strict", schema=pa.schema([pa.field("a", pa.int64()), meta]))
    stages = (
        _OWN,
        {"$project": {"_id": 0, "a": 1}},
        {"$emit": {"connectionName": "c", "path": "strict", "format": "parquet"}},
    )
    lake = {"type": "files", "path": str(tmp_path)}
    assert await _found(lake, *stages, streamMetaFieldName="meta") == []
    assert ["meta: the column takes no null" in str(error) for error in await _found(lake, *stages)] == [True]


@pytest.mark.kafka
async def test_a_run_looks_before_it_starts_anything(kafka_broker: str, unique_name: Callable[[str], str]) -> None:
    """`tidemark run` refuses a missing topic by what `check` says of it."""
    topic = unique_name("gone")
    document = parse(
        {
            "connections": {"c": {"type": "kafka", "bootstrapServers": kafka_broker}},
            "pipeline": [
                {"$source": {"connectionName": "c", "topic": topic}},
                {"$emit": {"path": "o", "format": "json"}},
            ],
        }
    )
    with pytest.raises(InvalidDocument, match=f"{topic} not found in the cluster {kafka_broker}"):
        await check_surroundings(document)
