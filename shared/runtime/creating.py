"""The topics of a generation, and the mirror of its job: the coordinator makes them before there are tasks, and nobody makes them later.

For who stood still while a processor was dropped goes on afterwards: what it made would be nobody's, and never be deleted.
"""

from tidemark.shared.model.ids import JobId
from tidemark.shared.ports.log import Log, LogError, LogUnavailable
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.topics import EDGE_CONFIG, TOLD_CONFIG, Topics


async def create(command: do.CreateTopics, outside: Outside) -> ev.TopicsReady | ev.TopicsFailed:
    """Make what is not there."""
    try:
        await create_mirror(command.job, outside.log, outside.topics)
        for wanted in command.topics:
            await outside.log.create_topic(wanted.topic, wanted.partitions, EDGE_CONFIG)
    except LogUnavailable as error:
        return ev.TopicsFailed(outside.clock.monotonic_ms(), command.op, str(error))
    except LogError as error:
        return ev.TopicsFailed(outside.clock.monotonic_ms(), command.op, str(error), permanent=True)
    return ev.TopicsReady(outside.clock.monotonic_ms(), command.op)


async def create_mirror(job: JobId, log: Log, topics: Topics) -> None:
    """Make a job's mirror where it is not there. LogError."""
    await log.create_topic(topics.commits(job), 1, TOLD_CONFIG)
