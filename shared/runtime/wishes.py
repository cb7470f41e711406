"""The coordinator's wishes: workers that a supervisor is to start or end."""

from collections.abc import AsyncIterator

from tidemark.shared.model.messages import WorkerUnwanted, WorkerWanted
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log, TopicPartition
from tidemark.shared.runtime.fencing import Fence
from tidemark.shared.runtime.reading import Unreadable, end_of, followed
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_command


async def wishes(
    log: Log, clock: Clock, settings: RuntimeSettings, topics: Topics
) -> AsyncIterator[WorkerWanted | WorkerUnwanted]:
    """Those that a leader writes from now on; they are repeated while they stand. LogError."""
    fence, unreadable = Fence(), Unreadable()
    commands = TopicPartition(topics.commands, 0)
    begin = await end_of(log, clock, commands, settings)
    async for record in followed(log, clock, commands, settings, begin=begin):
        if not fence.admits(record):
            continue
        wish = unreadable.read(record, lambda found: decode_command(found.value or b"", settings.wire))
        if isinstance(wish, WorkerWanted | WorkerUnwanted):
            yield wish
