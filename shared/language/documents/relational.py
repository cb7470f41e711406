"""`$lookup`, `$cachedLookup`, `$join`, `$union` and `$compute`."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tidemark.shared.language.expressions.ast import Literal, constant
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    BOOLEAN,
    DOCUMENT,
    EXPRESSION,
    PATH,
    STRING,
    Kind,
    Option,
    Read,
    StageSpec,
    choice,
    closed,
    closed_schema,
    duration,
    integer,
    list_of,
    made_of,
    read_later,
    read_options,
    read_stage,
    with_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages import (
    CachedLookup,
    Compute,
    Https,
    HttpsEmit,
    InlineTable,
    Join,
    Lookup,
    TableRef,
    Union,
)
from tidemark.shared.language.stages.table import INNER, STATELESS

_OUTSIDE: Final = {
    **dict.fromkeys(
        (
            "$source",
            "$emit",
            "$merge",
            "$tumblingWindow",
            "$hoppingWindow",
            "$sessionWindow",
            "$join",
            "$union",
            "$compute",
            "$https",
        ),
        "does not belong inside a lookup's pipeline",
    ),
    **dict.fromkeys(
        ("$lookup", "$cachedLookup"),
        "does not belong inside a lookup's pipeline: look up one behind the other, with $unwind of what was found between them",
    ),
}
ReadPipeline = Callable[[Any, str, Scope], Any]
_TABLE: Final = (
    Option("connectionName", STRING, "the connection", required=True),
    Option("table", STRING, "a table, or a file of the connection"),
    Option("db", STRING, "with coll: the collection, or the table db.coll"),
    Option("coll", STRING, "with db: the collection, or the table db.coll"),
)
_INLINE: Final = (Option("documents", list_of(DOCUMENT), "the documents themselves", required=True),)


def _table(tree: Any, path: str, scope: Scope) -> TableRef | None:
    """`{connectionName, table}` or `{connectionName, db, coll}`."""
    found = read_options(tree, path, scope, _TABLE)
    table = found.get("table") or ".".join(found[key] for key in ("db", "coll") if key in found)
    if "connectionName" not in found:
        return None
    if not table:
        scope.problems.add(path, "needs table, or coll (and db)", accepted=("table", "db", "coll"))
        return None
    return TableRef(found["connectionName"], table)


def _from(tree: Any, path: str, scope: Scope) -> TableRef | InlineTable | None:
    if type(tree) is dict and "documents" in tree:
        found = read_options(tree, path, scope, _INLINE)
        return InlineTable(found["documents"]) if "documents" in found else None
    return _table(tree, path, scope)


_FROM: Final = Option(
    "from", Kind(_from, {"anyOf": [closed_schema(_TABLE), closed_schema(_INLINE)]}), "what to look up in", required=True
)
_LOOKUP: Final = (
    _FROM,
    Option("localField", PATH, "the document's field"),
    Option("foreignField", PATH, "the foreign document's field that equals it"),
    Option("let", Kind(read_later, {"type": "object"}), "variables for the pipeline", into=None),
    Option(
        "pipeline",
        Kind(read_later, {"type": "array"}),
        "stages on what was found: stateless ones, $group, $sort, $limit, $count",
        into=None,
    ),
    Option("as", PATH, "the field that takes the array of what was found", required=True),
    Option("partitionBy", EXPRESSION, "accepted and without effect: a batch asks once", into=None),
    Option("parallelism", integer(1), "accepted and without effect: a batch asks once", into=None),
)
_CACHED: Final = (
    Option("ttl", duration(least=1), "how long an answer is kept", required=True),
    Option("maxEntries", integer(1, 10_000_000), "how many answers are kept (default 10000)"),
    Option(
        "maxMemUsageBytes",
        integer(1),
        "how many bytes of answers are kept: the ones used longest ago give way",
        into="bytes_max",
    ),
    *_LOOKUP,
)


def _looked_up(made: type[Lookup], o: Read, path: str, scope: Scope) -> Lookup:
    if ("localField" in o) != ("foreignField" in o):
        scope.problems.add(path, "localField and foreignField stand together or not at all")
    if "localField" not in o and "pipeline" not in o:
        scope.problems.add(path, "needs localField and foreignField, or a pipeline")
    variables = read_let(o.get("let", {}), join(path, "let"), scope)
    inner = scope.bind(*(name for name, _ in variables))
    stages = []
    trees = o.get("pipeline", [])
    place = join(path, "pipeline")
    if type(trees) is not list:
        scope.problems.add(place, "expected a list of stages")
        trees = []
    for i, tree in enumerate(trees):
        stage = read_stage(tree, f"{place}[{i}]", inner, INNER, _OUTSIDE)
        if stage is not None:
            stages.append(stage)
    return made(path=path, let=variables, pipeline=tuple(stages), limits=scope.limits, **o.fields)


def read_let(tree: Any, path: str, scope: Scope) -> tuple[tuple[str, Any], ...]:
    """The variables of `let`, by name, and their expressions."""
    if type(tree) is not dict:
        scope.problems.add(path, "expected an object of variable: expression")
        return ()
    bad = [name for name in tree if not re.fullmatch(r"[a-z][A-Za-z0-9_]*", name)]
    for name in bad:
        scope.problems.add(join(path, name), f"{name!r} is no name for a variable")
    return tuple((name, EXPRESSION.read(item, join(path, name), scope)) for name, item in tree.items())


def _class(tree: Any, path: str, scope: Scope) -> str | None:
    if type(tree) is str and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", tree):
        return tree
    scope.problems.add(path, f'expected "module:Class", found {tree!r}')
    return None


_COMPUTE: Final = (
    Option(
        "class",
        Kind(_class, {"type": "string", "pattern": "^[A-Za-z_][\\w.]*:[A-Za-z_]\\w*$"}),
        "module:Class",
        required=True,
    ),
    Option("key", EXPRESSION, "the key that state and timers belong to", required=True),
    Option("config", DOCUMENT, "handed to the class"),
    Option("order", choice("eventTime", "arrival"), "in which order records are applied (default eventTime)"),
)
_WITHIN: Final = closed(
    Option("before", duration(least=0, zero_alone=True), "how much earlier than the left one the right one may be"),
    Option("after", duration(least=0, zero_alone=True), "how much later"),
)


def _compute(o: Read, path: str, scope: Scope) -> Compute:
    if isinstance(o["key"], Literal) and o["key"].value is not None:
        what = f"the key is {constant(o['key'].value)}: all records have one state"
        scope.problems.warn(join(path, "key"), what)
    return Compute(path=path, limits=scope.limits, **o.fields)


def _join_spec(read_pipeline: ReadPipeline) -> StageSpec:
    kind = Kind(read_pipeline, {"$ref": "#/$defs/pipeline"})
    options = (
        Option("from", kind, "a pipeline that starts with $source", required=True),
        Option("leftKey", EXPRESSION, "equal to rightKey for a pair", required=True),
        Option("rightKey", EXPRESSION, "equal to leftKey for a pair", required=True),
        Option("within", _WITHIN, "right time in [left − before, left + after]", required=True),
        Option(
            "type", choice("inner", "left", "right", "full"), "what becomes of those without a match (default inner)"
        ),
        Option("as", STRING, "the field that takes the right document", required=True),
    )

    def build(o: Read, path: str, scope: Scope) -> Join | None:
        if "." in o["as"] or o["as"].startswith("$"):
            scope.problems.add(join(path, "as"), "a top-level field name, without dots and $")
        return Join(path=path, **o.fields)

    return with_options("Pairs documents of two streams that are near in time.", options, build)


def _union_spec(read_pipeline: ReadPipeline) -> StageSpec:
    kind = Kind(read_pipeline, {"$ref": "#/$defs/pipeline"})
    pipelines = Option("pipelines", list_of(kind), "each starts with $source", required=True)
    return made_of("Other streams flow into this one.", (pipelines,), Union)


def _expressions(tree: Any, path: str, scope: Scope) -> tuple[tuple[str, Any], ...] | None:
    if type(tree) is not dict or not all(type(name) is str and name for name in tree):
        scope.problems.add(path, "expected an object of name: expression")
        return None
    return tuple((name, EXPRESSION.read(item, join(path, name), scope)) for name, item in tree.items())


_EXPRESSIONS: Final = Kind(_expressions, {"type": "object", "additionalProperties": EXPRESSION.schema})
_IN_BODY: Final = ("$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith")


def _payload(tree: Any, path: str, scope: Scope) -> tuple[Any, ...] | None:
    if type(tree) is not list:
        scope.problems.add(path, "expected a list of stages")
        return None
    specs = {name: STATELESS[name] for name in _IN_BODY}
    found = tuple(read_stage(item, f"{path}[{i}]", scope, specs, {}) for i, item in enumerate(tree))
    return None if None in found else found


_ERRORS: Final = choice("dlq", "ignore", "fail")


def _on_error(tree: Any, path: str, scope: Scope) -> Any:
    """Atlas' text writes the words in several cases."""
    return _ERRORS.read(tree.lower() if type(tree) is str else tree, path, scope)


