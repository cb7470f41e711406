"""Latency, rate and idle cost with ordinary clients: producers with a linger, a consumer of committed records, each a process of its own.

`python -m tests.harness.bench.ordinary --rate 10000 --linger 1 --partitions 4` makes records one by one as an application does, so that
their batches have 1 to 20 records; `--preload 1000000` writes them before the pipeline starts. Every record is looked for, once and as
it must be.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiokafka
import numpy as np

from tests.harness.bench.machine import described
from tests.harness.bench.traffic import EVEN, Traffic
from tests.harness.bench.watching import Meter, Profiler
from tidemark.services.cli.installation import Installation, installation, workers_of
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.planning import plan_processor

_RECORD: Final = b'{"key":"key-%012d","ts":%013d,"amount":12345%b}'
_FIELD: Final = b',"field%02d":"%036d"'
_PRODUCER_RATE_MAX: Final = 20_000
"""Records a second of one producer's process; above it there are several."""
_WARM: Final = 0.4
"""The first part of a stream, which no percentile looks at: what has just been loaded is not what runs."""
_SLICE_S: Final = 0.001
_AGO_MAX: Final = 5_000
"""Records between one and its repetition."""
_SETTLES_S: Final = 1.0
"""What a start leaves behind is not what running costs."""
_SILENCE_S: Final = 60.0
"""The consumer gives up when nothing has come for so long."""
_OF_THOUSAND: Final = {"$substrBytes": ["$key", 13, 3]}
"""One of a thousand keys."""
_NUMBER: Final = {"$toLong": {"$substrBytes": ["$key", 4, 12]}}
WINDOWS: Final[Mapping[str, dict[str, Any]]] = {
    "window": {"$tumblingWindow": {"interval": {"size": 1, "unit": "second"}}},
    "hopping": {
        "$hoppingWindow": {"interval": {"size": 3, "unit": "second"}, "hopSize": {"size": 1, "unit": "second"}},
    },
    "session": {"$sessionWindow": {"gap": {"size": 1, "unit": "second"}}},
}
_HOPS: Final = 3
_BY_WATERMARK: Final = (*WINDOWS, "join")
"""Stages whose last results come at the end of the input, and of which late records are dead letters."""
_STAGES: Final[Mapping[str, list[dict[str, Any]]]] = {
    "match": [{"$match": {"amount": {"$gte": 0}}}],
    "map": [{"$addFields": {"double": {"$multiply": ["$amount", 2]}}}],
    "distinct": [],
    "floor": [],
}
"""`floor` is no pipeline: what the clients and the broker take by themselves. `distinct`: each record counts once by its key."""


def _reading(case: "Case", source: str) -> dict[str, Any]:
    reading: dict[str, Any] = {
        "connectionName": "broker", "topic": source, "timeField": {"$toDate": "$ts" if case.traffic.times == "now" else "$at"},
        "config": {"auto_offset_reset": "earliest"},
        "schema": {"key": "string", "ts": "long", "amount": "int"},
    }  # fmt: skip
    if case.stage == "distinct":
        reading |= {"recordId": "$key", "recordIdHorizon": {"size": 10, "unit": "day"}}  # gaps have days
    if case.stage in _BY_WATERMARK:
        reading["watermark"] = {"strategy": "boundedDisorder", "maxDelay": {"size": _LATE_MS, "unit": "ms"}}
    return reading


def _stages(case: "Case", source: str) -> list[dict[str, Any]]:
    group = _OF_THOUSAND if case.traffic.groups == "even" else "$group"
    if case.stage == "computation":
        return [{"$compute": {"class": "tests.harness.computations:Adds", "key": group, "order": "arrival"}}]
    if case.stage == "join":
        again = [{"$source": _reading(case, source)}]
        within = {"before": {"size": 1, "unit": "second"}}
        joining = {"from": again, "leftKey": "$key", "rightKey": "$key", "within": within, "as": "again"}
        return [{"$join": joining}, {"$addFields": {"same": {"$eq": ["$ts", "$again.ts"]}}}, {"$unset": "again"}]
    if case.stage not in WINDOWS:
        return _STAGES[case.stage]
    [(name, window)] = WINDOWS[case.stage].items()
    counting = [{"$group": {"_id": group, "n": {"$sum": 1}, "of": {"$sum": _NUMBER}}}]
    by = {"partitionBy": group} if case.stage == "session" else {}
    return [{name: {**window, **by, "pipeline": counting}}]


