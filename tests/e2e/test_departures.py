"""Departures through real processes, with faults: what comes out is what the oracle says, once. The whole year of them in the long form."""

import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.faults import Kill, Reader, lines, orders, pause_past_the_heartbeat, until
from tests.harness.share import share
from tests.oracle.check_demo import check_all, check_control
from tidemark.deploy.pipelines.departures.data import Gap, departures
from tidemark.services.audit.check import AuditFailed, audit_local
from tidemark.services.cli.demo import ALERTS, LATE, NAME, DemoSettings, demo
from tidemark.services.cli.installation import Installation
from tidemark.services.cli.view import SeenReports
from tidemark.services.local.supervisor import LocalCluster, LocalSettings
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import NewRecord, TopicPartition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

EVERY_KILL = (
    Kill("source-0", "snapshot-taken", 3),
    Kill("sink-0", "staged", 5),
    Kill("spark-0", "step-running", 3),
    Kill("coordinator-0", "commit-decided", 3),
    Kill("operator-0", "state-durable", 4),
    Kill("coordinator-0", "mirrored", 5),
    Kill("sink-0", "releasing", 4),
    Kill("coordinator-0", "commit-stored", 4),
)
KILLS = share(EVERY_KILL, 2)
"""In CI one of a source, of Spark, of an operator and of a sink; a broker's and a zombie are with them."""

GAP = Gap("EWR", datetime(2013, 2, 5, 14, tzinfo=UTC), datetime(2013, 2, 5, 18, tzinfo=UTC))
"""Flights that are taken out, as a control: hours without them are dips."""

WINTER_DAYS = 42
"""Enough to learn what is usual, and the blizzard."""


@dataclass
class Faults:
    """Kills at phases by the processes themselves; the broker's kill and a zombie from here; a reader all the time."""

    records: Sequence[Path]
    reader: Reader
    held_back_from: int
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self, sent: int) -> None:
        """From some record on the whole topic stands still, until the zombie has come back."""
        if sent > self.held_back_from:
            await self.go_on.wait()

    async def __call__(self, installed: Installation, seen: SeenReports) -> None:
        """Ends when every fault has struck."""
        reading = asyncio.create_task(self.reader.run(installed, seen))
        try:
            await until(installed, lambda status: status.commits >= 2)
            installed.cluster.kill("broker", signal.SIGKILL)
            before = await until(installed, lambda status: status.commits >= 4)
            await pause_past_the_heartbeat(installed, "operator-0")
            await until(installed, lambda status: status.commits > before.commits)
            self.go_on.set()
            struck = await until(installed, lambda _: all(record.exists() for record in self.records))
            await until(installed, lambda status: status.commits >= struck.commits + 2)
        finally:
            self.go_on.set()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    out: Path
    reader: Reader
    records: list[Path]
    """Of those that were killed."""
    days: int | None


