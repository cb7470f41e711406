"""Constants where a value of the record belongs, and arguments that do nothing: valid, and hardly meant. Warnings.

A number in quotes, a list around a value, an argument that was forgotten: what comes out is the same for every record.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Final, get_args

from tidemark.shared.language.expressions.ast import (
    ArrayExpr,
    Call,
    Expr,
    FieldPath,
    FilterArray,
    Literal,
    MapArray,
    ObjectExpr,
    ReduceArray,
    Switch,
    Variable,
    answers,
    constant,
    is_bare_name,
    walk,
)
from tidemark.shared.language.expressions.forms import META_NAMES
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import Positional
from tidemark.shared.language.problems import Problems, join, nearest_of
from tidemark.shared.language.query.ast import Always, AnyOf, Compare, OneOf, OnField, SchemaNode
from tidemark.shared.language.stages import Branch, Group, Join, Stage, Union, WindowBase
from tidemark.shared.language.stages.match import Match
from tidemark.shared.language.stages.redact import Redact
from tidemark.shared.language.stages.replace_root import ReplaceRoot
from tidemark.shared.language.values.extended_json import to_json
from tidemark.shared.model.values import MISSING

_EXPRESSIONS: Final = get_args(Expr)
_ORDERS: Final = frozenset({"$gt", "$gte", "$lt", "$lte"})
_COMPARISONS: Final = _ORDERS | {"$eq", "$ne", "$cmp"}
_SEVERAL: Final = frozenset({"$add", "$multiply", "$concat"})
"""Operators that give their argument back where they have one alone, and are no way to say anything else."""
_TEXT_MAX: Final = 500
"""Letters of a text that is tried as JSON: a longer one is hardly a document in quotes, and nests deeper than Python reads."""


def does_nothing(pipeline: Iterable[Stage], problems: Problems) -> None:
    """Note the constants and the idle arguments of stages."""
    _in_part(tuple(pipeline), "", problems)


def _in_part(part: object, path: str, problems: Problems) -> None:
    if isinstance(part, tuple):
        for item in part:
            _in_part(item, path, problems)
        return
    if not is_dataclass(part) or isinstance(part, type):
        return
    if isinstance(part, Branch):
        for name, leaf in part.fields:
            if name.startswith(("[", "{")):
                problems.warn(path, f"{name!r} is the name of a field: a list or document stands there without quotes")
            _in_part(leaf, join(path, name), problems)
        return
    own = getattr(part, "path", None)
    path = own if type(own) is str and own else path
    if isinstance(part, OnField):
        path = join(path, ".".join(part.names))
    for place, what in _said(part):
        problems.warn(join(path, place) if place else path, what)
    for field in fields(part):
        _in_part(getattr(part, field.name), path, problems)


def _said(part: object) -> Iterator[tuple[str, str]]:
    """What is doubtful in a stage, a query or an expression itself: where in it, and why."""
    if isinstance(part, Stage):
        yield from _in_stage(part)
    elif isinstance(part, _EXPRESSIONS):
        yield from (("", what) for what in _in_expression(part))
    elif isinstance(part, Compare):
        yield from (("", what) for what in _in_comparison(part.op, part.value))
    elif isinstance(part, OneOf):
        yield from (("$in", what) for what in _in_values(part.values))
    elif isinstance(part, AnyOf) and Always(answer=True) in part.parts:
        yield "$or", "{} is true of each record, and so is the whole"
    elif isinstance(part, SchemaNode):
        yield from _in_schema(part)


# --- stages -------------------------------------------------------------------------------------------------------------


def _in_stage(stage: Stage) -> Iterator[tuple[str, str]]:
    match stage:
        case Match(predicate=Always(True)):
            yield "", "each record goes through"
        case WindowBase(pipeline=()):
            yield "pipeline", "without stages each record comes out as it came, with the window's end"
        case Union(pipelines=()):
            yield "pipelines", "nothing flows in: a pipeline that starts with $source stands here"
        case ReplaceRoot(new_root=Literal() | ObjectExpr(fields=())):
            yield "", "each document becomes the same one"
        case Redact():
            yield from _in_answers(stage.expr)
        case Group():
            yield from (("_id", what) for what in _in_key(stage.id))
        case Join():
            yield from _in_pair(stage)


def _in_answers(expr: Expr) -> Iterator[tuple[str, str]]:
    """The answers of a `$redact`, in the branches of its conditions, too."""
    for each in answers(expr):
        if isinstance(each, Literal | ArrayExpr | ObjectExpr | FieldPath):
            yield "", "answers with none of $$DESCEND, $$PRUNE and $$KEEP: such a record becomes a dead letter"


def _in_key(key: Expr) -> Iterator[str]:
    """What is doubtful in the key of a `$group`."""
    if isinstance(key, ArrayExpr) and len(key.items) == 1:
        yield "the key is a list of one value: write the value alone"
    for name, item in key.fields if isinstance(key, ObjectExpr) else ():
        if isinstance(item, Literal) and item.value is not MISSING:
            yield f"{name} is {constant(item.value)} in every key"


def _in_pair(stage: Join) -> Iterator[tuple[str, str]]:
    for name, key, other in (
        ("leftKey", stage.left_key, stage.right_key),
        ("rightKey", stage.right_key, stage.left_key),
    ):
        if isinstance(key, Literal):
            yield name, f"is {constant(key.value)}: all documents of this side have one key"
        elif isinstance(key, ArrayExpr | ObjectExpr) and isinstance(other, FieldPath):
            kind = "a list" if isinstance(key, ArrayExpr) else "a document"
            yield name, f"is {kind}, and the other side's key a field: they are equal where that field is {kind}, too"


# --- queries ------------------------------------------------------------------------------------------------------------


def _in_comparison(op: str, value: object) -> Iterator[str]:
    if op in ("$gt", "$lt") and value is None:
        yield f"{op} null is true of no record"
    elif op in _ORDERS and type(value) is bool:
        yield f"{op} {json.dumps(value)} compares with truth values alone"
    elif op in _ORDERS and type(value) is list and value:
        yield f"{op} {_shown(value)} compares with arrays alone: write the value without its list"


def _in_values(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        if type(value) is str and value.startswith("$") and is_bare_name(value.lstrip("$")):
            yield f"compares with the text {value!r}; two fields are compared by $expr"
        elif value == {}:
            yield "compares with an empty document"
    if len(values) == 1 and type(values[0]) is list:
        yield f"compares with the array {_shown(values[0])}: write its values without the second list"


def _in_schema(node: SchemaNode) -> Iterator[tuple[str, str]]:
    known = [name for name, _ in node.properties]
    for name in node.required:
        if name in known:
            continue
        near = nearest_of(name, known)
        if not name or name.startswith("$"):
            yield "$jsonSchema.required", f"{name!r} is the name of no field"
        elif near is not None:
            yield "$jsonSchema.required", f"{name} is none of the properties; did you mean {near}?"


# --- expressions --------------------------------------------------------------------------------------------------------


def _in_expression(expr: Expr) -> Iterator[str]:
    match expr:
        case Literal(value) if type(value) is str:
            yield from _in_text(value)
        case FieldPath(names) | Variable(_, names):
            for name in names[1:] if isinstance(expr, FieldPath) else names:
                if name != name.strip():
                    yield f"reads {'.'.join(names)!r}: {name!r} has a blank at its end; did you mean {name.strip()}?"
        case Switch(branches=branches):
            for case, _ in branches:
                yield from _in_condition(case)
        case MapArray(source=source) | FilterArray(source=source) | ReduceArray(source=source):
            if source == Literal(None):
                yield "goes through null: it is null for every record"
            elif isinstance(source, ArrayExpr) and len(source.items) == 1 and isinstance(source.items[0], FieldPath):
                yield "goes through a list of one value: write the value alone"
            if isinstance(expr, FilterArray):
                yield from _in_condition(expr.condition)
        case Call():
            yield from _in_call(expr)


def _in_text(text: str) -> Iterator[str]:
    if text in META_NAMES and "." in text:
        yield f"is the text {text!r} for every record; what is known of it is told by {{$meta: {text}}}"
    elif len(text) <= _TEXT_MAX and '"' in text and text.startswith(("[", '{"')) and not text.startswith('{"$'):
        try:
            json.loads(text)
        except ValueError:
            return
        yield f"is the text {text!r} for every record; a list or document stands there without quotes"


def _in_call(call: Call) -> Iterator[str]:
    operator = OPERATORS[call.op]
    many = isinstance(operator.signature, Positional) and operator.signature.most is None
    given = [each for each in call.args if each is not None]
    if many and not given:
        yield f"{call.op} has no arguments: it is the same for every record"
    elif call.op in _SEVERAL and len(given) == 1 and not isinstance(given[0], Literal):
        yield f"{call.op} has one argument, and gives it back"
    if call.op == "$cond" and call.args[0] is not None:
        yield from _in_condition(call.args[0])
    elif call.op in ("$and", "$or", "$not"):
        for each in given:
            yield from _in_condition(each)
    elif call.op in _COMPARISONS and len(given) == 2:  # noqa: PLR2004 - two sides
        yield from _in_sides(call.op, given[0], given[1])
    elif call.op == "$mergeObjects":
        if any(each == ObjectExpr(()) or (isinstance(each, Literal) and each.value in (None, {})) for each in given):
            yield "an argument of $mergeObjects is null or {}, and adds nothing"
    elif not operator.lazy:
        leading = call.args if operator.until_null else call.args[: operator.null]
        if any(each == Literal(None) for each in leading):
            yield f"{call.op} of null is null for every record"
        elif given and all(each in (Literal(None), Literal("")) for each in given):
            shown = "null" if Literal(None) in given else "an empty text"
            yield f"{call.op} of {shown} is the same for every record"


def _in_condition(expr: Expr) -> Iterator[str]:
    """A condition that no record decides; true and false themselves may be meant."""
    match expr:
        case Literal(value) if type(value) is not bool and value is not MISSING and not is_bare_name(value):
            yield f"a condition is {constant(value)}: it is {json.dumps(value not in (None, 0))} for every record"
        case ArrayExpr() | ObjectExpr():
            kind = "a list" if isinstance(expr, ArrayExpr) else "a document"
            yield f"a condition is {kind}, which is true for every record"


def _in_sides(op: str, left: Expr, right: Expr) -> Iterator[str]:
    constants = [each for each in (left, right) if isinstance(each, Literal) or _reads_nothing(each)]
    if len(constants) == 2:  # noqa: PLR2004 - both
        if not any(isinstance(each, Literal) and is_bare_name(each.value) for each in constants):
            yield f"{op} compares two constants: it is the same for every record"
        return
    for one, other in ((left, right), (right, left)):
        if isinstance(other, ArrayExpr | ObjectExpr) or (
            isinstance(other, Literal) and type(other.value) in (list, dict)
        ):
            continue
        value = one.value if isinstance(one, Literal) else None
        if isinstance(one, ArrayExpr) and len(one.items) == 1:
            yield f"{op} compares with a list of one value: write the value alone"
        elif isinstance(one, ObjectExpr) and isinstance(other, Literal):
            yield f"{op} compares a document with {constant(other.value)}"
        elif op == "$eq" and value == {}:
            yield f"{op} compares with an empty document"
        elif op in _ORDERS and (type(value) is bool or (type(value) is list and value)):
            yield f"{op} compares with {_shown(value)}, in the order of types: is a number or a text meant?"


def _shown(value: object) -> str:
    return json.dumps(to_json(value), ensure_ascii=False)[:80]


def _reads_nothing(expr: Expr) -> bool:
    return isinstance(expr, ArrayExpr | ObjectExpr) and all(
        isinstance(node, Literal | ArrayExpr | ObjectExpr) for node in walk(expr)
    )
