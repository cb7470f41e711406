"""`$group`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.language.accumulators.base import Accumulator, OrderKey
from tidemark.shared.language.accumulators.parse import ACCUMULATOR_NAMES, parse_accumulator, with_key
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.expressions.ast import (
    ArrayExpr,
    Expr,
    FieldPath,
    Literal,
    ObjectExpr,
    answers,
    constant,
    fields_used,
)
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate, evaluate_bounded
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields, Path, all_of, expression_paths
from tidemark.shared.language.kinds import EXPRESSION, StageSpec
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import Gathering, Told, within_depth
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.language.values.types import is_number
from tidemark.shared.model.values import MISSING, Document, Value


@dataclass(frozen=True, slots=True)
class GroupField:
    """An output field of `$group` and the accumulator that fills it."""

    name: str
    accumulator: Accumulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Gathering):
    """`$group`: `id` is the key (a missing key is null); one document a key, `_id` first."""

    id: Expr
    fields: tuple[GroupField, ...]

    def gather(self, documents: Sequence[Document], env: Environment) -> list[Document]:
        """One document a key; the documents are ordered as they stand."""
        rows = ((document, (0, 0, i)) for i, document in enumerate(documents))
        return [within_depth(document) for document in self.groups(rows, env)]

    def groups(self, rows: Iterable[tuple[Document, OrderKey]], env: Environment) -> list[Document]:
        """One document a key, in the order of the keys' first rows as they come.

        The key of equal values (1 and 1.0) is that of the least order key. ExpressionError where an expression fails on a row; a caller
        that keeps the other rows filters such rows out before.
        """
        accumulators = [implementation(field.accumulator) for field in self.fields]
        groups: dict[bytes, tuple[list[Any], list[Any]]] = {}
        for document, order_key in rows:
            here = env.on(document)
            key = self.key(here)
            key = None if key is MISSING else key
            first, states = groups.setdefault(canonical_key(key), ([order_key, key], [a.init() for a in accumulators]))
            if order_key < first[0]:
                first[:] = [order_key, key]
            for i, (accumulator, field) in enumerate(zip(accumulators, self.fields, strict=True)):
                states[i] = accumulator.add(states[i], accumulator_input(field.accumulator, here), order_key)
        result = []
        for first, states in groups.values():
            document = {"_id": first[1]}
            for accumulator, field, state in zip(accumulators, self.fields, states, strict=True):
                document[field.name] = accumulator.finish(state)
            result.append(document)
        return result

    @property
    def keeps_fields(self) -> bool:
        """Whether the key is an object of fields as documents bring them, and of constants: no result, and as deep as they are."""
        return isinstance(self.id, ObjectExpr) and all(_is_plain(item) for _, item in self.id.fields)

    def key(self, env: Environment) -> Value:
        """The key of a document, MISSING included. ExpressionError where it has none."""
        return evaluate(self.id, env) if self.keeps_fields else evaluate_bounded(self.id, env)

    def reads(self) -> Fields:
        """Those of the key, of the accumulators' inputs and of their orders."""
        inputs = [field.accumulator for field in self.fields]
        keys = frozenset(key.names[0] for a in inputs for key in a.sort_by)
        return all_of([fields_used(self.id), keys, *(fields_used(a.input) for a in inputs)])

    def paths(self) -> set[Path]:
        """Those of the key and of the accumulators' inputs."""
        return expression_paths(self.id).union(*(expression_paths(field.accumulator.input) for field in self.fields))

    @property
    def is_sure(self) -> bool:
        """Where all that it evaluates are paths and constants, for accumulators that take any value and keep few."""
        taken = (field.accumulator for field in self.fields)
        return (_is_plain(self.id) or self.keeps_fields) and all(a.op in _SURE and _is_plain(a.input) for a in taken)

    def written(self, names: Fields) -> Fields:
        """The key and the output fields."""
        return frozenset(("_id", *(field.name for field in self.fields)))

    def told(self) -> tuple[Told, ...]:
        """The key and the accumulators' inputs."""
        return (("_id", self.id), *((field.name, field.accumulator.input) for field in self.fields))


