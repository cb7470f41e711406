"""An expression that is interpreted for many rows at once: its parts as columns, and then what it makes of their values, row by row.

Each part is asked for only in the rows that need it, and in the interpreter's order: so a row has the interpreter's value, or its first
error (FR1). Most rows that kernels leave fail, all in the same part: that one is called for each, and no document is made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import compress, repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tidemark.shared.language.expressions.ast import ArrayExpr, Call, Expr, Literal, ObjectExpr, Switch, walk
from tidemark.shared.language.expressions.environment import Budget, Environment
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.expressions.interpreter import applied, spend_size
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import ABSENT, ExpressionOperator, Named
from tidemark.shared.language.values.types import truth
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.rows import until_abandoned

Int64s: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = Callable[[Int64s], Iterable[Any]]
ValueOf: TypeAlias = Callable[[Sequence[Any], Environment], Value]
LITTLE_UNITS: Final = 65_536
"""A part may take so many units of a row's budget: all of them together (`NODES_MAX`) take less than the whole."""
NODES_MAX: Final = 64
"""Expressions of more parts are interpreted as a whole: each part asks the kernels of all parts within it again."""


class Unsure(Exception):
    """The budget of a row may decide, or nobody knows the parts of this form: the rows are interpreted as a whole."""


class Asked(NamedTuple):
    """The values of an expression in some rows, made when they are looked at, and the errors of those that have none, by place."""

    values: Callable[[], Sequence[Value]]
    errors: Mapping[int, ExpressionError]


Ask: TypeAlias = Callable[[Expr, Int64s], Asked]
"""The values of a part in the rows at some places; Unsure where it took much of a row's budget."""


def has_parts(expr: Expr) -> bool:
    """Whether an expression is of a form with parts that are known here, and of few of them."""
    if isinstance(expr, Call):
        operator = OPERATORS[expr.op]
        known = expr.op in _LAZY if operator.lazy else not _defers(operator)
    else:
        known = isinstance(expr, ObjectExpr | ArrayExpr | Switch)
    return known and sum(1 for _ in walk(expr)) <= NODES_MAX


def by_parts(expr: Expr, count: int, ask: Ask) -> Asked:
    """The values of an expression that `has_parts` in so many rows, MISSING where it failed. Unsure: interpret them as a whole."""
    found = _Found(count, ask)
    match expr:
        case Call(op, args, path) if OPERATORS[op].lazy:
            _LAZY[op](found, args)
            found.say_where(path)
        case Call(op, args, path):
            found.call(OPERATORS[op], args)
            found.say_where(path)
        case Switch(branches, default) if default is not None:
            _choose(found, [*branches, (None, default)])
        case ObjectExpr(fields):
            names = [name for name, _ in fields]
            found.make([part for _, part in fields], lambda parts, _: _object(names, parts))
        case ArrayExpr(items):
            found.make(items, lambda parts, _: [None if part is MISSING else part for part in parts])
        case _:
            raise Unsure
    for place in found.errors:
        found.values[place] = MISSING
    return Asked(lambda: found.values, found.errors)


def _defers(operator: ExpressionOperator) -> bool:
    return isinstance(operator.signature, Named) and bool(operator.signature.deferred)


def _object(names: Sequence[str], parts: Sequence[Any]) -> dict[str, Any]:
    return {name: part for name, part in zip(names, parts, strict=True) if part is not MISSING}