_BEHIND: Final = {
    "floor": b"}",
    "match": b"}",
    "distinct": b"}",
    "map": b',"double":24690}',
    "computation": b',"added":true}',
    "join": b',"same":true}',
}
"""What follows the amount in a result."""
_LETTERS: Final = "-letters"
_LATE_MS: Final = 5_000
"""How far behind the watermark follows, so that no record of a window is late."""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    rate: int = 10_000
    seconds: float = 15.0
    linger_ms: int = 1
    partitions: int = 4
    epoch_ms: int | None = None
    """None: as the product chooses."""
    stage: str = "match"
    preload: int = 0
    """Records that are there before the pipeline starts; none come later."""
    profile_s: int = 0
    fields: int = 0
    """More fields of each record, of 36 characters."""
    traffic: Traffic = EVEN


@dataclass
class Found:
    """What was measured, and the case."""

    case: Case
    records: int
    p50_ms: float | None
    p99_ms: float | None
    events_per_s: float
    cpu_cores: dict[str, float] = field(default_factory=dict)
    """Processor seconds a second, by place."""
    rss_mib: float = 0.0
    ready_s: float = 0.0
    profile: dict[str, list[str]] = field(default_factory=dict)


def _more(fields: int) -> bytes:
    return b"".join(_FIELD % (n, n) for n in range(fields))


# --- the clients' processes -------------------------------------------------------------------------------------------


async def produce(asked: argparse.Namespace) -> None:
    """Records number `first`, `first + step`, …: created as their traffic says, each sent by itself to a partition drawn at random."""
    traffic = Traffic(**json.loads(asked.traffic))
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=asked.bootstrap,
        acks="all" if traffic.transaction_ms else 1,
        linger_ms=asked.linger,
        max_batch_size=16_384 if asked.pace else 1 << 17,
        compression_type=traffic.compression,
        transactional_id=f"{asked.topic}-{asked.first}" if traffic.transaction_ms else None,
    )
    await producer.start()
    draw = np.random.default_rng(asked.first)
    weights = traffic.weights(asked.partitions)
    number, sent, began = asked.first, 0, time.monotonic()
    wanted, more, transactions = asked.count, _more(asked.fields), 0
    earlier: list[tuple[bytes, bytes | None]] = []
    while sent < wanted:
        at_once = min(wanted, sent + 1_000)
        due = traffic.due(time.monotonic() - began, asked.pace, wanted) if asked.pace else at_once
        ends = time.monotonic() + traffic.transaction_ms / 1000
        if traffic.transaction_ms:
            await producer.begin_transaction()
        made: list[tuple[bytes | None, bytes | None, int]] = []
        for place in draw.choice(asked.partitions, max(0, due - sent), p=weights).tolist():
            made_ms, key = time.time_ns() // 1_000_000, traffic.key(number)
            record = _RECORD % (number, made_ms, more + traffic.more(number, made_ms))
            made.append((record, key, place))
            await producer.send(asked.topic, record, key=key, partition=place)
            if traffic.repeats_every:
                earlier.append((record, key))
                if len(earlier) % traffic.repeats_every == 0:
                    again, its = earlier[-int(draw.integers(1, min(len(earlier), _AGO_MAX) + 1))]
                    made.append((again, its, place))
                    await producer.send(asked.topic, again, key=its, partition=place)
            if traffic.tombstones_every and number % traffic.tombstones_every == 0:
                made.append((None, key or b"gone", place))
                await producer.send(asked.topic, None, key=key or b"gone", partition=place)
            number += asked.step
        sent = max(due, sent)
        await asyncio.sleep(_SLICE_S)
        if traffic.transaction_ms:
            await asyncio.sleep(max(0.0, ends - time.monotonic()))
            transactions += 1
            if traffic.aborted_every and transactions % traffic.aborted_every == 0:
                await producer.abort_transaction()
                await producer.begin_transaction()
                for value, key, place in made:
                    await producer.send(asked.topic, value, key=key, partition=place)
            await producer.commit_transaction()
    await producer.flush()
    await producer.stop()


