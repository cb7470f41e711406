"""The plain interpreter: it defines the value of an expression on a document.

`evaluate` is pure: the same expression and environment give the same value, and nothing it returns is changed later (values may share
parts with the document).
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from tidemark.shared.language.expressions.ast import (
    ArrayExpr,
    Call,
    CreateUuid,
    Expr,
    FieldPath,
    FilterArray,
    Let,
    Literal,
    MapArray,
    Meta,
    ObjectExpr,
    ReduceArray,
    SortArray,
    Switch,
    Variable,
)
from tidemark.shared.language.expressions.environment import (
    CALL_UNITS,
    DEPTH_MAX,
    LOOP_STEP_UNITS,
    Environment,
)
from tidemark.shared.language.expressions.errors import NO_BRANCH, SIZE, TYPE, VALUE, ExpressionError
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.paths import read_path
from tidemark.shared.language.expressions.registry import ABSENT, ExpressionOperator, Named
from tidemark.shared.language.expressions.sorting import sort_array
from tidemark.shared.language.values.types import is_integral, truth, type_name
from tidemark.shared.model.values import MISSING, UUID_SUBTYPE, Binary, Value

_SHORT_CHARACTERS: Final = 1_000
"""Outside of loops, texts up to this length are read for nothing."""


def evaluate(expr: Expr, env: Environment) -> Value:
    """The value of an expression, MISSING included. ExpressionError, with the place, where it has none."""
    return _EVALUATE[type(expr)](expr, env)


def evaluate_bounded(expr: Expr, env: Environment) -> Value:
    """The value of an expression, its whole size taken from the environment's budget; ExpressionError beyond it.

    A field that the document brings is no result, and as it is.
    """
    value = evaluate(expr, env)
    if (type(value) is dict or type(value) is list) and not (type(expr) is FieldPath and expr.names):
        _spend(value, env)
    return value


def spend_size(value: Value, env: Environment, most: int = DEPTH_MAX) -> None:
    """Take the size of a value from the budget, of a text as well; ExpressionError beyond it, or where it nests more than `most` deep."""
    if type(value) is dict or type(value) is list:
        _spend(value, env, most)
    elif type(value) is str:
        env.spend(len(value))


def _spend(value: object, env: Environment, most: int = DEPTH_MAX) -> None:
    """Take every character, item and field, shared parts as often as they stand in the value."""
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > most:
            raise ExpressionError(f"the result nests more than {most} deep", SIZE)
        units = len(item) + 1
        for inner in item.values() if type(item) is dict else item:
            kind = type(inner)
            if kind is dict or kind is list:
                stack.append((inner, depth + 1))
            elif kind is str:
                units += len(inner)
        env.spend(units)


def _field_path(expr: FieldPath, env: Environment) -> Value:
    names = expr.names
    if len(names) == 1 and type(env.current) is dict:
        return env.current.get(names[0], MISSING)
    return _along(env.current, names, env)


def _along(root: Value, names: tuple[str, ...], env: Environment) -> Value:
    """The value at a path; one that goes through an array takes the items there and what is found, inside of a loop any array its items."""
    value = read_path(root, names)
    if type(value) is not list:
        return value
    for name in names:
        if type(root) is list:
            env.spend(len(root))
            env.read((value,))
            return value
        root = root[name]
    if env.variables:
        env.spend(len(value))
    return value


def _variable(expr: Variable, env: Environment) -> Value:
    name = expr.name
    if name in env.variables:
        value = env.variables[name]
    elif name == "ROOT":
        value = env.root
    elif name == "NOW":
        value = env.now if env.now is not None else MISSING
    else:
        value = MISSING
    return _along(value, expr.names, env) if expr.names else value


def _object(expr: ObjectExpr, env: Environment) -> Value:
    if env.variables:
        env.spend(len(expr.fields))
    result = {}
    for name, item in expr.fields:
        value = _EVALUATE[type(item)](item, env)
        if value is not MISSING:
            result[name] = value
    return result


def _array(expr: ArrayExpr, env: Environment) -> Value:
    if env.variables:
        env.spend(len(expr.items))
    values = [_EVALUATE[type(item)](item, env) for item in expr.items]
    return [None if value is MISSING else value for value in values]


def _call(expr: Call, env: Environment) -> Value:
    operator = OPERATORS[expr.op]
    try:
        if env.variables:
            env.spend(CALL_UNITS + len(expr.args))
        if operator.lazy:
            return operator.function(expr.args, env, evaluate)
        if operator.until_null:
            args = _until_null(expr.args, env)
        elif isinstance(operator.signature, Named) and operator.signature.deferred:
            args = _deferring(operator.signature, expr.args, env)
        else:
            args = [ABSENT if arg is None else _EVALUATE[type(arg)](arg, env) for arg in expr.args]
        return applied(operator, args, env)
    except ExpressionError as e:
        if not e.path:
            e.path = expr.path
        raise


def applied(operator: ExpressionOperator, args: Sequence[Value], env: Environment) -> Value:
    """The value of an operator that is not lazy, for values of its arguments; what it reads and gives is taken from the budget.

    args: as the operator's signature says; up to the first null where it goes `until_null`. ExpressionError where it has no value.
    """
    if guarded := operator.null:
        for arg in args if guarded >= len(args) else args[:guarded]:
            if arg is None or arg is MISSING:
                return None
    if env.variables or (not operator.glances and _is_much(args)):
        env.read(args)
    value = operator.function(*args)
    if type(value) is str or type(value) is list:
        env.spend(len(value))
    return value


def _is_much(args: Sequence[Any]) -> bool:
    """Whether going through the arguments takes longer than a few calls."""
    for arg in args:
        kind = type(arg)
        if kind is list or kind is dict or (kind is str and len(arg) > _SHORT_CHARACTERS):
            return True
    return False


def _until_null(exprs: tuple[Expr | None, ...], env: Environment) -> list[Value]:
    """The arguments up to the first that is null or missing: later ones may fail, and are not evaluated."""
    args: list[Value] = []
    for expr in exprs:
        args.append(evaluate(expr, env) if expr is not None else ABSENT)
        if args[-1] is None or args[-1] is MISSING:
            break
    return args


def _deferring(signature: Named, exprs: tuple[Expr | None, ...], env: Environment) -> list[Value]:
    """The arguments, those that may not be needed as functions."""
    return [
        ABSENT if expr is None else partial(evaluate, expr, env) if name in signature.deferred else evaluate(expr, env)
        for name, expr in zip(signature.names, exprs, strict=True)
    ]


def _let(expr: Let, env: Environment) -> Value:
    bound = {name: evaluate(item, env) for name, item in expr.variables}
    return _bounded(evaluate(expr.body, env.bind(bound)), env)


def _bounded(value: Value, env: Environment) -> Value:
    """The result of a form that binds variables, within bounds: it may share parts so often that nobody could go through it."""
    if type(value) is list or type(value) is dict:
        env.read((value,))
    return value


def _switch(expr: Switch, env: Environment) -> Value:
    if env.variables:
        env.spend(len(expr.branches))
    for case, then in expr.branches:
        if truth(evaluate(case, env)):
            return evaluate(then, env)
    if expr.default is None:
        raise ExpressionError("no branch of $switch is true, and it has no default", NO_BRANCH, expr.path)
    return evaluate(expr.default, env)


def _items(source: Expr, env: Environment, name: str, path: str) -> list[Any] | None:
    """The array of a source; None for null and missing."""
    value = evaluate(source, env)
    if value is None or value is MISSING:
        return None
    if type(value) is not list:
        raise ExpressionError(f"{name} takes an array, found {type_name(value)}", TYPE, path)
    env.spend(len(value) * LOOP_STEP_UNITS)
    return value


def _map(expr: MapArray, env: Environment) -> Value:
    items = _items(expr.source, env, "$map", expr.path)
    if items is None:
        return None
    values = [evaluate(expr.body, env.bind({expr.variable: item})) for item in items]
    return _bounded([None if value is MISSING else value for value in values], env)


def _filter(expr: FilterArray, env: Environment) -> Value:
    items = _items(expr.source, env, "$filter", expr.path)
    limit = None if expr.limit is None else evaluate(expr.limit, env)
    if limit is not None and limit is not MISSING and (not is_integral(limit) or limit < 1):
        raise ExpressionError("the limit of $filter is a whole number of at least 1", TYPE, expr.path)
    if items is None:
        return None
    most = len(items) if limit is None or limit is MISSING else int(limit)
    kept: list[Any] = []
    for item in items:
        if len(kept) >= most:
            break
        if truth(evaluate(expr.condition, env.bind({expr.variable: item}))):
            kept.append(item)
    return kept


def _reduce(expr: ReduceArray, env: Environment) -> Value:
    items = _items(expr.source, env, "$reduce", expr.path)
    if items is None:
        return None
    value = evaluate(expr.initial, env)
    for item in items:
        value = evaluate(expr.body, env.bind({"value": value, "this": item}))
    return _bounded(value, env)


def _sort_array(expr: SortArray, env: Environment) -> Value:
    items = _items(expr.source, env, "$sortArray", expr.path)
    return None if items is None else sort_array(items, expr.keys)


def _create_uuid(expr: CreateUuid, env: Environment) -> Value:
    """A hash of what the id is of, in the form of version 4 (RFC 9562): 122 bits of SHA-256."""
    identity = env.identity()
    if identity is None:
        raise ExpressionError("$createUUID finds no record that this document is of", VALUE, expr.path)
    parts = (expr.processor.encode(), expr.path.encode(), identity)
    whole = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return Binary(UUID(bytes=sha256(whole).digest()[:16], version=4).bytes, UUID_SUBTYPE)


_EVALUATE: Final[dict[type, Callable[[Any, Environment], Value]]] = {
    Literal: lambda expr, _: expr.value,
    FieldPath: _field_path,
    Variable: _variable,
    Meta: lambda expr, env: read_path(env.meta, expr.names),
    CreateUuid: _create_uuid,
    ObjectExpr: _object,
    ArrayExpr: _array,
    Call: _call,
    Let: _let,
    Switch: _switch,
    MapArray: _map,
    FilterArray: _filter,
    ReduceArray: _reduce,
    SortArray: _sort_array,
}
