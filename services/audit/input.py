"""A job's share of its sources, against the records that its commits cover (I1–I3): the processor's row says where splits begin and end.

A row that says FINISHED, with a split in front of its end, is a discrepancy. Other records in the topics are no
discrepancy, and are named all the same: nobody should take silence for "all of it".
"""

from collections.abc import AsyncIterator, Mapping, Sequence

from tidemark.services.audit.history import AuditFailed, Commit, NotAuditable, first_offset
from tidemark.shared.language.stages import KafkaSource
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.log import Log, TopicPartition


async def same_topics(log: Log, stage: KafkaSource, listed: Mapping[SplitId, KnownSplit]) -> None:
    """NotAuditable where records that the job read lay in a topic that is no longer there."""
    there = await log.describe_topics(stage.topics)
    for split, known in sorted(listed.items()):
        topic = split.rpartition("-")[0]
        found = there.get(topic)
        if found is None or found.id != known.origin:
            now = "it is not there" if found is None else f"now another one has the name, with id {found.id}"
            message = (
                f"topic {topic}: the job read the topic with id {known.origin}, and {now}: it was deleted, and what followed from its"
                " records cannot be computed again"
            )
            raise NotAuditable(message)


def as_listed(row: ProcessorRow, split: SplitId, known: KnownSplit, commits: Sequence[Commit]) -> None:
    """AuditFailed where the row has a split at its end that no commit covers up to there, or another begin than commits."""
    last = commits[-1]
    stand = last.stands.get(split)
    if stand is not None and (begin := first_offset(commits, split)) != known.begin:
        message = f"split {split}: the row says that the job began at {known.begin}, but its commits begin at {begin}"
        raise AuditFailed(message)
    reached = known.begin if stand is None else stand.next
    if row.state == "FINISHED" and known.end is not None and reached < known.end:
        message = (
            f"split {split}: the processor is FINISHED and the row says that the input ends at {known.end}, but commit {last.epoch} covers"
            f" what is below {reached}: {known.end - reached} offsets were not read"
        )
        raise AuditFailed(message)


async def left_in_topics(
    row: ProcessorRow,
    log: Log,
    stage: KafkaSource,
    listed: Mapping[SplitId, KnownSplit],
    names: Mapping[SplitId, SplitId],
    commits: Sequence[Commit],
) -> AsyncIterator[str]:
    """Records in the source's topics that the job has not read, each with its place. names: of splits, in commits."""
    topics = await log.describe_topics(stage.topics)
    places = [TopicPartition(t, n) for t in stage.topics if t in topics for n in range(topics[t].partitions)]
    begins, ends = await log.begin_offsets(places), await log.end_offsets(places)
    over = row.state == "FINISHED"
    for place in places:
        begin, end = begins[place], ends[place]
        split = SplitId(f"{place.topic}-{place.partition}")
        known = listed.get(split)
        if known is None:
            if end > begin:
                yield f"{place}: all of it, {_offsets(begin, end)}: it came after the job had found its partitions"
            continue
        if known.begin > begin:
            yield f"{place}: {_offsets(begin, known.begin)}, in front of where the job began"
        stand = commits[-1].stands.get(names[split])
        reached = known.begin if stand is None else stand.next
        if end > reached:
            yield f"{place}: {_offsets(reached, end)}, {'behind its end' if over else 'which no commit covers yet'}"


def _offsets(begin: Offset, end: Offset) -> str:
    return f"offsets {begin} to {end - 1}"