_HTTPS_CONFIG: Final = closed(
    Option("connectionTimeoutSec", integer(1, 3_600), "to connect (default 30)", into="connection_timeout_s"),
    Option("requestTimeoutSec", integer(1, 3_600), "to answer (default 60)", into="request_timeout_s"),
    Option("parseJsonStrings", BOOLEAN, "texts in the answer that are JSON become what they say (default false)"),
    Option("parallelism", integer(1, 1_000), "requests of one task at a time (default 16)"),
)
_HTTPS: Final = (
    Option("connectionName", STRING, "the connection of type https", required=True),
    Option("path", EXPRESSION, "below the connection's URL", into="subpath"),
    Option("parameters", _EXPRESSIONS, "of the query: numbers, strings or booleans"),
    Option("method", choice("GET", "POST", "PUT", "PATCH", "DELETE"), "of the request (default GET)"),
    Option("headers", _EXPRESSIONS, "strings; they go before those of the connection"),
    Option(
        "as", PATH, "the field that takes the answer; needed unless the stage is the last, where answers are not kept"
    ),
    Option(
        "onError",
        Kind(_on_error, _ERRORS.schema),
        "what becomes of a document whose request is refused (default dlq; of the last stage fail, and dlq is not possible)",
    ),
    Option(
        "payload",
        Kind(_payload, {"type": "array"}),
        "stages that make the body (default: the document, where there is a body)",
    ),
    Option("config", _HTTPS_CONFIG, "how requests are sent"),
)


