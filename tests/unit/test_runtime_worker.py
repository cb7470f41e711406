# ruff: noqa: N802 -- a test carries its rule's name
"""A worker obeys what is meant for it, once (R2), and says why a task failed (C10, S6, L2)."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tests.harness.driver_stand import StandingBody, WaitingBody
from tests.harness.worker_stand import JOB, ME, TOPICS, StubService, WorkerStand, at_work
from tidemark.shared.adapters.faults import Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import (
    Epoch,
    Generation,
    LeaderToken,
    Offset,
    SplitId,
    TaskId,
    VertexId,
)
from tidemark.shared.model.messages import (
    Ack,
    CoordinatorBeat,
    Drain,
    EndsFound,
    Heartbeat,
    ReadSplits,
    Register,
    SplitsFound,
    StartCheckpoint,
    StartSources,
    StopTasks,
    TaskFailed,
    TaskRestored,
    TellEnds,
)
from tidemark.shared.ports.log import LogUnavailable, TopicPartition
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.protocol.source.machine import Input
from tidemark.shared.runtime.body import Fetched, ReadingBody, TaskBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.driver import ZombieError
from tidemark.shared.runtime.reading import up_to_now
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.messages import decode_report

COLLECT = TaskId(VertexId("collect-1"), 0)


def test_R2_an_assignment_for_another_incarnation_is_not_obeyed() -> None:
    """Not even for the one that had this place before."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(to="w0"))
        await stand.settle()
        assert stand.service.built == []
        assert await stand.reports(TaskRestored) == []
        await stand.tell(stand.assign(to=ME))
        assert [r.generation for r in await stand.said(TaskRestored)] == [1]

    at_work(story)


def test_R2_a_task_starts_at_most_once_a_generation() -> None:
    """A repeated assignment starts nothing, whether the task runs, has failed, or was stopped; a later generation does."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1), stand.assign(1))
        await stand.said(TaskRestored)
        await stand.tell(stand.assign(1))
        await stand.settle()
        assert len(stand.service.built) == 1
        stand.service.built[0].fail(RuntimeError("broken"))
        await stand.said(TaskFailed)
        await stand.tell(stand.assign(1))
        await stand.settle()
        assert len(stand.service.built) == 1
        await stand.tell(stand.assign(2))
        assert [r.generation for r in await stand.said(TaskRestored, 2)] == [1, 2]

    at_work(story)


def test_R2_what_was_stopped_is_not_started_by_an_older_word() -> None:
    """An assignment of a generation that a stop has named is late: it is not obeyed, on a task that never ran here either."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(StopTasks(JOB, Generation(3)), stand.assign(3))
        await stand.settle()
        assert stand.service.built == []
        await stand.tell(stand.assign(4))
        await stand.said(TaskRestored)
        await stand.tell(StopTasks(JOB, Generation(3)))
        await stand.settle(1_500)
        (beat,) = (await stand.reports(Heartbeat))[-1].tasks
        assert beat.generation == 4

    at_work(story)


def test_C8_a_worker_obeys_no_leader_behind_a_later_one() -> None:
    """A stop that a deposed leader sends when its network is back is not for what its successor began; nor does its beat count as one."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(CoordinatorBeat(LeaderToken(2)), stand.assign(1), leader=2)
        await stand.said(TaskRestored)
        await stand.tell(StopTasks(JOB, Generation(1)), stand.assign(2), leader=1)
        await stand.settle()
        (beat,) = (await stand.reports(Heartbeat))[-1].tasks
        assert beat.generation == 1
        for _ in range(8):
            await stand.tell(CoordinatorBeat(LeaderToken(1)), leader=1)
            await stand.settle(500)
        assert (await stand.reports(Heartbeat))[-1].tasks == ()

    settings = RuntimeSettings(
        collects=True,
        engine="local",
        heartbeat_interval_ms=100,
        heartbeat_timeout_ms=500,
        coordinator_silence_ms_max=2_000,
    )
    at_work(story, settings=settings)


def test_a_task_that_is_stopped_has_told_what_it_counted() -> None:
    """Between two heartbeats, too: a job that is over before the first one is due is not one that did nothing."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)
        await stand.tell(StopTasks(JOB, Generation(1)))
        await stand.settle(50)
        told = [beat.vertex for heartbeat in await stand.reports(Heartbeat) for beat in heartbeat.tasks]
        assert told == ["collect-1"]

    at_work(story, settings=RuntimeSettings(collects=True, engine="local", heartbeat_interval_ms=1_500))