def run_with_faults(folder: Path, days: int | None, seconds: float) -> Ran:
    """One run over so many days (None: the year) with every fault in it, and several tasks of each kind."""
    out = folder / "out"
    reader = Reader(out)
    records = [kill.record(folder) for kill in KILLS]
    feed = departures(without=[GAP], days=days)
    faults = Faults(records, reader, feed.sent // 5)
    settings = DemoSettings(
        out=out,
        data_dir=folder / "data",
        seconds=seconds,
        parallelism={"source": 2, "operator": 3, "sink": 2},
        environment={"TIDEMARK_KILL_AT": orders(KILLS, folder)},
        beside=faults,
        hold=faults.hold,
    )
    status = asyncio.run(demo(settings, feed))
    assert status.generation > len(KILLS) // 2, "the kills ended fewer generations than they should have"
    return Ran(out, reader, records, days)


@pytest.fixture(scope="module")
def faulty_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Six weeks with the blizzard in them, which take every way that the year does."""
    return run_with_faults(tmp_path_factory.mktemp("departures"), WINTER_DAYS, 10.0)


def right(ran: Ran) -> None:
    """Counts, late flights, duplicates and alerts are those of the oracle, each once."""
    for said in check_all(ran.out, without=[GAP], days=ran.days):
        print(said)  # noqa: T201 - what was checked belongs into the test's output


@pytest.mark.long
def test_the_year_is_exact_whatever_is_killed(tmp_path: Path) -> None:
    """All departures of the year, after kills in every phase: what six weeks of them show in each run of all tests."""
    ran = run_with_faults(tmp_path, None, 45.0)
    right(ran)
    stays(ran)
    print(check_control(ran.out, GAP))  # noqa: T201 - what was checked belongs into the test's output
    agrees(ran)


def test_six_weeks_are_exact_whatever_is_killed(faulty_run: Ran) -> None:
    """Counts, late flights, duplicates and alerts are those of the oracle, each once, after kills in every phase."""
    right(faulty_run)


def test_every_kill_struck_in_its_phase(faulty_run: Ran) -> None:
    """Each process died at the phase it was told, and left a record with the epoch."""
    assert [record.name for record in faulty_run.records if not record.exists()] == []


def test_readers_see_only_what_stays(faulty_run: Ran) -> None:
    """What a reader saw at any time is in the final output, at the same place, once: nothing was shown before its commit."""
    stays(faulty_run)


def stays(ran: Ran) -> None:
    """What a reader saw is in what is there at the end."""
    out, reader = ran.out, ran.reader
    for topic, file in ((ALERTS, "alerts.jsonl"), (LATE, "late.jsonl")):
        seen = reader.records[topic]
        offsets = [offset for offset, _ in seen]
        assert offsets == sorted(set(offsets)), f"{topic}: an offset was read twice or out of order"
        final = (out / file).read_bytes().splitlines()
        assert [value for _, value in seen] == final[: len(seen)], f"{topic}: what was read differs from what stayed"
    assert reader.changed == [], "a commit of the table changed after it was there"
    assert all(Path(path).exists() for path in reader.manifests), "a commit of the table that was seen is gone"
    assert len(lines(out / "alerts.jsonl")) > 0


def test_flights_taken_out_are_missed(faulty_run: Ran) -> None:
    """Four hours without Newark's flights are four dips more."""
    print(check_control(faulty_run.out, GAP, faulty_run.days))  # noqa: T201 - what was checked belongs into the test's output


def test_the_audit_agrees(faulty_run: Ran) -> None:
    """The audit computes the same from the source topic: every record counted once, late or repeated."""
    agrees(faulty_run)


def agrees(ran: Ran) -> None:
    """An audit finds what the summary says."""
    out = ran.out
    audited = asyncio.run(audit_local(NAME, out.parent / "data"))
    summary = json.loads((out / "summary.json").read_text())
    assert audited.records == summary["sent"]
    assert (audited.accepted, audited.late, audited.duplicates) == (
        summary["counted"],
        summary["late"],
        summary["duplicates"],
    )
    assert audited.dead_letters == 0
    assert len(audited.epochs) == summary["epochs"]
    assert audited.waiting == ()


def test_the_audit_names_a_file_that_was_altered(faulty_run: Ran) -> None:
    """One byte of one released file, and the audit names the file."""
    out = faulty_run.out
    path = max((out / "counts").glob("*.parquet"))
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    try:
        with pytest.raises(AuditFailed, match=path.name):
            asyncio.run(audit_local(NAME, out.parent / "data"))
    finally:
        path.write_bytes(data)


def test_the_audit_names_a_repeated_alert(faulty_run: Ran) -> None:
    """An alert that is in the topic once more than was released is named with its offset."""
    out = faulty_run.out
    data_dir = out.parent / "data"
    value = (out / "alerts.jsonl").read_bytes().splitlines()[0]

    async def repeat_and_audit() -> None:
        cluster = LocalCluster(LocalSettings(data_dir=data_dir, workers={}))
        log = KafkaLog(KafkaSettings(bootstrap=await cluster.start()))
        try:
            writer = await log.writer("tamper")
            offset = await (await writer.send(TopicPartition(ALERTS, 0), NewRecord(value)))
            await writer.close()
            with pytest.raises(AuditFailed, match=f"{ALERTS} partition 0 offset {offset}.* in no release"):
                await audit_local(NAME, data_dir)
        finally:
            await log.close()
            await cluster.stop()

    asyncio.run(repeat_and_audit())
