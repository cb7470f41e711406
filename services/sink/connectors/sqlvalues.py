"""Values as cells of a table, and values that the table would refuse, found before staging (protocol, S6).

A field is the column of its name. Values without a counterpart in SQL (arrays, documents, and the rarer types) go into JSON or text columns
as relaxed extended JSON. Nothing is cut, rounded or guessed: a value that does not fit is refused with the reason. Only a column of
single precision rounds a double.
"""

import datetime as dt
import math
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tidemark.shared.language.values import render_json, to_json, type_name
from tidemark.shared.language.values.instants import DAY_MS, moment_of, ms_of
from tidemark.shared.model.values import UUID_SUBTYPE, Binary, Date, Long, ObjectId

DATE_MIN_MS: Final = ms_of(dt.date.min)
DATE_MAX_MS: Final = ms_of(dt.datetime.max.replace(tzinfo=dt.UTC))
_WHOLE: Final = (int, Long)
_UNTAKEN: Final = re.compile("[\x00\ud800-\udfff]")
"""Characters that JSON can name and PostgreSQL cannot store: the character 0, and halves of characters (surrogates)."""
_BEHIND: Final = re.compile(r"[.,](\d+)")
_TIME_DIGITS: Final = 6
"""Of a second, in a column's time of day."""
PLACES: Final = 3
"""Of a second's parts that a date has."""
EXACT: Final = 2**53
"""Whole numbers up to this are doubles without loss."""


_KNOWN: Final = (
    sa.Boolean, sa.Integer, sa.Numeric, sa.DateTime, sa.Date, sa.Time, sa.Uuid, sa.LargeBinary, sa.JSON, sa.Enum, sa.String,
    postgresql.BIT,
)  # fmt: skip
"""Types of which `converter_of` refuses all that the database would."""


class Misfit(Exception):
    """Why a value cannot go into its column."""


class NoColumn(Misfit):
    """The table had no such column as it was looked at."""


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
        raise Misfit(f"expected a finite number, found {value}")
    raise Misfit(f"expected a finite number, found type {type_name(value)}")


def _decimal_of(precision: int | None, scale: int | None) -> Convert:
    """PostgreSQL's numeric(precision, scale): it would round a number with more digits behind the point."""

    def convert(value: Any) -> Decimal:
        number = _numeric(value)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), "it is finite"
        kept = len("".join(map(str, digits)).rstrip("0"))
        behind = -exponent - (len(digits) - kept)
        if scale is not None and scale < 0 and kept and behind > scale:
            raise Misfit(f"expected a multiple of {10**-scale}, found {value}")
        if scale is not None and kept and behind > scale:
            hint = "; declare money as decimal in $source.schema, or $round it" if type(value) is float else ""
            raise Misfit(f"expected at most {scale} digits behind the point, found {value}{hint}")
        if precision is not None and kept and number.adjusted() >= precision - (scale or 0):
            raise Misfit(f"expected a number below 10^{precision - (scale or 0)}, found {value}")
        return number

    return convert


def _sqlite_number(value: Any) -> Decimal:
    """SQLite has no decimals: the number handed over becomes a double."""
    number = _numeric(value)
    if Decimal(repr(float(number))) != number:
        raise Misfit(f"expected a number that a double holds, found {value}: SQLite has no decimals")
    return number


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) in _WHOLE:
        if abs(value) > EXACT and int(float(value)) != value:
            raise Misfit(f"expected a whole number that a double holds, found {int(value)}")
        return float(value)
    raise Misfit(f"expected a double, found type {type_name(value)}")


def _sqlite_double(value: Any) -> float:
    number = _double(value)
    if math.isnan(number):
        raise Misfit("expected a number, found NaN, which SQLite takes as null")
    return number


def _single(value: Any) -> float:
    number = _double(value)
    with np.errstate(over="ignore", under="ignore"):
        held = float(np.float32(number))
    if (held in (float("inf"), float("-inf")) and held != number) or (held == 0 and number != 0):
        raise Misfit(f"expected a number of single precision, found {number}")
    return number


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Misfit(f"expected true or false, found type {type_name(value)}")
    return value