def test_R2_a_newer_generation_replaces_the_tasks_of_the_older() -> None:
    """All of the job that run here, whatever their vertices: none of them goes on beside its successor."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1), stand.assign(1, vertex="dlq"))
        await stand.said(TaskRestored, 2)
        await stand.tell(stand.assign(2))
        await stand.said(TaskRestored, 3)
        await stand.settle()
        assert [(b.vertex, b.generation) for b in (await stand.reports(Heartbeat))[-1].tasks] == [("collect-1", 2)]

    at_work(story)


def test_R2_a_worker_that_hears_no_coordinator_stops_its_tasks_by_its_own_clock() -> None:
    """Any word counts; after the silence no task is left, and the worker goes on waiting for work."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)
        for _ in range(4):
            await stand.settle(700)
            await stand.tell(CoordinatorBeat(1))  # type: ignore[arg-type]
        assert [b.tasks != () for b in (await stand.reports(Heartbeat))[-1:]] == [True]
        await stand.settle(2000)
        assert (await stand.reports(Heartbeat))[-1].tasks == ()
        await stand.tell(stand.assign(2))
        await stand.said(TaskRestored, 2)

    settings = RuntimeSettings(
        collects=True,
        engine="local",
        heartbeat_interval_ms=100,
        heartbeat_timeout_ms=500,
        coordinator_silence_ms_max=1000,
    )
    at_work(story, settings=settings)


class Opening(WaitingBody):
    """Says when it is opened and closed, and may wait or fail in either."""

    def __init__(self, name: str, said: list[str], fails: bool = False) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._name = name
        self._said = said
        self._fails = fails

    async def open(self, parts: Any) -> None:
        self._said.append(f"{self._name} opens")
        await self._enter("open")
        if self._fails:
            raise TargetRefused("the target is another one")
        self._said.append(f"{self._name} is open")

    async def close(self) -> None:
        self._said.append(f"{self._name} closes")
        await self._enter("close")


def test_R2_a_task_that_is_still_being_built_ends_before_its_successor_begins() -> None:
    """A take-over that waits for its target would go on beside the newer one, and fence it when the target comes back."""
    said: list[str] = []
    bodies = {generation: Opening(f"generation {generation}", said) for generation in (1, 2)}
    bodies[1].hold("open")

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        await stand.until(lambda: said == ["generation 1 opens"])
        await stand.tell(stand.assign(2))
        assert [r.generation for r in await stand.said(TaskRestored)] == [2]
        bodies[1].let_go("open")
        await stand.settle()
        assert said == ["generation 1 opens", "generation 1 closes", "generation 2 opens", "generation 2 is open"]

    at_work(story, make=lambda context: bodies[context.assign.generation])


class HurriedService(StubService):
    """Builds a task even when it is told not to: a library has swallowed the word."""

    async def build(self, context: AssignedTask) -> TaskBody:
        if context.assign.generation == 1:
            self.built.append(context)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return self.make(context)
        return await super().build(context)


def test_R2_a_start_that_ends_behind_its_successor_s_order_comes_to_nothing() -> None:
    """Whatever kept it from ending when it was told: it is closed, and neither works nor says that it is restored."""
    said: list[str] = []

    async def story(stand: WorkerStand) -> None:
        stand.worker._service = HurriedService(lambda c: Opening(f"generation {c.assign.generation}", said))
        await stand.tell(stand.assign(1))
        await stand.settle()
        await stand.tell(stand.assign(2))
        await stand.said(TaskRestored)
        await stand.settle()
        assert [r.generation for r in await stand.reports(TaskRestored)] == [2]
        assert "generation 1 closes" in said
        (hosted,) = stand.worker._tasks.values()
        assert hosted.assign.generation == 2

    at_work(story)


def test_what_was_opened_in_vain_is_closed() -> None:
    """Readers, producers and connections of a task that could not be restored: an outage of an hour would leave hundreds open."""
    said: list[str] = []

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        (failed,) = await stand.said(TaskFailed)
        assert failed.permanent
        assert said == ["it opens", "it closes"]

    at_work(story, make=lambda _: Opening("it", said, fails=True))


