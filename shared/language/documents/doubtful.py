"""Parts of a document that are valid and hardly meant: a dollar that was forgotten, a test that is the same for every record. Warnings."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Final, get_args

from tidemark.shared.language.documents.foregone import expressions_in
from tidemark.shared.language.expressions.ast import ArrayExpr, Expr, Literal, ObjectExpr, is_bare_name, walk
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import Named, Positional
from tidemark.shared.language.problems import Problems, join
from tidemark.shared.language.query.ast import Compare, ExprTrue, OneOf, OnField
from tidemark.shared.language.query.parse import QUERY_OPERATORS
from tidemark.shared.language.stages import Branch, Computed, Leaf, Stage
from tidemark.shared.language.values.extended_json import to_json

_TESTS: Final = frozenset(name[1:] for name in QUERY_OPERATORS) - {"comment", "options", "size", "type"}
"""Operators of queries without their dollar, but for names that fields have, too."""
_AROUND: Final = ("and", "or", "nor", "expr", "jsonSchema")
_SCHEMA_WORDS: Final = frozenset({"required", "properties", "bsonType", "additionalProperties", "patternProperties"})
_FORMS: Final = {
    "meta": (), "literal": (), "map": ("input", "in"), "filter": ("input", "cond"), "reduce": ("input", "initialValue", "in"),
    "let": ("vars", "in"), "switch": ("branches",), "sortArray": ("input", "sortBy"), "cond": ("if", "then", "else"),
}  # fmt: skip
"""The arguments that tell an operator with a form of its own from a field of its name; of the empty ones nothing does."""
_ARGUMENTS_MIN: Final = 2
"""So many values in a list are taken for arguments; one alone may be a field's list."""


def hardly_meant(pipeline: Iterable[Stage], problems: Problems) -> None:
    """Note what is doubtful in the queries and expressions of stages."""
    stages = tuple(pipeline)
    for stage in stages:
        _in_stage(stage, stage.path, problems)
    for found in expressions_in(stages, "", each=True):
        for name in _without_dollar(found.expr):
            problems.warn(found.path, _dollar(name))
        for text in _written_as_text(found.expr):
            problems.warn(
                found.path, f"is the text {text!r} for every record; an expression stands there without quotes"
            )


def _dollar(name: str) -> str:
    return f"{{{name}: …}} is a document with a field {name}; the operator is written ${name}"


def _in_stage(part: object, path: str, problems: Problems) -> None:
    if isinstance(part, tuple):
        if part and all(isinstance(item, Stage) for item in part):
            for stage in part:
                _in_stage(stage, stage.path, problems)
            return
        for item in part:
            _in_stage(item, path, problems)
    elif isinstance(part, Branch):
        for name, leaf in part.fields:
            _in_stage(leaf, join(path, name), problems)
            if isinstance(leaf, Branch) and len(leaf.fields) == 1:
                ((inner, value),) = leaf.fields
                if isinstance(value, Computed | Branch) and _is_call(inner, _as_expression(value)):
                    problems.warn(join(path, name), _dollar(inner))
    elif isinstance(part, OnField):
        for what in _test(part):
            problems.warn(join(path, ".".join(part.names)), what)
    elif isinstance(part, ExprTrue):
        if isinstance(part.expr, Literal | ObjectExpr | ArrayExpr):
            true = not isinstance(part.expr, Literal) or part.expr.value not in (None, False, 0)
            problems.warn(join(path, "$expr"), f"is a constant: {'each record' if true else 'no record'} goes through")
    elif is_dataclass(part) and not isinstance(part, type) and not isinstance(part, _EXPRESSIONS):
        for field in fields(part):
            _in_stage(getattr(part, field.name), path, problems)


_EXPRESSIONS: Final = get_args(Expr)


