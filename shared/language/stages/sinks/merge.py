"""`$merge` into tables and collections, and `$emit` into a collection."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath, ObjectExpr
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    EXPRESSION,
    PATHS,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed_schema,
    integer,
    read_later,
    read_options,
    read_stages,
    with_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed, Stateless
from tidemark.shared.language.stages.inner import IN_PLACE
from tidemark.shared.language.stages.lookup import read_let
from tidemark.shared.language.stages.sinks.base import NAME, SinkBase, is_expression

WhenMatched = Literal["replace", "merge", "keepExisting", "delete", "fail"]
WhenNotMatched = Literal["insert", "discard", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(SinkBase):
    """Rows of a table, or documents of a collection, found by the fields `on`. `delete` and `fail` on a match as they say.

    `$emit` into a collection is one that replaces.

    table, when_matched and when_not_matched may be expressions, evaluated on each document. A pipeline in when_matched turns the row
    that is there into the new one; it sees the `let` variables.
    """

    connection_name: str
    table: str | Expr
    on: tuple[str, ...] = ("_id",)
    let: tuple[tuple[str, Expr], ...] = ()
    when_matched: WhenMatched | Expr | tuple[Stateless, ...] = "merge"
    when_not_matched: WhenNotMatched | Expr = "insert"

    @property
    def is_constant(self) -> bool:
        """Whether neither the table nor the new row depends on the document."""
        return all(type(each) is str for each in (self.table, self.when_matched, self.when_not_matched))

    def target(self) -> tuple[Any, ...]:
        """The table or collection that is written."""
        return ("table", self.connection_name, self.table)

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection to the database."""
        if self.name == "$emit":
            yield ConnectionNeed(self.connection_name, ("mongodb",), self.path)
        else:
            yield ConnectionNeed(self.connection_name, ("sql", "mongodb"), f"{self.path}.into")

    def order_key(self, *, last: bool) -> Expr | None:
        """The fields that find the row."""
        return ObjectExpr(tuple((name, FieldPath(tuple(name.split(".")))) for name in self.on))


_COLLECTION: Final = (
    Option("connectionName", STRING, "the connection, of type mongodb", required=True),
    Option("db", NAME, "the database, or an expression that gives one", required=True),
    Option("coll", NAME, "the collection, or an expression that gives one", required=True),
)


def read_collection(tree: object, path: str, scope: Scope) -> Merge | None:
    """`$emit` with a collection."""
    before = len(scope.problems.errors)
    o = read_options(tree, path, scope, _COLLECTION)
    if len(scope.problems.errors) > before:
        return None
    target = _joined([o["db"], o["coll"]], path)
    return Merge(path=path, connection_name=o["connectionName"], table=target, when_matched="replace")


def _word_or_expression(*words: str) -> Kind:
    known = choice(*words)

    def read(tree: object, path: str, scope: Scope) -> Any:
        if not is_expression(tree):
            return known.read(tree, path, scope)
        expr = parse_expression(tree, path, scope)
        return known.read(expr.value, path, scope) if isinstance(expr, Constant) else expr

    return Kind(read, {"anyOf": [known.schema, EXPRESSION.schema]})


_INTO: Final = (
    Option("connectionName", STRING, "the connection", required=True),
    Option("table", NAME, "a table, or an expression that gives one"),
    Option("db", NAME, "with coll: the collection, or the table db.coll"),
    Option("coll", NAME, "with db: the collection, or the table db.coll"),
)


def _into(tree: object, path: str, scope: Scope) -> tuple[str, str | Expr] | None:
    """The connection, and the table or the expression that gives it."""
    found = read_options(tree, path, scope, _INTO)
    parts = [found[name] for name in (["table"] if "table" in found else ["db", "coll"]) if name in found]
    if "connectionName" not in found:
        return None
    if not parts:
        scope.problems.add(path, "needs table, or coll (and db)", accepted=("table", "db", "coll"))
        return None
    return found["connectionName"], _joined(parts, path)


def _joined(parts: list[Any], path: str) -> str | Expr:
    """`db.coll`, or the expression that gives it."""
    if all(type(part) is str for part in parts):
        return ".".join(parts)
    exprs: list[Expr] = [Constant(part) if type(part) is str else part for part in parts]
    return exprs[0] if len(exprs) == 1 else Call("$concat", (exprs[0], Constant("."), exprs[1]), path)


_MATCHED: Final = _word_or_expression("replace", "merge", "keepExisting", "delete", "fail")


def _matched(tree: object, variables: tuple[str, ...], path: str, scope: Scope) -> Any:
    if type(tree) is not list:
        return _MATCHED.read(tree, path, scope)
    return read_stages(tree, path, scope.bind(*variables), IN_PLACE, "")


def _merge(o: Read, path: str, scope: Scope) -> Merge:
    if "let" in o and type(o.get("whenMatched")) is not list:
        scope.problems.add(join(path, "let"), "are variables of a pipeline in whenMatched, and there is none")
    let = read_let(o.get("let", {"new": "$$ROOT"}), join(path, "let"), scope)
    matched = _matched(o.get("whenMatched", "merge"), tuple(n for n, _ in let), join(path, "whenMatched"), scope)
    name, table = o["into"]
    let = let if type(matched) is tuple else ()
    return Merge(path=path, connection_name=name, table=table, let=let, when_matched=matched, **o.fields)


_MERGE: Final = (
    Option("into", Kind(_into, closed_schema(_INTO)), "the table or collection", required=True, into=None),
    Option("on", PATHS, "the fields that find a row (default _id)"),
    Option("let", Kind(read_later, {"type": "object"}), "variables for the pipeline of whenMatched (default {new: $$ROOT})", into=None),
    Option(
        "whenMatched",
        Kind(read_later, {"anyOf": [_MATCHED.schema, {"type": "array"}]}),
        "what becomes of a row that is there (default merge): a word, an expression that gives one, or a pipeline on the row",
        into=None,
    ),
    Option(
        "whenNotMatched",
        _word_or_expression("insert", "discard", "fail"),
        "what becomes of a document without a row (default insert): a word, or an expression that gives one",
    ),
    Option("parallelism", integer(1), "accepted and without effect: the processor has the number of tasks", into=None),
)  # fmt: skip

COLLECTION_SCHEMA: Final = closed_schema(_COLLECTION)
SPEC: Final = with_options("Writes into a table or a collection, row by row.", _MERGE, _merge)
