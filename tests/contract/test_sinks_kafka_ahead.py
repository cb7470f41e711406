# ruff: noqa: N802 -- a test carries its rule's name
"""What the Kafka sink writes before its commit counts for that commit alone, and hides nothing for long (protocol, S3)."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.sinks_targets import KafkaWorld, names_for
from tidemark.services.library.release_world import Task, World, haunt
from tidemark.services.sink.connectors.kafka import KafkaSink
from tidemark.services.sink.connectors.kafkarecords import RecordMaker
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.shared.adapters.faults import Fault, FaultRates, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import LogError, NewRecord, TopicPartition
from tidemark.shared.ports.sink import TargetUnavailable

TURNS = 60
"""Of the loop: what goes on beside is done by then."""


class Shaky(KafkaWorld):
    """Sinks whose calls fail; who reads is spared."""

    def __init__(self, world: VirtualWorld, faults: Faults, *, part_records: int = 2) -> None:
        self.broker = MemoryBroker(world.clock)
        super().__init__(MemoryLog(self.broker), part_records=part_records)
        self.clock, self.executor = world.clock, world.executor
        self.faults = faults

    def sink(self) -> KafkaSink:
        """A sink with a connection of its own."""
        store = PartStore(self.blobs, names_for(f"a{next(self.attempts)}"), inline_bytes_max=700)
        log = MemoryLog(self.broker, self.faults)
        return KafkaSink(RecordMaker(self.stage, self.takes), log, store, self.clock, self.executor, self.settings)


class Counting(Faults):
    """None, and how often each operation is done."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def draw(self, operation: Any) -> Fault:
        """See `Faults.draw`."""
        self.calls[operation] += 1
        return super().draw(operation)


async def turns(count: int = TURNS) -> None:
    """Let others go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def staged(target: Shaky) -> Task:
    """A task with a checkpoint that is staged and not committed, and time to write it ahead."""
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.stage()
    await turns()
    return task


def test_S3_of_what_was_written_ahead_a_release_only_ends_the_transaction() -> None:
    """Nothing is sent any more: sends would fail."""

    async def main(world: VirtualWorld) -> None:
        target = Shaky(world, faults := Faults(), part_records=100)
        task = await staged(target)
        await task.world.check()
        faults.plan("txn", Fault.REFUSED)
        await task.commit()
        await task.release()
        await task.world.complete()
        assert not faults.drawn

    run_virtual(main)


@pytest.mark.parametrize("operation", ["txn", "abort", "commit"])
@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_ANSWER])
def test_S3_an_error_ahead_leaves_all_to_the_release(operation: Any, nth: int, fault: Fault) -> None:
    """A checkpoint that was written ahead is aborted, the next one holds its rows, and any call of the two fails."""

    async def main(world: VirtualWorld) -> None:
        target = Shaky(world, faults := Faults())
        faults.plan(operation, Fault.NONE, *[Fault.NONE] * nth, fault)
        task = Task(World(target))
        while not task.world.commits:
            try:
                await task.start()
                await task.accept()
                for _ in range(2):
                    await task.stage()
                    await turns()
                    await task.world.check()
                await task.commit()
            except TargetUnavailable:
                task = Task(task.world)
        while task.marker < task.world.last:
            try:
                await task.release()
            except TargetUnavailable:
                await task.world.check()
        await task.world.complete()

    run_virtual(main)


def test_S3_what_waits_too_long_for_its_commit_hides_nothing() -> None:
    """Records that others write behind it are visible once it is given up; its own come with the commit, however late."""

    async def main(world: VirtualWorld) -> None:
        target = Shaky(world, Faults(), part_records=100)
        task = await staged(target)
        others = await target.log.writer("another")
        for number in range(target.partitions):
            await (await others.send(TopicPartition(target.topic, number), NewRecord(b'{"id": 77}')))
        hidden = len(await target.records())
        await world.clock.sleep_ms(target.settings.ahead_ms_max + 100)
        assert (hidden, len(await target.records())) == (0, target.partitions)
        await task.commit()
        await task.release()
        assert sorted(await target.visible()) == [0, 1, 2, *[77] * target.partitions]

    run_virtual(main)


def test_S3_where_commits_are_slow_nothing_is_written_twice() -> None:
    """One transaction is given up; then each epoch has its own alone, until a commit is quick again."""

    async def main(world: VirtualWorld) -> None:
        target = Shaky(world, faults := Counting(), part_records=100)
        task = Task(World(target))
        await task.start()
        late = target.settings.ahead_ms_max + 100
        begun = []
        for wait_ms in (late, late, late, 0, 0):
            before = faults.calls["txn"]
            await task.accept()
            await task.stage()
            await turns()
            await world.clock.sleep_ms(wait_ms)
            await task.commit()
            await task.release()
            begun.append(faults.calls["txn"] - before)
        await task.world.complete()
        twice, once = begun[0], begun[1]
        assert begun == [twice, once, once, once, once]
        assert twice == 2 * once

    run_virtual(main)


async def story(world: VirtualWorld, steps: Sequence[str]) -> None:
    """Commits, aborted checkpoints, waits, deaths and zombies in any order: at each moment readers see what is committed, once."""
    chooser = world.chooser
    rates = FaultRates(refused=0.03, lost_answer=0.03, turns_max=3, slow=0.1, slow_ms_max=700)
    target = Shaky(world, Faults(chooser, rates))
    truth = World(target)
    task, zombies = Task(truth), list[Task]()
    await again(task.start)
    for step in steps:
        match step:
            case "commit" if task.staged is not None and task.staged[0] > truth.last:
                await task.commit()
            case "commit":
                pass
            case "die":
                zombies.append(task)
                task = Task(truth)
                await again(task.start)
            case "haunt" if zombies:
                await haunt(chooser.choice(zombies))
                task = Task(truth)  # a zombie that had no producer yet may have fenced it
                await again(task.start)
            case "wait":
                await world.clock.sleep_ms(chooser.choice((0, 50, target.settings.ahead_ms_max)))
            case "accept" | "stage" | "release":
                await again(getattr(task, step))
            case _:
                await turns(chooser.randint(0, 20))
        await truth.check()
    target.faults.calm()
    newest = Task(truth)
    await again(newest.start)
    await again(newest.epoch)
    await truth.complete()


async def again(step: Any) -> None:
    """The step, until nothing fails."""
    while True:
        try:
            await step()
        except (TargetUnavailable, LogError):
            continue
        return


@pytest.mark.parametrize("seed", range(40))
def test_S3_whatever_happens_between_staging_and_release(seed: int) -> None:
    """Of each kind of step several, in an order of their own; the order of coroutines is shuffled, too."""

    async def main(world: VirtualWorld) -> None:
        kinds = ("accept", "stage", "stage", "commit", "release", "turns", "wait", "die", "haunt")
        await story(world, [world.chooser.choice(kinds) for _ in range(60)])

    run_virtual(main, seed=seed, shuffle=True)
