# ruff: noqa: N802 -- a test carries its rule's name
"""A leader that was cut off and followed: what it still tells when its network is back changes nothing (C8)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed
from tests.harness.leaders import Leader, another, of_installation
from tests.harness.sealing import sealed
from tidemark.services.control.readmodel import ReadModel
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import LeaderToken, Offset, ProcessorName
from tidemark.shared.model.messages import DropProcessor, ProcessorStatus, StopProcessor
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused, RequestTimeout
from tidemark.shared.runtime.fencing import signed
from tidemark.shared.runtime.registry import KnownConnections, Registry
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import encode_message

REGISTRY = TopicPartition(Topics().registry, 0)
Story = Callable[[Installed, Leader, Leader], Awaitable[None]]


def _with_two_leaders(folder: Path, story: Story) -> None:
    """A processor that runs; the first leads, the second stands by."""

    async def main(world: VirtualWorld) -> None:
        (folder / "in.json").write_text('{"n": 1}\n')
        source = {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}}
        document = {"pipeline": [source, {"$emit": {"path": str(folder / "out"), "format": "json"}}]}
        async with installed(world.clock, world.executor) as there, another(there) as second:
            await there.create(document)
            await there.start()
            await there.committed()
            await story(there, of_installation(there), second)

    run_virtual(main)


async def _tell(there: Installed, leader: int, name: str, status: ProcessorStatus | None) -> None:
    """A status, as this leader would write it."""
    writer = await sealed(MemoryLog(there.broker)).writer("late")
    value = None if status is None else encode_message(status)
    await (await writer.send(REGISTRY, NewRecord(value, name.encode(), signed(LeaderToken(leader)))))
    await writer.close()


def _compacted(there: Installed) -> dict[bytes, bytes | None]:
    """The last record of each key, whoever wrote it: what a broker keeps."""
    return {record.key or b"": record.value for record in there.broker.dump(REGISTRY.topic)[0]}


def test_C8_what_a_deposed_leader_had_queued_changes_nothing(tmp_path: Path) -> None:
    """Cut off, followed, and back a minute before anybody looks: everybody still reads what its successor said."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        model = ReadModel(sealed(MemoryLog(there.broker)), Topics(), there.clock)
        handles = model.start(there.outside.executor, lambda error: pytest.fail(repr(error)))
        first.cut(away=True)
        await second.leads()
        await there.committed()
        await there.client.request(StopProcessor(there.client.unique(), NAME, True))
        await there.when(lambda status: status.state == "FINISHED")
        await there.clock.sleep_ms(5_000)
        first.cut(away=False)
        await there.clock.sleep_ms(60_000)
        assert (await there.client.statuses())[NAME].state == "FINISHED"
        assert model.statuses[NAME].state == "FINISHED"
        for handle in handles:
            handle.cancel()
            await handle.join()

    _with_two_leaders(tmp_path, story)


def test_C8_the_leader_writes_again_what_a_lower_token_overwrote(tmp_path: Path) -> None:
    """Where only the last record of a key is kept, a late one must not be it; nor may one of a processor that is gone."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        del second
        status = (await there.client.statuses())[NAME]
        await there.stop()
        stopped = (await there.client.statuses())[NAME]
        assert first.driver._token is not None
        late = first.driver._token - 1
        await _tell(there, late, NAME, status)
        await _tell(there, late, "gone", status)
        await there.clock.sleep_ms(2_000)
        kept = _compacted(there)
        assert kept[NAME.encode()] == encode_message(stopped)
        assert kept[b"gone"] is None
        assert await there.client.statuses() == {NAME: stopped}

    _with_two_leaders(tmp_path, story)


def test_C8_a_reader_of_the_registry_takes_nothing_of_a_lower_token(tmp_path: Path) -> None:
    """Whoever looks before the leader has written it again sees what is so, too: a status, a retraction, a connection."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        del second
        status = (await there.client.statuses())[NAME]
        assert first.driver._token is not None
        told, known = Registry(), KnownConnections()
        for leader, value in ((2, encode_message(status)), (1, b"unreadable"), (1, None)):
            told.take(LogRecord("registry", 0, Offset(0), 0, NAME.encode(), value, signed(LeaderToken(leader))))
        for leader, value in ((2, b"{}"), (1, b"unreadable"), (1, None)):
            known.take(LogRecord("connections", 0, Offset(0), 0, b"k", value, signed(LeaderToken(leader))))
        assert (told.statuses, known.values) == ({NAME: status}, {"k": {}})

    _with_two_leaders(tmp_path, story)