def test_R2_who_closes_old_tasks_leaves_those_that_came_meanwhile() -> None:
    """A coordinator may be back, and have assigned the next generation, while the tasks of the last are still being closed."""
    bodies: list[Opening] = []

    def make(context: Any) -> Opening:
        bodies.append(Opening(context.task.vertex, []))
        return bodies[-1]

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1), stand.assign(1, vertex="dlq"))
        await stand.said(TaskRestored, 2)
        bodies[0].hold("close")
        await stand.until(lambda: "close" in bodies[0].calls)  # the coordinator has been silent for too long
        await stand.tell(stand.assign(2, vertex="dlq"))
        await stand.said(TaskRestored, 3)
        bodies[0].let_go("close")
        await stand.settle(300)
        (beat,) = (await stand.reports(Heartbeat))[-1].tasks
        assert (beat.vertex, beat.generation) == ("dlq", 2)

    settings = RuntimeSettings(
        collects=True,
        engine="local",
        heartbeat_interval_ms=100,
        heartbeat_timeout_ms=500,
        coordinator_silence_ms_max=1000,
    )
    at_work(story, settings=settings, make=make)


def test_R1_a_worker_names_its_place_and_its_incarnation() -> None:
    """By that the coordinator sees that another process is in the place; what was said before it came is not for it."""

    async def story(stand: WorkerStand) -> None:
        (register,) = await stand.reports(Register)
        assert (register.worker, register.place, register.service) == (ME, "sink-0", "sink")

    at_work(story)


class Unsettled(MemoryLog):
    """For a while the broker does not say where some topic ends, as after its restart."""

    of = ""

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        if any(partition.topic == self.of for partition in partitions):
            raise LogUnavailable("no leader yet")
        return await super().end_offsets(partitions)


def unsettled(topic: str, logs: list[Unsettled]) -> Callable[[MemoryBroker, Faults], MemoryLog]:
    """Makes a log of which this topic is unsettled, and keeps it."""

    def log(broker: MemoryBroker, faults: Faults) -> MemoryLog:
        logs.append(Unsettled(broker, faults))
        logs[0].of = topic
        return logs[0]

    return log


def test_R1_a_worker_is_not_heard_of_before_it_hears() -> None:
    """By a heartbeat alone it would be given tasks: assignments that nobody says a second time."""
    logs: list[Unsettled] = []

    async def story(stand: WorkerStand) -> None:
        await stand.settle(10 * stand.outside.settings.heartbeat_interval_ms)
        assert await stand.reports(object) == []
        logs[0].of = ""
        await stand.said(Heartbeat)
        assert isinstance((await stand.reports(object))[0], Register)
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)

    at_work(story, log=unsettled(TOPICS.commands, logs))


def test_F7_a_task_that_sends_restores_once_read_positions_reach_it() -> None:
    """Receivers say when sources start where they are, and not a second time. Who sends nothing does not read what they say."""
    logs: list[Unsettled] = []

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1, vertex="dlq"))
        await stand.said(TaskRestored)
        await stand.tell(stand.assign(1))
        await stand.settle(10 * stand.outside.settings.heartbeat_interval_ms)
        assert len(await stand.reports(TaskRestored)) == 1
        logs[0].of = ""
        await stand.settle(stand.outside.settings.heartbeat_interval_ms)
        assert [each.vertex for each in await stand.reports(TaskRestored)] == ["dlq", "collect-1"]

    at_work(story, log=unsettled(TOPICS.flow, logs))


def test_L2_a_zombie_only_stops() -> None:
    """It reports no failure, which would end the generation that is at work."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)
        stand.service.built[0].fail(ZombieError("generation 2 is at work"))
        await stand.settle()
        assert await stand.reports(TaskFailed) == []
        assert (await stand.reports(Heartbeat))[-1].tasks == ()

    at_work(story)


class Source(StandingBody, ReadingBody):
    """A source's body that has nothing to give."""

    fetched = 0
    place = "$source"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.input = Input(listed_once=False)
        self.input.looked({}, 0)
        self.ended_at: list[Any] = []

    async def ends(self) -> dict[SplitId, Offset | None]:
        return dict.fromkeys(self.input.read())

    async def fetch(self, *, waits: bool = True) -> Any:
        self.fetched += 1
        await _never()

    async def take(self, fetched: Any, now_ms: int, monotonic_ms: int) -> list[Any]:
        return []

    def held_rows(self, merge_above: int) -> int:
        return 0

    def end_at(self, until: Any) -> None:
        self.ended_at.append(until)

    async def note(self, positions: Any) -> None: ...


async def _never() -> None:
    await asyncio.Event().wait()


def test_R1_sources_take_no_input_before_all_have_restored() -> None:
    """Only the word of the coordinator starts them, and it is that of their own generation."""
    bodies: list[Source] = []

    def make(_: Any) -> Any:
        bodies.append(Source(None))
        return bodies[-1]

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(2, vertex="source-1"))
        await stand.said(TaskRestored)
        await stand.tell(StartSources(JOB, Generation(1)))
        await stand.settle()
        assert bodies[0].fetched == 0
        await stand.tell(StartSources(JOB, Generation(2)))
        await stand.until(lambda: bodies[0].fetched == 1)

    at_work(story, make=make)


