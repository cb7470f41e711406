"""A plan in words: the three phases that `tidemark explain` prints. Reads the plan, decides nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.shared.language.documents import Processor
from tidemark.shared.language.expressions.ast import ArrayExpr, Expr, Meta, ObjectExpr, Variable, fields_used, walk
from tidemark.shared.language.fields import all_of
from tidemark.shared.language.kernels import is_vectorised, predicate_is_vectorised
from tidemark.shared.language.kernels.expressions import may_be_called, may_have_kernel
from tidemark.shared.language.kernels.predicates import predicate_may_be_called, predicate_may_have_kernel
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.query.match import fields_used as query_fields
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages import (
    CachedLookup,
    Gathering,
    HoppingWindow,
    Https,
    InlineTable,
    Join,
    Lookup,
    PluginTable,
    SessionWindow,
    Source,
    SourceBase,
    Stage,
    Stateless,
    TumblingWindow,
    Union,
)
from tidemark.shared.language.stages.looking_up import Looker
from tidemark.shared.language.values.instants import format_iso
from tidemark.shared.model.plan import Edge, PhysicalPlan, Vertex
from tidemark.shared.operators.specs import (
    BranchSpec,
    ComputeSpec,
    DistinctSpec,
    FrontSpec,
    InOrderSpec,
    JoinSpec,
    KeyBySpec,
    OperatorSpec,
    PartialSpec,
    StatelessSpec,
    StepSpec,
    TapSpec,
    WindowSpec,
)
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning.specs import CollectHead, DeadLetterHead, LookupHead, ReadHead, StepHead, WriteHead

KERNEL = "kernel"
CALLED = "row by row"
"""On columns, but that an operator is called for each row."""
INTERPRETED = "interpreted"
"""On the documents of the rows."""


@dataclass(frozen=True, slots=True)
class StageText:
    """One stage of the document: its place, the fields that it reads, how its expressions run."""

    path: str
    reads: tuple[str, ...] | None
    """Top-level fields, sorted; None for the whole document."""
    expressions: tuple[tuple[str, str], ...] = ()
    """(the expression's purpose, `kernel`, `row by row` or `interpreted`)."""
    inner: tuple["StageText", ...] = ()


def logical(processor: Processor) -> tuple[StageText, ...]:
    """Phase one: the stages in order, against the declared fields that reach them."""
    return _logical(processor.pipeline)[0]


def _logical(pipeline: Iterable[Stage]) -> tuple[tuple[StageText, ...], Schema]:
    """The stages of a pipeline, and the declared fields behind them."""
    found: list[StageText] = []
    schema = NO_SCHEMA
    for stage in pipeline:
        found.append(_stage(stage, schema))
        schema = stage.declared(schema)
    return tuple(found), schema


def _stage(stage: Stage, schema: Schema) -> StageText:
    match stage:
        case Union():
            texts = tuple(text for other in stage.pipelines for text in _logical(other)[0])
            return StageText(stage.path, (), (), texts)
        case Join():
            texts, other = _logical(stage.from_)
            sides = (("leftKey", stage.left_key, schema), ("rightKey", stage.right_key, other))
            keys = tuple((name, _how(key, fields)) for name, key, fields in sides)
            return StageText(stage.path, _names(fields_used(stage.left_key)), keys, texts)
        case Lookup():
            return _lookup_text(stage)
        case SourceBase():
            return StageText(stage.path, stage.schema.names or None, _told(stage, schema))
        case Stateless() | Gathering():
            return StageText(stage.path, _names(stage.reads()), _told(stage, schema))
        case TumblingWindow() | HoppingWindow() | SessionWindow():
            inner = tuple(_inner(WindowPlan(WindowSpec(stage, schema=schema))))
            return StageText(stage.path, _union(inner), (), inner)
    return StageText(stage.path, None)


def _told(stage: Stage, schema: Schema) -> tuple[tuple[str, str], ...]:
    return tuple((name, _how(what, schema)) for name, what in stage.told())


def _lookup_text(stage: Lookup) -> StageText:
    known = all_of([frozenset((stage.local_field or ())[:1]), *(fields_used(expr) for _, expr in stage.let)])
    inner = tuple(
        _lookup_text(s) if isinstance(s, Lookup) else StageText(s.path, _names(s.reads())) for s in stage.pipeline
    )
    return StageText(stage.path, _names(known), (), inner)


def _inner(plan: WindowPlan) -> Iterator[StageText]:
    """The stages of a window, each against the declared fields that reach it."""
    schema = plan.spec.schema
    for stage in plan.spec.stage.pipeline:
        first = plan.mode != "rows" and stage is plan.group
        form = (("partial aggregation", "columns" if plan.typed else "states"),) if first else ()
        yield StageText(stage.path, _names(stage.reads()), (*_told(stage, schema), *form))
        schema = stage.declared(schema)


def _how(what: Expr | Predicate | None, schema: Schema) -> str:
    """By a kernel, called or interpreted: exactly where types are declared, else as far as can be told without them."""
    if what is None:
        return INTERPRETED
    if isinstance(what, Predicate):
        names = query_fields(what)
        declared = names is not None and all(schema.get(name) is not None for name in names)
        found = predicate_is_vectorised(what, schema) if declared else predicate_may_have_kernel(what)
        return KERNEL if found else CALLED if predicate_may_be_called(what) else INTERPRETED
    names = fields_used(what)
    engine = any(isinstance(node, Meta | Variable | ObjectExpr | ArrayExpr) for node in walk(what))
    declared = names is not None and not engine and all(schema.get(name) is not None for name in names)
    found = is_vectorised(what, schema) if declared else may_have_kernel(what)
    return KERNEL if found else CALLED if may_be_called(what) else INTERPRETED


def _names(fields: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if fields is None else tuple(sorted(fields))


def _union(parts: tuple[StageText, ...]) -> tuple[str, ...] | None:
    """The fields that the first stages of a window read, up to the one that makes documents anew."""
    names: set[str] = set()
    for part in parts:
        if part.reads is None:
            return None
        names |= set(part.reads)
        if part.path.endswith("$group"):
            break
    return tuple(sorted(names))


# --- phase two ------------------------------------------------------------------------------------------------------------


def vertex_text(vertex: Vertex) -> str:
    """The description of a vertex, on one line."""
    tasks = f", at most {vertex.max_tasks} task{'s' if vertex.max_tasks != 1 else ''}" if vertex.max_tasks else ""
    return f"{vertex.id} [{vertex.service}{tasks}]: {vertex.label}"


def edge_text(edge: Edge) -> str:
    """Where rows go and how they are divided."""
    how = {
        "key": "by key",
        "spread": "spread over the tasks",
        "single": "to one task",
        "copy": "to every task, which keeps its keys",
    }[edge.partitioning]
    port = "" if edge.port == "out" else f" (port {edge.port})"
    reference = ", large batches by reference" if edge.by_reference else ""
    tag = f", as {edge.tag}" if edge.tag else ""
    return f"{edge.sender} → {edge.receiver}{port}: {how}{reference}{tag}"


def lifted(plan: PhysicalPlan) -> tuple[str, ...]:
    """For each window: the work that is done before its shuffle."""
    return tuple(
        f"{spec.window.stage.path}: {_lifted(WindowPlan(spec.window))} in {vertex.id}"
        for vertex in plan.vertices
        for spec in vertex.chain
        if isinstance(spec, PartialSpec)
    )


def _lifted(plan: WindowPlan) -> str:
    match plan.mode:
        case "typed":
            return "aggregated before the shuffle, on columns"
        case "general":
            return "aggregated before the shuffle, by states of accumulators"
        case "rows":
            return f"not aggregated before the shuffle (no $group that comes first): {_travelling(plan)}"


def _travelling(plan: WindowPlan) -> str:
    """Rows as they go to a window that sees them all."""
    names, first = plan.looked_at, plan.first_rows
    rows = "rows travel" if first is None else f"of a batch the first {first} rows of each window travel"
    if names is None:
        return rows
    return f"{rows} with the fields {', '.join(sorted(names))}" if names else f"{rows} without fields"


# --- phase three ----------------------------------------------------------------------------------------------------------


def operators(vertex: Vertex) -> tuple[str, ...]:
    """The operators of each task of a vertex, in order."""
    head = _head(vertex)
    return (*((head,) if head else ()), *(_operator(spec) for spec in vertex.chain))


def _side(stage: Source) -> str:
    """Which event times are a part's of a history and a stream (D16)."""
    if stage.before_ms is not None:
        return f", event times before {format_iso(stage.before_ms)}"
    return "" if stage.from_ms is None else f", event times from {format_iso(stage.from_ms)} on"


def _head(vertex: Vertex) -> str:
    match vertex.head:
        case ReadHead(stage):
            return f"read {type(stage).__name__.removesuffix('Source').lower()}{_side(stage)}"
        case StepHead(step):
            whole = step.window.whole
            divided = f", in one task: {whole}" if whole else ", by key groups"
            return f"step on Spark: merge, close, finish{_behind(step.window)}{divided}"
        case LookupHead(stage):
            return _lookup(stage)
        case WriteHead(stage):
            return f"stage and release {stage.name}"
        case DeadLetterHead():
            return "stage and release dead letters"
        case CollectHead():
            return "collect"
        case _:
            return ""


def _operator(spec: OperatorSpec) -> str:
    text: str
    match spec:
        case FrontSpec():
            text = _front(spec)
        case InOrderSpec(stage):
            text = f"hold an epoch's rows, and give them out in the order of their splits, for {stage}"
        case DistinctSpec(horizon=horizon):
            text = f"drop repeats by record id, from whatever split they come, up to {horizon.duration_ms} ms behind the watermark"
        case StatelessSpec(stages):
            text = "fused " + " ".join(stage.name for stage in stages)
        case PartialSpec(window):
            text = f"partial {window.stage.name}: {_lifted(WindowPlan(window))}"
        case StepSpec(window):
            text = f"step on Arrow: merge, close, finish{_behind(window)}"
        case KeyBySpec():
            text = "key for the shuffle"
        case ComputeSpec(stage):
            text = f"{stage.name} {stage.class_}, order {stage.order}"
        case TapSpec(port):
            text = f"give out on {port}, too"
        case JoinSpec():
            text = _join(spec)
        case BranchSpec(branch):
            text = f"mark as stream {branch} of those that flow together"
    return text


def _front(spec: FrontSpec) -> str:
    source = spec.source
    parts = ["decode", "event time"]
    if source.record_id is not None:
        parts.append("key by record id" if spec.key_groups else "drop repeats by record id within each split")
    return f"{', '.join(parts)}, watermark {type(source.watermark).__name__}"


def _lookup(stage: Lookup | Https) -> str:
    if isinstance(stage, Https):
        return f"{stage.name} {stage.method} to {stage.connection_name}: a request a row, {stage.parallelism} at a time"
    return "; within it ".join(_asked(looker) for looker in Looker(stage).all())


def _asked(looker: Looker) -> str:
    stage = looker.stage
    columns = [".".join(names) for names in looker.narrowing.columns]
    match stage.from_:
        case InlineTable():
            table = "the document's own"
        case PluginTable(plugin=plugin):
            table = f"plug-in {plugin}"
        case named:
            table = f"{named.connection_name} {named.table}"
    how = f"by {', '.join(columns)}" if columns else "all of it, for nothing narrows it"
    kept = f", answers kept {stage.ttl_ms} ms, at most {stage.max_entries}" if isinstance(stage, CachedLookup) else ""
    return f"{stage.name} in {table}: one question a batch, {how}{kept}"


def _join(spec: JoinSpec) -> str:
    names = {
        "inner": "pairs",
        "left": "pairs, left ones alone",
        "right": "pairs, right ones alone",
        "full": "pairs, either alone",
    }
    return (
        f"$join {spec.type}: {names[spec.type]}, right from {spec.before_ms} ms before to {spec.after_ms} ms after left"
    )


def _behind(window: WindowSpec) -> str:
    names = [stage.name for stage in WindowPlan(window).after]
    return f", then {' '.join(names)}" if names else ""
