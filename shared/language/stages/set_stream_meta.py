"""`$setStreamMeta`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.language.expressions.ast import OF_ENGINE, Call, Expr, Literal, Meta, ObjectExpr, fields_used
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
_NAMES_MAX: Final = 20
"""Of a path: one reads the objects on its way."""


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


def _read(tree: object, path: str, scope: Scope) -> SetStreamMeta | None:
    if type(tree) is not dict or not tree:
        scope.problems.add(
            path, '$setStreamMeta takes an object with at least one field, such as {"stream.kind": "$kind"}'
        )
        return None
    found: dict[str, Expr] = {name: _kept(name) for name in sorted(scope.told.metadata)}
    for name, item in _tree(tree, path, scope).items():
        base = Meta((name,)) if name in found else None
        found[name] = _within(base, item, join(path, f"{_PREFIX}{name}")) if isinstance(item, dict) else item
    scope.told.metadata.update(found)
    return SetStreamMeta(path=path, metadata=ObjectExpr(tuple(found.items())))


_Tree = dict[str, "Expr | _Tree"]
"""What is set, by the names of paths."""


def _tree(tree: dict[str, Any], path: str, scope: Scope) -> _Tree:
    """The expressions of the keys; keys that are no paths, or in each other's way, are noted."""
    found: _Tree = {}
    for key, item in tree.items():
        place = join(path, key)
        names = key.removeprefix(_PREFIX).split(".")
        if not key.startswith(_PREFIX) or any(not name or name.startswith("$") for name in names):
            scope.problems.add(place, f"expected stream. and a name or a path, such as stream.kind, found {key!r}")
        elif names[0] in OF_ENGINE:
            scope.problems.add(place, f"{key} is what the engine tells of a document: take another name")
        elif len(names) > _NAMES_MAX:
            scope.problems.add(place, f"a path has at most {_NAMES_MAX} names, found {len(names)}")
        else:
            within: Any = found
            for name in names[:-1]:
                within = within.setdefault(name, {}) if isinstance(within, dict) else within
            if not isinstance(within, dict) or names[-1] in within:
                scope.problems.add(place, f"{key}: the stage sets this, or what is around it, already")
            else:
                within[names[-1]] = parse_expression(item, place, scope)
    return found


def _within(base: Meta | None, tree: _Tree, path: str) -> Expr:
    """The object at `base`, or one without fields where there is none, with what is set in it."""
    found: Expr = ObjectExpr(())
    if base is not None:
        is_object = Call("$eq", (Call("$type", (base,), path), Literal("object")), path)
        found = Call("$cond", (is_object, base, found), path)
    for name, item in tree.items():
        inner = None if base is None else Meta((*base.names, name))
        value = _within(inner, item, path) if isinstance(item, dict) else item
        found = Call("$setField", (Literal(name), found, value), path)
    return found


SPEC: Final = StageSpec(
    'Sets what `{$meta: "stream.NAME"}` tells of a document behind it, and leaves the document as it is.',
    _read,
    {"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^stream(\\.[^.$][^.]*)+$"},
     "additionalProperties": EXPRESSION.schema},
)  # fmt: skip
