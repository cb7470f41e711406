# ruff: noqa: N802 -- a test carries its rule's name
"""Who leads: a coordinator that is started again at its place, and two that were given the same one."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.harness.installation import NAME, installed
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import NO_LEADER, Epoch, Generation, JobId, LeaderToken, Offset, ProcessorName
from tidemark.shared.model.messages import CreateProcessor, PutConnection, RunningPlan, StartProcessor
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.commits import StoreLost, StoreUnavailable
from tidemark.shared.ports.log import LogError, LogRecord, LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.events import PlannedPipeline
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.record import Decisions, encode_kept, encode_plan
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.client import Client, RequestRefused, RequestTimeout
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.fencing import LEADS_KEY, changes_of, signed
from tidemark.shared.runtime.reading import up_to_now
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import encode_message

LEASE_MS = 5_000


class NotedStore(MemoryCommitStore):
    """Notes who took leadership, and when."""

    def __init__(self, state: MemoryCommitState, taken: list[tuple[str, int]]) -> None:
        super().__init__(state)
        self._taken = taken

    async def lead(
        self,
        holder: str,
        lease_ms: int,
        now_ms: int,
        told: int = 0,
        led: LeaderToken = NO_LEADER,
        looked_ms: int | None = None,
    ) -> LeaderToken | None:
        token = await super().lead(holder, lease_ms, now_ms, told, led, looked_ms)
        if token is not None:
            self._taken.append((holder, now_ms))
        return token


def _no_plan(*_: Any) -> PlannedPipeline:
    raise AssertionError("nothing is planned here")


class Stand:
    """Coordinators on one store and one broker; `taken`: who led, and since when, ms of the clock."""

    def __init__(self, world: VirtualWorld) -> None:
        self.clock = world.clock
        self.taken: list[tuple[str, int]] = []
        self._world = world
        self._broker = MemoryBroker(world.clock)
        self.state = MemoryCommitState()
        self._numbers = iter(range(1, 10_000))
        self.log = MemoryLog(self._broker)
        self.drivers: dict[str, CoordinatorDriver] = {}
        self.client = Client(self.log, Topics(), world.clock, lambda: f"{next(self._numbers):032x}")

    async def requests_kept(self) -> tuple[Offset, Offset]:
        """Where the topic of requests begins and ends."""
        topic = TopicPartition(Topics().requests, 0)
        return (await self.log.begin_offsets([topic]))[topic], (await self.log.end_offsets([topic]))[topic]

    async def leads(self, place: str) -> None:
        """Wait until this one leads; TimeoutError if it does not for long."""
        async with asyncio.timeout(600):
            while self.drivers[place]._token is None:
                await self.clock.sleep_ms(10)

    async def connections_told(self) -> int:
        """Records in the topic of connections."""
        topic = TopicPartition(Topics().connections, 0)
        return (await self.log.end_offsets([topic]))[topic]

    def start(
        self, place: str, log: MemoryLog | None = None, kind: type[NotedStore] = NotedStore
    ) -> "asyncio.Task[None]":
        """One that runs."""
        world = self._world
        outside = Outside(
            log or MemoryLog(self._broker),
            MemoryBlobs(world.executor),
            world.clock,
            world.executor,
            Topics(),
            RuntimeSettings(engine="local"),
            lambda: f"{next(self._numbers):032x}",
        )
        machine = CoordinatorMachine(CoordinatorSettings(), outside.unique)
        store = kind(self.state, self.taken)
        driver = CoordinatorDriver(place, outside, store, _no_plan, machine, lease_ms=LEASE_MS)
        self.drivers[place] = driver
        return asyncio.ensure_future(driver.run())


def on_virtual_time(story: Callable[[Stand], Any]) -> list[tuple[str, int]]:
    """What a story leaves in `taken`, with times from its beginning."""

    async def main(world: VirtualWorld) -> list[tuple[str, int]]:
        stand = Stand(world)
        began_ms = world.clock.now_ms()
        tasks: Mapping[str, asyncio.Task[None]] = await story(stand)
        for task in tasks.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return [(holder, at_ms - began_ms) for holder, at_ms in stand.taken]

    return run_virtual(main)


def test_a_coordinator_leads_again_at_once_at_its_place() -> None:
    """C8: a process that was killed left a lease that runs on; the one that follows it at its place does not wait for it, another does."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        killed = stand.start("coordinator-0")
        await stand.clock.sleep_ms(1_000)
        killed.cancel()
        tasks = {"standby": stand.start("coordinator-1"), "again": stand.start("coordinator-0")}
        await stand.clock.sleep_ms(1_000)
        return tasks

    taken = on_virtual_time(story)
    assert [holder for holder, _ in taken] == ["coordinator-0", "coordinator-0"]
    assert taken[1][1] < LEASE_MS


