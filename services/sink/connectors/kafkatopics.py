"""The topics that a Kafka sink writes to: whether they exist, and which records each refuses (protocol, S6).

- A topic's own limits are asked for when a row first goes there, so that rows it would refuse are found before staging.
- A topic may refuse times far from the broker's clock. A record keeps its event time if the topic takes it, and else has the time at which
  it is written: Kafka's time of a record is never read as event time (F5), and no output is lost for it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.services.sink.connectors.kafkarecords import Takes
from tidemark.services.sink.connectors.kafkaruns import OVERHEAD_BYTES, TopicRun, sizes_of
from tidemark.shared.ports.log import Log, LogDenied, LogError, LogUnavailable, RecordColumns, TopicRules

_CLOCKS_APART_MS: Final = 60_000
"""A broker's clock may differ from ours so much, or by a tenth of the difference that it allows, if that is less."""
_FREE: Final = TopicRules()
OF_TOPICS: Final = ("$emit: topic ", "$emit: the record for topic ", "$emit.topic: ")
"""How the reasons of this module begin: those that follow from a topic, which may have changed since."""


class TopicLimits:
    """The limits of the topics as known so far, until `forget`."""

    def __init__(self, log: Log, takes: Takes) -> None:
        self._log = log
        self._takes = takes
        self._rules: dict[str, TopicRules] = {}

    def forget(self) -> None:
        """Forget the limits: the topics may have changed."""
        self._rules = {}

    async def missing(self, topics: set[str]) -> dict[str, str]:
        """Topics that cannot be written to, with the reason; those that may be made are made. LogError."""
        unknown = topics - self._rules.keys()
        if not unknown:
            return {}
        known = await self._log.list_topics()
        missing: dict[str, str] = {}
        found: list[str] = []
        for topic in sorted(unknown):
            if topic not in known and not self._takes.new_topic_partitions:
                missing[topic] = f"$emit.topic: {topic} does not exist; create it"
            elif len(self._rules) + len(found) >= self._takes.topics_max:
                missing[topic] = (
                    f"$emit.topic: more than {self._takes.topics_max} different topics; {topic} is one too many"
                )
            elif topic in known or not (refusal := await self._made(topic)):
                found.append(topic)
            else:
                missing[topic] = refusal
        await self._learn(found)
        return missing

    async def _made(self, topic: str) -> str:
        """Make a topic; "", or why the cluster has none of this name for us."""
        try:
            await self._log.create_topic(topic, self._takes.new_topic_partitions)
        except (LogUnavailable, LogDenied):
            raise
        except LogError as error:
            # Somebody else may have made it just now, with other partitions.
            return "" if topic in await self._log.list_topics() else f"$emit.topic: {topic} cannot be made: {error}"
        if topic not in await self._log.list_topics():
            return _not_ours(topic)
        return ""

    def refused(self, run: TopicRun) -> dict[int, str]:
        """Records of a run that its topic would refuse, with the reason. The topic is one that `missing` was asked for."""
        rules = self._rules.get(run.topic, _FREE)
        found: dict[int, str] = {}
        if rules.needs_key:
            keys = run.columns.keys
            without = np.arange(len(run)) if keys is None else np.flatnonzero(keys.is_null())
            reason = (
                f"$emit: topic {run.topic} is compacted, and the record has no key; set $emit.config.key, or the topic's"
                " cleanup.policy to delete"
            )
            found |= dict.fromkeys(without.tolist(), reason)
        if rules.batch_bytes_max is not None:
            sizes = sizes_of(run.columns)
            for n in np.flatnonzero(sizes > rules.batch_bytes_max).tolist():
                found[n] = (
                    f"$emit: the record for topic {run.topic} has about {sizes[n]} bytes, and the topic's max.message.bytes is"
                    f" {rules.batch_bytes_max}; project fields away, or raise it"
                )
        return found

    async def look_up(self, topics: set[str]) -> None:
        """Know the rules of these, which are there. LogError."""
        await self._learn(sorted(topics - self._rules.keys()))

    async def _learn(self, topics: list[str]) -> None:
        for topic, rules in (await self._log.topic_rules(topics)).items() if topics else ():
            # Records and batches are never larger than the connection allows: then there is nothing to look at.
            most = rules.batch_bytes_max
            idle = most is not None and most >= self._takes.record_bytes_max
            self._rules[topic] = replace(rules, batch_bytes_max=None) if idle else rules

    def fitting(self, topic: str, columns: RecordColumns, now_ms: int) -> Iterator[RecordColumns]:
        """The records of one partition as the topic takes them: each piece fits one batch, and times are near enough to now (ms)."""
        rules = self._rules.get(topic, _FREE)
        columns = _near(columns, rules, now_ms)
        most = rules.batch_bytes_max
        if most is None:
            yield columns
            return
        reached = np.cumsum(sizes_of(columns))
        begin = before = 0
        while begin < len(columns):
            fits = int(np.searchsorted(reached, before + most - OVERHEAD_BYTES, side="right"))
            end = max(begin + 1, fits)
            yield columns[begin:end]
            begin, before = end, int(reached[end - 1])


def _not_ours(topic: str) -> str:
    return f"$emit.topic: {topic} is the broker's own; choose another name"


def _near(columns: RecordColumns, rules: TopicRules, now_ms: int) -> RecordColumns:
    """Without the times that the topic would refuse."""
    times = columns.timestamps_ms
    if times is None or (rules.ahead_ms_max is None and rules.behind_ms_max is None):
        return columns
    ahead_ms = times.fill_null(now_ms).to_numpy(zero_copy_only=False) - now_ms
    far = (ahead_ms < -_margin(rules.behind_ms_max)) | (ahead_ms > _margin(rules.ahead_ms_max))
    return replace(columns, timestamps_ms=pc.if_else(pa.array(far), None, times)) if far.any() else columns


def _margin(allowed_ms: int | None) -> float:
    if allowed_ms is None:
        return float("inf")
    return allowed_ms - min(_CLOCKS_APART_MS, allowed_ms // 10)