def test_C8_a_leader_retracts_what_a_dead_one_left_of_dropped_processors(tmp_path: Path) -> None:
    """It dropped the row, and died before it could say so: the next one finds the name in the registry and not in the store."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        status = (await there.client.statuses())[NAME]
        assert first.driver._token is not None
        await _tell(there, first.driver._token, "left", status)
        assert set(await there.client.statuses()) == {NAME, "left"}
        first.cut(away=True)
        await second.leads()
        await there.clock.sleep_ms(2_000)
        assert set(await there.client.statuses()) == {NAME}

    _with_two_leaders(tmp_path, story)


def test_C8_connections_of_a_deposed_leader_are_overwritten(tmp_path: Path) -> None:
    """The read models hold what the store holds, whatever comes late."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        del second
        await there.client.put_connection("k", {"type": "kafka", "bootstrapServers": "new:1"})
        topic = TopicPartition(Topics().connections, 0)
        writer = await sealed(MemoryLog(there.broker)).writer("late")
        assert first.driver._token is not None
        headers = signed(LeaderToken(first.driver._token - 1))
        await (await writer.send(topic, NewRecord(b'{"type": "kafka"}', b"k", headers)))
        await (await writer.send(topic, NewRecord(b'{"type": "kafka"}', b"gone", headers)))
        await writer.close()
        await there.clock.sleep_ms(2_000)
        kept = {record.key: record.value for record in there.broker.dump(topic.topic)[0]}
        assert b"new:1" in (kept[b"k"] or b"")
        assert kept[b"gone"] is None
        assert list(await there.client.connections()) == ["k"]

    _with_two_leaders(tmp_path, story)


def test_C8_who_cannot_renew_its_lease_decides_no_request(tmp_path: Path) -> None:
    """It may have been followed: what it says of processors that it does not know may be wrong."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        second.driver.stop()
        first.store.away = True
        await there.clock.sleep_ms(10_000)
        unknown = DropProcessor(there.client.unique(), ProcessorName("made-by-another"))
        with pytest.raises(RequestTimeout):
            await there.client.request(unknown, timeout_ms=20_000)
        first.store.away = False
        with pytest.raises(RequestRefused, match="no processor named"):
            await there.client.request(unknown)

    _with_two_leaders(tmp_path, story)


def test_C8_a_request_stays_until_its_answer_is_told(tmp_path: Path) -> None:
    """An answer that went with the term is given again by the next leader: the request was not deleted before."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        told: list[Any] = []
        teller = first.driver._teller
        real = teller.tell

        def lost(topic: str, key: bytes | None, value: bytes | None, *, request: str = "") -> None:
            if request:
                told.append(request)
            else:
                real(topic, key, value)

        teller.tell = lost  # type: ignore[method-assign]
        unknown = DropProcessor(there.client.unique(), ProcessorName("nobody"))
        asked = asyncio.ensure_future(there.client.request(unknown))
        while not told:
            await there.clock.sleep_ms(100)
        await there.clock.sleep_ms(1_000)
        first.cut(away=True)
        await second.leads()
        with pytest.raises(RequestRefused, match="no processor named"):
            await asked

    _with_two_leaders(tmp_path, story)


def test_C8_leases_are_renewed_while_a_leader_reads(tmp_path: Path) -> None:
    """However long it takes to read what there is: nobody else takes the lease meanwhile, and nobody is told before."""

    async def story(there: Installed, first: Leader, second: Leader) -> None:
        store = second.driver._store
        real = store.lineage
        reads = asyncio.Event()

        async def slow(job: Any) -> Any:
            reads.set()
            await there.clock.sleep_ms(60_000)
            return await real(job)

        store.lineage = slow  # type: ignore[method-assign]
        first.cut(away=True)
        await reads.wait()
        first.cut(away=False)
        token = there.store.token
        await there.clock.sleep_ms(30_000)
        assert (second.driver._token, there.store.token) == (None, token)
        await second.leads()
        assert there.store.token == token
        await there.committed()

    _with_two_leaders(tmp_path, story)
