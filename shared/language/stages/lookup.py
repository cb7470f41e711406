"""`$lookup` and `$cachedLookup`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginUse
from tidemark.shared.language.kinds import (
    DOCUMENT,
    EXPRESSION,
    PATH,
    STRING,
    Kind,
    Option,
    Read,
    closed_schema,
    duration,
    integer,
    list_of,
    read_later,
    read_options,
    read_stages,
    with_options,
)
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed, InnerStage, Stage
from tidemark.shared.language.stages.inner import GATHERING_NAMES, INNER
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table, collection (`db.coll`) or file of a connection."""

    connection_name: str
    table: str


@dataclass(frozen=True, slots=True)
class InlineTable:
    """Documents written into the pipeline itself."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTable:
    """A lookup of another package, by its name there."""

    path: str
    plugin: str
    config: Document = field(default_factory=dict)
    """As the plug-in takes it."""
    connection_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(Stage):
    """Adds under `as_` the array of the foreign documents that match.

    They match where `foreign_field` equals `local_field` (names of a path; both None: all do) and come out of `pipeline`, which sees the
    `let` variables.
    """

    from_: TableRef | InlineTable | PluginTable
    as_: tuple[str, ...]
    local_field: tuple[str, ...] | None = None
    foreign_field: tuple[str, ...] | None = None
    let: tuple[tuple[str, Expr], ...] = ()
    pipeline: tuple["InnerStage | Lookup", ...] = ()
    limits: Limits = DEFAULTS
    """Of the document."""

    @property
    def nested(self) -> tuple["Lookup", ...]:
        """The lookups of its pipeline."""
        return tuple(stage for stage in self.pipeline if isinstance(stage, Lookup))

    def needs(self) -> Iterator[ConnectionNeed]:
        """That of the table."""
        place = f"{self.path}.from"
        match self.from_:
            case TableRef(name):
                yield ConnectionNeed(name, ("sql", "mongodb", "files"), place)
            case PluginTable(connection_name=str(name), plugin=plugin):
                yield ConnectionNeed(name, ("plugin",), place, plugin)

    def plugins(self) -> Iterator[PluginUse]:
        """What it looks up in."""
        match self.from_:
            case PluginTable(path=path, plugin=plugin, config=config, connection_name=name):
                yield PluginUse("lookup", plugin, config, path, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLookup(Lookup):
    """A lookup whose answers are kept for `ttl_ms`, at most `max_entries` of them, and `bytes_max` as they are encoded."""

    ttl_ms: int
    max_entries: int = 10_000
    bytes_max: int | None = None


_OUTSIDE: Final = "does not belong inside a lookup's pipeline"
NESTING_MAX: Final = 4
"""How many lookups may stand in one another."""
_TABLE: Final = (
    Option("connectionName", STRING, "the connection", required=True),
    Option("table", STRING, "a table, or a file of the connection"),
    Option("db", STRING, "with coll: the collection, or the table db.coll"),
    Option("coll", STRING, "with db: the collection, or the table db.coll"),
)
_INLINE: Final = (Option("documents", list_of(DOCUMENT), "the documents themselves", required=True),)
_PLUGIN: Final = (
    Option("plugin", STRING, "the lookup's name in the package that has it", required=True),
    Option("connectionName", STRING, "a connection of type plugin, with the same plugin, if it takes one"),
    Option("config", DOCUMENT, "as the plug-in takes it"),
)


def _table(tree: object, path: str, scope: Scope) -> TableRef | None:
    """`{connectionName, table}` or `{connectionName, db, coll}`."""
    found = read_options(tree, path, scope, _TABLE)
    table = found.get("table") or ".".join(found[key] for key in ("db", "coll") if key in found)
    if "connectionName" not in found:
        return None
    if not table:
        scope.problems.add(path, "needs table, or coll (and db)", accepted=("table", "db", "coll"))
        return None
    return TableRef(found["connectionName"], table)


def _from(tree: object, path: str, scope: Scope) -> TableRef | InlineTable | PluginTable | None:
    if type(tree) is dict and "plugin" in tree:
        asked = read_options(tree, path, scope, _PLUGIN)
        return PluginTable(path=path, **asked.fields) if "plugin" in asked else None
    if type(tree) is dict and "documents" in tree:
        found = read_options(tree, path, scope, _INLINE)
        return InlineTable(found["documents"]) if "documents" in found else None
    return _table(tree, path, scope)


_ANY_FROM: Final = Kind(_from, {"anyOf": [closed_schema(each) for each in (_TABLE, _INLINE, _PLUGIN)]})
_FROM: Final = Option("from", _ANY_FROM, "what to look up in", required=True)
_LOOKUP: Final = (
    _FROM,
    Option("localField", PATH, "the document's field"),
    Option("foreignField", PATH, "the foreign document's field that equals it"),
    Option("let", Kind(read_later, {"type": "object"}), "variables for the pipeline", into=None),
    Option(
        "pipeline",
        Kind(read_later, {"type": "array"}),
        f"stages on what was found: stateless ones, {GATHERING_NAMES}, and further lookups",
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
    if _NESTED.subn("", path)[1] >= NESTING_MAX:
        scope.problems.add(path, f"lookups stand at most {NESTING_MAX} deep in one another")
        return made(path=path, **o.fields)
    specs = {**INNER, "$lookup": SPEC, "$cachedLookup": CACHED}
    stages = read_stages(o.get("pipeline", []), join(path, "pipeline"), inner, specs, _OUTSIDE) or ()
    return made(path=path, let=variables, pipeline=stages, limits=scope.limits, **o.fields)


_NESTED: Final = re.compile(r"\$(?:lookup|cachedLookup)\.")


def read_let(tree: object, path: str, scope: Scope) -> tuple[tuple[str, Any], ...]:
    """The variables of `let`, by name, and their expressions."""
    if type(tree) is not dict:
        scope.problems.add(path, "expected an object of variable: expression")
        return ()
    bad = [name for name in tree if not re.fullmatch(r"[a-z][A-Za-z0-9_]*", name)]
    for name in bad:
        scope.problems.add(join(path, name), f"{name!r} is no name for a variable")
    return tuple((name, EXPRESSION.read(item, join(path, name), scope)) for name, item in tree.items())


SPEC: Final = with_options("Adds what a table has about a document.", _LOOKUP, partial(_looked_up, Lookup))
CACHED: Final = with_options("A $lookup that keeps answers for a while.", _CACHED, partial(_looked_up, CachedLookup))