def _test(part: OnField) -> Iterator[str]:
    """What is doubtful in the test of a field."""
    if isinstance(part.test, OneOf) and not part.test.values and not part.test.patterns:
        yield "$in of no values is true of no record"
    if not isinstance(part.test, Compare):
        return
    value = part.test.value
    written = ".".join(part.names)
    if _is_reference(value):
        what = f"compares with the text {value!r}; two fields are compared by $expr"
        yield f"{what}, {{$expr: {{{part.test.op}: ['${written}', '{value}']}}}}"
    elif type(value) is dict and value and _TESTS.issuperset(value):
        name = next(iter(value))
        yield f"compares with the document {to_json(value)}; the operator is written ${name}"
    elif (name := _operator_in(value)) is not None:
        yield f"compares with {to_json(value)}, in which {name} is no operator: operators stand directly under the field"
    elif value == {}:
        yield "compares with an empty document"
    elif type(value) is str and _is_quoted(value):
        yield f"compares with the text {value!r}; an operator stands there without quotes"
    elif part.names[0] in _AROUND and len(part.names) == 1 and type(value) in (list, dict):
        yield f"compares a field {written}; the operator is written ${written}"
    elif part.names[0] in _SCHEMA_WORDS and len(part.names) == 1 and type(value) in (list, dict):
        yield f"compares a field {written}; a JSON Schema stands under $jsonSchema"


def _operator_in(value: object) -> str | None:
    """A name with a dollar within a constant: operators of queries and expressions have no meaning there."""
    if type(value) is dict:
        named = (name for name in value if name.startswith("$"))
        return next(named, None) or next(filter(None, map(_operator_in, value.values())), None)
    return next(filter(None, map(_operator_in, value)), None) if type(value) is list else None


def _is_quoted(text: str) -> bool:
    return text.lstrip().startswith(('{"$', "{$"))


def _is_reference(value: object) -> bool:
    return type(value) is str and value.startswith("$") and is_bare_name(value.lstrip("$"))


def _without_dollar(expr: Expr) -> Iterator[str]:
    """The names of documents of one field that look like a call whose dollar was forgotten."""
    for node in walk(expr):
        match node:
            case ObjectExpr(((name, item),)) if _is_call(name, item):
                yield name
            case Literal(value) if type(value) is dict and len(value) == 1:
                ((name, item),) = value.items()
                if _is_call(name, Literal(item)):
                    yield name


def _as_expression(leaf: Leaf) -> Expr:
    """The document that a tree of fields makes, as far as it tells a call."""
    match leaf:
        case Computed(expr):
            return expr
        case Branch(fields_):
            return ObjectExpr(tuple((name, _as_expression(inner)) for name, inner in fields_))
    return Literal(True)


def _is_call(name: str, item: Expr) -> bool:
    """Whether `{name: item}` reads like a call: by its name, or by its arguments where fields have such names, too."""
    names: set[str] = set()
    length = 0
    match item:
        case ObjectExpr(fields_):
            names = {each for each, _ in fields_}
        case ArrayExpr(items):
            length = len(items)
        case Literal(value) if type(value) is dict:
            names = set(value)
        case Literal(value) if type(value) is list:
            length = len(value)
    if name in _FORMS:
        form = _FORMS[name]
        if not form:
            return name == "meta" and isinstance(item, Literal) and str(item.value).startswith("stream.")
        return names.issuperset(form) or (name == "cond" and length == len(form))
    operator = OPERATORS.get(f"${name}")
    if operator is None:
        return False
    if not name.islower():
        return True
    match operator.signature:
        case Named(_, required):
            return bool(names) and names.issuperset(required)
        case Positional(least, most):
            return length >= max(least, _ARGUMENTS_MIN) and (most is None or length <= most) and most != 1


def _written_as_text(expr: Expr) -> Iterator[str]:
    """Texts that are an expression within quotes."""
    for node in walk(expr):
        if isinstance(node, Literal) and type(node.value) is str and _is_quoted(node.value):
            yield node.value
