"""Phase two: vertices and edges from a document's stages, deterministically.

    $source … stateless … $window … stateless … $compute … $emit
    └ source ───────────┘ └ spark ────────────┘ └ operator ┘ └ sink

- Stateless stages are fused into the vertex before them; behind a window into the window's own pipeline.
- The sender's half of a window (`PartialSpec`) and of a shuffle (`KeyBySpec`) end the chain of the vertex before.
- A Spark stage cannot split its output by key (the data do not go through its driver): its edge to keyed tasks is `copy`, and the
  receiver keys and filters (`tidemark.shared.model.plan.Partitioning`).
- Behind a `$union` a pipeline has several ends. Later stages are run at each of them (stages are fused, aggregation is lifted into every
  one), until a vertex takes edges from all of them.
- A source's `recordId` is a shuffle by id behind the source (`distinct`), unless repeats are promised to stay in their split. A stage that
  needs the order of the splits behind it restores it (`InOrderSpec`).
- A `$lookup` begins a vertex: its I/O is the service's.
- A `$join` is a keyed vertex of its own, whose inputs have the tags `left` and `right`.
- Behind a window on Arrow, too, stateless stages go into the window's own pipeline, so that both engines run them alike.
- An `$emit` before the end is a tap: a port of its own on the vertex before it.
- Rows for a sink that has a key (`$merge`'s rows, a record's key) go by key; from a Spark stage to one task: windows' rows are few. Where
  the stage may have several tasks the sink restores the order of their rows (`InOrderSpec`).
- A window's stage on Spark has tasks by key groups, unless one task has to see all rows of a window (`WindowSpec.whole`).
- Every vertex that can fail on a document has an edge to the dead letter queue, if there is one.
- For trying out, the output of a pipeline without a sink is collected, and so are dead letters without a queue (`collects`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tidemark.shared.language.documents import Processor
from tidemark.shared.language.schema import shared_fields
from tidemark.shared.language.stages import (
    Compute,
    HoppingWindow,
    Https,
    Join,
    Lookup,
    PositionHorizon,
    SessionWindow,
    SetStreamMeta,
    Sink,
    Source,
    Stage,
    Stateless,
    TumblingWindow,
    Union,
    Window,
)
from tidemark.shared.model.failures import Lasting
from tidemark.shared.model.ids import EdgeId, VertexId
from tidemark.shared.model.plan import DLQ, OUT, Edge, Partitioning, PhysicalPlan, Port
from tidemark.shared.operators.specs import (
    HORIZON_OF_IDS,
    BranchSpec,
    ComputeSpec,
    DistinctSpec,
    FrontSpec,
    InOrderSpec,
    JoinSpec,
    KeyBySpec,
    PartialSpec,
    StatelessSpec,
    StepSpec,
    TapSpec,
    WindowSpec,
)
from tidemark.shared.planning.draft import Draft, Ends, metadata_stage
from tidemark.shared.planning.specs import CollectHead, DeadLetterHead, LookupHead, ReadHead, StepHead, WriteHead

Engine = Literal["spark", "local"]
DLQ_PATH = "options.dlq"
_DISTINCT = "distinct"


class PlanError(Lasting):
    """A valid document that cannot be planned. The message names the stage and what to do."""


@dataclass(slots=True)
class _Planner:
    """Walks a pipeline, and those that flow into it."""

    processor: Processor
    key_groups: int
    engine: Engine
    collects: bool
    names: Mapping[str, VertexId] = field(default_factory=dict)
    shuffles_ids: bool = True
    drafts: list[Draft] = field(default_factory=list)
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

    def _add(self, draft: Draft) -> Draft:
        self.drafts.append(draft)
        return draft

    def _connect(
        self,
        sender: Draft,
        receiver: Draft,
        port: Port,
        partitioning: Partitioning,
        *,
        by_reference: bool = False,
        tag: str = "",
    ) -> None:
        name = f"{sender.id}>{receiver.id}" if port == OUT else f"{sender.id}:{port}>{receiver.id}"
        self.edges.append(Edge(EdgeId(name), sender.id, receiver.id, port, partitioning, by_reference, tag))

    # --- stages ---------------------------------------------------------------------------------------------------------

    def walk(self) -> None:
        """The document's own pipeline, to its sink."""
        stages = self.processor.pipeline
        ends = self._pipeline(stages, sinks_last=True)
        if not isinstance(stages[-1], Sink):
            self._collect(stages[-1], ends)

    def _pipeline(self, stages: Sequence[Stage], *, sinks_last: bool) -> Ends:
        """The ends of a pipeline. `sinks_last`: a sink at its end takes all; else its rows go on into another pipeline."""
        ends: Ends = ()
        for position, stage in enumerate(stages):
            ends = self._stage(stage, ends, last=sinks_last and position == len(stages) - 1)
        return ends

    def _stage(self, stage: Stage, ends: Ends, *, last: bool) -> Ends:
        if isinstance(stage, Source):
            return (self._source(stage),)
        if not ends:
            message = f"{stage.path}: expected $source as the first stage, found {stage.name}"
            raise PlanError(message)
        if isinstance(stage, Stateless):
            return tuple(self._stateless(stage, end) for end in ends)
        if isinstance(stage, Window):
            return (self._window(stage, ends),)
        if isinstance(stage, Compute):
            return (self._compute(stage, ends),)
        if isinstance(stage, Union):
            return (*ends, *(end for inner in stage.pipelines for end in self._pipeline(inner, sinks_last=False)))
        if isinstance(stage, Lookup | Https):
            return tuple(self._lookup(stage, end) for end in ends)
        if isinstance(stage, Join):
            return (self._join(stage, ends),)
        assert isinstance(stage, Sink), "there are no others"
        return self._sink(stage, ends, last=last)

    def _source(self, stage: Source) -> Draft:
        shuffled = stage.record_id is not None and stage.record_id_scope == "source" and self.shuffles_ids
        head, front = ReadHead(stage), FrontSpec(stage, key_groups=self.key_groups if shuffled else 0)
        tasks = 1 if stage.one_task else None
        draft = Draft(
            self._name("source"), "source", head, [front], [stage.name], tasks, from_source=True, source=stage
        )
        self._add(draft)
        return self._distinct(stage, draft) if shuffled else draft

    def _distinct(self, stage: Source, source: Draft) -> Draft:
        """A shuffle by record id, behind the watermarks and in front of all else."""
        horizon = stage.record_id_horizon
        if isinstance(horizon, PositionHorizon):
            raise PlanError(f"{stage.path}: positions are of one split, and recordIdScope is source")
        spec = DistinctSpec(stage.path, horizon or HORIZON_OF_IDS, self.key_groups)
        draft = Draft(self._name(_DISTINCT), "operator", None, [InOrderSpec(stage.name), spec], ["recordId"])
        draft.from_source, draft.source, draft.scattered = True, stage, True
        self._connect(source, self._add(draft), OUT, "key")
        return draft

    def _ordered(self, stage: Stage, end: Draft, port: Port) -> Draft:
        """The vertex between an end with scattered rows and a sink that writes the rows of one key in order."""
        relay = self._add(
            Draft(
                self._name("relay"), "operator", None, [InOrderSpec(stage.name)], windowed=end.windowed, told=end.told
            )
        )
        relay.sealed = True
        self._connect(end, relay, port, "key")
        return relay

    def _stateless(self, stage: Stateless, end: Draft) -> Draft:
        if end.steps and end.sealed:
            end = self._relay(end)
        end.labels.append(stage.name)
        if isinstance(stage, SetStreamMeta):
            end.told = tuple(name for name, _ in stage.metadata.fields)
        last = end.chain[-1] if end.chain else None
        if isinstance(end.head, StepHead):
            end.head = StepHead(_with_inner(end.head.step, stage))
        elif isinstance(last, StepSpec):
            end.chain[-1] = _with_inner(last, stage)
        elif end.chain and isinstance(end.chain[-1], StatelessSpec):
            end.chain[-1] = replace(end.chain[-1], stages=(*end.chain[-1].stages, stage))
        else:
            end.chain.append(StatelessSpec((stage,), end.schema()))
        return end

    def _window(self, stage: TumblingWindow | HoppingWindow | SessionWindow, ends: Ends) -> Draft:
        ends = self._mixed(ends, relayed=True)
        spec = WindowSpec(stage, self.processor.options.lateness, shared_fields([end.schema() for end in ends]))
        step = StepSpec(replace(spec, from_source=all(end.from_source for end in ends)))
        if self.engine == "local":
            draft = Draft(self._name("window"), "operator", None, [step], [stage.name], max_tasks=1)
        else:
            draft = Draft(self._name("window"), "spark", StepHead(step), [], [stage.name])
            draft.divided = not spec.whole
            draft.max_tasks = None if draft.divided else 1
        draft.windowed = True
        key_groups = self.key_groups if draft.divided else 0
        for end in ends:
            end.chain.append(PartialSpec(replace(spec, from_source=end.from_source), key_groups))
            end.labels.append(f"partial {stage.name}")
        self._add(draft)
        for end in ends:
            self._connect(end, draft, OUT, "key" if draft.divided else "single", by_reference=True)
        return draft

    def _mixed(self, ends: Ends, *, relayed: bool) -> Ends:
        """Ends that meet in one operator: order keys tell their rows apart. `relayed`: none of them may be a Spark stage."""
        if relayed or len(ends) > 1:
            ends = tuple(self._relay(end) if end.steps else end for end in ends)
        for branch, end in enumerate(ends):
            if branch:
                end.chain.append(BranchSpec(branch))
        return ends

    def _relay(self, end: Draft) -> Draft:
        """An operator between a Spark stage and the preparation of the next shuffle."""
        relay = self._add(Draft(self._name("relay"), "operator", None, windowed=end.windowed, told=end.told))
        self._connect(end, relay, OUT, "spread", by_reference=True)
        return relay

    def _compute(self, stage: Compute, ends: Ends) -> Draft:
        key = KeyBySpec(stage.key, stage.path, self.key_groups)
        ends = self._mixed(ends, relayed=False)
        spec = ComputeSpec(stage, self.processor.options.lateness, any(e.from_source for e in ends), self.key_groups)
        draft = self._add(Draft(self._name("compute", stage.path), "operator", None, [spec], [stage.name]))
        if stage.order == "arrival" and any(end.scattered or end.divided for end in ends):
            draft.chain.insert(0, InOrderSpec(stage.name))
        for end in ends:
            if end.steps:
                draft.chain.insert(0, key)
                self._connect(end, draft, OUT, "copy", by_reference=True)
            else:
                end.chain.append(key)
                self._connect(end, draft, OUT, "key")
        return draft

    def _lookup(self, stage: Lookup | Https, end: Draft) -> Draft:
        """A vertex of its own for each end, in which the table or server is asked."""
        head = LookupHead(stage)
        name = "lookup" if isinstance(stage, Lookup) else "https"
        draft = Draft(self._name(name), "operator", head, [], [stage.name])
        draft.from_source, draft.windowed, draft.scattered = end.from_source, end.windowed, end.scattered
        draft.told = end.told
        self._connect(end, self._add(draft), OUT, "spread", by_reference=end.steps)
        return draft

    def _join(self, stage: Join, ends: Ends) -> Draft:
        """A keyed vertex with two inputs, told apart by their tags; either side may be several streams."""
        sides = (
            ("left", ends, stage.left_key),
            ("right", self._pipeline(stage.from_, sinks_last=False), stage.right_key),
        )
        lateness = self.processor.options.lateness
        spec = JoinSpec(stage.path, stage.type, stage.before_ms, stage.after_ms, stage.as_, lateness)
        mixed = [(tag, self._mixed(side, relayed=True), key) for tag, side, key in sides]
        draft = self._add(Draft(self._name("join"), "operator", None, [spec], [stage.name]))
        for tag, side, key in mixed:
            for end in side:
                end.chain.append(KeyBySpec(key, stage.path, self.key_groups, inside=tag == "right"))
                self._connect(end, draft, OUT, "key", tag=tag)
        return draft

    def _sink(self, stage: Sink, ends: Ends, *, last: bool) -> Ends:
        """Rows of one key must reach the target in their order: they go to one task. Others are spread."""
        if last:
            ends = self._told(ends)
        elif self.processor.options.stream_meta_field_name is not None:
            ends = tuple(self._relay(end) if end.steps else end for end in ends)  # rows that go on have no field added
        sink = self._add(Draft(self._name("emit", stage.path), "sink", WriteHead(stage), [], [stage.name]))
        key = stage.order_key(last=last)
        for end in ends:
            if end.steps:
                if key is not None and end.divided:
                    sink.chain = [InOrderSpec(stage.name)]
                self._connect(end, sink, OUT, "spread" if key is None else "single", by_reference=True)
                end.sealed = True
                continue
            if key is not None:
                end.chain.append(KeyBySpec(key, stage.path, self.key_groups))
            port = OUT
            if last:
                end.sealed = True
            else:
                port = f"tap-{sink.id}"
                end.chain.append(TapSpec(port, metadata_stage(self.processor.options.stream_meta_field_name, end)))
            if key is not None and end.scattered:
                self._connect(self._ordered(stage, end, port), sink, OUT, "key")
                continue
            self._connect(end, sink, port, "spread" if key is None else "key")
        return ends

    def _told(self, ends: Ends) -> Ends:
        """The ends with the field that `streamMetaFieldName` names."""
        found = []
        for end in ends:
            told = metadata_stage(self.processor.options.stream_meta_field_name, end)
            found.append(self._stateless(told[0], end) if told else end)
        return tuple(found)

    def _collect(self, stage: Stage, ends: Ends) -> None:
        if not self.collects:
            message = f"{stage.path}: expected $emit or $merge as the last stage, found {stage.name}; `tidemark process` runs without"
            raise PlanError(message)
        ends = self._told(ends)
        sink = self._add(Draft(self._name("collect"), "sink", CollectHead(), [], ["collect"], 1))
        for end in ends:
            self._connect(end, sink, OUT, "spread", by_reference=end.steps)

    # --- dead letters ---------------------------------------------------------------------------------------------------

    def dead_letters(self) -> None:
        """A sink for the queue, with an edge from every vertex."""
        stage = self.processor.options.dlq
        if stage is None and not self.collects:
            return
        senders = list(self.drafts)
        name = self.names.get(DLQ_PATH, VertexId("dlq"))
        queue = self._add(Draft(name, "sink", DeadLetterHead(stage), [], ["dead letters"]))
        for sender in senders:
            self._connect(sender, queue, DLQ, "spread", by_reference=sender.steps)


