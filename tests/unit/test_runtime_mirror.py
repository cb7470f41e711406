# ruff: noqa: N802 -- a test carries its rule's name
"""The mirror's writer: after an error it is another one."""

import pytest

from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import JobId, LeaderToken
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.runtime.mirror import MirrorWriter

JOB = JobId("0" * 32)


def test_C9_after_an_error_the_next_row_is_appended_by_a_new_writer() -> None:
    """A writer that has failed once takes nothing more (F2): kept, it would stop the mirror for good."""

    async def story(world: VirtualWorld) -> None:
        broker, faults = MemoryBroker(world.clock), Faults()
        mirror = MirrorWriter(MemoryLog(broker, faults), lambda job: f"{job}.commits")
        broker.create_topic(f"{JOB}.commits", 1)
        faults.plan("send", Fault.REFUSED)
        with pytest.raises(LogUnavailable):
            await mirror.append(JOB, b"row", LeaderToken(1))
        await mirror.append(JOB, b"row", LeaderToken(1))
        assert [record.value for record in broker.dump(f"{JOB}.commits")[0]] == [b"row"]
        await mirror.close()

    run_virtual(story)


def test_C12_a_row_of_a_job_that_was_dropped_makes_no_mirror() -> None:
    """A leader that stood still over the drop goes on with it: the topic would be nobody's for ever."""

    async def story(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock)
        mirror = MirrorWriter(MemoryLog(broker), lambda job: f"{job}.commits")
        with pytest.raises(LogError):
            await mirror.append(JOB, b"row", LeaderToken(1))
        assert broker.topics() == {}
        await mirror.close()

    run_virtual(story)
