"""Names of Tidemark's own topics, all below one prefix so that installations can share a cluster.

Topics of edges are named by the coordinator, below the same prefix (`tidemark.shared.protocol.coordinator.plans`).

Topics that are an installation's or a broker's own: no document, record or batch of a user's reads or writes them.

Their names are closed on every cluster: a document may name the installation's by another address.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.documents import KafkaDlq, Processor
from tidemark.shared.language.documents.model import all_stages
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.problems import DocumentError, InvalidDocument
from tidemark.shared.language.stages import KafkaEmit, KafkaSource
from tidemark.shared.model.ids import JobId

MARKERS_PREFIX: Final = "tidemark.markers."
"""Of release markers, in the cluster of the output, whichever installation writes there."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule for topics."""


KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Neither time nor size deletes records (C12), nor a later one of the same key, whatever the cluster's defaults are."""
STAMPED: Final = {"message.timestamp.type": "LogAppendTime"}
"""A record has the time at which the broker took it. By default that is its writer's time, and brokers refuse one that is an hour ahead of
their own clock: an installation would stand still as long as two clocks are apart. It also gives the times of all processes one clock."""
EDGE_CONFIG: Final = {**KEPT, **STAMPED, "segment.bytes": str(64 << 20)}
"""Of topics of edges: deleted records leave the disk a segment at a time."""
TOLD_CONFIG: Final = {**KEPT, **STAMPED, "segment.bytes": str(16 << 20)}
"""Of topics that are kept short: those of `upkeep.py`, and mirrors."""
LATEST_CONFIG: Final = {
    **STAMPED,
    "cleanup.policy": "compact",
    "delete.retention.ms": str(24 * 3_600_000),
    "segment.bytes": TOLD_CONFIG["segment.bytes"],
    "max.compaction.lag.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Of topics of which the last record of each key counts, and which are read whole. A reader that was away for less
than a day learns what was dropped. Brokers compact no segment that is still written, and by themselves begin a new one at 1 GiB or after a
week: a registry would be read for minutes, as a status comes with each commit."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names by prefix. None of these topics has time or size retention (C12), but for samples, on which nothing depends."""

    prefix: str = "tidemark"
    samples_kept_ms: int = 600_000
    """How long samples stay in their topic: nothing depends on it."""

    @property
    def commands(self) -> str:
        """Coordinator to workers; one partition."""
        return f"{self.prefix}.commands"

    @property
    def reports(self) -> str:
        """Workers to the coordinator; one partition."""
        return f"{self.prefix}.reports"

    @property
    def requests(self) -> str:
        """Users to the coordinator; one partition. Decided requests are deleted."""
        return f"{self.prefix}.requests"

    @property
    def registry(self) -> str:
        """Processors and their statuses, compacted, by name."""
        return f"{self.prefix}.registry"

    @property
    def answers(self) -> str:
        """The coordinator to users; one partition."""
        return f"{self.prefix}.answers"

    @property
    def flow(self) -> str:
        """Receivers' read positions to senders (F7); one partition."""
        return f"{self.prefix}.flow"

    @property
    def samples(self) -> str:
        """Workers to users: samples of output; one partition, and soon forgotten."""
        return f"{self.prefix}.samples"

    @property
    def connections(self) -> str:
        """The registry of connections without their secrets, compacted, by name."""
        return f"{self.prefix}.connections"

    @property
    def control_commands(self) -> str:
        """Other systems to the control service; one partition."""
        return f"{self.prefix}.control.commands"

    @property
    def control_dead_letters(self) -> str:
        """Commands that could not be carried out, with the reason; one partition."""
        return f"{self.prefix}.control.dead-letters"

    @property
    def events(self) -> str:
        """The control service to other systems: states, commits, alerts, answers; one partition."""
        return f"{self.prefix}.events"

    @property
    def works(self) -> str:
        """Audits and redrives that control services run, and their verdicts; compacted, by kind and name."""
        return f"{self.prefix}.works"

    def commits(self, job: JobId) -> str:
        """The mirror of a job's commits (C9); one partition."""
        return f"{self.prefix}.{job}.commits"

    def markers(self, job: JobId) -> str:
        """The prefix of the names of all topics with release markers of a job in this cluster (S3)."""
        return f"{MARKERS_PREFIX}{job}."

    def plain(self) -> dict[str, dict[str, str]]:
        """The topics that every installation has, with their configuration; one partition each."""
        names = (self.commands, self.reports, self.requests, self.answers, self.flow)
        return {
            **dict.fromkeys(names, TOLD_CONFIG),
            self.samples: {**KEPT, **STAMPED, "retention.ms": str(self.samples_kept_ms)},
            self.registry: LATEST_CONFIG,
            self.connections: LATEST_CONFIG,
        }


def is_internal(topic: str, prefix: str) -> bool:
    """Whether a name is the broker's, or one of the installation with this prefix, or of one with the default's."""
    return topic.startswith(("__", "tidemark.", f"{prefix}."))


def may_be(topic: str) -> bool:
    """Whether Kafka has topics of such a name."""
    return _NAME.fullmatch(topic) is not None and topic not in (".", "..")


def refusal(topic: str, prefix: str) -> str:
    """Why a user may not have this topic; "" if nothing speaks against it."""
    if not may_be(topic):
        return f"expected a topic's name of 1 to 249 letters (a to z, A to Z), digits, '.', '_' and '-', found {topic[:300]!r}"
    if not is_internal(topic, prefix):
        return ""
    own = " or ".join(repr(f"{name}.") for name in sorted({"tidemark", prefix}))
    return f"{topic} is an internal topic of the broker or the installation; choose a name that begins neither with '__' nor with {own}"


def check_topics(processor: Processor, prefix: str) -> None:
    """InvalidDocument with each place that names one, or has no name of a topic. What an expression gives is seen when a record has it."""
    found = [DocumentError(place, reason) for place, topic in _named(processor) if (reason := refusal(topic, prefix))]
    if found:
        raise InvalidDocument(found)


def _named(processor: Processor) -> Iterator[tuple[str, str]]:
    for stage in all_stages(processor.pipeline):
        match stage:
            case KafkaSource():
                yield from ((f"{stage.path}.topic", topic) for topic in stage.topics)
            case KafkaEmit(topic=Literal(value=str() as topic)):
                yield f"{stage.path}.topic", topic
            case _:
                continue
    if isinstance(processor.options.dlq, KafkaDlq):
        yield "options.dlq.topic", processor.options.dlq.topic
