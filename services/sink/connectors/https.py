"""`$https` at the end of a pipeline: a request for each document, sent once its checkpoint is committed (protocol, S2, S6, S8).

- Requests are made before staging, with their keys, and staged: the input is stable, however often the effect is tried. The connection's
  headers are no part of them: they may be secrets, and are added when a request is sent.
- The requests of a part come first, then its marker, in a topic of the installation's brokers. A release that breaks off begins again with
  the part behind the last marker, under the same keys. A server that keeps keys sees each request once.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import structlog

from tidemark.services.sink.connectors.kafka import KafkaSinkSettings, MarkedParts
from tidemark.services.sink.connectors.mergechanges import HeldRows, document_of, staged_rows
from tidemark.services.sink.connectors.staging import Part, PartStore
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.values import encode_doc
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.model.values import Binary, Document
from tidemark.shared.operators.context import Topics
from tidemark.shared.ports.http import ServerAway, ServerDenied, ServerRefused
from tidemark.shared.ports.log import Log, RecordColumns, TopicFound, TopicPartition
from tidemark.shared.ports.sink import Identity, Rejected, TargetDenied, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.requests import Asked, Asking, Wanted

_report = structlog.get_logger()
PART_REQUESTS_MAX: Final = 200
"""Of one part: so many may be sent again after a crash."""
PART_BYTES_MAX: Final = 1024 * 1024
"""Of one part as it is staged; a larger request is a part by itself."""


class HttpsSink(MarkedParts):
    """`SinkPort` to a server. `attempt` is used by no other sink object, now or ever."""

    def __init__(
        self,
        asking: Asking,
        log: Log,
        parts: PartStore,
        attempt: str,
        settings: KafkaSinkSettings | None = None,
        part_requests_max: int = PART_REQUESTS_MAX,
        source_topics: Topics = None,
    ) -> None:
        """source_topics: those that the rows came from, for `$meta`."""
        super().__init__(log, parts, settings)
        self._part_requests_max = part_requests_max
        self._asking = asking
        self._source_topics = source_topics
        self._stage = asking.stage
        self._attempt = attempt
        self._made = 0
        self._held = self._nothing_held()
        self._answered: tuple[Epoch, int, set[str]] = (NO_EPOCH, 0, set())
        """The keys of the part in hand that have had their answer: after an outage the others alone are sent."""
        self._passed = 0
        """Requests that were refused in the commit in hand."""
        self._passing = False
        """A user has ordered that refusals be passed over."""

    def _nothing_held(self, restored_from: Epoch = NO_EPOCH) -> HeldRows:
        return HeldRows(self._parts, PART_BYTES_MAX, restored_from, self._part_requests_max)

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return f"{self._stage.path} to {self._stage.connection_name}"

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `MarkedParts.open`."""
        self._held = self._nothing_held(restored_from)
        return await super().open(identity, restored_from, joins=joins)

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`: refuses documents that make no request."""
        await self._held.make_room()
        rows: list[bytes] = []
        rejected: list[Rejected] = []
        for number, (_, wanted) in enumerate(await self._asking.all_wanted(batch, self._source_topics)):
            match wanted:
                case Wanted():
                    self._made += 1
                    rows.append(encode_doc(_staged(wanted, f"{self._attempt}-{self._made}")))
                case ExpressionError() as error:
                    rejected.append(Rejected(number, f"{error.path or self._stage.path}: {error.reason}"))
                case why:
                    rejected.append(Rejected(number, f"{self._stage.path}: {why}"))
        self._held.take(rows)
        return rejected

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`."""
        return await self._held.handle(epoch, committed)

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """See `Sink.skip`: single requests are passed over, and parts that are lost."""
        self._passed, self._passing = 0, True
        try:
            return await super().skip(row, staged) + self._passed
        finally:
            self._passing = False

    async def _released(
        self, epoch: Epoch, part: Part, number: int, topics: dict[str, TopicFound]
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """Sends the requests of a part; there are no records (S8)."""
        if self._answered[:2] != (epoch, number):
            self._answered = (epoch, number, set())
        answered = self._answered[2]
        found = [_asked(at, document_of(each)) for at, each in enumerate(staged_rows(await self._parts.load(part)))]
        left = [each for each in found if each.key not in answered]
        try:
            await self._asking.ask_all(left, passing=self._passing)
        except ServerAway as error:
            raise TargetUnavailable(f"{self.place}: commit {epoch}: {error}") from error
        except ServerDenied as error:
            raise TargetDenied(f"{self.place}: commit {epoch}: {error}") from error
        except ServerRefused as error:
            raise TargetRefused(f"{self.place}: commit {epoch}, part {number}: {error}") from error
        finally:
            answered |= {each.key for each in left if each.answer is not None}
        refused = [each for each in left if each.refused]
        self._passed += len(refused)
        if refused:
            _report.warning(
                "sink.requests_refused", stage=self._stage.path, epoch=epoch, requests=len(refused),
                reason=refused[0].refused,
            )  # fmt: skip
        return {}


def _staged(wanted: Wanted, key: str) -> Document:
    body = None if wanted.body is None else Binary(wanted.body)
    return {"key": key, "path": wanted.path, "headers": [list(pair) for pair in wanted.headers], "body": body}


def _asked(number: int, staged: Document) -> Asked:
    headers = tuple((name, value) for name, value in staged["headers"])
    body = staged["body"]
    return Asked(number, Wanted(staged["path"], headers, None if body is None else bytes(body)), staged["key"])