class _Found:
    """What is known of the rows."""

    def __init__(self, count: int, ask: Ask) -> None:
        self.values: list[Value] = [MISSING] * count
        self.errors: dict[int, ExpressionError] = {}
        self.all: Int64s = np.arange(count)
        self._ask = ask

    def asked(self, part: Expr | None, places: Int64s) -> tuple[Values, Int64s]:
        """(the values of a part, for some of the rows at some places; the places of those without an error). Errors become the rows'."""
        if part is None or isinstance(part, Literal):
            value = ABSENT if part is None else part.value
            return lambda wanted: repeat(value, len(wanted)), places
        if not len(places):
            return lambda _: (), places
        values, errors = self._ask(part, places)
        good = np.ones(len(places), np.bool_)
        for at, error in errors.items():
            if error.code == SIZE:
                raise Unsure
            self.errors[int(places[at])] = error
            good[at] = False
        made = cache(values)
        return lambda wanted: compress(made(), np.isin(places, wanted).tolist()), places[good] if errors else places

    def each(self, part: Expr | None, places: Int64s) -> Iterable[tuple[int, Value]]:
        """(place, value) of the rows at some places where a part does not fail."""
        values, good = self.asked(part, places)
        return zip(good.tolist(), values(good), strict=True)

    def call(self, operator: ExpressionOperator, parts: Sequence[Expr | None]) -> None:
        """An operator's function on the values of its arguments: of all, or of those up to the first that is null."""
        self.make(parts, lambda args, env: applied(operator, args, env), to_null=operator.until_null)

    def make(self, parts: Sequence[Expr | None], value_of: ValueOf, *, to_null: bool = False) -> None:
        """A value of the values of the parts."""
        places, columns = self.all, list[Values]()
        for part in parts:
            values, places = self.asked(part, places)
            columns.append(values)
            if to_null and len(places):
                there = np.array([value is not None and value is not MISSING for value in values(places)], np.bool_)
                self._values_of(places[~there], columns, value_of)
                places = places[there]
        self._values_of(places, columns, value_of)

    def _values_of(self, places: Int64s, columns: Sequence[Values], value_of: ValueOf) -> None:
        if not len(places):
            return
        check, env = until_abandoned(), Environment({}, budget=Budget())
        known: dict[tuple[str, str], ExpressionError] = {}
        each = zip(*(values(places) for values in columns), strict=True) if columns else repeat((), len(places))
        for place, args in zip(places.tolist(), each, strict=True):
            check()
            env.budget.left = LITTLE_UNITS
            try:
                value = value_of(args, env)
                spend_size(value, env)
                self.values[place] = value
            except ExpressionError as error:
                if error.code == SIZE:
                    raise Unsure from error
                self.errors[place] = known.setdefault((error.reason, error.code), error.with_traceback(None))

    def say_where(self, path: str) -> None:
        """The place of errors that have none."""
        for error in self.errors.values():
            error.path = error.path or path


# --- forms that do not ask for all of their parts --------------------------------------------------------------------


def _choose(found: _Found, branches: Sequence[tuple[Expr | None, Expr]]) -> None:
    """The value behind the first condition that is true; None: where none is."""
    places = found.all
    for case, then in branches:
        cases = [] if case is None else [(place, truth(value)) for place, value in found.each(case, places)]
        taken = places if case is None else np.array([place for place, true in cases if true], np.int64)
        places = np.array([place for place, true in cases if not true], np.int64)
        for place, value in found.each(then, taken):
            found.values[place] = value


def _cond(found: _Found, args: Sequence[Any]) -> None:
    _choose(found, [(args[0], args[1]), (None, args[2])])


def _if_null(found: _Found, args: Sequence[Any]) -> None:
    places = found.all
    for arg in args:
        empty = []
        for place, value in found.each(arg, places):
            found.values[place] = value
            if value is None or value is MISSING:
                empty.append(place)
        places = np.array(empty, np.int64)


def _logic(*, decisive: bool) -> Callable[[_Found, Sequence[Any]], None]:
    def decide(found: _Found, args: Sequence[Any]) -> None:
        places = found.all
        found.values = [not decisive] * len(places)
        for arg in args:
            others = []
            for place, value in found.each(arg, places):
                if truth(value) == decisive:
                    found.values[place] = decisive
                else:
                    others.append(place)
            places = np.array(others, np.int64)

    return decide


_LAZY: Final[Mapping[str, Callable[[_Found, Sequence[Any]], None]]] = {
    "$and": _logic(decisive=False),
    "$or": _logic(decisive=True),
    "$cond": _cond,
    "$ifNull": _if_null,
}
"""The operators that take expressions, with the parts that they ask for."""