def _moment(value: Any) -> dt.datetime:
    if type(value) is not Date:
        raise Misfit(f"expected a date, found type {type_name(value)}")
    if not DATE_MIN_MS <= value <= DATE_MAX_MS:
        raise Misfit(f"expected a date of the years 1 to 9999, found {int(value)} ms")
    return moment_of(value)


def _naive(value: Any) -> dt.datetime:
    return _moment(value).replace(tzinfo=None)


def _moment_of(precision: int | None, whole: Convert) -> Convert:
    """PostgreSQL's timestamp(precision): it would round milliseconds."""
    step_ms = 1 if precision is None else 10 ** max(0, PLACES - precision)

    def convert(value: Any) -> dt.datetime:
        moment: dt.datetime = whole(value)
        if value % step_ms:
            raise Misfit(f"expected a date without parts of {step_ms} ms, found {moment.isoformat()}")
        return moment

    return convert


def _day(value: Any) -> dt.date:
    moment = _moment(value)
    if value % DAY_MS:
        raise Misfit(f"expected a date without a time of day, found {moment.isoformat()}")
    return moment.date()


def _time_of(precision: int | None, *, zoned: bool) -> Convert:
    """A time of day; a database would round digits, and drop a zone."""
    digits_max = _TIME_DIGITS if precision is None else precision

    def convert(value: Any) -> dt.time:
        if type(value) is not str:
            raise Misfit(f"expected a time of day as text, found type {type_name(value)}")
        try:
            found = dt.time.fromisoformat(value)
        except ValueError as error:
            raise Misfit(f"expected a time of day: {error}") from error
        if found.tzinfo is not None and not zoned:
            raise Misfit(f"expected a time of day without a zone, found {value}")
        if any(len(digits.rstrip("0")) > digits_max for digits in _BEHIND.findall(value)):
            raise Misfit(f"expected at most {digits_max} digits behind the point, found {value}")
        return found

    return convert


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
                text = "" if _untaken(value) else render_json(value).decode()
            case _:
                raise Misfit(f"expected text, found type {type_name(value)}")
        if length is not None and len(text) > length:
            raise Misfit(f"expected at most {length} characters, found {len(text)}")
        if _untaken(value):
            raise Misfit("expected text without the character 0 and halves of characters")
        return text

    return convert


def _range(value: Any) -> str:
    """An array is none: its JSON would read as one."""
    if type(value) is not str:
        raise Misfit(f"expected a range as text, found type {type_name(value)}")
    return str(_text(None)(value))


def _one_of(names: Sequence[str]) -> Convert:
    def convert(value: Any) -> str:
        if type(value) is not str or value not in names:
            raise Misfit(f"expected one of {', '.join(names)}, found {type_name(value)} {value!r:.40}")
        return value

    return convert


def _bits(length: int | None, *, varying: bool) -> Convert:
    """PostgreSQL would cut, or fill up, bits of another length."""

    def convert(value: Any) -> str:
        fits = isinstance(value, str) and (length is None or len(value) == length or (varying and len(value) < length))
        if not fits or set(value) - {"0", "1"}:
            many = "" if length is None else f"{'at most ' if varying else ''}{length} "
            raise Misfit(f"expected {many}bits as text, found {value!r:.40}")
        return str(value)

    return convert


def _array(item: Convert, *, nests: bool) -> Convert:
    """PostgreSQL's arrays have any number of dimensions, whatever their type says."""

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(f"expected an array, found type {type_name(value)}")
        if nests and any(isinstance(one, list) for one in value):
            inner = [convert(one) for one in value]
            if not all(value) or len({tuple(_shape(one)) for one in inner}) > 1:
                raise Misfit("expected arrays of one length within an array")
            return inner
        return [None if one is None else item(one) for one in value]

    return convert


def _shape(value: Any) -> Iterator[int]:
    while isinstance(value, list):
        yield len(value)
        value = value[0] if value else None


