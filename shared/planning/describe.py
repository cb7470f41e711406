"""A plan in words: the three phases that `tidemark explain` prints. Reads the plan, decides nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.language.apply.narrowing import Narrowing
from shared.language.documents import Processor
from shared.language.expressions.ast import Call, Expr, FieldPath, Literal, Meta
from shared.language.fields import expression_fields, reads
from shared.language.schema import Schema
from shared.language.stages import (
    AddFields,
    Branch,
    CachedLookup,
    Computed,
    InlineTable,
    Join,
    Keep,
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
    Validate,
    Window,
)
from shared.model.plan import Edge, PhysicalPlan, Vertex
from shared.operators.schemas import after, shared_fields
from shared.operators.specs import (
    BranchSpec,
    ComputeSpec,
    FrontSpec,
    JoinSpec,
    KeyBySpec,
    OperatorSpec,
    PartialSpec,
    StatelessSpec,
    StepSpec,
    TapSpec,
    WindowSpec,
)
from shared.operators.window_plan import WindowPlan
from shared.planning.specs import CollectHead, DeadLetterHead, LookupHead, ReadHead, StepHead, WriteHead

COLUMNS = "on columns"
INTERPRETED = "interpreted"


@dataclass(frozen=True, slots=True)
class StageText:
    """One stage of the document: where it stands, what fields it reads, how its expressions run."""

    path: str
    reads: tuple[str, ...] | None
    """Top-level fields, sorted; None for the whole document."""
    expressions: tuple[tuple[str, str], ...] = ()
    """(what it is for, `on columns` or `interpreted`)."""
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
            keys = tuple((name, COLUMNS if _cell(key, fields) else INTERPRETED) for name, key, fields in sides)
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
        how = COLUMNS if plan.mode == "typed" else INTERPRETED
        inner = tuple(
            StageText(s.path, _names(reads(s)), (("partial aggregation", how),) if s.name == "$group" else ())
            for s in stage.pipeline
        )
        return StageText(stage.path, _union(inner), (), inner)
    return StageText(stage.path, None)


def _lookup_text(stage: Lookup) -> StageText:
    local = frozenset((stage.local_field or ())[:1])
    fields = [local, *(expression_fields(expr) for _, expr in stage.let)]
    known = None if any(f is None for f in fields) else tuple(sorted({name for f in fields if f for name in f}))
    inner = tuple(StageText(s.path, _names(reads(s))) for s in stage.pipeline)
    return StageText(stage.path, known, (), inner)


def _source(stage: Source) -> StageText:
    how = []
    if stage.time_field is not None:
        how.append(("timeField", COLUMNS if _time_on_columns(stage.time_field, stage.schema) else INTERPRETED))
    if stage.record_id is not None:
        declared = isinstance(stage.record_id, FieldPath) and stage.schema.get(stage.record_id.names[0]) is not None
        how.append(("recordId", COLUMNS if declared else INTERPRETED))
    return StageText(stage.path, stage.schema.names or None, tuple(how))


def _time_on_columns(expr: Expr, schema: Schema) -> bool:
    match expr:
        case Call("$toDate", (FieldPath((name,)),)):
            field = schema.get(name)
            return field is not None and field.type in ("string", "long", "date")
        case FieldPath((name,)):
            field = schema.get(name)
            return field is not None and field.type == "date"
        case _:
            return False


def _stateless(stage: Stateless, schema: Schema) -> StageText:
    whole = _on_columns(stage, schema)
    match stage:
        case AddFields() | Project():
            computed = tuple((name, COLUMNS if whole else INTERPRETED) for name in _computed(stage.fields))
        case Match() | Validate():
            computed = (("predicate", INTERPRETED),)
        case ReplaceRoot() | Redact():
            computed = (("expression", INTERPRETED),)
        case _:
            computed = ()
    return StageText(stage.path, _names(reads(stage)), computed)


def _computed(tree: Branch, prefix: str = "") -> Iterator[str]:
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            yield prefix + name
        elif isinstance(leaf, Branch):
            yield from _computed(leaf, f"{prefix}{name}.")


def _on_columns(stage: Stateless, schema: Schema) -> bool:
    """Whether `shared.operators.stage_columns` can take the stage, going by the declarations alone."""
    if not isinstance(stage, AddFields | Project) or (isinstance(stage, Project) and stage.mode != "inclusion"):
        return False
    for name, leaf in stage.fields.fields:
        kept = isinstance(leaf, Keep) and _declared(schema, name)
        computed = isinstance(leaf, Computed) and _cell(leaf.expr, schema)
        if not (kept or computed):
            return False
    return True


def _cell(expr: Expr, schema: Schema) -> bool:
    match expr:
        case FieldPath((name,)):
            return _declared(schema, name)
        case Literal(value):
            return type(value) in (str, int)
        case Meta():
            return True
        case _:
            return False


def _declared(schema: Schema, name: str) -> bool:
    field = schema.get(name)
    return field is not None and not field.optional


def _names(fields: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if fields is None else tuple(sorted(fields))


def _union(parts: tuple[StageText, ...]) -> tuple[str, ...] | None:
    """What the first stages of a window read, up to the one that makes documents anew."""
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
    """What a vertex is, on one line."""
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
    """For each window: what is done before its shuffle."""
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
    """What each task of a vertex is made of, in order."""
    head = _head(vertex)
    return (*((head,) if head else ()), *(_operator(spec) for spec in vertex.chain))


def _head(vertex: Vertex) -> str:
    match vertex.head:
        case ReadHead(stage):
            return f"read {type(stage).__name__.removesuffix('Source').lower()}"
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
    match spec:
        case FrontSpec(source):
            parts = ["decode", "event time", *(["dedupe"] if source.record_id is not None else [])]
            return f"{', '.join(parts)}, watermark {type(source.watermark).__name__}"
        case StatelessSpec(stages):
            return "fused " + " ".join(stage.name for stage in stages)
        case PartialSpec(window):
            return f"partial {window.stage.name}: {_lifted(WindowPlan(window))}"
        case StepSpec(window):
            return f"step on Arrow: merge, close, finish{_behind(window)}"
        case KeyBySpec():
            return "key for the shuffle"
        case ComputeSpec(stage):
            return f"{stage.name} {stage.class_}, order {stage.order}"
        case TapSpec(port):
            return f"give out on {port}, too"
        case JoinSpec():
            return _join(spec)
        case BranchSpec(branch):
            return f"mark as stream {branch} of those that flow together"


def _lookup(stage: Lookup) -> str:
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
