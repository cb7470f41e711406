"""Rows of a topic into Parquet, into a table, and through a keyed computation: `python -m tests.harness.bench.targets --count 600000`.

The records are there before the pipeline starts, and it drains: the time is from RUNNING until it has finished, all of it released.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from deltalake import DeltaTable

from tests.harness.bench.machine import described
from tests.harness.bench.ordinary import Case, produced
from tests.harness.bench.watching import Meter
from tests.harness.postgres import postgres
from tidemark.services.cli.installation import Installation, installation, workers_of
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.planning import plan_processor

PARTITIONS = 4
COMPUTATIONS = {"process": "Counts", "process-batch": "CountsOfBatch"}
NAMES = ("parquet", "postgresql", *COMPUTATIONS)


def document(topic: str, target: str, folder: Path, url: str) -> str:
    """The pipeline of one of `NAMES`."""
    reading = {
        "connectionName": "broker", "topic": topic, "timeField": {"$toDate": "$ts"},
        "config": {"auto_offset_reset": "earliest"},
        "schema": {"key": "string", "ts": "long", "amount": "int"},
    }  # fmt: skip
    rows = {"$project": {"key": 1, "ts": 1, "amount": 1}}
    stages: dict[str, list[dict[str, Any]]] = {
        "parquet": [rows, {"$emit": {"connectionName": "files", "path": "rows", "format": "parquet"}}],
        "postgresql": [
            rows,
            {"$merge": {"into": {"connectionName": "table", "table": "rows"}, "on": ["key"], "whenMatched": "replace"}},
        ],
        **{
            name: [
                {"$addFields": {"sensor": {"$substrCP": ["$key", 13, 3]}}},
                {"$compute": {"class": f"tests.harness.bench.computed:{kind}", "key": "$sensor"}},
                {"$emit": {"connectionName": "files", "path": name, "format": "json"}},
            ]
            for name, kind in COMPUTATIONS.items()
        },
    }
    return json.dumps({
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
            "files": {"type": "files", "path": str(folder)},
            "table": {"type": "sql", "url": url},
        },
        "pipeline": [{"$source": reading}, *stages[target]],
    })  # fmt: skip


async def measure(there: Installation, text: str, name: ProcessorName, count: int, rows: Callable[[], int]) -> str:
    """Run it to its end; AssertionError unless `rows` then finds as many rows as stand for that many records."""
    meter = Meter(there.cluster.pids())
    asked = time.monotonic()
    await there.ensure_started(name, text, {})
    await there.until_running(name)
    began = time.monotonic()
    async with meter:
        await there.client.request(StopProcessor(there.client.unique(), name, drain=True))
        status = await there.until_ended(name)
        seconds = time.monotonic() - began
    assert status.state == "FINISHED", f"{status.state}: {status.reason}"
    found = await asyncio.to_thread(rows)
    assert found == count, f"{found} rows of {count}"
    each = {place: round(1e6 * s / count, 1) for place, s in meter.usage.cpu_s.items() if s * 1e6 >= count / 10}
    return (
        f"{name}: {count / seconds:,.0f} rows/s, ready {began - asked:.1f} s, us a row {sum(each.values()):.1f} {each}"
    )


async def _main(names: Sequence[str], count: int, folder: Path, url: str) -> None:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE rows (key text PRIMARY KEY, ts bigint, amount bigint)"))

    def in_table() -> int:
        with engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT count(*) FROM rows")).scalar_one())

    def in_parquet() -> int:
        return int(DeltaTable(str(folder / "out" / "rows")).to_pyarrow_table().num_rows)

    def said(name: str) -> int:
        files = (folder / "out" / name).rglob("*.jsonl")
        return 100 * sum(len(file.read_bytes().splitlines()) for file in files)

    found: dict[str, Callable[[], int]] = {
        "parquet": in_parquet,
        "postgresql": in_table,
        **{n: partial(said, n) for n in COMPUTATIONS},
    }
    (folder / "out").mkdir()
    texts = {
        name: document("rows", name, folder / "out", str(engine.url.render_as_string(hide_password=False)))
        for name in NAMES
    }
    workers = workers_of(plan_processor(parse(texts["process"])), {}, 1)
    async with installation(folder / "data", {"TIDEMARK_LOG": "json"}, workers) as there:
        await there.log.create_topic("rows", PARTITIONS, {"retention.ms": "-1"})
        await produced(there.cluster.bootstrap, "rows", Case(partitions=PARTITIONS), count)
        for name in names:
            print(await measure(there, texts[name], ProcessorName(name), count, found[name]), flush=True)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=600_000)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    asked = parser.parse_args()
    for name, value in described().items():
        print(f"{name}: {value}")
    with tempfile.TemporaryDirectory() as folder, postgres() as url:
        asyncio.run(_main(asked.only, asked.count, Path(folder), url))


if __name__ == "__main__":
    main()
