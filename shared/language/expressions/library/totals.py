"""Accumulators as expressions: on the items of one array, or on several operands."""

from collections.abc import Callable
from typing import Any

from tidemark.shared.language.expressions.errors import TYPE, VALUE, fail
from tidemark.shared.language.expressions.registry import named, positional
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.language.values.quantiles import quantile
from tidemark.shared.language.values.totals import Deviation, Total
from tidemark.shared.language.values.types import is_finite, is_number
from tidemark.shared.model.values import MISSING, Value


def _operands(values: tuple[Value, ...]) -> tuple[Value, ...] | list[Any]:
    """One operand that is an array stands for its items; among several, arrays stand for themselves."""
    return values[0] if len(values) == 1 and type(values[0]) is list else values


def _total(name: str, doc: str, finish: Callable[[Total], Value]) -> None:
    def apply(*values: Value) -> Value:
        total = Total()
        for value in _operands(values):
            total.add(value)
        return finish(total)

    apply.__doc__ = doc
    positional(name, 0, None)(apply)


_total("$sum", "The sum of the numbers; what is no number is passed over.", Total.sum)
_total("$avg", "The average of the numbers; null without any.", Total.average)


def _deviation(name: str, doc: str, finish: Callable[[Deviation], Value]) -> None:
    def apply(*values: Value) -> Value:
        deviation = Deviation()
        for value in _operands(values):
            deviation.add(value)
        return finish(deviation)

    apply.__doc__ = doc
    positional(name, 0, None)(apply)


_deviation("$stdDevPop", "The standard deviation of a population.", Deviation.population)
_deviation("$stdDevSamp", "The standard deviation of a sample.", Deviation.sample)


@positional("$max", 0, None)
def _max(*values: Value) -> Value:
    """The greatest operand; null and missing do not count."""
    items = [value for value in _operands(values) if value is not None and value is not MISSING]
    return max(items, key=sort_key) if items else None


@positional("$min", 0, None)
def _min(*values: Value) -> Value:
    """The least operand; null and missing do not count."""
    items = [value for value in _operands(values) if value is not None and value is not MISSING]
    return min(items, key=sort_key) if items else None


def _numbers(value: Value) -> list[float]:
    items = value if type(value) is list else [value]
    return sorted(float(item) for item in items if is_number(item) and item == item)  # noqa: PLR0124 - NaN


def check_method(name: str, method: Value) -> None:
    """ExpressionError for a method other than the one there is."""
    if method != "approximate":
        raise fail(f"the method of {name} is approximate", VALUE)


def check_points(points: Value) -> None:
    """ExpressionError for what is no array of fractions."""
    if type(points) is not list or not points or not all(is_number(p) and is_finite(p) and 0 <= p <= 1 for p in points):
        raise fail("p of $percentile is an array of numbers from 0 to 1", TYPE)


@named("$median", "input method")
def _median(value: Value, method: Value) -> Value:
    """The median of the numbers of an array."""
    check_method("$median", method)
    return quantile(_numbers(value), 0.5)


@named("$percentile", "input p method")
def _percentile(value: Value, points: Value, method: Value) -> list[Any]:
    """Percentiles of the numbers of an array."""
    check_method("$percentile", method)
    check_points(points)
    ordered = _numbers(value)
    return [quantile(ordered, float(p)) for p in points]
