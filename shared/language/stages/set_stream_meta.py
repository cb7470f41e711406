"""`$setStreamMeta`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.language.expressions.ast import OF_ENGINE, Expr, Meta, ObjectExpr, fields_used
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields, Path, expression_paths
from tidemark.shared.language.kinds import EXPRESSION, StageSpec
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import Outcome, Passed, Told, Untouched
from tidemark.shared.model.values import Document

_PREFIX: Final = "stream."


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStreamMeta(Untouched):
    """Sets what `{$meta: "stream.NAME"}` tells of a document behind it (D17); the document stays as it is."""

    metadata: ObjectExpr
    """All that is told behind the stage, besides what the engine tells: what it sets, and what earlier ones have set."""

    def metadata_of(self, env: Environment) -> Document:
        """The metadata of a document behind the stage; `env` has the metadata in front of it. ExpressionError."""
        found = evaluate_bounded(self.metadata, env)
        assert type(found) is dict
        return found

    def _apply(self, document: Document, env: Environment) -> Outcome:
        self.metadata_of(env)
        return Passed((document,))

    def reads(self) -> Fields:
        """The paths that its expressions read."""
        return fields_used(self.metadata)

    def paths(self) -> set[Path]:
        """Those of its expressions."""
        return expression_paths(self.metadata)

    def told(self) -> Iterable[Told]:
        """The expressions that it computes."""
        own = (pair for pair in self.metadata.fields if pair[1] != _kept(pair[0]))
        return ((f"{_PREFIX}{name}", expr) for name, expr in own)


def _kept(name: str) -> Expr:
    return Meta((name,))


def _read(tree: Any, path: str, scope: Scope) -> SetStreamMeta | None:
    if type(tree) is not dict or not tree:
        scope.problems.add(
            path, '$setStreamMeta takes an object with at least one field, such as {"stream.kind": "$kind"}'
        )
        return None
    found: dict[str, Expr] = {name: _kept(name) for name in sorted(scope.told.metadata)}
    for key, item in tree.items():
        place = join(path, key)
        name = key.removeprefix(_PREFIX)
        if not key.startswith(_PREFIX) or not name or name.startswith("$"):
            scope.problems.add(place, f"expected stream. and a name, such as stream.kind, found {key!r}")
        elif "." in name:
            what = f"{key} is a path; set stream.{name.partition('.')[0]} to an object, whose fields $meta reads by their path"
            scope.problems.add(place, what)
        elif name in OF_ENGINE:
            scope.problems.add(place, f"{key} is what the engine tells of a document: take another name")
        else:
            found[name] = parse_expression(item, place, scope)
    scope.told.metadata.update(found)
    return SetStreamMeta(path=path, metadata=ObjectExpr(tuple(found.items())))


SPEC: Final = StageSpec(
    'Sets what `{$meta: "stream.NAME"}` tells of a document behind it, and leaves the document as it is.',
    _read,
    {"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^stream\\.[^.$][^.]*$"},
     "additionalProperties": EXPRESSION.schema},
)  # fmt: skip