def _https(o: Read, path: str, scope: Scope) -> Https | None:
    if "as" not in o:
        scope.problems.add(
            path, "needs as, the field that takes the answer: only the last stage of the document goes without"
        )
        return None
    return Https(path=path, **o.fields)


_TOO_LATE: Final = (
    "a refusal comes once the checkpoint is committed, too late for a dead letter: fail (default) or ignore; or put an"
    " $emit behind $https"
)


def _https_emit(o: Read, path: str, scope: Scope) -> HttpsEmit | None:
    if o.get("onError") == "dlq":
        scope.problems.add(join(path, "onError"), f"dlq as the last stage: {_TOO_LATE}", accepted=("fail", "ignore"))
        return None
    return HttpsEmit(path=path, **{k: v for k, v in o.fields.items() if k not in ("as_", "parse_json_strings")})


HTTPS_LAST: Final = with_options(
    "Tells a server about each document, once its checkpoint is committed.", _HTTPS, _https_emit
)
"""`$https` as the last stage of a document."""


def relational(read_pipeline: ReadPipeline) -> dict[str, StageSpec]:
    """The specs; `read_pipeline` reads a whole pipeline that starts with a source."""
    return {
        "$lookup": with_options("Adds what a table has about a document.", _LOOKUP, partial(_looked_up, Lookup)),
        "$cachedLookup": with_options(
            "A $lookup that keeps answers for a while.", _CACHED, partial(_looked_up, CachedLookup)
        ),
        "$https": with_options(
            "Asks a server about each document; as the last stage it tells the server.", _HTTPS, _https
        ),
        "$compute": with_options(
            "A computation of the user's, with state and timers by key.",
            _COMPUTE,
            _compute,
        ),
        "$join": _join_spec(read_pipeline),
        "$union": _union_spec(read_pipeline),
    }