_SURE: Final = frozenset({"$sum", "$avg", "$min", "$max", "$first", "$last", "$count", "$stdDevPop", "$stdDevSamp"})


def _is_plain(expr: Expr) -> bool:
    """Whether it has a value for each document."""
    if isinstance(expr, FieldPath):
        return bool(expr.names)
    return isinstance(expr, Literal) and not isinstance(expr.value, dict | list)


def _read(tree: object, path: str, scope: Scope) -> Group | None:
    if type(tree) is not dict or "_id" not in tree:
        scope.problems.add(path, "$group needs _id, the key (null for one group of all)")
        return None
    _constants(tree["_id"], join(path, "_id"), scope)
    key = parse_expression(tree["_id"], join(path, "_id"), scope)
    if isinstance(key, Literal) and key.value is not None:
        scope.problems.warn(join(path, "_id"), f"the key is {constant(key.value)}: all documents are one group")
    fields = []
    for name, item in tree.items():
        place = join(path, name)
        if name == "_id":
            continue
        if "." in name or name.startswith("$") or not name:
            scope.problems.add(place, f"{name!r} is no name for an output field: no dots, no leading $")
            continue
        accumulator = parse_accumulator(item, place, scope)
        if accumulator is not None:
            _idle_accumulator(accumulator, place, scope)
            fields.append(GroupField(name, with_key(accumulator, key)))
    return Group(path=path, id=key, fields=tuple(fields))


_KEEPING: Final = frozenset({"$push", "$addToSet", "$mergeObjects", "$concatArrays", "$setUnion"})
_NUMERIC: Final = frozenset({"$sum", "$avg", "$stdDevPop", "$stdDevSamp", "$percentile", "$median"})


def _idle_accumulator(accumulator: Accumulator, path: str, scope: Scope) -> None:
    what = _idle(accumulator)
    if what:
        scope.problems.warn(join(path, accumulator.op), f"{accumulator.op} of {what}")


def _idle(accumulator: Accumulator) -> str:
    """What an accumulator is hardly meant to be of, and why; "" if nothing is odd."""
    expr, op = accumulator.input, accumulator.op
    if op in _NUMERIC:
        if isinstance(expr, ArrayExpr | ObjectExpr):
            return f"a {'list' if isinstance(expr, ArrayExpr) else 'document'}, which is no number, counts nothing"
        for value in (each.value for each in answers(expr) if isinstance(each, Literal)):
            if value is not MISSING and not is_number(value) and (value is not None or isinstance(expr, Literal)):
                return f"{constant(value)}, which is no number, counts nothing"
    if not isinstance(expr, Literal) and expr != ObjectExpr(()):
        return ""
    value = expr.value if isinstance(expr, Literal) else {}
    if op in _KEEPING:
        return f"{constant(value)}: the same of every record" if value in (None, "", {}) else ""
    return "" if op in ("$sum", "$count") else f"{constant(value)}: the same of every record"


def _constants(tree: object, path: str, scope: Scope) -> None:
    """`_id: {a: 1}` looks like a projection, and would be the same key for all: as in the reference it is an error."""
    if type(tree) is not dict or any(name.startswith("$") for name in tree):
        return
    for name, item in tree.items():
        number = type(item) is dict and len(item) == 1 and next(iter(item)).startswith("$number")
        if number or type(item) in (bool, int, float):
            scope.problems.add(
                join(path, name),
                f"a field of the key is an expression such as '$field', found {item!r} ({{$literal: …}} is a constant)",
            )


_SCHEMA: Final = {
    "type": "object",
    "required": ["_id"],
    "properties": {"_id": EXPRESSION.schema},
    "additionalProperties": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"enum": list(ACCUMULATOR_NAMES)},
    },
}
SPEC: Final = StageSpec("One document for each key, filled by accumulators.", _read, _SCHEMA)
