"""A document's operators in one line: each vertex a task, each input a batch, in one thread; what each operator takes is measured.

No frames, no broker: what is left is what a record costs in the operators themselves.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pyarrow as pa

from tidemark.services.operator.lookups import Lookups
from tidemark.services.operator.tables.held import HeldTable
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import InlineTable, Lookup
from tidemark.shared.model.frames import Content
from tidemark.shared.model.ids import SplitId, VertexId
from tidemark.shared.model.plan import OUT, Vertex
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import Operator, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.build import OperatorChain, build_operators
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.planning import LookupHead, plan_processor
from tidemark.shared.runtime.settings import LookupSettings

CONTEXT = TaskContext("bench", "bench", "readings")
T = TypeVar("T")
FRONT, LOOKUP = "SourceFront", "Lookup"


class _Metered:
    """An operator, and the processor time of its calls in ns."""

    def __init__(self, inner: Operator, spent: dict[str, int]) -> None:
        self._inner = inner
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Rows."""
        return self._timed(lambda: self._inner.on_batch(batch, content, tag))

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Time."""
        return self._timed(lambda: self._inner.on_watermark(watermark_ms))

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        """A piece of time."""
        return self._timed(lambda: self._inner.on_watermark_piece(watermark_ms, items_max))

    def before_barrier(self) -> Sequence[Out]:
        """What is held for batching."""
        return self._timed(self._inner.before_barrier)

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.process_time_ns()
        try:
            return call()
        finally:
            self._spent[type(self._inner).__name__] += time.process_time_ns() - began


class Line:
    """One run of a document over records; a new one for each round, for operators have state."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.plan = plan_processor(parse(document), engine="local", collects=True)
        self.spent: dict[str, int] = defaultdict(int)
        """ns of processor time by operator."""
        self.letters = 0
        self._waiting: dict[VertexId, list[tuple[str, Out]]] = defaultdict(list)

    def run(self, records: RawBatch) -> list[pa.RecordBatch]:
        """What comes out at the end; every source reads the same records."""
        found: list[pa.RecordBatch] = []
        for vertex in self.plan.vertices:
            if vertex.service == "sink":
                rows = [out.batch for _, out in self._waiting[vertex.id]]
                if vertex.id == "dlq":
                    self.letters = sum(batch.num_rows for batch in rows)
                else:
                    found += rows
            else:
                self._send(vertex, self._through(vertex, records))
        return found

    def _through(self, vertex: Vertex, records: RawBatch) -> list[Out]:
        specs = [spec for spec in vertex.chain if not isinstance(spec, FrontSpec)]
        operators = build_operators(specs, CONTEXT)
        chain = OperatorChain(tuple(cast("Operator", _Metered(operator, self.spent)) for operator in operators))
        outs: list[Out] = []
        front = next((spec for spec in vertex.chain if isinstance(spec, FrontSpec)), None)
        entering = self._waiting[vertex.id] if front is None else [("", out) for out in self._read(front, records)]
        if isinstance(vertex.head, LookupHead):
            entering = self._looked_up(vertex.head, entering)
        for tag, out in entering:
            outs += chain.on_batch(out.batch, out.content, tag) if out.port == OUT else [out]
        outs += chain.before_barrier()
        return [*outs, *chain.on_watermark(MAX_TIME)]

    def _read(self, spec: FrontSpec, records: RawBatch) -> Sequence[Out]:
        front = SourceFront(spec, CONTEXT)
        front.assign({SplitId(records.split): records.partition})
        began = time.process_time_ns()
        outs = front.on_records(records)
        self.spent[FRONT] += time.process_time_ns() - began
        return outs

    def _looked_up(self, head: LookupHead, entering: Sequence[tuple[str, Out]]) -> list[tuple[str, Out]]:
        assert isinstance(head.stage, Lookup)
        assert isinstance(head.stage.from_, InlineTable)
        lookups = Lookups(head.stage, _own_table, SystemClock(), LookupSettings(), CONTEXT)

        async def enrich() -> list[Out]:
            return [found for _, out in entering for found in await lookups.enrich(out.batch)]

        began = time.process_time_ns()
        outs = asyncio.run(enrich())
        self.spent[LOOKUP] += time.process_time_ns() - began
        return [("", out) for out in outs]

    def _send(self, vertex: Vertex, outs: Sequence[Out]) -> None:
        for edge in self.plan.outputs_of(vertex.id):
            self._waiting[edge.receiver] += [(edge.tag, out) for out in outs if out.port == edge.port]


def documents(batches: Sequence[pa.RecordBatch]) -> list[Document]:
    """All documents."""
    return [document for batch in batches for document in documents_of(batch)]


def _own_table(stage: Lookup) -> HeldTable:
    assert isinstance(stage.from_, InlineTable)
    return HeldTable(stage.from_.documents)