def test_two_at_one_place_do_not_take_it_from_each_other_for_ever() -> None:
    """The one that has lost the lease stands by under a name of its own."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        tasks = {"first": stand.start("coordinator-0")}
        await stand.clock.sleep_ms(100)
        tasks["second"] = stand.start("coordinator-0")
        await stand.clock.sleep_ms(10 * LEASE_MS)
        return tasks

    assert [holder for holder, _ in on_virtual_time(story)] == ["coordinator-0", "coordinator-0"]


def test_what_is_decided_is_let_go_of_when_the_brokers_allow_it() -> None:
    """A request that stayed, for they were away when it was answered, would be carried out anew by the next leader: a drop undone."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        log = MemoryLog(stand.log._broker)
        delete, tries = log.delete_records, iter(range(3))

        async def away(before: Mapping[TopicPartition, Offset]) -> None:
            if next(tries, None) is not None:
                raise LogUnavailable("away")
            await delete(before)

        log.delete_records = away  # type: ignore[method-assign]
        tasks = {"only": stand.start("coordinator-0", log)}
        await stand.client.ready(10_000)
        await stand.client.put_connection("k", None)
        await stand.clock.sleep_ms(5_000)
        assert await stand.requests_kept() == (1, 1)
        return tasks

    on_virtual_time(story)


class LosingStore(NotedStore):
    """Answers nothing about connections, and then knows this leader no more; later it is as others'."""

    found: asyncio.Event

    async def put_connection(self, leader: LeaderToken, name: str, value: str | None) -> None:
        await LosingStore.found.wait()
        await super().put_connection(leader, name, value)

    async def renew(self, token: LeaderToken, lease_ms: int, now_ms: int) -> bool:
        return LosingStore.found.is_set() and await super().renew(token, lease_ms, now_ms)


def test_what_another_leader_has_decided_keeps_no_request() -> None:
    """Read and not decided before the lease was lost: the next leader has answered it, and the one after that waits for it no more."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        LosingStore.found = asyncio.Event()
        tasks = {"first": stand.start("coordinator-0", kind=LosingStore)}
        await stand.client.ready(10_000)
        with suppress(RequestTimeout):
            await stand.client.request(PutConnection("r", ProcessorName("k"), None), LEASE_MS // 5)
        second = stand.start("coordinator-1")
        while stand.taken[-1][0] != "coordinator-1":
            await stand.clock.sleep_ms(LEASE_MS)
        await stand.clock.sleep_ms(LEASE_MS)
        assert await stand.requests_kept() == (1, 1)
        LosingStore.found.set()
        stand.drivers["coordinator-1"].stop()
        await second
        await stand.clock.sleep_ms(4 * LEASE_MS)
        assert stand.taken[-1][0].startswith("coordinator-0")
        await stand.client.put_connection("k", None)
        await stand.clock.sleep_ms(1_000)
        assert await stand.requests_kept() == (2, 2)
        return tasks

    on_virtual_time(story)


class Gated:
    """A clock of a process that can be made to stand still: who sleeps on it wakes when it runs again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.runs = asyncio.Event()
        self.runs.set()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._clock.sleep_ms(duration_ms)
        await self.runs.wait()


def test_C8_a_leader_that_stood_still_stops_nothing_that_its_successor_began(tmp_path: Path) -> None:
    """When it runs again it hears of tasks that it never began; it asks whether it leads before it tells anybody to stop them."""

    async def main(world: VirtualWorld) -> None:
        clock = Gated(world.clock)
        (tmp_path / "in.json").write_text('{"n": 1}\n')
        source = {"$source": {"path": str(tmp_path / "in.json"), "format": "json", "follow": True}}
        document = {"pipeline": [source, {"$emit": {"path": str(tmp_path / "out"), "format": "json"}}]}
        async with installed(world.clock, world.executor) as there:
            first = CoordinatorDriver(
                "first",
                replace(there.outside, clock=clock, log=MemoryLog(there.broker)),
                MemoryCommitStore(there.store),
                partial(plan_for_coordinator, "local"),
                CoordinatorMachine(CoordinatorSettings(adopt_wait_ms=100), there.outside.unique),
            )
            second = there.parts["coordinator"]
            assert isinstance(second, CoordinatorDriver)
            while not there.store.holder:
                await world.clock.sleep_ms(10)
            running = asyncio.ensure_future(first.run())
            second._holder, there.store.expires_ms = "second", 0  # the lease of the one that was there is over
            there.store.holder = "first"
            while first._token is None:
                await world.clock.sleep_ms(10)
            hear, heard = first._hear, list[LogRecord]()
            first._hear = heard.append  # type: ignore[method-assign, assignment]
            clock.runs.clear()
            await there.create(document)
            await there.start()
            await world.clock.sleep_ms(2 * LEASE_MS)
            for record in heard:
                hear(record)
            first._hear = hear  # type: ignore[method-assign]
            clock.runs.set()
            await world.clock.sleep_ms(3_000)
            assert first._token is None
            assert (await there.client.statuses())[NAME].generation == 1
            first.stop()
            await running

    run_virtual(main)


