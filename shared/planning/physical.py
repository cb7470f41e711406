"""Phase two: vertices and edges from a document's stages, deterministically.

    $source … stateless … $window … stateless … $compute … $emit
    └ source ───────────┘ └ spark ────────────┘ └ operator ┘ └ sink

- Stateless stages are fused into the vertex before them; behind a window into the window's own pipeline.
- The sender's half of a window (`PartialSpec`) and of a shuffle (`KeyBySpec`) end the chain of the vertex before.
- A Spark stage cannot split what it writes by key (the data do not go through its driver): its edge to keyed tasks is `copy`, and the
  receiver keys and filters (`shared.model.plan.Partitioning`).
- An `$emit` before the end is a tap: a port of its own on the vertex before it.
- Every vertex that can fail on a document has an edge to the dead letter queue, if there is one.
- For trying out, what leaves a pipeline without a sink is collected, and so are dead letters without a queue (`collects`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shared.language.documents import Processor
from shared.language.schema import NO_SCHEMA, Schema
from shared.language.stages import (
    Compute,
    DocumentsSource,
    FileEmit,
    HoppingWindow,
    KafkaEmit,
    Merge,
    ScriptSource,
    SessionWindow,
    Sink,
    Source,
    Stage,
    Stateless,
    TumblingWindow,
    Window,
)
from shared.model.ids import EdgeId, VertexId
from shared.model.plan import DLQ, OUT, Edge, Partitioning, PhysicalPlan, Port, Vertex
from shared.operators.schemas import after
from shared.operators.specs import (
    ComputeSpec,
    FrontSpec,
    KeyBySpec,
    OperatorSpec,
    PartialSpec,
    StatelessSpec,
    StepSpec,
    TapSpec,
    WindowSpec,
)
from shared.planning.specs import CollectHead, DeadLetterHead, Head, ReadHead, StepHead, WriteHead

Engine = Literal["spark", "local"]
DLQ_PATH = "options.dlq"


class PlanError(Exception):
    """A document that is right but cannot be planned: names the stage and what to do."""


@dataclass(slots=True)
class _Draft:
    """A vertex while stages are still being fused into it."""

    id: VertexId
    service: str
    head: Head
    chain: list[OperatorSpec] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    max_tasks: int | None = None
    sealed: bool = False
    """A sink already takes what comes out here: no stage may be fused in behind it."""

    def schema(self) -> Schema:
        """Declared fields of what comes out, as far as they are known: those of the source behind its stateless stages."""
        if not isinstance(self.head, ReadHead):
            return NO_SCHEMA
        stages = (stage for spec in self.chain if isinstance(spec, StatelessSpec) for stage in spec.stages)
        return after(self.head.stage.schema, stages)

    def finished(self) -> Vertex:
        chain, head = tuple(self.chain), self.head
        return Vertex(self.id, self.service, head, chain, self.max_tasks, " ".join(self.labels))  # type: ignore[arg-type]


@dataclass(slots=True)
class _Planner:
    """Walks one pipeline."""

    processor: Processor
    key_groups: int
    engine: Engine
    collects: bool
    names: Mapping[str, VertexId] = field(default_factory=dict)
    drafts: list[_Draft] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def _name(self, kind: str, path: str = "") -> VertexId:
        """The name that the stage at this path was given, else the next one that no stage was given."""
        if path in self.names:
            return self.names[path]
        while True:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            name = VertexId(f"{kind}-{self.counts[kind]}")
            if name not in self.names.values():
                return name

    def _add(self, draft: _Draft) -> _Draft:
        self.drafts.append(draft)
        return draft

    def _connect(
        self, sender: _Draft, receiver: _Draft, port: Port, partitioning: Partitioning, *, by_reference: bool = False
    ) -> None:
        name = f"{sender.id}>{receiver.id}" if port == OUT else f"{sender.id}:{port}>{receiver.id}"
        self.edges.append(Edge(EdgeId(name), sender.id, receiver.id, port, partitioning, by_reference))

    # --- stages ---------------------------------------------------------------------------------------------------------

    def walk(self) -> None:
        stages = self.processor.pipeline
        current: _Draft | None = None
        for position, stage in enumerate(stages):
            current = self._stage(stage, current, last=position == len(stages) - 1)
        if current is not None and not isinstance(stages[-1], Sink):
            self._collect(stages[-1], current)

    def _stage(self, stage: Stage, current: _Draft | None, *, last: bool) -> _Draft:
        if isinstance(stage, Source):
            front = FrontSpec(stage)
            own = isinstance(stage, ScriptSource | DocumentsSource)  # steps have one order, so one task takes them
            draft = _Draft(self._name("source"), "source", ReadHead(stage), [front], [stage.name], 1 if own else None)
            return self._add(draft)
        if current is None:
            message = f"{stage.path}: expected $source as the first stage, found {stage.name}"
            raise PlanError(message)
        if isinstance(stage, Stateless):
            return self._stateless(stage, current)
        if isinstance(stage, Window):
            return self._window(stage, current)
        if isinstance(stage, Compute):
            return self._compute(stage, current)
        if isinstance(stage, Sink):
            return self._sink(stage, current, last=last)
        message = f"{stage.path}: {stage.name} cannot be run yet"
        raise PlanError(message)

    def _stateless(self, stage: Stateless, current: _Draft) -> _Draft:
        current.labels.append(stage.name)
        if isinstance(current.head, StepHead) and current.sealed:
            current = self._relay(current)
        if isinstance(current.head, StepHead):
            window = current.head.step.window
            inner = replace(window.stage, pipeline=(*window.stage.pipeline, stage))
            current.head = StepHead(replace(current.head.step, window=replace(window, stage=inner)))
            return current
        if current.chain and isinstance(current.chain[-1], StatelessSpec):
            current.chain[-1] = replace(current.chain[-1], stages=(*current.chain[-1].stages, stage))
        else:
            current.chain.append(StatelessSpec((stage,), current.schema()))
        return current

    def _window(self, stage: TumblingWindow | HoppingWindow | SessionWindow, current: _Draft) -> _Draft:
        if isinstance(current.head, StepHead):
            current = self._relay(current)
        lateness, source = self.processor.options.lateness, isinstance(current.head, ReadHead)
        spec = WindowSpec(stage, lateness, current.schema(), source)
        current.chain.append(PartialSpec(spec))
        current.labels.append(f"partial {stage.name}")
        if self.engine == "local":
            draft = _Draft(self._name("window"), "operator", None, [StepSpec(spec)], [stage.name], max_tasks=1)
        else:
            draft = _Draft(self._name("window"), "spark", StepHead(StepSpec(spec)), [], [stage.name], max_tasks=1)
        self._connect(current, self._add(draft), OUT, "single", by_reference=True)
        return draft

    def _relay(self, current: _Draft) -> _Draft:
        """An operator between a Spark stage and what must be prepared for the next shuffle."""
        relay = self._add(_Draft(self._name("relay"), "operator", None))
        self._connect(current, relay, OUT, "spread", by_reference=True)
        return relay

    def _compute(self, stage: Compute, current: _Draft) -> _Draft:
        key = KeyBySpec(stage.key, stage.path, self.key_groups)
        from_source = isinstance(current.head, ReadHead)
        spec = ComputeSpec(stage, self.processor.options.lateness, from_source, self.key_groups)
        draft = _Draft(self._name("compute", stage.path), "operator", None, [spec], [stage.name])
        if isinstance(current.head, StepHead):
            draft.chain.insert(0, key)
            self._connect(current, self._add(draft), OUT, "copy", by_reference=True)
        else:
            current.chain.append(key)
            self._connect(current, self._add(draft), OUT, "key")
        return draft

    def _sink(self, stage: KafkaEmit | FileEmit | Merge, current: _Draft, *, last: bool) -> _Draft:
        sink = self._add(_Draft(self._name("emit", stage.path), "sink", WriteHead(stage), [], [stage.name]))
        step = isinstance(current.head, StepHead)
        if last or step:
            self._connect(current, sink, OUT, "spread", by_reference=step)
            current.sealed = True
            return current
        port = f"tap-{sink.id}"
        current.chain.append(TapSpec(port))
        self._connect(current, sink, port, "spread")
        return current

    def _collect(self, stage: Stage, current: _Draft) -> None:
        if not self.collects:
            message = f"{stage.path}: expected $emit or $merge as the last stage, found {stage.name}; `tidemark process` runs without"
            raise PlanError(message)
        sink = self._add(_Draft(self._name("collect"), "sink", CollectHead(), [], ["collect"], 1))
        self._connect(current, sink, OUT, "spread", by_reference=isinstance(current.head, StepHead))

    # --- dead letters ---------------------------------------------------------------------------------------------------

    def dead_letters(self) -> None:
        """A sink for the queue, with an edge from every vertex."""
        stage = self.processor.options.dlq
        if stage is None and not self.collects:
            return
        senders = list(self.drafts)
        name = self.names.get(DLQ_PATH, VertexId("dlq"))
        queue = self._add(_Draft(name, "sink", DeadLetterHead(stage), [], ["dead letters"]))
        for sender in senders:
            self._connect(sender, queue, DLQ, "spread", by_reference=isinstance(sender.head, StepHead))


def plan_processor(
    processor: Processor,
    key_groups: int = 128,
    engine: Engine = "spark",
    *,
    collects: bool = False,
    names: Mapping[str, VertexId] | None = None,
) -> PhysicalPlan:
    """The physical plan of a checked document. PlanError names a stage that cannot stand where it does.

    engine: `local` runs the steps of windows in operator tasks, on Arrow.
    collects: the installation collects what a document names no target for; else a pipeline without a sink is refused.
    names: of computations' and sinks' vertices by the paths of their stages, where counting would change them (`planning.names`).
    """
    planner = _Planner(processor, key_groups, engine, collects, names or {})
    planner.walk()
    planner.dead_letters()
    return PhysicalPlan(tuple(d.finished() for d in planner.drafts), tuple(planner.edges))
