"""What an audit says of topics that people have changed: that records are gone, and with which topic; never that they are wrong."""

import logging

import pytest

from tests.harness.audited import READINGS, Saved, Story, feed, finished_run, run
from tests.harness.installation import NAME, installed
from tests.harness.sealing import sealed
from tidemark.services.audit.check import Audited, NotAuditable, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import NewRecord, TopicPartition


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    out = tmp_path_factory.mktemp("audited")
    return run_virtual(lambda world: finished_run(world, out))


def test_brokers_that_are_away_for_a_moment_are_asked_again(saved: Saved) -> None:
    """Whatever an audit asks of them, the first time and between two answers, it says what it says without outages."""
    faults = Faults()
    for operation in ("admin", "offsets"):
        faults.plan(operation, *[Fault.REFUSED, Fault.NONE] * 1_000)

    async def then(told: Story) -> tuple[Audited, Audited]:
        calm = await told.audit()
        told.log = sealed(MemoryLog(told.broker, faults))
        return calm, await told.audit()

    calm, disturbed = run(saved, then)
    assert disturbed == calm
    assert min(faults.drawn["admin", Fault.REFUSED], faults.drawn["offsets", Fault.REFUSED]) > 1


@pytest.mark.parametrize(("partitions", "records"), [(1, 0), (2, 10), (2, 300), (3, 300)])
def test_a_source_that_was_made_anew_is_not_read_for_the_old_one(saved: Saved, partitions: int, records: int) -> None:
    """However many partitions and records it has now: no statement, and no word of lost or wrong records."""

    async def then(told: Story) -> None:
        told.broker.delete_topic("readings")
        told.broker.create_topic("readings", partitions)
        if records:
            await feed(told.log, [{**each, "wh": 1} for each in READINGS[:records]])
        with pytest.raises(
            NotAuditable, match=r"topic readings: the job read the topic with id .* another one has the name"
        ):
            await told.audit()

    run(saved, then)


@pytest.mark.parametrize("again", [True, False])
def test_an_output_whose_topic_was_deleted_is_told_and_not_compared(saved: Saved, again: bool) -> None:
    """Each epoch with records in it is named, whether another topic has the name or not; the other outputs are compared."""

    async def then(told: Story) -> Audited:
        told.broker.delete_topic("usage")
        if again:
            told.broker.create_topic("usage", 4)
        return await told.audit()

    found: Audited = run(saved, then)
    (gone,) = set(found.gone)
    assert gone.startswith("topic usage: it was deleted" if again else "topic usage is not there")
    assert found.records == len(READINGS) + 15


@pytest.mark.parametrize("first", [True, False])
def test_rows_that_a_topic_refused_by_other_rules_than_now_are_as_letters_say(first: bool) -> None:
    """In front of a stop the topic is compacted, and refuses records without a key, or behind it: half of the rows are letters."""

    async def story(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as it:
            log = sealed(MemoryLog(it.broker))
            for topic in ("in", "out", "letters"):
                await log.create_topic(topic, 1)
            await it.create(copies())
            for half, compacted in enumerate((first, not first)):
                (it.broker.compacted.add if compacted else it.broker.compacted.discard)("out")
                await it.start()
                writer = await log.writer("test")
                for number in range(10 * half, 10 * half + 10):
                    await (await writer.send(TopicPartition("in", 0), NewRecord(b'{"n": %d}' % number)))
                await writer.close()
                await it.committed()
                await it.stop(drain=half == 1)
            counts = {topic: len(it.broker.dump(topic)[0]) for topic in ("out", "letters")}
            assert counts == {"out": 10, "letters": 10}
            there = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {})
            found = await audit(NAME, there)
            assert (found.records, found.gone, found.unchecked) == (20, (), ())
            assert sum(epoch.dead_letters for epoch in found.epochs) == 10

    run_virtual(story)


def copies() -> dict[str, object]:
    """From a topic into another, whose records have no key."""
    start = {"auto_offset_reset": "earliest"}
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [
            {"$source": {"connectionName": "broker", "topic": "in", "config": start}},
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {
            "dlq": {"connectionName": "broker", "topic": "letters"},
            "checkpoint": {"interval": {"size": 100, "unit": "ms"}},
        },
    }
