"""What a run under faults is made of: faults left to no luck, an oracle that finds what is wrong, ways that are really cut."""

import asyncio
import random
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.chaos.faults import Fault, Faults, kinds
from tests.harness.chaos.jobs import Job, drawn, records, steady
from tests.harness.chaos.lanes import Cut, Lane, Lanes
from tests.harness.chaos.ledger import Entry, findings, summary
from tests.harness.chaos.oracle import Outputs, judge
from tidemark.services.local.broker_settings import LOOPBACK, Port
from tidemark.shared.language.documents import parse

WORKERS = {"coordinator": 2, "source": 2, "operator": 2, "spark": 1, "sink": 2, "control": 1}


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_strikes_before_any_strikes_again(seed: int) -> None:
    """At places that there are, within the time of its round, and the same for the same seed."""
    every = kinds(list(WORKERS), disks=True)
    one, two = (Faults(str(seed), WORKERS, disks=True) for _ in range(2))
    found = one.next(len(every), 40.0)
    assert found == two.next(len(every), 40.0)
    assert Counter(fault.kind for fault in found) == Counter(every)
    assert {f.where for f in found} <= {
        *(f"{service}-{n}" for service, count in WORKERS.items() for n in range(count)),
        "broker", "forkserver", "everything", "kafka", "blobs", "store", "out",
    }  # fmt: skip
    assert all(0.0 <= fault.at_s <= 40.0 for fault in found)


@pytest.mark.parametrize("seed", range(20))
def test_every_drawn_pipeline_is_a_document(seed: int, tmp_path: Path) -> None:
    """It parses, writes somewhere, and its records have numbers of their own."""
    job = drawn(random.Random(seed), seed, tmp_path)
    assert parse(job.document).pipeline
    assert job.topic or job.folder or job.table
    ids = [sent.id for sent in records(job, random.Random(seed), 1, 100)]
    assert len(set(ids)) == len(ids) == 100


def _rows(*groups: list[str]) -> list[dict[str, Any]]:
    return [{"_id": "k", "n": len(ids), "ids": ids} for ids in groups]


def _letter(id_: str) -> dict[str, Any]:
    return {"errInfo": {"reason": "late"}, "doc": {"id": id_}}


def _steady(tmp_path: Path) -> Job:
    return steady(tmp_path)


SOURCE = Counter({"0-1": 2, "0-2": 1, "0-3": 1, "0-closes-0": 1})


@pytest.mark.parametrize(
    ("rows", "letters", "says"),
    [
        (_rows(["0-1", "0-2"]), ["0-3"], []),
        (_rows(["0-1"]), ["0-3"], ["topic: 1 of 2 lost: ['0-2']"]),
        (_rows(["0-1", "0-2"], ["0-1"]), ["0-3"], ["topic: 1 too many or not due: ['0-1']"]),
        (_rows(["0-1", "0-2"]), [], ["letters: 1 of 1 lost: ['0-3']"]),
        (_rows(["0-1", "0-2", "0-3"]), ["0-3"], ["topic: 1 too many or not due: ['0-3']"]),
        (_rows(["0-1", "0-2"]), ["0-3", "0-3"], ["letters: 1 too many or not due: ['0-3']"]),
        ([{"_id": "k", "n": 3, "ids": ["0-1", "0-2"]}], ["0-3"], ["topic: a window counts 3 of 2 records"]),
    ],
)  # fmt: skip
def test_the_oracle_names_what_is_lost_twice_or_elsewhere(
    rows: list[dict[str, Any]], letters: list[str], says: list[str], tmp_path: Path
) -> None:
    """By id, at each place; what was sent twice counts once, and what closes the round's windows is not due."""
    found = Outputs({"topic": rows}, [_letter(each) for each in letters])
    assert judge(_steady(tmp_path), SOURCE, found, {"0-3"}, 0) == says


def test_the_oracle_wants_the_records_of_a_key_numbered(tmp_path: Path) -> None:
    """A state that forgot, or counted twice, shows."""
    job = Job("j", "", 1, {}, topic="out", middle="marks", wholly=False)  # type: ignore[arg-type]
    rows = [{"id": "a", "k": "k", "seen": 1}, {"id": "b", "k": "k", "seen": 1}]
    (said,) = judge(job, Counter({"a": 1, "b": 1}), Outputs({"topic": rows}), set(), None)
    assert "not numbered from one" in said


def test_the_summary_says_what_was_wrong() -> None:
    """A piece in which something was lost is no success, and is named by its seed and code."""
    right = Entry("c", 1, 2, 60, "", [Fault("kill", "sink-0", "process", 1.0)], {"records": 5})
    wrong = Entry("c", 2, 2, 60, "1 lost", [], {"records": 5})
    assert findings([right]) == []
    assert findings([right, wrong]) == ["seed 2, on c: 1 lost"]
    assert "nothing was lost" in summary([right])
    assert summary([right, wrong]).endswith("seed 2, on c: 1 lost")


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def _close(lane: Lane, server: asyncio.Server, *writers: asyncio.StreamWriter) -> None:
    """All connections are gone before the loop is."""
    for writer in writers:
        writer.close()
    lane.close()
    server.close()
    here = asyncio.current_task()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not here), return_exceptions=True)
    for writer in writers:
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("how", ["up", "down", "both"])
async def test_what_a_cut_holds_up_arrives_when_it_heals(how: Cut) -> None:
    """Whichever way is cut nothing comes back meanwhile; then all of it does, in order."""
    server = await asyncio.start_server(_echo, LOOPBACK, 0)
    lane = Lane(Port(server.sockets[0].getsockname()[1]))
    await lane.open()
    reader, writer = await asyncio.open_connection(LOOPBACK, lane.port)
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    lane.cut(how)
    writer.write(b"23")
    answer = asyncio.ensure_future(reader.readexactly(2))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not answer.done()
    lane.heal(how)
    assert await answer == b"23"
    await _close(lane, server, writer)


def test_no_connection_of_this_machine_has_a_port_of_a_way() -> None:
    """The broker comes to listen seconds after its ports are chosen: until then nobody is given one of them."""
    lanes = Lanes(["source-0", "operator-0"])
    ports = {Port(int(each)) for each in re.findall(r":(\d+)", lanes.properties()["listeners"])}
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(ports) == 4
    assert max(ports) < first


async def _ended(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes any more."""
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_a_refused_way_ends_connections_and_takes_none() -> None:
    """As where a port is closed; healed, it carries again."""
    server = await asyncio.start_server(_echo, LOOPBACK, 0)
    lane = Lane(Port(server.sockets[0].getsockname()[1]))
    await lane.open()
    first, writer_of_first = await asyncio.open_connection(LOOPBACK, lane.port)
    lane.cut("refused")
    assert await _ended(first)
    second, writer_of_second = await asyncio.open_connection(LOOPBACK, lane.port)
    assert await _ended(second)
    lane.heal("refused")
    reader, writer = await asyncio.open_connection(LOOPBACK, lane.port)
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    await _close(lane, server, writer, writer_of_first, writer_of_second)
