"""Pipelines drawn at random, as jobs of a real installation: records of ordinary producers, real processes, drained to their end.

What comes out, into a topic, files, a Delta table or a table of SQL, must be what the same operators give in one process without a
broker, as often, dead letters included; and the audit agrees. Half of the jobs are stopped and started, or get other numbers of tasks,
in the middle of their records.

`python -m tests.harness.drawn_jobs [SEED] [JOBS] [AT ONCE]` prints each job and what differs; its status is 1 if one does.
"""

import asyncio
import csv
import json
import math
import random
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiokafka
from deltalake import DeltaTable

import tidemark
from tests.harness.bench.pipeline_cliffs import records, stages
from tests.harness.bench.readings import source
from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.library.values import to_python
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import DropProcessor, ModifyProcessor, StartProcessor, StopProcessor

WORKERS: Final = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 1, "control": 0}
_ORDERED: Final = ('"$first"', '"$last"')
"""What they give depends on the order of arrival, which several partitions do not have."""
_REQUEST: Final = 2_000_000
"""Bytes that a producer may send at once."""
_DIGITS: Final = 9
"""Sums of doubles depend on the order of their parts in the last digits."""


_TARGETS: Final = ("topic", "topic", "json", "csv", "parquet", "sqlite")
_TEXT: Final = {"$convert": {"input": "$sensor", "to": "string", "onError": "?", "onNull": "-"}}
_NUMBER: Final = {"$convert": {"input": "$n", "to": "long", "onError": 0, "onNull": 1}}
_FLAT: Final = {"$project": {"_id": 0, "s": _TEXT, "n": _NUMBER}}
"""In front of targets whose columns have one type each."""
_KEYED: Final = {"$project": {"_id": 0, "s": {"$concat": [_TEXT, "/", {"$toString": _NUMBER}]}}}
"""In front of a table with a key: rows of one key are equal, because which of them comes last is not said."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Job:
    """One drawn pipeline with its records and the way in which a producer sends them."""

    name: str
    pipeline: list[Any]
    values: list[bytes]
    partitions: int
    outputs: int
    settings: dict[str, Any]
    parallelism: dict[str, int]
    interval_ms: int
    between: str = ""
    """What happens in the middle of the records: "stop" and start, or "rescale"."""
    target: str = "topic"
    config: dict[str, Any] = field(default_factory=dict)
    """Of `$emit` into a topic."""
    folder: Path = Path()
    """Of files and tables."""

    def document(self) -> dict[str, Any]:
        """As a user writes it."""
        first, *rest = self.pipeline
        start = {"auto_offset_reset": "earliest"}
        # Nothing is late: what is late depends on the order in which partitions are read.
        delay = {"strategy": "boundedDisorder", "maxDelay": {"size": 10, "unit": "day"}}
        found = {**first["$source"], "topic": f"{self.name}-in", "config": start, "watermark": delay}
        return {
            "connections": {
                "c": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
                "files": {"type": "files", "path": str(self.folder)},
                "table": {"type": "sql", "url": f"sqlite:///{self.database}"},
            },
            "pipeline": [{"$source": found}, *rest, *self._tail()],
            "options": {
                "checkpoint": {"interval": {"size": self.interval_ms, "unit": "ms"}},
                "dlq": {"connectionName": "c", "topic": f"{self.name}-dlq"},
            },
        }

    @property
    def database(self) -> Path:
        """A file of SQLite."""
        return self.folder / f"{self.name}.db"

    def _tail(self) -> list[Any]:
        match self.target:
            case "topic":
                return [{"$emit": {"connectionName": "c", "topic": f"{self.name}-out", "config": self.config}}]
            case "sqlite":
                into = {"connectionName": "table", "table": "rows"}
                return [_KEYED, {"$merge": {"into": into, "on": ["s"], "whenMatched": "replace"}}]
            case _:
                emit = {"$emit": {"connectionName": "files", "path": self.name, "format": self.target}}
                return [emit] if self.target == "json" else [_FLAT, emit]

    def prepare(self) -> None:
        """What a user makes before."""
        if self.target == "sqlite":
            with sqlite3.connect(self.database) as connection:
                connection.execute("CREATE TABLE rows (s TEXT PRIMARY KEY)")

    def found(self) -> list[Any]:
        """The rows of files and tables."""
        folder = self.folder / self.name
        match self.target:
            case "json":
                files = [
                    p for p in sorted(folder.rglob("*.json*")) if not p.relative_to(folder).parts[0].startswith("_")
                ]
                return [to_python(parse_json(line)) for p in files for line in p.read_bytes().splitlines()]
            case "csv":
                files = sorted(folder.rglob("*.csv"))
                return [dict(row) for p in files for row in csv.DictReader(p.read_text().splitlines())]
            case "parquet":
                table = DeltaTable(str(folder)).to_pyarrow_table() if DeltaTable.is_deltatable(str(folder)) else None
                return [] if table is None else table.to_pylist()
            case _:
                with sqlite3.connect(self.database) as connection:
                    return [{"s": s} for (s,) in connection.execute("SELECT s FROM rows")]

    def wanted(self, documents: list[Any]) -> list[Any]:
        """The rows of files and tables, as `found` reads them."""
        if self.target == "sqlite":
            return [{"s": s} for s in {document["s"] for document in documents}]
        if self.target == "csv":
            return [{"s": document["s"], "n": str(int(document["n"]))} for document in documents]
        return documents


def drawn(seed: int, folder: Path) -> Job:
    """The job of a seed."""
    chooser = random.Random(seed)
    pipeline: list[Any] = []
    # A join reads the topic twice, which a try-out cannot; what looks at the clock differs from one moment to the next.
    while not pipeline or any("$join" in stage for stage in pipeline) or "$$NOW" in json.dumps(pipeline):
        pipeline = [source(declared=chooser.random() < 0.5), *stages(chooser)]
    ordered = any(word in json.dumps(pipeline) for word in _ORDERED)
    raw = records(chooser, chooser.choice([1, 37, 1000, 5000]))
    settings = {
        "compression_type": chooser.choice([None, "gzip", "snappy", "lz4", "zstd"]),
        "linger_ms": chooser.choice([0, 5, 100]),
        "max_batch_size": chooser.choice([1, 1000, 1_000_000]),
    }
    tasks = {"source": chooser.choice([1, 2]), "operator": chooser.choice([1, 2]), "sink": chooser.choice([1, 2])}
    partitions = 1 if ordered else chooser.choice([1, 3, 8])
    outputs, interval_ms = chooser.choice([1, 4]), chooser.choice([200, 1000, 5000])
    values = raw.values.to_pylist()
    target, config = chooser.choice(_TARGETS), _config(chooser)
    tasks = {} if ordered else tasks
    name = f"drawn-{seed}"
    between = chooser.choice(["", "", "stop", "stop" if ordered else "rescale"])
    return Job(
        name, pipeline, values, partitions, outputs, settings, tasks, interval_ms, between, target, config, folder
    )


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


async def run(there: Installation, folder: Path, job: Job) -> list[str]:
    """What differs; nothing where all is as it must be."""
    name = ProcessorName(job.name)
    for topic, partitions in ((f"{name}-in", job.partitions), (f"{name}-out", job.outputs), (f"{name}-dlq", 1)):
        await there.log.create_topic(topic, partitions, {"retention.ms": "-1"})
    job.prepare()
    await there.ensure_started(name, json.dumps(job.document()), job.parallelism)
    bootstrap = there.cluster.bootstrap
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=_REQUEST, **job.settings) as out:
        for part in (range(middle := len(job.values) // 2), range(middle, len(job.values))):
            sent = [await out.send(f"{name}-in", job.values[n], partition=n % job.partitions) for n in part]
            await asyncio.gather(*sent)
            if part.start == 0:
                await _disturbed(there, job)
    await there.until_running(name)
    await there.client.request(StopProcessor(there.client.unique(), name, drain=True))
    status = await there.until_ended(name)
    if status.state != "FINISHED":
        return [f"{status.state}: {status.reason}"]
    return await _compared(there, folder, job)


async def _disturbed(there: Installation, job: Job) -> None:
    """Stop and start the job, or give it other numbers of tasks, some time after its first records."""
    name, chooser = ProcessorName(job.name), random.Random(job.name)
    if not job.between:
        return
    await there.until_running(name)
    await asyncio.sleep(chooser.random() * 2)
    if job.between == "rescale":
        tasks = {service: 3 - number for service, number in job.parallelism.items()}
        await there.client.request(ModifyProcessor(there.client.unique(), name, parallelism=tasks))
        await asyncio.sleep(chooser.random() * 2)
        return
    await there.client.request(StopProcessor(there.client.unique(), name))
    await there.until_ended(name)
    await there.client.request(StartProcessor(there.client.unique(), name))


async def _compared(there: Installation, folder: Path, job: Job) -> list[str]:
    letters = await _topic(there, f"{job.name}-dlq")
    alone = await asyncio.to_thread(_alone, job)
    if job.target == "topic":
        rows, wanted = await _topic(there, f"{job.name}-out"), alone.documents
    else:
        rows, wanted = await asyncio.to_thread(job.found), job.wanted(alone.documents)
    found = _differ("rows", _counted(rows), _counted(wanted))
    found += _differ("dead letters", _reasons(letters), _reasons(alone.dead_letters))
    try:
        audited: Audited = await audit_local(ProcessorName(job.name), folder)
    except NotAuditable as error:
        _say(f"{job.name}: not audited: {error}")
    except AuditFailed as error:
        found.append(f"audit: {error}")
    else:
        if audited.records != len(job.values):
            found.append(f"audit: {audited.records} records for {len(job.values)}")
    _say(
        f"{job.name}: {len(job.values)} records, {len(rows)} rows into {job.target}, {len(letters)} dead letters {job.between}"
    )
    return found


def _alone(job: Job) -> tidemark.TryOutResult:
    return tidemark.try_out(job.document(), [to_python(parse_json(value)) for value in job.values])


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

    async def one(there: Installation, seed: int) -> None:
        async with turn:
            job = drawn(seed, targets)
            found = await run(there, folder, job)
            if found:
                wrong[seed] = found
                _say("\n  ".join([f"{job.name} differs:", *found, json.dumps(job.document())]))
            await there.client.request(DropProcessor(there.client.unique(), ProcessorName(job.name)))

    async with installation(folder, {}, WORKERS) as there:
        await asyncio.gather(*(one(there, seed) for seed in seeds))
    return wrong


def main(seed: int = 1, count: int = 20, at_once: int = 3) -> int:
    """1 if a job differs."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(jobs(range(seed, seed + count), Path(folder), at_once))
    _say(f"{count} jobs, {len(wrong)} differ: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))
