"""Aggregation expressions from a JSON tree to the typed form. Errors go to the scope's problems; parsing always gives an expression."""

from typing import Any, Final

from tidemark.shared.language.expressions.ast import (
    NULL,
    REMOVE,
    ArrayExpr,
    Call,
    Expr,
    FieldPath,
    Literal,
    ObjectExpr,
    Variable,
)
from tidemark.shared.language.expressions.checks import check_constants
from tidemark.shared.language.expressions.forms import FORMS
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import LEFT_OUT, ExpressionOperator, Named, Positional
from tidemark.shared.language.expressions.scope import SYSTEM_VARIABLES, Scope, read_value
from tidemark.shared.language.problems import join
from tidemark.shared.language.values.extended_json import SPECIAL
from tidemark.shared.language.values.types import truth
from tidemark.shared.model.values import MISSING

DEPTH_MAX: Final = 100
"""How deep expressions may nest."""


_DECIDING: Final = {"$and": False, "$or": True}
"""A constant argument that decides the whole, wherever it stands: the others are not evaluated, nor can they fail."""


def parse_expression(tree: Any, path: str, scope: Scope) -> Expr:
    """The expression of a JSON tree at a place of the document."""
    kind = type(tree)
    if kind is str:
        return _string(tree, path, scope)
    if kind is not dict and kind is not list:
        return _constant(tree, path, scope)
    if scope.depth >= DEPTH_MAX:
        scope.problems.add(path, f"expressions nest at most {DEPTH_MAX} deep")
        return NULL
    inner = scope.deeper()
    if kind is list:
        items = tuple(parse_expression(item, f"{path}[{i}]", inner) for i, item in enumerate(tree))
        return _folded_array(items)
    if len(tree) == 1 and next(iter(tree)) in SPECIAL:
        return _constant(tree, path, scope)
    operators = [name for name in tree if name.startswith("$")]
    if operators:
        return _operator(tree, operators, path, inner)
    return _object(tree, path, inner)


def _constant(tree: Any, path: str, scope: Scope) -> Expr:
    return Literal(read_value(tree, path, scope)[0])


def _string(text: str, path: str, scope: Scope) -> Expr:
    if not text.startswith("$"):
        return Literal(text)
    variable = text.startswith("$$")
    names = tuple(text[2 if variable else 1 :].split("."))
    if not all(names) or any(name.startswith("$") for name in names) or any("\0" in name for name in names):
        scope.problems.add(
            path, f"{text!r} is no field path: its names must not be empty nor start with $ ($literal keeps a dollar)"
        )
        return NULL
    if not scope.allows(names, path):
        return NULL
    if not variable:
        return FieldPath(names)
    first, rest = names[0], names[1:]
    if first == "REMOVE" and not rest:
        return REMOVE
    if first == "CURRENT":
        return FieldPath(rest)
    if first not in SYSTEM_VARIABLES and first not in scope.variables:
        accepted = sorted(SYSTEM_VARIABLES | scope.variables)
        scope.problems.add(
            path, f"undefined variable $${first}", accepted=[f"$${a}" for a in accepted], found=f"$${first}"
        )
        return NULL
    return Variable(first, rest)


def _folded_array(items: tuple[Expr, ...]) -> Expr:
    if all(isinstance(item, Literal) for item in items):
        values = [item.value for item in items if isinstance(item, Literal)]
        return Literal([None if value is MISSING else value for value in values])
    return ArrayExpr(items)


def _object(tree: dict[str, Any], path: str, scope: Scope) -> Expr:
    fields = []
    for name, item in tree.items():
        if "." in name or not name:
            scope.problems.add(join(path, name), "a field name inside an expression must not be empty nor have a dot")
        fields.append((name, parse_expression(item, join(path, name), scope)))
    if all(isinstance(item, Literal) for _, item in fields):
        pairs = ((name, item.value) for name, item in fields if isinstance(item, Literal))
        return Literal({name: value for name, value in pairs if value is not MISSING})
    return ObjectExpr(tuple(fields))


def _operator(tree: dict[str, Any], operators: list[str], path: str, scope: Scope) -> Expr:
    name = operators[0]
    if len(tree) > 1:
        others = [other for other in tree if other != name]
        scope.problems.add(path, f"an expression is one operator alone: {name} stands beside {', '.join(others[:3])}")
        return NULL
    place = join(path, name)
    form = FORMS.get(name)
    if form is not None:
        return form(tree[name], place, scope, parse_expression)
    operator = OPERATORS.get(name)
    if operator is None:
        reason = LEFT_OUT.get(name)
        if reason is not None:
            scope.problems.add(place, f"{name} is not supported: {reason}")
        else:
            accepted = sorted({*OPERATORS, *FORMS})
            scope.problems.add(place, f"unknown expression operator {name}", accepted=accepted, found=name)
        return NULL
    args = _arguments(operator, tree[name], place, scope)
    check_constants(operator, args, place, scope)
    deciding = (arg for arg in args if isinstance(arg, Literal) and truth(arg.value) is _DECIDING.get(name))
    decides = next(deciding, None)
    return Call(name, args if decides is None else (decides,), place)


def _arguments(operator: ExpressionOperator, tree: Any, path: str, scope: Scope) -> tuple[Expr | None, ...]:
    signature = operator.signature
    if isinstance(signature, Positional):
        return _positional(operator.name, signature, tree, path, scope)
    if type(tree) is dict and not any(key.startswith("$") for key in tree):
        return _named(operator.name, signature, tree, path, scope)
    if not signature.alone:
        wanted = ", ".join(signature.names)
        scope.problems.add(path, f"{operator.name} takes an object of named arguments: {wanted}")
        return tuple(NULL for _ in signature.names)
    if type(tree) is list:
        if len(tree) != 1:
            scope.problems.add(path, f"{operator.name} takes 1 argument, found {len(tree)}")
            return tuple(NULL for _ in signature.names)
        tree = tree[0]
    rest = (None,) * (len(signature.names) - 1)
    return (parse_expression(tree, path, scope), *rest)


def _positional(name: str, signature: Positional, tree: Any, path: str, scope: Scope) -> tuple[Expr | None, ...]:
    least, most = signature.least, signature.most
    trees = tree if type(tree) is list else [tree]
    if len(trees) < least or (most is not None and len(trees) > most):
        wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        scope.problems.add(path, f"{name} takes {wanted} argument{'' if wanted == '1' else 's'}, found {len(trees)}")
        trees = [*trees[:most], *[None] * max(0, least - len(trees))]
    if type(tree) is list:
        return tuple(parse_expression(item, f"{path}[{i}]", scope) for i, item in enumerate(trees))
    return tuple(parse_expression(item, path, scope) for item in trees)


def _named(name: str, signature: Named, tree: dict[str, Any], path: str, scope: Scope) -> tuple[Expr | None, ...]:
    for key in tree:
        if key not in signature.names:
            scope.problems.add(
                join(path, key), f"unknown argument {key} of {name}", accepted=signature.names, found=key
            )
    for key in signature.names:
        if key in signature.required and key not in tree:
            scope.problems.add(path, f"{name} needs the argument {key}", accepted=signature.names)
    return tuple(
        parse_expression(tree[key], join(path, key), scope)
        if key in tree
        else (NULL if key in signature.required else None)
        for key in signature.names
    )
