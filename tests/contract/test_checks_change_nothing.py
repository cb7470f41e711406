"""`tidemark check --connect`, and what else looks at a document, leaves the world as it was: files, databases, brokers."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import write_deltalake

from tests.harness.mongodb.servers import Servers
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.cli.explain import explain, validate
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.mongodb import client_at
from tidemark.shared.language.documents import parse

_OWN: dict[str, Any] = {"$source": {"documents": [{"a": 1, "id": 1}]}}
_OUT: dict[str, Any] = {"$emit": {"path": "out", "format": "json"}}


def _reads(path: str, form: str, **more: Any) -> list[dict[str, Any]]:
    return [{"$source": {"connectionName": "c", "path": path, "format": form, **more}}, _OUT]


def _writes(path: str, form: str) -> list[dict[str, Any]]:
    return [_OWN, {"$emit": {"connectionName": "c", "path": path, "format": form}}]


_ASKS: list[dict[str, Any]] = [
    _OWN,
    {"$lookup": {"from": {"connectionName": "c", "table": "t"}, "localField": "a", "foreignField": "id", "as": "x"}},
    _OUT,
]
_MERGES: list[dict[str, Any]] = [_OWN, {"$merge": {"into": {"connectionName": "c", "table": "t"}, "on": "id"}}]
_PIPELINES = {
    "json": _reads("in.json", "json"),
    "json followed": _reads("in.json", "json", follow=True),
    "parquet": _reads("in.parquet", "parquet"),
    "delta": _reads("delta", "parquet"),
    "delta that is to come": _reads("none/delta", "parquet", follow=True),
    "iceberg": _reads("ns/t", "iceberg"),
    "iceberg followed": _reads("ns/t", "iceberg", follow=True),
    "to json": _writes("new/json", "json"),
    "to parquet": _writes("new/parquet", "parquet"),
    "to delta": _writes("delta", "parquet"),
    "to iceberg": _writes("ns/t", "iceberg"),
}


def _files(root: Path) -> dict[str, tuple[str, int] | None]:
    """What lies below: digest and time of change of each file."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {
        name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) if path.is_file() else None
        for name, path in found.items()
    }


def _tables(url: str) -> list[str]:
    """The tables of a database that is there."""
    engine = sa.create_engine(url)
    try:
        return sorted(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


async def _said(connection: dict[str, Any], pipeline: list[Any], **options: Any) -> list[str]:
    document = {"connections": {"c": connection}, "pipeline": pipeline, "options": options}
    return [str(error) for error in await refused_by_what_is_there(parse(document))]


@pytest.mark.parametrize("catalog", ["missing.db", "other.db", "none/missing.db"])
@pytest.mark.parametrize("name", _PIPELINES)
async def test_files_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, catalog: str) -> None:
    """Also a catalog that is not there, and a database that has none yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.json").write_text('{"a": 1}\n')
    pq.write_table(pa.table({"a": [1]}), tmp_path / "in.parquet")
    write_deltalake(tmp_path / "delta", pa.table({"a": [1], "id": [1]}))
    engine = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    with engine.begin() as connection:
        connection.execute(sa.text("create table t (id integer primary key, a integer)"))
    engine.dispose()
    before = _files(tmp_path)
    uri = f"sqlite:///{tmp_path}/{catalog}"
    lake = {"type": "files", "path": str(tmp_path), "catalog": {"type": "sql", "uri": uri, "schema_version": "v1"}}
    await _said(lake, _PIPELINES[name], dlq={"path": "letters/x"})
    assert _files(tmp_path) == before


@pytest.mark.parametrize("pipeline", [_ASKS, _MERGES], ids=["lookup", "merge"])
async def test_a_database_without_a_file(tmp_path: Path, pipeline: list[Any]) -> None:
    """SQLite would make the file, and then lack the table."""
    (said,) = await _said({"type": "sql", "url": f"sqlite:///{tmp_path}/missing.db"}, pipeline)
    assert said.endswith("the database has no file; make it, with its tables, or correct the connection")
    assert _files(tmp_path) == {}


@pytest.mark.parametrize("pipeline", [_ASKS, _MERGES, _PIPELINES["iceberg"], _PIPELINES["to iceberg"]])
async def test_databases(tmp_path: Path, url: str, pipeline: list[Any]) -> None:
    """Of each kind: no catalog is made in them, no marker of releases, no table."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("create table t (id integer primary key, a integer)"))
    engine.dispose()
    kind = {"type": "sql", "url": url}
    if pipeline not in (_ASKS, _MERGES):
        kind = {"type": "files", "path": str(tmp_path), "catalog": {"type": "sql", "uri": _with_driver(url)}}  # type: ignore[dict-item]
    await _said(kind, pipeline)
    assert _tables(url) == ["t"]


def _with_driver(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.mark.kafka
async def test_topics(kafka_broker: str, unique_name: Callable[[str], str]) -> None:
    """None is made, by us or by the broker for who asks."""
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker, client="test"))
    there, gone = unique_name("there"), [unique_name("gone") for _ in range(3)]
    await log.create_topic(there, 1)
    kafka = {"type": "kafka", "bootstrapServers": kafka_broker}
    for source in (there, gone[0]):
        pipeline = [
            {"$source": {"connectionName": "c", "topic": source}},
            {"$emit": {"connectionName": "c", "topic": gone[1]}},
        ]
        await _said(kafka, pipeline, dlq={"connectionName": "c", "topic": gone[2]})
    assert not {*gone} & {*await log.list_topics()}
    await log.close()


@pytest.mark.mongodb
async def test_collections(mongodb_servers: Servers) -> None:
    """None is made; the server that stands for MongoDB notes an empty database for who asks."""
    into = {"connectionName": "c", "db": "unseen", "coll": "rows"}
    server = {"type": "mongodb", "url": mongodb_servers.replicas}
    asks = {"$lookup": {"from": into, "localField": "a", "foreignField": "b", "as": "x"}}
    for last in ({"$merge": {"into": into}}, {"$emit": into}):
        await _said(server, [_OWN, asks, last], dlq=into)
    client = client_at(mongodb_servers.replicas, 5_000)
    assert client["unseen"].list_collection_names() == []
    client.close()


def test_commands_that_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take a document, with a computation beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "own_counts.py").write_text(
        "from tidemark.shared.computation import Computation\n\nclass Counts(Computation):\n"
        "    def process(self, record, state, context):\n        yield {}\n"
    )
    (tmp_path / "doc.yaml").write_text(
        f"""
connections: {{f: {{type: files, path: {tmp_path}/lake, catalog: {{type: sql, uri: "sqlite:///{tmp_path}/c.db"}}}}}}
pipeline:
- $source: {{documents: [{{a: 1}}]}}
- $compute: {{class: "own_counts:Counts", key: $a}}
- $emit: {{connectionName: f, path: ns/t, format: iceberg}}
options: {{dlq: {{path: letters}}}}
"""
    )
    before = _files(tmp_path)
    document = tmp_path / "doc.yaml"
    validate(document)
    validate(document, connect=True)
    explain(document, "local", mermaid=False, as_json=True)
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for words in (["topics", "doc.yaml"], ["ps"], ["connections"], ["processors"], ["dlq", "x"], ["checkpoints", "x"]):
        command = [sys.executable, "-B", "-m", "tidemark.services.cli", *words]
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert _files(tmp_path) == before