def test_a_heartbeat_that_is_about_due_goes_with_an_acknowledgement() -> None:
    """Each message costs a write and a fetch of its own; without acknowledgements heartbeats come alone."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1, vertex="source-1"))
        await stand.said(TaskRestored)
        await stand.tell(StartSources(JOB, Generation(1)))
        for epoch in range(1, 10):
            await stand.tell(StartCheckpoint(JOB, Generation(1), Epoch(epoch), Epoch(0)))
            await stand.settle(980)
        acknowledged = await _written_ms(stand, Ack)
        assert len(acknowledged) == 9
        assert set((await _written_ms(stand, Heartbeat))[-6:]) <= set(acknowledged)
        await stand.settle(5_000)
        assert set((await _written_ms(stand, Heartbeat))[-3:]).isdisjoint(acknowledged)

    at_work(story, make=lambda _: Source(None))


async def _written_ms(stand: WorkerStand, kind: type[Any]) -> list[int]:
    """When each report of this kind was written."""
    at = TopicPartition(TOPICS.reports, 0)
    records = [record async for record in up_to_now(MemoryLog(stand.broker), at)]
    return [record.timestamp_ms for record in records if isinstance(decode_report(record.value or b""), kind)]


def test_I1_a_source_s_task_tells_what_it_found_and_reads_what_it_is_told() -> None:
    """With the word that it has restored; what another task is told is not for it."""
    bodies: list[Source] = []

    def make(_: Any) -> Any:
        bodies.append(Source(None))
        return bodies[-1]

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1, vertex="source-1"))
        (found,) = await stand.said(SplitsFound)
        assert (found.vertex, found.index, found.splits) == ("source-1", 0, {})
        read = VertexId("source-1")
        mine, other = {SplitId("a"): KnownSplit(0, "o", Offset(0))}, {SplitId("b"): KnownSplit(1, "o", Offset(0))}
        for index, splits in ((1, other), (0, mine)):
            await stand.tell(ReadSplits(JOB, Generation(1), read, index, splits))
        await stand.until(lambda: bodies[0].input.known() == mine)

    at_work(story, make=make)


def test_I3_ends_are_told_behind_what_is_worked_on_and_nothing_is_taken_after() -> None:
    """While records are worked on the task says nothing of its ends; then it does, and takes no more until it is told of them."""
    bodies: list[Busy] = []

    def make(_: Any) -> Any:
        bodies.append(Busy(None))
        return bodies[-1]

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1, vertex="source-1"))
        await stand.said(TaskRestored)
        await stand.tell(StartSources(JOB, Generation(1)))
        await stand.until(lambda: bodies[0].taken == 1)
        await stand.tell(TellEnds(JOB, Generation(1), {"s": Offset(7)}))
        await stand.settle()
        assert await stand.reports(EndsFound) == []
        bodies[0].work.set()
        (ends,) = await stand.said(EndsFound)
        assert ends.splits[SplitId("s")].end == 7
        await stand.settle()
        assert bodies[0].taken == 1
        await stand.tell(Drain(JOB, Generation(1), VertexId("source-1"), 0, ends.splits))
        await stand.until(lambda: bodies[0].taken > 1)
        assert bodies[0].ended_at == [{SplitId("s"): 7}]

    at_work(story, make=make)


class Busy(Source):
    """Has always something to give, and works on it until it is let go."""

    taken = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.input.listed({SplitId("s"): KnownSplit(0, "o", Offset(0))})
        self.input.opened([SplitId("s")])
        self.work = asyncio.Event()

    async def fetch(self, *, waits: bool = True) -> Any:
        await asyncio.sleep(0)
        return Fetched((), ())

    async def take(self, fetched: Any, now_ms: int, monotonic_ms: int) -> list[Any]:
        self.taken += 1
        await self.work.wait()
        if self.ended_at:
            await _never()  # once is enough
        return []


def test_C12_the_topics_of_an_installation_keep_their_records() -> None:
    """Neither age nor size deletes what a restart may have to read; samples are looked at once, and nothing resumes from them."""
    for name, config in TOPICS.plain().items():
        kept = config.get("retention.ms") == "-1" and config.get("retention.bytes") == "-1"
        assert kept or config.get("cleanup.policy") == "compact" or name == TOPICS.samples, name
