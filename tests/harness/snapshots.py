"""A whole installation kept as bytes, rows of the store, blobs and topics: behind a stop, and as it broke down with frames in flight.

`python -m tests.harness.snapshots` records one for the present versions of the formats, where there is none, and what comes out when its
processors read on; `tests/golden/test_snapshots.py` goes on from each that was ever recorded, with any numbers of tasks.
"""

import base64
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from tests.harness.formats import FOLDER
from tests.harness.installation import Installed, installed
from tests.integration.test_pressure import Slowed
from tidemark.shared.adapters.memory_broker import MemoryBroker, _Partition, _Stored
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import CommitRow, LineageEntry
from tidemark.shared.model.formats import AUDIT_CHECKPOINT, COMMIT_ROW, FORMATS, PROCESSOR_ROW, Codec
from tidemark.shared.model.ids import JobId, LeaderToken, ProcessorName
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.checkpoints import is_aligned
from tidemark.shared.runtime.settings import RuntimeSettings

PARTITIONS: Final = 3
_RECORDS: Final = 240
_SETTINGS: Final = RuntimeSettings(engine="local", join_bytes_max=2_000)
"""Some rows of a join lie on the disk."""
_NUMBERS_FROM: Final = 1_000_000
_rows: Final[Codec[ProcessorRow]] = Codec(PROCESSOR_ROW, ProcessorRow)
_commits: Final[Codec[CommitRow]] = Codec(COMMIT_ROW, CommitRow)


def _ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def _source(topic: str) -> dict[str, Any]:
    return {
        "$source": {
            "connectionName": "k",
            "topic": topic,
            "timeField": {"$toDate": "$t"},
            "recordId": "$id",
            "config": {"auto_offset_reset": "earliest"},
            "watermark": {"strategy": "boundedDisorder", "maxDelay": _ms(500)},
        }
    }


_WINDOW: Final = {
    "interval": _ms(5_000),
    "allowedLateness": _ms(0),
    "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}, "vs": {"$push": "$v"}}}],
}
_PAIRS: Final = {
    "from": [_source("b")], "leftKey": "$k", "rightKey": "$k", "within": {"before": _ms(2_000), "after": _ms(1_000)},
    "type": "full", "as": "r",
}  # fmt: skip
_MARKS: Final = {"class": "tests.harness.computations:Marks", "key": "$k"}
_STAGES: Final[dict[str, list[dict[str, Any]]]] = {
    "windows": [{"$tumblingWindow": _WINDOW}, {"$addFields": {"k": "$_id"}}],
    "marks": [{"$compute": _MARKS}],
    "pairs": [{"$join": _PAIRS}],
}
"""A window's step, a computation and a join: each keeps state, and each source filters repeats."""


Kind = Literal["stopped", "in flight"]
KINDS: Final = get_args(Kind)
SLOW_MS: Final = 700
"""Of an operator's task for each batch, where frames are to be in flight."""


def _document(name: str, kind: Kind) -> dict[str, Any]:
    in_flight = {"alignmentTimeout": _ms(0)} if kind == "in flight" else {}
    return {
        "name": name,
        "connections": {"k": {"type": "kafka", "bootstrapServers": "nowhere:9092"}},
        "pipeline": [_source("a"), *_STAGES[name], {"$emit": {"connectionName": "k", "topic": f"out-{name}"}}],
        "options": {"lateness": "split", "checkpoint": {"interval": _ms(500), **in_flight}},
    }