def takes_nested(item: sa.types.TypeEngine[Any]) -> bool:
    """Whether arrays in an array of this type are its dimensions: in text and JSON they are values."""
    return not isinstance(item, sa.String | sa.JSON) or isinstance(item, sa.Enum)


def is_open(kind: sa.types.TypeEngine[Any]) -> bool:
    """Whether the database alone knows which values a type of PostgreSQL's takes."""
    if isinstance(kind, sa.ARRAY):
        return is_open(kind.item_type)
    return not isinstance(kind, _KNOWN) or type(kind) is sa.String  # such are `name` and `"char"`, which cut


def _jsonb(value: Any) -> Any:
    if _untaken(value):
        raise Misfit("expected JSON without the character 0 and halves of characters")
    return to_json(value)


def _untaken(value: Any) -> bool:
    match value:
        case str():
            return _UNTAKEN.search(value) is not None
        case dict():
            return any(_untaken(name) or _untaken(inner) for name, inner in value.items())
        case list():
            return any(map(_untaken, value))
    return False


def _cell(value: Any) -> Any:
    """The value that SQLite puts into a column without a type."""
    if type(value) is str and _untaken(value):
        raise Misfit("expected text without the character 0 and halves of characters")
    if type(value) in (str, bool, float):
        return value
    if type(value) in _WHOLE:
        return int(value)
    if type(value) is Binary:
        return bytes(value)
    raise Misfit(f"expected text, a number or binary data, found type {type_name(value)}")


def converter_of(kind: sa.types.TypeEngine[Any], dialect: str) -> Convert:  # noqa: C901, PLR0911, PLR0912 - a table of types
    """How values go into a column of a type. Order matters: SQLAlchemy's types derive from each other."""
    sqlite = dialect == "sqlite"
    match kind:
        case sa.Boolean():
            return _boolean
        case sa.BigInteger():
            return _integer(64)
        case sa.SmallInteger():
            return _integer(16)
        case sa.Integer():
            return _integer(64 if sqlite else 32)
        case sa.REAL() if not sqlite:
            return _single
        case sa.Float():
            return _sqlite_double if sqlite else _double
        case sa.Numeric(precision=precision, scale=scale):
            return _sqlite_number if sqlite else _decimal_of(precision, scale)
        case sa.DateTime(timezone=zoned):
            return _moment_of(getattr(kind, "precision", None), _moment if zoned else _naive)
        case sa.Date():
            return _day
        case sa.Time(timezone=zoned):
            return _time_of(getattr(kind, "precision", None), zoned=zoned)
        case sa.Uuid():
            return _uuid
        case sa.LargeBinary():
            return _bytes
        case postgresql.JSONB():
            return _jsonb
        case sa.JSON():
            return to_json
        case sa.Enum(enums=names):
            return _one_of(names)
        case sa.String(length=length):
            return _text(length)
        case sa.ARRAY(item_type=item):
            return _array(converter_of(item, dialect), nests=takes_nested(item))
        case postgresql.DOMAIN(data_type=postgresql.BIT()):
            return _bits(None, varying=True)  # without the length that it has in the database, which is asked
        case postgresql.DOMAIN(data_type=inner):
            return converter_of(inner, dialect)
        case postgresql.BIT(length=length, varying=varying):
            return _bits(length, varying=varying)
        case postgresql.ranges.AbstractRange():
            return _range
        case _:
            # Of other types only the database knows the texts that it takes (`is_open`).
            return _cell if sqlite else _text(None)


def is_computed(column: sa.Column[Any]) -> bool:
    """Whether the database takes no value for a column: generated ones, and identities that are always its own."""
    return column.computed is not None or (column.identity is not None and bool(column.identity.always))


def makes_itself(column: sa.Column[Any], table: sa.Table) -> bool:
    """Whether the database gives the column a value: identity columns, and SQLite's integer primary key."""
    alone = list(table.primary_key.columns) == [column]
    return (
        column.identity is not None
        or column.computed is not None
        or (alone and isinstance(column.type, sa.Integer) and column.autoincrement is True)
    )
