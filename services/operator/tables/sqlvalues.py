"""Values of the language as parameters of a query, and cells of a database as values of the language.

A parameter may only be left out where no cell of the column's type can equal the value: rows that the database finds are checked
again, rows that it does not find are lost.
"""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa

from tidemark.shared.language.values.instants import moment_of, ms_of
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Date, Long

NOTHING: Final = object()
"""No cell of the column can equal the value."""
_YEARS_MS: Final = (ms_of(dt.date(1, 1, 2)), ms_of(dt.date(9999, 12, 30)))
Parameter = Callable[[Any], Any]


def _whole(value: Any) -> Any:
    if type(value) in (int, Long):
        return int(value)
    if type(value) in (float, Decimal) and math.isfinite(value) and value == int(value):
        return int(value) if INT64_MIN <= value <= INT64_MAX else NOTHING
    return NOTHING


def _double(value: Any) -> Any:
    return float(value) if type(value) in (int, Long, float, Decimal) and math.isfinite(value) else NOTHING


def _exact(value: Any) -> Any:
    if type(value) in (int, Long):
        return Decimal(int(value))
    return Decimal(value) if type(value) in (float, Decimal) and math.isfinite(value) else NOTHING


def _text(value: Any) -> Any:
    return value if type(value) is str and not any("\ud800" <= c <= "\udfff" for c in value) else NOTHING


def _text_without_null(value: Any) -> Any:
    """PostgreSQL's texts have no character 0, and refuse it."""
    found = _text(value)
    return NOTHING if found is NOTHING or "\x00" in found else found


def _truth(value: Any) -> Any:
    return value if type(value) is bool else NOTHING


def _moment(value: Any) -> Any:
    if type(value) is not Date or not _YEARS_MS[0] <= value <= _YEARS_MS[1]:
        return NOTHING
    return moment_of(value)


def _naive(value: Any) -> Any:
    moment = _moment(value)
    return moment if moment is NOTHING else moment.replace(tzinfo=None)


def _day(value: Any) -> Any:
    moment = _moment(value)
    return moment if moment is NOTHING or moment.timetz().replace(tzinfo=None) != dt.time() else moment.date()


_SQLITE: Final[tuple[tuple[type[Any], Parameter | None], ...]] = (
    (sa.Boolean, None),
    (sa.Integer, _whole),
    (sa.Float, _double),
    (sa.Enum, None),
    (sa.String, _text),
)
_POSTGRESQL: Final[tuple[tuple[type[Any], Parameter | None], ...]] = (
    (sa.Boolean, _truth),
    (sa.Integer, _whole),
    (sa.REAL, None),  # a cell of 32 bits is not the double that its text stands for
    (sa.Float, _double),
    (sa.Numeric, _exact),
    (sa.Date, _day),
    (sa.Enum, None),
    (sa.String, _text_without_null),
)
"""Types as SQLAlchemy has them, derived ones before those that they derive from."""


def parameter_of(column: sa.Column[Any], dialect: str) -> Parameter | None:
    """How values become parameters for a column; None where the database may see other equalities than the language does.

    SQLite keeps dates as text in the form in which they were written, and cells of any type in any column: only numbers and texts, which
    its affinities keep apart, are asked for.
    """
    kind = column.type
    if isinstance(kind, sa.DateTime):
        return None if dialect == "sqlite" else _moment if kind.timezone else _naive
    return next((made for known, made in _TABLES[dialect] if isinstance(kind, known)), None)


_TABLES: Final = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}