async def consume(asked: argparse.Namespace) -> None:
    """Read until every record has come; one line of JSON on standard output."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=asked.bootstrap, isolation_level="read_committed", group_id=None, fetch_max_wait_ms=500,
    )  # fmt: skip
    await consumer.start()
    topics = [asked.topic, *([letters(asked.topic)] if asked.stage in _BY_WATERMARK else [])]
    at = [aiokafka.TopicPartition(topic, p) for topic in topics for p in range(asked.partitions)]
    consumer.assign(at)
    await consumer.seek_to_beginning()
    for each in at:
        await consumer.position(each)
    print("ready", flush=True)
    traffic = Traffic(**json.loads(asked.traffic))
    every = traffic.tombstones_every
    tombstones = len(range(0, asked.count, every)) if every else 0
    if asked.stage in WINDOWS:
        await _count(consumer, asked.count, _HOPS if asked.stage == "hopping" else 1, tombstones)
        return
    delays, late = np.full(asked.count, -1, dtype=np.int64), np.zeros(asked.count, dtype=np.int64)
    behind, fields = _BEHIND[asked.stage], _more(asked.fields)
    seen, empty, first_s, last_s = 0, 0, 0.0, time.time()
    wanted = 2 * tombstones if asked.stage == "join" else 0
    while (seen < asked.count or empty < wanted) and time.time() - last_s < _SILENCE_S:
        for place, records in (await consumer.getmany(timeout_ms=1_000, max_records=20_000)).items():
            now_ms = time.time_ns() // 1_000_000
            last_s = time.time()
            first_s = first_s or last_s
            if place.topic.endswith(_LETTERS):
                numbers = _late(records)
                empty += len(records) - len(numbers)
                np.add.at(late, numbers, 1)
                seen += int((late[list(set(numbers))] == 2).sum())  # each side has read it
                continue
            for record in records:
                value = record.value
                if value is None and asked.stage == "floor":
                    continue  # a tombstone
                number, made_ms = int(value[12:24]), int(value[31:44])
                more = fields + traffic.more(number, made_ms)
                assert value == (_RECORD % (number, made_ms, more))[:-1] + behind, value
                if asked.stage == "floor" and delays[number] >= 0:
                    continue  # one that was sent again
                assert delays[number] < 0, f"record {number} came twice"
                delays[number] = max(0, now_ms - made_ms)
                seen += 1
    assert not (late > 2).any(), "a late record was told twice by a side"
    assert not ((late > 0) & (delays >= 0)).any(), "a late record was joined"
    missing = np.flatnonzero((delays < 0) & (late < 2))
    assert empty == wanted, f"{empty} dead letters of {tombstones} tombstones"
    assert not len(missing), f"{len(missing)} of {asked.count} records did not come out, the first is {missing[0]}"
    # A little longer: what came twice comes behind.
    behind_all = [r for some in (await consumer.getmany(timeout_ms=300)).values() for r in some]
    assert not behind_all or asked.stage == "floor", "more records than were sent"
    await consumer.stop()
    warm = delays[int(_WARM * asked.count) :]
    p50, p99 = np.percentile(warm[warm >= 0], [50, 99])
    print(json.dumps({"p50": float(p50), "p99": float(p99), "first": first_s, "last": last_s}), flush=True)


def _late(letters: list[aiokafka.ConsumerRecord]) -> list[int]:
    """The numbers of dead letters' records; those of tombstones have none."""
    documents = [json.loads(letter.value) for letter in letters]
    return [int(letter["doc"]["key"][4:]) for letter in documents if letter["errInfo"]["code"] != "NoValue"]


async def _count(consumer: aiokafka.AIOKafkaConsumer, wanted: int, each: int, tombstones: int) -> None:
    """Windows' counts and late records, until they are as many as records, `each` times; no delays. One line of JSON on standard output.

    The sum of the numbers of what came must be that of what was sent, and a tombstone is a dead letter.
    """
    counted, late, empty, numbers, first_s, last_s = 0, 0, 0, 0, 0.0, time.time()
    while (counted + each * late, empty) != (each * wanted, tombstones) and time.time() - last_s < _SILENCE_S:
        for place, records in (await consumer.getmany(timeout_ms=1_000, max_records=20_000)).items():
            last_s = time.time()
            first_s = first_s or last_s
            if place.topic.endswith(_LETTERS):
                refused = _late(records)
                late += len(refused)
                empty += len(records) - len(refused)
                numbers += each * sum(refused)
                continue
            results = [json.loads(record.value) for record in records]
            counted += sum(result["n"] for result in results)
            numbers += sum(result["of"] for result in results)
    assert counted + each * late == each * wanted, (
        f"windows counted {counted} records and {late} were late, {wanted} were sent"
    )
    assert numbers == each * wanted * (wanted - 1) // 2, (
        f"windows counted other records than were sent: their numbers are {numbers} together"
    )
    assert empty == tombstones, f"{empty} dead letters of {tombstones} tombstones"
    assert not await consumer.getmany(timeout_ms=300), "more results than there are"
    await consumer.stop()
    print(json.dumps({"p50": None, "p99": None, "first": first_s, "last": last_s}), flush=True)


