"""Documents as rows of a table, and what the table would refuse, found before staging (protocol, S6).

A field is the column of its name. What has no counterpart in SQL (arrays, documents, and the rarer types) goes into JSON or text columns
as relaxed extended JSON. Nothing is cut, rounded or guessed: what does not fit is refused with the reason.
"""

import datetime as dt
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa

from shared.language.values import render_json, to_json, type_name
from shared.model.values import Binary, Date, Document, Long, ObjectId

UUID_SUBTYPE: Final = 4
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_YEAR_1_MS: Final = (dt.datetime(1, 1, 1, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
_YEAR_9999_MS: Final = (dt.datetime(9999, 12, 31, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
_WHOLE: Final = (int, Long)


class Misfit(Exception):
    """Why a value cannot go into its column."""


Convert = Callable[[Any], Any]


def _integer(bits: int) -> Convert:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) not in _WHOLE:
            raise Misfit(f"expected a whole number, found type {type_name(value)}")
        if not low <= value <= high:
            raise Misfit(f"expected a whole number of {bits} bits, found {int(value)}")
        return int(value)

    return convert


def _numeric(value: Any) -> Decimal:
    if type(value) in _WHOLE:
        return Decimal(int(value))
    if type(value) is float or type(value) is Decimal:
        number = Decimal(str(value))
        if number.is_finite():
            return number
    raise Misfit(f"expected a finite number, found type {type_name(value)}")


def _double(value: Any) -> float:
    if type(value) in (*_WHOLE, float):
        return float(value)
    raise Misfit(f"expected a double, found type {type_name(value)}")


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Misfit(f"expected true or false, found type {type_name(value)}")
    return value


def _moment(value: Any) -> dt.datetime:
    if type(value) is not Date:
        raise Misfit(f"expected a date, found type {type_name(value)}")
    if not _YEAR_1_MS <= value <= _YEAR_9999_MS:
        raise Misfit(f"expected a date of the years 1 to 9999, found {int(value)} ms")
    return _EPOCH + dt.timedelta(milliseconds=int(value))


def _naive(value: Any) -> dt.datetime:
    return _moment(value).replace(tzinfo=None)


def _bytes(value: Any) -> bytes:
    if type(value) is not Binary:
        raise Misfit(f"expected binary data, found type {type_name(value)}")
    return bytes(value)


def _uuid(value: Any) -> uuid.UUID:
    try:
        if type(value) is Binary and value.subtype == UUID_SUBTYPE:
            return uuid.UUID(bytes=bytes(value))
        if type(value) is str:
            return uuid.UUID(value)
    except ValueError as error:
        raise Misfit(f"expected a UUID: {error}") from error
    raise Misfit(f"expected a UUID, found type {type_name(value)}")


def _text(length: int | None) -> Convert:
    def convert(value: Any) -> str:
        match value:
            case str():
                text = value
            case ObjectId():
                text = str(value)
            case dict() | list():
                text = render_json(value).decode()
            case _:
                raise Misfit(f"expected text, found type {type_name(value)}")
        if length is not None and len(text) > length:
            raise Misfit(f"expected at most {length} characters, found {len(text)}")
        if "\x00" in text:
            raise Misfit("expected text without the character 0")
        return text

    return convert


def _any(value: Any) -> Any:
    return value if isinstance(value, (str, bool, float)) else to_json(value)


def converter_of(column: sa.Column[Any], dialect: str) -> Convert:  # noqa: PLR0911 - a table of types
    """How values go into a column. Order matters: SQLAlchemy's types derive from each other."""
    match column.type:
        case sa.Boolean():
            return _boolean
        case sa.BigInteger():
            return _integer(64)
        case sa.SmallInteger():
            return _integer(16)
        case sa.Integer():
            return _integer(64 if dialect == "sqlite" else 32)
        case sa.Float():
            return _double
        case sa.Numeric():
            return _numeric
        case sa.DateTime(timezone=True):
            return _moment
        case sa.DateTime():
            return _naive
        case sa.Date():
            return lambda value: _moment(value).date()
        case sa.Uuid():
            return _uuid
        case sa.LargeBinary():
            return _bytes
        case sa.JSON():
            return to_json
        case sa.String(length=length):
            return _text(length)
        case _:
            return _any


class RowMaker:
    """Documents to parameters of a table's statements."""

    def __init__(self, table: sa.Table, on: tuple[str, ...], dialect: str, *, inserts: bool) -> None:
        self._on = on
        self._columns: Mapping[str, sa.Column[Any]] = {column.name: column for column in table.columns}
        self._converters = {name: converter_of(column, dialect) for name, column in self._columns.items()}
        needed = [
            c for c in table.columns if not c.nullable and c.server_default is None and not makes_itself(c, table)
        ]
        self._needed = {column.name for column in needed} if inserts else set()

    def parameters(self, document: Document) -> dict[str, Any]:
        """The columns that a document names, converted. Misfit with the field if the table would refuse it."""
        missing = [name for name in (*self._on, *sorted(self._needed)) if document.get(name) is None]
        if missing:
            raise Misfit(f"{missing[0]}: the column takes no null, and the document has no value for it")
        return {name: self._converted(name, value) for name, value in document.items()}

    def _converted(self, name: str, value: Any) -> Any:
        if name not in self._columns:
            raise Misfit(f"{name}: the table has no such column; project the field away, or add the column")
        if value is None:
            if not self._columns[name].nullable:
                raise Misfit(f"{name}: the column takes no null")
            return None
        try:
            return self._converters[name](value)
        except Misfit as misfit:
            raise Misfit(f"{name}: {misfit}") from None


def makes_itself(column: sa.Column[Any], table: sa.Table) -> bool:
    """Whether the database gives the column a value: identity columns, and SQLite's integer primary key."""
    alone = list(table.primary_key.columns) == [column]
    return (
        column.identity is not None
        or column.computed is not None
        or (alone and isinstance(column.type, sa.Integer) and column.autoincrement is True)
    )