def _with_inner(step: StepSpec, stage: Stateless) -> StepSpec:
    """A stage fused in at the end of a window's own pipeline."""
    window = step.window
    inner = replace(window.stage, pipeline=(*window.stage.pipeline, stage))
    return StepSpec(replace(window, stage=inner, stages_behind=window.stages_behind + 1))


def plan_processor(
    processor: Processor,
    key_groups: int = 128,
    engine: Engine = "spark",
    *,
    collects: bool = False,
    names: Mapping[str, VertexId] | None = None,
    running: Collection[VertexId] | None = None,
) -> PhysicalPlan:
    """The physical plan of a checked document. PlanError names a stage that cannot stand where it does.

    engine: `local` runs the steps of windows in operator tasks, on Arrow.
    collects: the installation collects rows and dead letters without a target; else a pipeline without a sink is refused.
    running: the vertices of the plan that goes on. One that was made before ids were looked for in all of a source has them by split until
    its processor is started without state.
    names: of computations' and sinks' vertices by the paths of their stages, where counting would change them (`planning.names`).
    """
    shuffles_ids = running is None or any(vertex.startswith(f"{_DISTINCT}-") for vertex in running)
    planner = _Planner(processor, key_groups, engine, collects, names or {}, shuffles_ids)
    planner.walk()
    planner.dead_letters()
    return PhysicalPlan(tuple(d.finished() for d in planner.drafts), tuple(planner.edges))