# --- one measurement --------------------------------------------------------------------------------------------------


def letters(target: str) -> str:
    """The topic of what was refused, beside that of results."""
    return target + _LETTERS


def document(case: Case, source: str, target: str) -> str:
    """The pipeline."""
    emit = {"connectionName": "broker", "topic": target}
    options: dict[str, Any] = {}
    if case.epoch_ms is not None:
        options["checkpoint"] = {"interval": {"size": case.epoch_ms, "unit": "ms"}}
    if case.stage == "join":
        options["lateness"] = "split"  # both sides find the same records late
    if case.stage in _BY_WATERMARK:
        options["dlq"] = {"connectionName": "broker", "topic": letters(target)}
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [{"$source": _reading(case, source)}, *_stages(case, source), {"$emit": emit}],
        "options": options,
    })  # fmt: skip


async def _client(role: str, **given: object) -> asyncio.subprocess.Process:
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.harness.bench.ordinary", role, *options, stdout=asyncio.subprocess.PIPE
    )


async def _ended(process: asyncio.subprocess.Process) -> bytes:
    out, _ = await process.communicate()
    assert process.returncode == 0, f"a client ended with {process.returncode}"
    return out


async def _producers(bootstrap: str, topic: str, case: Case, count: int, pace: int) -> list[asyncio.subprocess.Process]:
    number = 1 if not pace else -(-pace // _PRODUCER_RATE_MAX)
    shares = [len(range(n, count, number)) for n in range(number)]
    return [
        await _client(
            "produce", bootstrap=bootstrap, topic=topic, linger=case.linger_ms, partitions=case.partitions,
            first=n, step=number, count=share, pace=pace / number, fields=case.fields,
            traffic=json.dumps(asdict(case.traffic)),
        )
        for n, share in enumerate(shares)
    ]  # fmt: skip


async def produced(bootstrap: str, topic: str, case: Case, count: int) -> None:
    """So many records are in the topic, as fast as clients send them."""
    for producer in await _producers(bootstrap, topic, case, count, 0):
        await _ended(producer)


@asynccontextmanager
async def _watched(installed: Installation, case: Case, folder: Path) -> AsyncIterator[tuple[Meter, Profiler]]:
    places = installed.cluster.pids()
    profiled = {p: pid for p, pid in places.items() if p != "broker"} if case.profile_s else {}
    async with Meter(places) as meter, Profiler(profiled, folder, case.profile_s) as spy:
        yield meter, spy


async def _ready(installed: Installation, case: Case, name: ProcessorName, source: str, target: str) -> float:
    """Seconds until it runs."""
    asked = time.monotonic()
    if case.stage != "floor":
        await installed.ensure_started(name, document(case, source, target), {})
        await installed.until_running(name)
    return time.monotonic() - asked


async def measure(installed: Installation, case: Case, folder: Path) -> Found:
    """Run the case; AssertionError where a record is missing, comes twice or is not as it must be."""
    unique = uuid.uuid4().hex[:8]
    floor = case.stage == "floor"
    source, name = f"in-{unique}", ProcessorName(f"bench-{unique}")
    target = source if floor else f"out-{unique}"
    bootstrap = installed.cluster.bootstrap
    for topic in (source, target, letters(target)):
        await installed.log.create_topic(topic, case.partitions, {"retention.ms": "-1"})
    count = case.preload or int(case.rate * case.seconds)
    if case.preload:
        await produced(bootstrap, source, case, count)
    consumer = await _client(
        "consume",
        bootstrap=bootstrap,
        topic=target,
        partitions=case.partitions,
        count=count,
        stage=case.stage,
        fields=case.fields,
        traffic=json.dumps(asdict(case.traffic)),
    )
    assert consumer.stdout is not None
    assert (await consumer.stdout.readline()).strip() == b"ready"
    # A preload is watched from the start on; else all processes are there first: some come with the first task of a service.
    ready_s = 0.0 if case.preload else await _ready(installed, case, name, source, target)
    if not case.preload:
        await asyncio.sleep(_SETTLES_S)
    async with _watched(installed, case, folder / unique) as (meter, spy):
        if case.preload:
            ready_s = await _ready(installed, case, name, source, target)
        began = time.time()
        if not case.preload:
            for producer in await _producers(bootstrap, source, case, count, case.rate):
                await _ended(producer)
        if case.stage in _BY_WATERMARK:  # the last ones come at the end of the input
            await installed.client.request(StopProcessor(installed.client.unique(), name, drain=True))
        said = json.loads(await _ended(consumer))
        seconds = time.time() - began
    if not floor:
        if case.stage not in _BY_WATERMARK:
            await installed.client.request(StopProcessor(installed.client.unique(), name))
        await installed.until_ended(name)
    cores = {place: round(s / seconds, 3) for place, s in meter.usage.cpu_s.items() if s / seconds >= 0.001}
    rate = count / (said["last"] - began)
    p50, p99 = (None, None) if case.preload else (said["p50"], said["p99"])
    rss = round(meter.usage.peak_rss_mib)
    return Found(case, count, p50, p99, round(rate), cores, rss, round(ready_s, 2), spy.shown())


def shown(found: Found) -> str:
    """For people, one measurement a line."""
    c = found.case
    cores = ", ".join(f"{name} {s:g}" for name, s in sorted(found.cpu_cores.items(), key=lambda item: -item[1]))
    sort = f"preload {c.preload:,}" if c.preload else f"{c.rate:,}/s linger {c.linger_ms}"
    delay = "" if found.p50_ms is None else f"p50 {found.p50_ms:,.0f} p99 {found.p99_ms:,.0f} ms "
    return (
        f"{c.stage} {sort} partitions {c.partitions} epoch {c.epoch_ms or 'default'}: {delay}{found.events_per_s:,.0f}/s ready"
        f" {found.ready_s} s {found.rss_mib:,.0f} MiB cores {sum(found.cpu_cores.values()):.2f} ({cores})"
    )


async def _main(asked: argparse.Namespace, folder: Path) -> None:
    began = time.monotonic()
    plan = plan_processor(parse(document(Case(stage=asked.stage), "in", "out")))
    workers = {**workers_of(plan, {}, 1), **json.loads(asked.workers)}
    found: list[Found] = []
    async with installation(folder / "data", {"TIDEMARK_LOG": "json"}, workers) as installed:
        print(f"installation there after {time.monotonic() - began:.1f} s", flush=True)
        cases = [
            Case(
                rate,
                asked.seconds,
                linger,
                partitions,
                epoch or None,
                asked.stage,
                asked.preload,
                asked.profile,
                asked.fields,
                Traffic(**json.loads(asked.traffic)),
            )
            for epoch in asked.epoch
            for partitions in asked.partitions
            for linger in asked.linger
            for rate in asked.rate
        ]
        for case in cases:
            found.append(await measure(installed, case, folder))
            print(shown(found[-1]), f"load {os.getloadavg()[0]:.1f}", flush=True)
            for place, lines in found[-1].profile.items():
                print(f"--- {place}", *lines, sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(replace(f, profile={})) for f in found], indent=2))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", default="measure", choices=("measure", "produce", "consume"))
    for name in ("bootstrap", "topic"):
        parser.add_argument(f"--{name}")
    for name, default in (("first", 0), ("step", 1), ("count", 0), ("preload", 0), ("profile", 0), ("fields", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pace", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=15)
    for name, values in (("rate", [10_000]), ("linger", [1]), ("partitions", [4]), ("epoch", [0])):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=values)
    parser.add_argument("--traffic", default="{}", help="fields of Traffic, JSON")
    parser.add_argument("--stage", default="match", choices=sorted([*_STAGES, *WINDOWS, "computation", "join"]))
    parser.add_argument("--workers", default="{}", help="processes of a service, JSON")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.role != "measure":
        asked.linger, asked.partitions = asked.linger[0], asked.partitions[0]
        asyncio.run((produce if asked.role == "produce" else consume)(asked))
        return
    for name, value in described().items():
        print(f"{name}: {value}")
    if asked.folder is not None:
        asyncio.run(_main(asked, asked.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_main(asked, Path(folder)))


if __name__ == "__main__":
    main()