def _feed(there: Installed, half: int) -> None:
    """Half of the input: in order within its partition but for what maxDelay allows, some records twice."""
    log = there.broker
    for n in range(half * _RECORDS // 2, (half + 1) * _RECORDS // 2):
        for topic, shift_ms in (("a", 0), ("b", 300)):
            t = 1_700_000_000_000 + 200 * n + (n * 37 % 400) + shift_ms
            value = json.dumps({"id": f"{topic}{n}", "t": t, "k": f"k{n % 7}", "v": n}).encode()
            at = TopicPartition(topic, n % PARTITIONS)
            for _ in range(2 if n % 11 == 0 else 1):
                log.append(at, [NewRecord(value)])


async def _begun(there: Installed, kind: Kind) -> None:
    for topic in ("a", "b"):
        there.broker.create_topic(topic, PARTITIONS)
    _feed(there, 0)
    for name in _STAGES:
        there.broker.create_topic(f"out-{name}", 1)
        await there.create(_document(name, kind), ProcessorName(name))
        await there.start(ProcessorName(name))
    for name in _STAGES:
        await there.committed(4, ProcessorName(name))


async def finished(there: Installed) -> dict[str, list[str]]:
    """Give the rest of the input, drain all, and what came out, by processor, sorted."""
    _feed(there, 1)
    for name in _STAGES:
        await there.committed(4, ProcessorName(name))
    for name in _STAGES:
        await there.stop(ProcessorName(name), drain=True)
    return {name: sorted(_documents(there.broker, f"out-{name}")) for name in _STAGES}


def _documents(broker: MemoryBroker, topic: str) -> list[str]:
    found = [record for partition in broker._topics[topic] for record in _visible(partition) if record is not None]
    return [json.dumps(json.loads(record.value or b""), sort_keys=True) for record in found]


def _visible(partition: _Partition) -> list[LogRecord | None]:
    """Records that are committed; None where an offset holds none."""
    return [
        stored.record if stored.transaction is None or stored.transaction.state == "committed" else None
        for stored in partition.stored
    ]


# --- as bytes -----------------------------------------------------------------------------------------------------------


async def _in_flight(there: Installed) -> None:
    """Wait until the last commit of each processor has frames that their receivers had not taken."""
    store = there.store
    while any(is_aligned(store.commits[row.job][row.last]) for row in store.rows.values()):
        await there.clock.sleep_ms(1)


def _slow(context: object, call: str) -> int:
    return SLOW_MS if context.vertex.service == "operator" and call == "apply" else 0  # type: ignore[attr-defined]


async def _kept(there: Installed) -> dict[str, Any]:
    blobs = there.memory_blobs
    store, broker = there.store, there.broker
    return {
        "rows": {name: _text(_rows.encode(row)) for name, row in store.rows.items()},
        "lineage": {job: msgspec.to_builtins(entries) for job, entries in store.lineage.items()},
        "commits": {
            job: {str(e): _text(_commits.encode(c)) for e, c in rows.items()} for job, rows in store.commits.items()
        },
        "jobs": store.jobs,
        "token": store.token,
        "changes": store.changes,
        "blobs": {name: _text(await blobs.read_note(name)) for name in await blobs.list("")},
        "topics": {
            topic: [{"start": p.start, "records": [_as_text(r) for r in _visible(p)]} for p in partitions]
            for topic, partitions in broker._topics.items()
        },
        "ids": broker._ids,
        "now_ms": there.clock.now_ms(),
    }


def _as_text(record: LogRecord | None) -> list[Any] | None:
    if record is None:
        return None
    headers = [[name, _text(data)] for name, data in record.headers]
    return [record.timestamp_ms, _text(record.key), _text(record.value), headers]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@asynccontextmanager
async def restored(world: VirtualWorld, kept: Mapping[str, Any]) -> AsyncIterator[Installed]:
    """An installation that goes on from these bytes; the processors stand still."""
    broker = MemoryBroker(world.clock)
    for topic, partitions in kept["topics"].items():
        broker.create_topic(topic, len(partitions))
        for number, (partition, found) in enumerate(zip(broker._topics[topic], partitions, strict=True)):
            partition.start = found["start"]
            for at, record in enumerate(found["records"], start=partition.start):
                partition.stored.append(
                    _Stored(None if record is None else _log_record(topic, number, at, record), None)
                )
    broker._ids.update(kept["ids"])
    store = MemoryCommitState(
        token=LeaderToken(kept["token"]),
        changes=kept["changes"],
        rows={ProcessorName(name): _rows.decode(_bytes(row) or b"") for name, row in kept["rows"].items()},
        lineage={JobId(job): msgspec.convert(rows, list[LineageEntry]) for job, rows in kept["lineage"].items()},
        jobs={ProcessorName(name): [JobId(job) for job in jobs] for name, jobs in kept["jobs"].items()},
    )
    for job, rows in kept["commits"].items():
        commits = [_commits.decode(_bytes(row) or b"") for row in rows.values()]
        store.commits[JobId(job)] = {commit.epoch: commit for commit in commits}
    async with installed(
        world.clock, world.executor, settings=_SETTINGS, broker=broker, store=store, numbers_from=_NUMBERS_FROM
    ) as there:
        for name, data in kept["blobs"].items():
            await there.blobs.put(name, _bytes(data) or b"")
        yield there


def _log_record(topic: str, partition: int, offset: int, record: list[Any]) -> LogRecord:
    timestamp_ms, key, value, headers = record
    told = tuple((name, _bytes(data) or b"") for name, data in headers)
    return LogRecord(topic, partition, offset, timestamp_ms, _bytes(key), _bytes(value), told)  # type: ignore[arg-type]


# --- recorded -------------------------------------------------------------------------------------------------------------


def all_recorded() -> list[Path]:
    """Every snapshot of whatever versions."""
    return sorted(FOLDER.glob("snapshot-*.json.gz"))


def read(path: Path) -> dict[str, Any]:
    """One of them: `kept`, `versions` and `expected`."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def in_flight(kept: Mapping[str, Any]) -> dict[str, bool]:
    """Whether the last commit of each processor has frames in flight."""
    rows = {name: _rows.decode(_bytes(row) or b"") for name, row in kept["rows"].items()}
    commits = {n: _commits.decode(_bytes(kept["commits"][row.job][str(row.last)]) or b"") for n, row in rows.items()}
    return {name: not is_aligned(commit) for name, commit in commits.items()}


def recorded() -> list[tuple[str, dict[str, int]]]:
    """Of each its kind and versions. The first ones were all made behind a stop."""
    return [(found.get("kind", "stopped"), found["versions"]) for found in map(read, all_recorded())]


def versions() -> dict[str, int]:
    """What is written now, by format; nobody has audited what is recorded here."""
    return {fmt.name: fmt.version for fmt in FORMATS if fmt is not AUDIT_CHECKPOINT}


def record() -> None:
    """Keep one of each kind of the present versions, where there is none."""
    for kind in KINDS:
        if (kind, versions()) not in recorded():
            _record(kind)


def _record(kind: Kind) -> None:
    async def stopped(world: VirtualWorld) -> dict[str, Any]:
        async with installed(world.clock, world.executor, settings=_SETTINGS) as there:
            await _begun(there, kind)
            for name in _STAGES:
                await there.stop(ProcessorName(name))
            return await _kept(there)

    async def broken_down(world: VirtualWorld) -> dict[str, Any]:
        wrap = partial(Slowed, slow=_slow)
        async with installed(world.clock, world.executor, settings=_SETTINGS, wrap=wrap) as there:
            await _begun(there, kind)
            await _in_flight(there)
            return await _kept(there)

    async def whole(world: VirtualWorld) -> dict[str, list[str]]:
        async with installed(world.clock, world.executor) as there:
            await _begun(there, kind)
            return await finished(there)

    kept = run_virtual(stopped if kind == "stopped" else broken_down)
    found = {"kind": kind, "versions": versions(), "kept": kept, "expected": run_virtual(whole)}
    path = FOLDER / f"snapshot-{len(all_recorded()) + 1}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    record()
