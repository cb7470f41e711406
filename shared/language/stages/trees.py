"""Trees of fields, by which `$project`, `$addFields` and `$unset` change documents."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tidemark.shared.language.expressions.ast import Expr, FieldPath, fields_used
from tidemark.shared.language.expressions.environment import READ_DEPTH_MAX, Environment
from tidemark.shared.language.expressions.interpreter import evaluate_bounded, spend_size
from tidemark.shared.language.fields import Fields, Path, all_of, expression_paths
from tidemark.shared.language.schema import Field, Schema
from tidemark.shared.language.stages.base import Stateless, Told
from tidemark.shared.model.values import MISSING, Document, Value


@dataclass(frozen=True, slots=True)
class Keep:
    """A field that `$project` keeps."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A field that `$project` or `$unset` leaves out."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A field that takes an expression's value; missing takes the field away."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Branch:
    """The changes to the fields inside a field, through arrays too."""

    fields: tuple[tuple[str, "Leaf"], ...]


Leaf: TypeAlias = Keep | Drop | Computed | Branch


def exclude(tree: Branch, document: Document) -> Document:
    """The document without the dropped fields."""
    actions = dict(tree.fields)
    result: Document = {}
    for name, value in document.items():
        action = actions.get(name)
        if isinstance(action, Drop):
            continue
        result[name] = exclude_value(action, value) if isinstance(action, Branch) else value
    return result


def exclude_value(tree: Branch, value: Value) -> Value:
    """A value without the dropped fields, in documents and in the items of arrays."""
    if type(value) is list:
        return _of_items(value, lambda item: exclude_value(tree, item))
    return exclude(tree, value) if type(value) is dict else value


def _of_items(items: list[Value], change: Callable[[Value], Value]) -> list[Value]:
    """An array with its items changed, and those of arrays in it; a missing one is left out. No call for each level: they may be many."""
    result: list[Value] = [*items]
    left = [result]
    for made in left:
        for place, item in enumerate(made):
            if type(item) is list:
                made[place] = [*item]
                left.append(made[place])
            else:
                made[place] = change(item)
    for made in left:
        made[:] = [item for item in made if item is not MISSING]
    return result


class TreeValues:
    """The values of a tree's expressions for one document: each is computed once, and takes of the budget whenever it is written."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._known: dict[int, Value] = {}

    def of(self, leaf: Computed) -> Value:
        """The value of a field, for the next place that it is written to."""
        if id(leaf) not in self._known:
            found = self._known[id(leaf)] = evaluate_bounded(leaf.expr, self._env)
            return found
        found = self._known[id(leaf)]
        spend_size(found, self._env, READ_DEPTH_MAX)  # how deep it nests was judged
        return found


def include(tree: Branch, document: Document, values: TreeValues) -> Document:
    """The kept fields, in the order of the document, then the computed ones, in the order of the tree."""
    actions = dict(tree.fields)
    result: Document = {}
    for name, value in document.items():
        action = actions.get(name)
        if isinstance(action, Keep):
            result[name] = value
        elif isinstance(action, Branch):
            inner = include_value(action, value, values)
            if inner is not MISSING:
                result[name] = inner
    for name, action in tree.fields:
        if isinstance(action, Computed):
            value = values.of(action)
            if value is not MISSING:
                result[name] = value
        elif isinstance(action, Branch) and name not in result and computes(action):
            result[name] = add_fields(action, {}, values)
    return result


def include_value(tree: Branch, value: Value, values: TreeValues) -> Value:
    """A branch on a value: arrays item by item; scalars are left out, unless fields are computed into them."""
    if type(value) is dict:
        return include(tree, value, values)
    if type(value) is list:
        return _of_items(value, lambda item: include_value(tree, item, values))
    return add_fields(tree, {}, values) if computes(tree) else MISSING


def deepens(tree: Branch) -> bool:
    """Whether values are written inside of fields: as deep as these nest, and deeper."""
    return any(isinstance(leaf, Branch) and computes(leaf) for _, leaf in tree.fields)


def computes(tree: Branch) -> bool:
    """Whether any field of a branch is computed."""
    left = [tree]
    for branch in left:
        for _, leaf in branch.fields:
            if isinstance(leaf, Computed):
                return True
            if isinstance(leaf, Branch):
                left.append(leaf)
    return False


def add_fields(tree: Branch, document: Document, values: TreeValues) -> Document:
    """The document with the computed fields; expressions see the document that came to the stage."""
    result = dict(document)
    for name, action in tree.fields:
        if isinstance(action, Computed):
            value = values.of(action)
            if value is MISSING:
                result.pop(name, None)
            else:
                result[name] = value
        elif isinstance(action, Branch) and computes(action):
            result[name] = add_to_value(action, result.get(name, MISSING), values)
    return result


def add_to_value(tree: Branch, value: object, values: TreeValues) -> Value:
    """Fields added inside a value: to each item of an array; a scalar gives way to a document."""
    if type(value) is dict:
        return add_fields(tree, value, values)
    if type(value) is list:
        return _of_items(value, lambda item: add_to_value(tree, item, values))
    return add_fields(tree, {}, values)


# --- what a tree tells ----


def tree_fields(tree: Branch) -> Fields:
    """The top-level fields that a tree names or reads."""
    names: list[Fields] = []
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            names.append(fields_used(leaf.expr))
        elif isinstance(leaf, Branch):
            names += [frozenset({name}), _expressions(leaf)]
        else:
            names.append(frozenset({name}))
    return all_of(names)


def _expressions(tree: Branch) -> Fields:
    """The fields that the expressions inside a branch read; the branch's own names are inside its field."""
    found: list[Fields] = []
    for _, leaf in tree.fields:
        if isinstance(leaf, Computed):
            found.append(fields_used(leaf.expr))
        elif isinstance(leaf, Branch):
            found.append(_expressions(leaf))
    return all_of(found)


