"""Constants that can only be wrong are errors of the document, not of every record: units, zones, formats, patterns, target types."""

from collections.abc import Callable
from datetime import UTC
from typing import Any, Final

from shared.language.expressions.ast import Expr, Literal
from shared.language.expressions.errors import ExpressionError
from shared.language.expressions.library.calendar import parts_of, unit_of, weekday_of
from shared.language.expressions.library.convert import target_of
from shared.language.expressions.library.date_format import reader_of, write_date
from shared.language.expressions.library.regexes import program_of
from shared.language.expressions.library.zones import zone_of
from shared.language.expressions.registry import Named, Operator
from shared.language.expressions.scope import Scope
from shared.language.problems import join


def _write_format(_: str, value: Any) -> None:
    if type(value) is str:
        write_date(parts_of(0, UTC), value)


def _read_format(_: str, value: Any) -> None:
    if type(value) is str:
        reader_of(value)


Check = Callable[[str, Any], object]
_ANYWHERE: Final[dict[str, Check]] = {
    "unit": unit_of,
    "startOfWeek": weekday_of,
    "timezone": lambda _, value: zone_of(value),
    "regex": lambda name, value: program_of(name, value, ""),
}
_AT: Final[dict[tuple[str, str], Check]] = {
    ("$convert", "to"): lambda _, value: target_of(value),
    ("$dateToString", "format"): _write_format,
    ("$dateFromString", "format"): _read_format,
}


def check_constants(operator: Operator, args: tuple[Expr | None, ...], path: str, scope: Scope) -> None:
    """Note the constant arguments of a call that the operator would refuse whatever the document; null never is."""
    if not isinstance(operator.signature, Named):
        return
    for name, arg in zip(operator.signature.names, args, strict=True):
        check = _AT.get((operator.name, name), _ANYWHERE.get(name))
        if check is None or not isinstance(arg, Literal) or arg.value is None:
            continue
        try:
            check(operator.name, arg.value)
        except ExpressionError as e:
            scope.problems.add(join(path, name), e.reason)