def test_topics_that_cannot_be_made_now_are_made_later(tmp_path: Path) -> None:
    """Brokers that are away when a generation begins delay it; what they refuse for good is the reason why the processor fails."""

    async def main(world: VirtualWorld) -> None:
        (tmp_path / "in.json").write_text('{"n": 1}\n')
        source = {"$source": {"path": str(tmp_path / "in.json"), "format": "json", "follow": True}}
        document = {"pipeline": [source, {"$emit": {"path": str(tmp_path / "out"), "format": "json"}}]}
        async with installed(world.clock, world.executor) as there:
            part = there.parts["coordinator"]
            assert isinstance(part, CoordinatorDriver)
            log = part._outside.log
            create, errors = log.create_topic, list[LogError]()
            errors += [LogUnavailable("away"), LogUnavailable("still away")]

            async def failing(topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
                if errors and "source-1" in topic:
                    raise errors.pop(0)
                await create(topic, partitions, config)

            log.create_topic = failing  # type: ignore[method-assign]
            await there.create(document)
            await there.client.request(StartProcessor("start", NAME))
            await world.clock.sleep_ms(5_000)
            assert (errors, (await there.client.statuses())[NAME].state) == ([], "RUNNING")
            await there.stop()
            errors.append(LogError("no topics for you"))
            await there.client.request(StartProcessor("again", NAME, resume=False))
            await world.clock.sleep_ms(5_000)
            status = (await there.client.statuses())[NAME]
            assert (status.state, status.reason) == ("FAILED", "topics: no topics for you")

    run_virtual(main)


def test_a_document_at_which_planning_breaks_is_refused_and_ends_nobody() -> None:
    """Its request stays until it is decided: a coordinator that ended with it would end with it again, and all processors with it."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        tasks = {"only": stand.start("coordinator-0")}
        await stand.client.ready(10_000)
        with pytest.raises(RequestRefused, match="a fault of Tidemark's: AssertionError"):
            await stand.client.request(CreateProcessor("r", ProcessorName("p"), "{}"))
        await stand.client.put_connection("k", None)
        assert not tasks["only"].done()
        return tasks

    on_virtual_time(story)


@pytest.mark.parametrize("puts_back", ["nothing", "a copy of an earlier term", "a copy of the same term"])
def test_C8_a_store_that_has_lost_what_leaders_told_of_ends_the_coordinator(puts_back: str) -> None:
    """However often it is started on a deleted store or an older copy, it says what is lost, changes nothing and retracts nothing."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        copies = {"nothing": MemoryCommitState()}

        async def lead_once(connection: str, copied: str) -> None:
            task = stand.start("coordinator-0")
            await stand.client.ready(10_000)
            copies[copied] = deepcopy(stand.state)
            await stand.client.put_connection(connection, {"type": "file"})
            stand.drivers["coordinator-0"].stop()
            await task

        await lead_once("k", "a copy of an earlier term")
        await lead_once("last", "a copy of the same term")
        told = await stand.connections_told()
        stand.state = copies[puts_back]
        before = deepcopy(stand.state)
        for _ in range(5):
            with pytest.raises(StoreLost, match=r"counts \d changes, but had confirmed \d.* prefix of topics"):
                await stand.start("coordinator-0")
        assert await stand.connections_told() == told
        assert stand.state == before
        return {}

    on_virtual_time(story)


def test_C8_commands_of_a_lost_change_are_noticed_before_anybody_leads() -> None:
    """Workers acted on them, though the registry had not been told yet: their number would be given out twice."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        topic = TopicPartition(Topics().commands, 0)
        await stand.log.create_topic(topic.topic, 1)
        told = NewRecord(b"", None, headers=signed(LeaderToken(1), 9))
        await (await (await stand.log.writer("leader")).send(topic, told))
        stand.state.changes = 8
        with pytest.raises(StoreLost, match="counts 8 changes, but had confirmed 9"):
            await stand.start("coordinator-0")
        stand.state.changes, stand.state.token = 9, LeaderToken(1)
        tasks = {"coordinator-0": stand.start("coordinator-0")}
        await stand.leads("coordinator-0")
        return tasks

    on_virtual_time(story)


def test_C9_where_the_mirror_has_more_than_the_store_nobody_leads_and_the_newest_copy_is_taken_back() -> None:
    """The older copy is read and nothing is told of it, however often: so the newest still counts what was told."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        task = stand.start("coordinator-0")
        await stand.leads("coordinator-0")
        stand.drivers["coordinator-0"].stop()
        await task
        row = ProcessorRow(
            name=NAME,
            job=JobId("j"),
            leader=stand.state.token,
            generation=Generation(1),
            last=Epoch(2),
            reserved=Epoch(9),
            desired="stopped",
            state="STOPPED",
            reason="",
            failures=0,
            plan_version=1,
            plan=encode_plan(RunningPlan(1, "{}", {}, ())),
            parallelism={},
            extra=encode_kept(Decisions()),
        )
        stand.state.rows[NAME] = row
        newest = deepcopy(stand.state)
        newest.rows[NAME] = structs.replace(row, last=Epoch(3))
        newest.changes += 1
        mirror = TopicPartition(Topics().commits(row.job), 0)
        await stand.log.create_topic(mirror.topic, 1)
        mirrored = encode_message(MirrorRow(row.job, Epoch(3), Epoch(2), Generation(1), ()))
        await (await (await stand.log.writer("leader")).send(mirror, NewRecord(mirrored)))
        for _ in range(5):
            with pytest.raises(StoreLost, match=r"checkpoint 2 as the last of .*, but its commits topic has 3.*backup"):
                async with asyncio.timeout(60):
                    await stand.start("coordinator-0")
        assert stand.state.rows[NAME].last == 2
        stand.state = newest
        tasks = {"coordinator-0": stand.start("coordinator-0")}
        await stand.leads("coordinator-0")
        return tasks

    on_virtual_time(story)


def test_C8_whoever_has_an_answer_finds_its_change_counted_in_the_registry() -> None:
    """So a backup from before it is noticed, however soon it is put back."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        tasks = {"coordinator-0": stand.start("coordinator-0")}
        await stand.client.ready(10_000)
        for number in range(5):
            await stand.client.put_connection(f"c-{number}", {"type": "file"})
            told = [changes_of(record) async for record in up_to_now(stand.log, TopicPartition(Topics().registry, 0))]
            assert max(told) == stand.state.changes
        return tasks

    on_virtual_time(story)


def test_C8_a_leader_that_the_store_still_names_stops_when_another_tells_more() -> None:
    """The store was replaced while it was in use: its leader renews its lease before it stands down."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        task = stand.start("coordinator-0")
        await stand.client.ready(10_000)
        writer = await stand.log.writer("other")
        told = NewRecord(b"9", LEADS_KEY, headers=signed(LeaderToken(9)))
        await (await writer.send(TopicPartition(Topics().registry, 0), told))
        with pytest.raises(StoreLost, match="names leader 1, but leader 9 has told"):
            await task
        return {}

    on_virtual_time(story)


class FallingStore(NotedStore):
    """A database that is replaced by an older copy of itself when a new leader reads it."""

    async def processors(self) -> list[ProcessorRow]:
        self._state.changes = 0
        return await super().processors()


def test_C8_a_store_that_fell_back_behind_its_lease_is_not_told_of() -> None:
    """What a leader has read of an older copy, it neither decides on nor tells."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        task = stand.start("coordinator-0", kind=FallingStore)
        with pytest.raises(StoreLost, match="counts 0 changes, but had confirmed 1"):
            await task
        registry = TopicPartition(Topics().registry, 0)
        assert [record async for record in up_to_now(stand.log, registry)] == []
        return {}

    assert [holder for holder, _ in on_virtual_time(story)] == ["coordinator-0"]


class LateStore(NotedStore):
    """A database that is not there at first."""

    opened = 0

    async def open(self) -> None:
        LateStore.opened += 1
        if LateStore.opened < 3:
            raise StoreUnavailable("not there")

    async def lead(
        self,
        holder: str,
        lease_ms: int,
        now_ms: int,
        told: int = 0,
        led: LeaderToken = NO_LEADER,
        looked_ms: int | None = None,
    ) -> LeaderToken | None:
        assert LateStore.opened == 3, "nobody asks a store that is not open"
        return await super().lead(holder, lease_ms, now_ms, told, led, looked_ms)


def test_a_store_that_is_not_there_at_first_is_waited_for() -> None:
    """It is opened, so that its tables and its durability are looked at, before anybody leads on it."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        tasks = {"only": stand.start("coordinator-0", kind=LateStore)}
        await stand.clock.sleep_ms(5_000)
        return tasks

    assert [holder for holder, _ in on_virtual_time(story)] == ["coordinator-0"]