def tree_paths(tree: Branch) -> set[Path]:
    """The paths read by expressions that may have kernels."""
    found: set[Path] = set()
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            found |= expression_paths(leaf.expr)
        elif isinstance(leaf, Branch):
            found |= {(name,)} | tree_paths(leaf)
        elif isinstance(leaf, Keep):
            found.add((name,))
    return found


def kept_or_copied(schema: Schema, tree: Branch) -> Iterator[Field]:
    """The declared fields that a tree keeps by name, or gives another name."""
    for name, leaf in tree.fields:
        if isinstance(leaf, Keep):
            field = schema.get(name)
        elif isinstance(leaf, Computed):
            field = _copy(schema, name, leaf.expr)
        else:
            continue
        if field is not None:
            yield field


def _copy(schema: Schema, name: str, expr: Expr) -> Field | None:
    if not isinstance(expr, FieldPath) or len(expr.names) != 1:
        return None
    field = schema.get(expr.names[0])
    return None if field is None else Field(name, field.type, field.optional)


def computed_in(tree: Branch, prefix: str = "") -> Iterator[Told]:
    """The expressions of a tree."""
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            yield prefix + name, leaf.expr
        elif isinstance(leaf, Branch):
            yield from computed_in(leaf, f"{prefix}{name}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFields(Stateless):
    """A stage that changes fields by a tree."""

    fields: Branch

    def reads(self) -> Fields:
        """The paths that the tree names and its expressions read."""
        return tree_fields(self.fields)

    def paths(self) -> set[Path]:
        """Those of the tree."""
        return tree_paths(self.fields)

    @property
    def shows_others(self) -> bool:
        """All that the tree does not name."""
        return True

    def named(self) -> frozenset[str]:
        """Those of the tree."""
        return frozenset(name for name, _ in self.fields.fields)

    def dropped(self) -> frozenset[str]:
        """The top-level fields that go as a whole."""
        return frozenset(name for name, leaf in self.fields.fields if isinstance(leaf, Drop))

    def declared(self, schema: Schema) -> Schema:
        """The others, and what is copied from one of them."""
        kept = (field for field in schema if field.name not in self.named())
        return Schema((*kept, *kept_or_copied(schema, self.fields)))

    def told(self) -> Iterator[Told]:
        """The expressions of the tree."""
        return computed_in(self.fields)
