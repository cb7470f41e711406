"""Types and conversions between them."""

import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from tidemark.shared.language.expressions.errors import CONVERSION, TYPE, VALUE, ExpressionError, UnknownName, fail
from tidemark.shared.language.expressions.library import bindata
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.library.date_format import parse_date
from tidemark.shared.language.expressions.library.strings import scalar_text
from tidemark.shared.language.expressions.registry import ABSENT, Absent, Deferred, named, positional
from tidemark.shared.language.values.numbers import DECIMAL, decimal_of, double_of
from tidemark.shared.language.values.types import TYPE_NUMBERS, is_finite, is_integral, is_number, type_name
from tidemark.shared.model.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    UUID_SUBTYPE,
    Binary,
    Date,
    Long,
    ObjectId,
    Timestamp,
    Value,
    long,
)

_WHOLE: Final = re.compile(r"([-+]?)(?=[0-9])0*([0-9]*)")
_HEX: Final = re.compile(r"[-+]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[-+]?[0-9]+)?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_BY_NUMBER: Final = {number: alias for alias, number in TYPE_NUMBERS.items()}


@positional("$type", 1, glances=True)
def _type(value: Value) -> str:
    """The name of a value's type; missing for a missing one."""
    return type_name(value)


@positional("$isNumber", 1, glances=True)
def _is_number(value: Value) -> bool:
    """Whether a value is an int, long, double or decimal."""
    return is_number(value)


@positional("$binarySize", 1, null=1)
def _binary_size(value: Value) -> Value:
    """The bytes of a string or of binary data."""
    if type(value) is str:
        return len(value.encode())
    if type(value) is Binary:
        return len(value)
    raise fail(f"$binarySize takes a string or binary data, found {type_name(value)}", TYPE)


def _unsupported(value: Value, to: str) -> ExpressionError:
    return fail(f"no conversion from {type_name(value)} to {to}", CONVERSION)


def _bad(value: Value, to: str) -> ExpressionError:
    return fail(f"{str(value)[:60]!r} does not convert to {to}", CONVERSION)


def _within(value: Any, low: int, high: int, to: str) -> int:
    """A number cut to a whole one within bounds."""
    if not is_finite(value):
        raise _bad(value, to)
    cut = int(value)
    if not low <= cut <= high:
        raise fail(f"{value} is out of the range of {to}", CONVERSION)
    return cut


def _whole(value: Value, low: int, high: int, to: str) -> int:
    if is_number(value):
        return _within(value, low, high, to)
    if type(value) is bool:
        return int(value)
    if type(value) is str:
        found = _WHOLE.fullmatch(value)
        if found is None or len(found[2]) > 40:  # noqa: PLR2004 - no 64 bits have so many digits
            raise _bad(value, to)
        return _within(int(found[1] + (found[2] or "0")), low, high, to)
    if type(value) is Binary:
        return int(bindata.to_number(value, to, "little"))
    raise _unsupported(value, to)


def _in_range(text: str, number: Any, to: str) -> Any:
    """The number of a text, unless it became infinite or zero only because it is too large or too small for the type."""
    digits = re.split("[eE]", text, maxsplit=1)[0]
    vanished = not number and re.search("[1-9]", digits)
    if vanished or (number in (math.inf, -math.inf) and re.search("[0-9]", digits)):
        raise fail(f"{text[:60]!r} is out of the range of {to}", CONVERSION)
    return number


@positional("$toInt", 1, null=1)
def to_int(value: Value) -> Value:
    """An int; fractions are cut."""
    return _whole(value, INT32_MIN, INT32_MAX, "int")


@positional("$toLong", 1, null=1)
def to_long(value: Value) -> Value:
    """A long; of a date its milliseconds."""
    return long(int(value) if type(value) is Date else _whole(value, INT64_MIN, INT64_MAX, "long"))


@positional("$toDouble", 1, null=1)
def to_double(value: Value) -> Value:
    """A double; of a date its milliseconds."""
    if is_number(value):
        result = double_of(value)
        if not is_finite(result) and type(value) is Decimal and value.is_finite():
            raise fail(f"{value} is out of the range of double", CONVERSION)
        return result
    if type(value) is bool or type(value) is Date:
        return float(value)
    if type(value) is str:
        if _HEX.fullmatch(value):
            return _hexadecimal(value)
        if not _NUMBER.fullmatch(value):
            raise _bad(value, "double")
        return _in_range(value, float(value), "double")
    if type(value) is Binary:
        return bindata.to_number(value, "double", "little")
    raise _unsupported(value, "double")


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        raise fail(f"{text[:60]} is out of the range of double", CONVERSION) from None


@positional("$toDecimal", 1, null=1)
def to_decimal(value: Value) -> Value:
    """A decimal; of a date its milliseconds."""
    if is_number(value):
        return decimal_of(value)
    if type(value) is bool or type(value) is Date:
        return Decimal(int(value))
    if type(value) is str:
        if not _NUMBER.fullmatch(value):
            raise _bad(value, "decimal")
        try:
            return _in_range(value, DECIMAL.create_decimal(value), "decimal")
        except InvalidOperation:
            raise _bad(value, "decimal") from None
    raise _unsupported(value, "decimal")


@positional("$toBool", 1, null=1)
def to_bool(value: Value) -> Value:
    """False for false and zero, true for everything else that is not null."""
    return value if type(value) is bool else not (is_number(value) and value == 0)


@positional("$toDate", 1, null=1)
def to_date(value: Value) -> Value:
    """A date, from a long, double or decimal (ms), an ISO string, an ObjectId or a timestamp; an int is no date."""
    kind = type(value)
    if kind is Date:
        return value
    if kind is str:
        return parse_date(value)
    if kind is ObjectId:
        return Date(int.from_bytes(value.data[:4], "big", signed=True) * 1000)
    if kind is Timestamp:
        return Date(value.seconds * 1000)
    if type_name(value) == "int":
        raise fail(
            "no conversion from int to date: milliseconds are a long, double or decimal ($toLong makes one)", CONVERSION
        )
    if kind in (int, Long, float, Decimal):
        return Date(_within(value, INT64_MIN, INT64_MAX, "date"))
    raise _unsupported(value, "date")


@positional("$toString", 1, null=1)
def to_string(value: Value) -> Value:
    """A string."""
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is ObjectId:
        return str(value)
    if type(value) is Binary:
        return bindata.to_text(value, "auto")
    text = scalar_text(value)
    if text is None:
        raise _unsupported(value, "string")
    return text


@positional("$toObjectId", 1, null=1)
def to_object_id(value: Value) -> Value:
    """An ObjectId, from 24 hex digits."""
    if type(value) is ObjectId:
        return value
    if type(value) is not str:
        raise _unsupported(value, "objectId")
    if not re.fullmatch(r"[0-9a-fA-F]{24}", value):
        raise _bad(value, "objectId")
    return ObjectId(bytes.fromhex(value))


@positional("$toUUID", 1, null=1)
def to_uuid(value: Value) -> Value:
    """A UUID as binary data, from its text."""
    if type(value) is Binary and value.subtype == UUID_SUBTYPE:
        return value
    if type(value) is not str:
        raise _unsupported(value, "UUID")
    try:
        return Binary(uuid.UUID(value).bytes, UUID_SUBTYPE)
    except ValueError:
        raise _bad(value, "UUID") from None


def _same(kind: type, to: str) -> Callable[[Value], Value]:
    def convert(value: Value) -> Value:
        if type(value) is not kind:
            raise _unsupported(value, to)
        return value

    return convert


CONVERSIONS: Final[dict[str, Callable[[Value], Value]]] = {
    "int": to_int,
    "long": to_long,
    "double": to_double,
    "decimal": to_decimal,
    "bool": to_bool,
    "date": to_date,
    "string": to_string,
    "objectId": to_object_id,
    "binData": lambda value: bindata.to_binary(value, 0, None, "little"),
    "array": _same(list, "array"),
    "object": _same(dict, "object"),
}


def target_of(to: Value) -> str | None:
    """The alias of a target type; None for null."""
    if type(to) is dict:
        if set(to) - {"type", "subtype"} or is_null(to.get("type")):
            raise fail(
                f"to of $convert is a type, or an object {{type, subtype}}; found the keys {list(to)[:5]}", VALUE
            )
        to = to["type"]
    if is_null(to):
        return None
    alias = _BY_NUMBER.get(int(to)) if is_integral(to) else to
    if alias not in list(CONVERSIONS):
        raise UnknownName("target type of $convert", to, tuple(CONVERSIONS))
    return str(alias)


@named("$convert", "input to", "onError onNull format byteOrder", deferred="onError onNull")
def _convert(
    value: Value, to: Value, on_error: Deferred | Absent, on_null: Deferred | Absent, form: Value, order: Value
) -> Value:
    """A value in another type; onError if it does not convert, onNull for null and missing."""
    target = target_of(to)
    if is_null(value):
        return None if isinstance(on_null, Absent) else on_null()
    if target is None:
        return None
    given, order = (
        None if form is ABSENT else bindata.format_of(form),
        "little" if order is ABSENT else bindata.order_of(order),
    )
    try:
        if target == "binData":
            wanted = bindata.subtype_of(to["subtype"]) if type(to) is dict and "subtype" in to else 0
            return bindata.to_binary(value, wanted, given, order)
        if type(value) is Binary and target == "string":
            return bindata.to_text(value, given)
        if type(value) is Binary and target in ("int", "long", "double"):
            return bindata.to_number(value, target, order)
        return CONVERSIONS[target](value)
    except ExpressionError as e:
        if isinstance(on_error, Absent) or e.code != CONVERSION:
            raise
        return on_error()
