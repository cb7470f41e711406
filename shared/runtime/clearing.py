"""The coordinator's deletions: a command becomes calls, and what came of them becomes an event (C12)."""

import structlog

from tidemark.shared.model.ids import JobId
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.log import LogError, TopicPartition
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.retention import blob_may_go
from tidemark.shared.runtime.context import Outside

_log = structlog.get_logger()

Deletion = do.DeleteTopics | do.DeleteRecords | do.TrimMirror | do.DeleteBlobs


async def delete(command: Deletion, outside: Outside) -> ev.CoordinatorEvent:
    """Delete only what the machine names."""
    try:
        await _delete(command, outside)
    except (LogError, BlobError) as error:
        _log.warning("cleanup.failed", command=type(command).__name__, reason=str(error))
        return ev.DeletionFailed(outside.clock.monotonic_ms(), command.op, str(error))
    return ev.Deleted(outside.clock.monotonic_ms(), command.op)


async def _delete(command: Deletion, outside: Outside) -> None:
    match command:
        case do.DeleteTopics(_, topics):
            await outside.log.delete_topics(topics)
        case do.DeleteRecords(_, floors):
            before = {TopicPartition(f.topic, f.partition): f.offset for f in floors}
            await outside.log.delete_records(before)
        case do.TrimMirror(_, job, offset):
            await outside.log.delete_records({TopicPartition(outside.topics.commits(job), 0): offset})
        case do.DeleteBlobs(_, job, up_to, keep):
            names = await outside.blobs.list(f"{job}/")
            doomed = [n for n in names if blob_may_go(n, job, up_to, keep)]
            await outside.blobs.delete(doomed)
            if up_to is None:
                await _forget_job(job, outside)


async def _forget_job(job: JobId, outside: Outside) -> None:
    """Its mirror and the release markers in this cluster go; those at other targets name a job that will never be again."""
    topics, log = outside.topics, outside.log
    markers = [t for t in await log.list_topics() if t.startswith(topics.markers(job))]
    await log.delete_topics([topics.commits(job), *markers])
