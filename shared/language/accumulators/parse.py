"""`$group` accumulators from a JSON tree to their parsed form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidemark.shared.language.accumulators.base import Accumulator
from tidemark.shared.language.expressions.ast import NULL, Expr, Literal
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.forms import has_arguments, parse_sort_keys
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import LEFT_OUT
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import join
from tidemark.shared.language.values.extended_json import value_if_any
from tidemark.shared.language.values.types import is_finite, is_integral, is_number
from tidemark.shared.model.values import Value

N_MAX: Final = 100_000
"""The largest `n`: it bounds the values kept for a group."""
PERCENTILES_MAX: Final = 1000
"""Points of one `$percentile`: part of the language."""
_ONE: Final = Literal(1)


def _plain(name: str, tree: Any, path: str, scope: Scope) -> Accumulator | None:
    if type(tree) is list:
        scope.problems.add(
            path,
            f"the accumulator {name} takes one expression, found a list of {len(tree)} ({{$concatArrays: [[…]]}} makes an array)",
        )
        return None
    return Accumulator(name, parse_expression(tree, path, scope), path, limits=scope.limits)


def _count(name: str, tree: Any, path: str, scope: Scope) -> Accumulator | None:
    if tree != {}:
        scope.problems.add(path, "$count takes {}")
        return None
    return Accumulator(name, _ONE, path)


def _n(tree: Any, path: str, scope: Scope) -> dict[str, Any]:
    """`n`, a whole number from 1; or `n_of_key`, an expression, still without the key."""
    expr: Expr = parse_expression(tree, path, scope)
    if not isinstance(expr, Literal):
        return {"n_of_key": (NULL, expr)}
    try:
        return {"n": whole_n(expr.value)}
    except ExpressionError as e:
        scope.problems.add(path, e.reason)
        return {}


def whole_n(value: Value) -> int:
    """An `n`; ExpressionError if the value is none."""
    if not is_integral(value) or not 1 <= int(value) <= N_MAX:
        raise ExpressionError(f"n is a whole number from 1 to {N_MAX}, found {value!r}", VALUE)
    return int(value)


def with_key(accumulator: Accumulator, key: Expr) -> Accumulator:
    """The accumulator in a group of this key."""
    if accumulator.n_of_key is None:
        return accumulator
    return replace(accumulator, n_of_key=(key, accumulator.n_of_key[1]))


def _first_n(name: str, tree: Any, path: str, scope: Scope) -> Accumulator | None:
    if not has_arguments(name, tree, path, scope, ("input", "n")):
        return None
    n = _n(tree["n"], join(path, "n"), scope)
    return Accumulator(name, parse_expression(tree["input"], join(path, "input"), scope), path, **n)


def _top(name: str, tree: Any, path: str, scope: Scope) -> Accumulator | None:
    many = name.endswith("N")
    if not has_arguments(name, tree, path, scope, ("output", "sortBy", "n") if many else ("output", "sortBy")):
        return None
    n = _n(tree["n"], join(path, "n"), scope) if many else {"n": 1}
    keys = parse_sort_keys(tree["sortBy"], join(path, "sortBy"), scope)
    return Accumulator(name, parse_expression(tree["output"], join(path, "output"), scope), path, sort_by=keys, **n)


def _percentile(name: str, tree: Any, path: str, scope: Scope) -> Accumulator | None:
    required = ("input", "p", "method") if name == "$percentile" else ("input", "method")
    if not has_arguments(name, tree, path, scope, required):
        return None
    if tree["method"] != "approximate":
        scope.problems.add(
            join(path, "method"), f"the method is approximate, found {tree['method']!r}", accepted=("approximate",)
        )
    points = value_if_any(tree["p"]) if name == "$percentile" else [0.5]
    good = type(points) is list and 1 <= len(points) <= PERCENTILES_MAX
    if not good or not all(is_number(p) and is_finite(p) and 0 <= p <= 1 for p in points):
        scope.problems.add(join(path, "p"), f"p is a list of numbers from 0 to 1, found {points!r}")
        return None
    source = parse_expression(tree["input"], join(path, "input"), scope)
    return Accumulator(name, source, path, percentiles=tuple(float(p) for p in points))


_PARSERS: Final[dict[str, Callable[[str, Any, str, Scope], Accumulator | None]]] = {
    **dict.fromkeys(
        ("$sum", "$avg", "$min", "$max", "$first", "$last", "$push", "$addToSet", "$concatArrays", "$setUnion", "$stdDevPop",
         "$stdDevSamp", "$mergeObjects", "$approxCountDistinct"),
        _plain,
    ),
    "$count": _count,
    **dict.fromkeys(("$firstN", "$lastN", "$minN", "$maxN"), _first_n),
    **dict.fromkeys(("$top", "$topN", "$bottom", "$bottomN"), _top),
    **dict.fromkeys(("$percentile", "$median"), _percentile),
}  # fmt: skip
ACCUMULATOR_NAMES: Final = tuple(sorted(_PARSERS))


def parse_accumulator(tree: Any, path: str, scope: Scope) -> Accumulator | None:
    """`{$sum: expr}` and its kin; errors are noted."""
    if type(tree) is not dict or len(tree) != 1:
        scope.problems.add(path, f"a field of $group is one accumulator, such as {{$sum: 1}}; found {str(tree)[:80]}")
        return None
    name = next(iter(tree))
    place = join(path, name)
    parser = _PARSERS.get(name)
    if parser is not None:
        return parser(name, tree[name], place, scope)
    if name == "$accumulator":
        scope.problems.add(place, f"{name} is not supported: {LEFT_OUT[name]}")
    else:
        scope.problems.add(place, f"unknown accumulator {name}", accepted=ACCUMULATOR_NAMES, found=name)
    return None
