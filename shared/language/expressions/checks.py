"""Constants that can only be wrong are errors of the document, not of every record: units, zones, formats, patterns, target types."""

from collections.abc import Callable
from datetime import UTC
from functools import partial
from typing import Any, Final

from tidemark.shared.language.expressions.ast import Expr, Literal
from tidemark.shared.language.expressions.errors import ExpressionError, UnknownName, fail
from tidemark.shared.language.expressions.library.arithmetic import check_method, check_points
from tidemark.shared.language.expressions.library.bindata import format_of, order_of
from tidemark.shared.language.expressions.library.calendar import parts_of, unit_of, weekday_of, zone_of
from tidemark.shared.language.expressions.library.convert import target_of
from tidemark.shared.language.expressions.library.date_format import reader_of, write_date
from tidemark.shared.language.expressions.library.dates import calendar_of
from tidemark.shared.language.expressions.library.strings import program_of
from tidemark.shared.language.expressions.registry import ABSENT, ExpressionOperator, Named
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import join


def _write_format(_: str, value: object) -> None:
    if type(value) is str:
        write_date(parts_of(0, UTC), value)


def _read_format(_: str, value: object) -> None:
    if type(value) is str:
        reader_of(value)


Check = Callable[[str, Any], object]
_ANYWHERE: Final[dict[str, Check]] = {
    "unit": unit_of,
    "startOfWeek": weekday_of,
    "timezone": lambda _, value: zone_of(value),
}
_AT: Final[dict[tuple[str, str], Check]] = {
    ("$convert", "to"): lambda _, value: target_of(value),
    ("$convert", "format"): lambda _, value: format_of(value),
    ("$convert", "byteOrder"): lambda _, value: order_of(value),
    ("$dateToString", "format"): _write_format,
    ("$dateFromString", "format"): _read_format,
}


def _pattern(operator: ExpressionOperator, args: tuple[Expr | None, ...]) -> None:
    """A constant regular expression with its options, if they are constant, too."""
    _, regex, options = args
    if isinstance(regex, Literal) and (options is None or isinstance(options, Literal)):
        program_of(operator.name, regex.value, ABSENT if options is None else options.value)
    elif isinstance(regex, Literal):
        program_of(operator.name, regex.value, ABSENT)


def _quantiles(operator: ExpressionOperator, args: tuple[Expr | None, ...]) -> None:
    """The method, and the points as far as they are constant."""
    *_, method = args
    if isinstance(method, Literal):
        check_method(operator.name, method.value)
    if operator.name == "$percentile" and isinstance(args[1], Literal):
        check_points(args[1].value)


def _zip(_: ExpressionOperator, args: tuple[Expr | None, ...]) -> None:
    """There are inputs, and defaults stand beside useLongestLength alone."""
    inputs, longest, defaults = args
    if isinstance(inputs, Literal) and inputs.value == []:
        raise fail("$zip takes at least one array")
    if defaults is not None and (longest is None or (isinstance(longest, Literal) and longest.value is not True)):
        raise fail("defaults of $zip need useLongestLength: true")


def _calendar(operator: ExpressionOperator, args: tuple[Expr | None, ...]) -> None:
    """The parts of a date are those of one calendar."""
    assert isinstance(operator.signature, Named)
    calendar_of([name for name, arg in zip(operator.signature.names, args, strict=True) if arg is not None])


_TOGETHER: Final[dict[str, tuple[str, Callable[[ExpressionOperator, tuple[Expr | None, ...]], None]]]] = {
    **dict.fromkeys(("$regexMatch", "$regexFind", "$regexFindAll"), ("regex", _pattern)),
    **dict.fromkeys(("$median", "$percentile"), ("", _quantiles)),
    "$dateFromParts": ("", _calendar),
    "$zip": ("", _zip),
}
"""Checks of several arguments at once, and the argument to name."""


def check_constants(operator: ExpressionOperator, args: tuple[Expr | None, ...], path: str, scope: Scope) -> None:
    """Note the constant arguments of a call that the operator would refuse for every document; null never is."""
    if not isinstance(operator.signature, Named):
        return
    together = _TOGETHER.get(operator.name)
    if together is not None:
        where, check_all = together
        _check(scope, join(path, where) if where else path, partial(check_all, operator, args))
    for name, arg in zip(operator.signature.names, args, strict=True):
        check = _AT.get((operator.name, name), _ANYWHERE.get(name))
        if check is None or not isinstance(arg, Literal) or arg.value is None:
            continue
        _check(scope, join(path, name), partial(check, operator.name, arg.value))


def _check(scope: Scope, path: str, check: Callable[[], object]) -> None:
    try:
        check()
    except UnknownName as e:
        scope.problems.add(path, e.short, accepted=e.known, found=e.found)
    except ExpressionError as e:
        scope.problems.add(path, e.reason)
