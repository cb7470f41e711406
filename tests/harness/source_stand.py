"""The body of a source's task over a Kafka source on any log, or another source, with a clock that the test moves."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tidemark.services.source.body import SourceTaskBody
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings
from tidemark.services.source.settings import SourceSettings
from tidemark.services.source.steps import Steps
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import StartAt
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import NO_EPOCH, Epoch, SplitId, StatePart, TaskId, VertexId
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import TS, Out
from tidemark.shared.operators.build import build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.ports.source import SourcePort
from tidemark.shared.protocol.source.machine import EndAt, FindEnds, ReportEnds, Tell
from tidemark.shared.runtime.body import Fetched
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.waiting import unheard

IDLE_MS = 5_000


class HandClock(SystemClock):
    """Monotonic time stands still unless the test moves it."""

    def __init__(self) -> None:
        self.at_ms = 0

    def monotonic_ms(self) -> int:
        return self.at_ms


def record(time_ms: int) -> bytes:
    return json.dumps({"t": {"$date": {"$numberLong": str(time_ms)}}}).encode()


class SourceStand:
    """One task of a source; `take` is what the driver does: fetch, then process at the clock's time."""

    def __init__(
        self,
        log: Log,
        reader: Any,
        topic: str,
        *,
        tasks: int = 1,
        index: int = 0,
        until: StartAt | None = None,
        start_at: StartAt = "earliest",
        answer_age_ms_max: int = 2_000,
        bounds: SourceSettings | None = None,
        source: SourcePort | None = None,
    ) -> None:
        self.clock = HandClock()
        settings = KafkaSourceSettings(
            topics=(topic,), start_at=start_at, until=until, answer_age_ms_max=answer_age_ms_max
        )
        self.source: Any = source or KafkaConnector(settings, log, reader, self.clock)
        document = {"connectionName": "c", "topic": topic, "timeField": "$t", "schema": {"t": "date?"}}
        operators = TaskContext("p", "i", topic)
        self.front = SourceFront(FrontSpec(parse({"pipeline": [{"$source": document}]}).source), operators)
        assign = SimpleNamespace(plan=SimpleNamespace(tasks={VertexId("read"): tasks}), vertex=VertexId("read"))
        assign.index, assign.handles, assign.splits, assign.listed, assign.last = index, (), {}, False, NO_EPOCH
        self.row: dict[SplitId, KnownSplit] = {}
        """What the processor's row would list of this task's splits (I1)."""
        runtime = RuntimeSettings(fetch_timeout_ms=50)
        outside = SimpleNamespace(settings=runtime, clock=self.clock, executor=AsyncExecutor())
        context: Any = SimpleNamespace(
            waits=unheard, assign=assign, outside=outside, task=TaskId(VertexId("read"), index)
        )
        steps = Steps(lambda _ms: None, one_by_one=False, rows_too=False, settle_ms=0)
        chain = build_chain((), operators)
        settings_of_body = bounds or SourceSettings()
        self._assign = assign

        def made() -> SourceTaskBody:
            return SourceTaskBody(
                context,
                self.source,
                self.front,
                chain,
                IDLE_MS,
                steps,
                bounded=until is not None,
                settings=settings_of_body,
            )

        self._made = made
        self.body = made()

    async def open(
        self, parts: dict[StatePart, bytes] | None = None, row: Mapping[SplitId, KnownSplit] | None = None
    ) -> "SourceStand":
        """`row`: what the row lists of this task's splits; None: the source was never looked at."""
        if row is not None:
            self._assign.splits, self._assign.listed = row, True
            self.row |= row
            self.body = self._made()
        await self.body.open(parts or {})
        self.write_row()
        return self

    def write_row(self) -> None:
        """What the task has found is written to the row, and it is told to read it."""
        for told in self.body.input.tell():
            assert isinstance(told, Tell)
            self.row = {s: k for s, k in {**told.found, **self.row}.items() if s not in told.gone}
            self.body.input.listed({split: self.row[split] for split in told.found})

    async def drain(self, until: dict[str, int] | None = None) -> None:
        """The ends are asked for, written to the row and told."""
        self.row = dict(await self.ends(until or {}))
        for command in self.body.input.end(self.row):
            assert isinstance(command, EndAt)
            self.body.end_at(command.until)

    async def ends(self, until: dict[str, int]) -> Mapping[SplitId, KnownSplit]:
        """The ends are asked for, and looked for where that is to be done; what is said of them."""
        commands = self.body.input.ask_ends(until)
        if commands == [FindEnds()]:
            commands = self.body.input.ends_found(await self.body.ends())
        (told,) = commands
        assert isinstance(told, ReportEnds)
        return told.splits

    async def take(self, after_ms: int = 0) -> list[int]:
        """Time passes, then what is there is processed; the event times of its rows."""
        self.clock.at_ms += after_ms
        fetched = await self.body.fetch()
        self.write_row()
        outs = await self.work(fetched)
        return [t for o in outs if o.port == OUT for t in o.batch.column(TS).to_pylist()]

    async def work(self, fetched: Fetched) -> Sequence[Out]:
        """What the task makes of it, at the clock's time."""
        self.body.input.taking(self.clock.at_ms)
        outs = await self.body.take(fetched, 0, self.clock.at_ms)
        self.body.input.taken(Epoch(1), rows=fetched.rows > 0)
        return outs

    async def copy(self) -> dict[StatePart, bytes]:
        copied = await self.body.copy(Epoch(1), Epoch(0))
        return {part: data for part, data in copied.changed.items() if data is not None}

    def watermark(self) -> int | None:
        """None where there is none yet."""
        found = self.body.output_watermark()
        return None if found == MIN_TIME else found


async def feed(log: Log, topic: str, partition: int, *times_ms: int) -> None:
    writer = await log.writer("feeder")
    for time_ms in times_ms:
        await (await writer.send(TopicPartition(topic, partition), NewRecord(record(time_ms))))
    await writer.close()
