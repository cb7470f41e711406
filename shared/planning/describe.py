"""A plan in words: the three phases that `tidemark explain` prints. Reads the plan, decides nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.shared.language.apply.lookup import Narrowing
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.expressions.ast import ArrayExpr, Expr, Meta, ObjectExpr, Variable, walk
from tidemark.shared.language.fields import expression_fields, reads
from tidemark.shared.language.kernels import is_vectorised, predicate_is_vectorised
from tidemark.shared.language.kernels.expressions import may_have_kernel
from tidemark.shared.language.kernels.predicates import predicate_may_have_kernel
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.query.match import fields_used
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    CachedLookup,
    Computed,
    Group,
    Https,
    InlineTable,
    InnerStage,
    Join,
    Lookup,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    Sink,
    Source,
    Stage,
    Stateless,
    Union,
    Unwind,
    Validate,
    Window,
)
from tidemark.shared.language.values.instants import format_iso
from tidemark.shared.model.plan import Edge, PhysicalPlan, Vertex
from tidemark.shared.operators.schemas import after, shared_fields
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
INTERPRETED = "interpreted"


@dataclass(frozen=True, slots=True)
class StageText:
    """One stage of the document: its place, the fields that it reads, how its expressions run."""

    path: str
    reads: tuple[str, ...] | None
    """Top-level fields, sorted; None for the whole document."""
    expressions: tuple[tuple[str, str], ...] = ()
    """(the expression's purpose, `kernel` or `interpreted`)."""
    inner: tuple["StageText", ...] = ()


def logical(processor: Processor) -> tuple[StageText, ...]:
    """Phase one: the stages in order, against the declared fields that reach them."""
    return _logical(processor.pipeline)[0]


def _logical(pipeline: Iterable[Stage]) -> tuple[tuple[StageText, ...], Schema]:
    """The stages of a pipeline, and the declared fields behind them."""
    found: list[StageText] = []
    schema = Schema()
    for stage in pipeline:
        if isinstance(stage, Union):
            inner = [_logical(other) for other in stage.pipelines]
            found.append(StageText(stage.path, (), (), tuple(text for texts, _ in inner for text in texts)))
            schema = shared_fields([schema, *(behind for _, behind in inner)])
            continue
        if isinstance(stage, Join):
            texts, other = _logical(stage.from_)
            sides = (("leftKey", stage.left_key, schema), ("rightKey", stage.right_key, other))
            keys = tuple((name, _how(key, fields)) for name, key, fields in sides)
            found.append(StageText(stage.path, _names(expression_fields(stage.left_key)), keys, texts))
            schema = Schema()
            continue
        found.append(_lookup_text(stage) if isinstance(stage, Lookup) else _stage(stage, schema))
        if isinstance(stage, Source):
            schema = stage.schema
        elif isinstance(stage, Stateless):
            schema = after(schema, (stage,))
        elif not isinstance(stage, Sink):
            schema = Schema()
    return tuple(found), schema


def _stage(stage: Stage, schema: Schema) -> StageText:
    if isinstance(stage, Source):
        return _source(stage)
    if isinstance(stage, Stateless):
        return _stateless(stage, schema)
    if isinstance(stage, Window):
        plan = WindowPlan(WindowSpec(stage, schema=schema))
        inner = tuple(_inner(stage.pipeline, plan))
        return StageText(stage.path, _union(inner), (), inner)
    return StageText(stage.path, None)


def _lookup_text(stage: Lookup) -> StageText:
    local = frozenset((stage.local_field or ())[:1])
    fields = [local, *(expression_fields(expr) for _, expr in stage.let)]
    known = None if any(f is None for f in fields) else tuple(sorted({name for f in fields if f for name in f}))
    inner = tuple(StageText(s.path, _names(reads(s))) for s in stage.pipeline)
    return StageText(stage.path, known, (), inner)


def _inner(pipeline: Iterable[InnerStage], plan: WindowPlan) -> Iterator[StageText]:
    """The stages of a window, each against the declared fields that reach it."""
    schema = plan.spec.schema
    for stage in pipeline:
        if isinstance(stage, Group):
            parts = [("_id", stage.id), *((field.name, field.accumulator.input) for field in stage.fields)]
            how = tuple((name, _how(expr, schema)) for name, expr in parts)
            first = plan.mode != "rows" and stage is plan.group
            form = (("partial aggregation", "columns" if plan.typed else "states"),) if first else ()
            yield StageText(stage.path, _names(reads(stage)), (*how, *form))
            schema = Schema()
        elif isinstance(stage, Stateless):
            yield _stateless(stage, schema)
            schema = after(schema, (stage,))
        else:
            yield StageText(stage.path, _names(reads(stage)))


def _source(stage: Source) -> StageText:
    given = (("timeField", stage.time_field), ("recordId", stage.record_id))
    how = tuple((name, _how(expr, stage.schema)) for name, expr in given if expr is not None)
    return StageText(stage.path, stage.schema.names or None, how)


def _stateless(stage: Stateless, schema: Schema) -> StageText:
    match stage:
        case AddFields() | Project():
            how = tuple(_computed(stage.fields, schema))
        case Match():
            how = (("predicate", _how_judged(stage.predicate, schema)),)
        case Validate():
            how = (("predicate", _how_judged(stage.validator, schema)),)
        case ReplaceRoot(new_root=ObjectExpr(fields)):
            how = tuple((name, _how(expr, schema)) for name, expr in fields)
        case ReplaceRoot() | Redact():
            how = (("expression", INTERPRETED),)
        case Unwind():
            how = (("path", INTERPRETED),)
        case _:
            how = ()
    return StageText(stage.path, _names(reads(stage)), how)


def _computed(tree: Branch, schema: Schema, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            yield prefix + name, INTERPRETED if prefix else _how(leaf.expr, schema)
        elif isinstance(leaf, Branch):
            yield from _computed(leaf, schema, f"{prefix}{name}.")


def _how(expr: Expr, schema: Schema) -> str:
    """By a kernel, or interpreted: exactly where types are declared, else as far as can be told without them."""
    names = expression_fields(expr)
    engine = any(isinstance(node, Meta | Variable | ObjectExpr | ArrayExpr) for node in walk(expr))
    declared = names is not None and not engine and all(schema.get(name) is not None for name in names)
    found = is_vectorised(expr, schema) if declared else may_have_kernel(expr)
    return KERNEL if found else INTERPRETED


def _how_judged(predicate: Predicate, schema: Schema) -> str:
    names = fields_used(predicate)
    declared = names is not None and all(schema.get(name) is not None for name in names)
    found = predicate_is_vectorised(predicate, schema) if declared else predicate_may_have_kernel(predicate)
    return KERNEL if found else INTERPRETED


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
            return "not aggregated before the shuffle (no $group that comes first): rows travel"


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
            return f"step on Spark: merge, close, finish{_behind(step.window)}"
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
    columns = [".".join(names) for names in Narrowing(stage).columns]
    table = (
        "the document's own"
        if isinstance(stage.from_, InlineTable)
        else f"{stage.from_.connection_name} {stage.from_.table}"
    )
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
