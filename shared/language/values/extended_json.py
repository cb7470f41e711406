"""Extended JSON (MongoDB's, version 2), relaxed and canonical, to values and back.

Reading takes both forms: a JSON integer within 32 bits is an int, within 64 a long, beyond a double; a number with a point or an
exponent a double. Keys such as `$date` alone in an object make a typed value; other `$` keys stay what they are. Bounded in nesting
and, for text, in bytes.
"""

import base64
import binascii
import contextlib
import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.language.values.instants import format_iso, parse_iso
from tidemark.shared.language.values.numbers import DECIMAL, decimal_of
from tidemark.shared.model.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MAX_KEY,
    MIN_KEY,
    Binary,
    Date,
    EndKey,
    Long,
    ObjectId,
    Regex,
    Timestamp,
    Value,
    long,
)

SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
"""Default bound of a text to parse."""


class ExtendedJsonError(ValueError):
    """The text is no extended JSON; the message gives the place and the expectation."""


_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OID: Final = re.compile(r"[0-9a-fA-F]{24}")
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,40}", re.ASCII)
_NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?Infinity|NaN", re.ASCII)


def _expect(kind: type, value: Any, key: str) -> Any:
    if type(value) is not kind:
        raise ExtendedJsonError(f"{key} takes a {kind.__name__}, found {type(value).__name__}")
    return value


def _date(value: Any) -> Date:
    if type(value) is dict:
        value = _only(value, "$date", "$numberLong")
        return Date(_whole(value, "$date", INT64_MIN, INT64_MAX))
    if type(value) is int:
        if not INT64_MIN <= value <= INT64_MAX:
            raise ExtendedJsonError("$date needs milliseconds within 64 bits")
        return Date(value)
    ms = parse_iso(_expect(str, value, "$date"))
    if ms is None:
        raise ExtendedJsonError(f"$date takes an ISO 8601 instant such as 2024-03-05T12:00:00Z, found {value!r}")
    return Date(ms)


def _only(value: dict[str, Any], key: str, inner: str) -> Any:
    if list(value) != [inner]:
        raise ExtendedJsonError(f"{key} takes {{{inner}: …}} here, found the keys {list(value)[:5]}")
    return value[inner]


def _whole(value: Any, key: str, low: int, high: int) -> int:
    number = value
    if type(value) is str:
        number = int(value) if _WHOLE.fullmatch(value) else None
    if type(number) is not int or not low <= number <= high:
        raise ExtendedJsonError(f"{key} takes a whole number from {low} to {high}, found {value!r}")
    return number


def _double(value: Any) -> float:
    if type(value) in (int, float) or (type(value) is str and _NUMBER.fullmatch(value)):
        with contextlib.suppress(OverflowError):
            return float(value)
    raise ExtendedJsonError(f"$numberDouble takes a number, Infinity, -Infinity or NaN, found {value!r}")


def _decimal(value: Any) -> Decimal:
    text = str(value)
    try:
        found = DECIMAL.create_decimal(text)
        if not found.is_nan() and found != Decimal(text):
            raise InvalidOperation  # rounded, it would be another number
    except ArithmeticError:
        raise ExtendedJsonError(f"$numberDecimal takes a decimal of at most 34 digits, found {value!r}") from None
    return decimal_of(found)


def _oid(value: Any) -> ObjectId:
    text = _expect(str, value, "$oid")
    if not _OID.fullmatch(text):
        raise ExtendedJsonError(f"$oid takes 24 hex digits, found {value!r}")
    return ObjectId(bytes.fromhex(text))


def _binary(value: Any) -> Binary:
    fields = _expect(dict, value, "$binary")
    try:
        return Binary(base64.b64decode(fields["base64"], validate=True), int(str(fields["subType"]), 16) & 0xFF)
    except (KeyError, ValueError, TypeError, binascii.Error) as e:
        raise ExtendedJsonError("$binary takes {base64: text, subType: hex byte}") from e


def _uuid(value: Any) -> Binary:
    try:
        return Binary(uuid.UUID(_expect(str, value, "$uuid")).bytes, 4)
    except ValueError as e:
        raise ExtendedJsonError(f"$uuid takes a UUID, found {value!r}") from e


def _regex(value: Any) -> Regex:
    fields = _expect(dict, value, "$regularExpression")
    pattern, options = fields.get("pattern"), fields.get("options", "")
    if type(pattern) is not str or type(options) is not str or set(fields) - {"pattern", "options"}:
        raise ExtendedJsonError("$regularExpression takes {pattern: text, options: text}")
    return Regex(pattern, "".join(sorted(options)))


def _timestamp(value: Any) -> Timestamp:
    fields = _expect(dict, value, "$timestamp")
    top = 2**32 - 1
    return Timestamp(_whole(fields.get("t"), "$timestamp.t", 0, top), _whole(fields.get("i"), "$timestamp.i", 0, top))


SPECIAL: Final[dict[str, Callable[[Any], Any]]] = {
    "$date": _date,
    "$numberInt": lambda v: _whole(v, "$numberInt", INT32_MIN, INT32_MAX),
    "$numberLong": lambda v: long(_whole(v, "$numberLong", INT64_MIN, INT64_MAX)),
    "$numberDouble": _double,
    "$numberDecimal": _decimal,
    "$oid": _oid,
    "$binary": _binary,
    "$uuid": _uuid,
    "$regularExpression": _regex,
    "$timestamp": _timestamp,
    "$symbol": lambda v: _expect(str, v, "$symbol"),
    "$undefined": lambda _: None,
    "$minKey": lambda _: MIN_KEY,
    "$maxKey": lambda _: MAX_KEY,
}
"""The keys that make a typed value, and how its content is read."""
_AS_THEY_ARE: Final = frozenset({str, bool, float, type(None)})
"""JSON values that are values of the language without a look at them."""


def from_json(tree: Any, depth_max: int = DEPTH_MAX) -> Value:
    """The value of a parsed JSON tree (dict, list, str, int, float, bool, None); ExtendedJsonError if it is none."""
    kind = type(tree)
    if kind is str or kind is bool or tree is None or kind is float:
        return tree
    if kind is int:
        return tree if INT64_MIN <= tree <= INT64_MAX else _big(tree)
    if kind is dict and len(tree) == 1:
        ((key, content),) = tree.items()
        special = SPECIAL.get(key)
        if special is not None:  # no nesting: the canonical form of a value is read wherever the value was
            return special(content)
    if depth_max <= 0:
        raise ExtendedJsonError("nested too deeply")
    if kind is dict:
        return {
            name: item if type(item) in _AS_THEY_ARE else from_json(item, depth_max - 1) for name, item in tree.items()
        }
    if kind is list:
        return [item if type(item) in _AS_THEY_ARE else from_json(item, depth_max - 1) for item in tree]
    raise ExtendedJsonError(f"not JSON: {kind.__name__}")


def _big(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ExtendedJsonError("a number beyond the range of a double") from None


def value_if_any(tree: Any) -> Value:
    """The value of an extended JSON tree; None, too, for a tree that stands for none."""
    with contextlib.suppress(ExtendedJsonError):
        return from_json(tree)
    return None


def parse_json(text: str | bytes) -> Value:
    """The value of an extended JSON text; ExtendedJsonError with the place if it is none."""
    if len(text) > SIZE_MAX_BYTES:
        raise ExtendedJsonError(f"{len(text)} bytes of JSON, at most {SIZE_MAX_BYTES} are allowed")
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise ExtendedJsonError(f"not JSON: {e}{_hint(text)}") from e
    return from_json(tree)


def _hint(text: str | bytes) -> str:
    """What producers write in the place of JSON in UTF-8, by its first bytes; "" for anything else."""
    head = text[:2] if isinstance(text, bytes) else b""
    if head == b"\0\0":
        return "; a zero byte and a number begin a record of a schema registry, which $source.schemaRegistry reads"
    if head in (b"\xff\xfe", b"\xfe\xff") or head in (b"{\0", b"\0{"):
        return "; its first bytes are UTF-16, and JSON is UTF-8"
    return "; a byte order mark begins it" if isinstance(text, bytes) and text.startswith(_ORDER_MARK) else ""


def double_json(value: float) -> Any:
    """The JSON of a double: a number, or the name of what JSON has no number for."""
    if math.isfinite(value):
        return value
    return {"$numberDouble": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def long_json(value: int) -> Any:
    """The JSON of a long, which stays one where it would be read as an int."""
    return {"$numberLong": str(value)} if INT32_MIN <= value <= INT32_MAX else value


def binary_json(data: bytes, subtype: int = 0) -> Any:
    """The JSON of binary data."""
    return {"$binary": {"base64": base64.b64encode(data).decode(), "subType": f"{subtype:02x}"}}


def _date_json(value: Date, canonical: bool) -> Any:  # noqa: FBT001 - one signature for the table below
    iso = None if canonical or value < 0 else format_iso(value)
    return {"$date": iso if iso is not None else {"$numberLong": str(int(value))}}


def _float_json(value: float, canonical: bool) -> Any:  # noqa: FBT001 - as above
    return {"$numberDouble": repr(value)} if canonical and math.isfinite(value) else double_json(value)


_OTHERS: Final[dict[type, Callable[[Any, bool], Any]]] = {
    float: _float_json,
    Date: _date_json,
    Long: lambda v, canonical: {"$numberLong": str(int(v))} if canonical else int(v),
    Decimal: lambda v, _: {"$numberDecimal": str(v)},
    ObjectId: lambda v, _: {"$oid": str(v)},
    Binary: lambda v, _: binary_json(v, v.subtype),
    Regex: lambda v, _: {"$regularExpression": {"pattern": v.pattern, "options": v.options}},
    Timestamp: lambda v, _: {"$timestamp": {"t": v.seconds, "i": v.increment}},
    EndKey: lambda v, _: {"$maxKey": 1} if v is MAX_KEY else {"$minKey": 1},
}


_ALIKE: Final = frozenset({str, bool, type(None)})
"""Values that are JSON as they are, relaxed and canonical."""


def to_json(value: Value, *, canonical: bool = False) -> Any:
    """The JSON tree of a value: relaxed (numbers as numbers) or canonical (every type written out)."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if not canonical:
            return value
        return {"$numberInt" if INT32_MIN <= value <= INT32_MAX else "$numberLong": str(value)}
    if kind is dict:
        return {
            name: item if type(item) in _ALIKE else to_json(item, canonical=canonical) for name, item in value.items()
        }
    if kind is list:
        return [item if type(item) in _ALIKE else to_json(item, canonical=canonical) for item in value]
    other = _OTHERS.get(kind)
    if other is None:
        raise TypeError(f"not a value of the language: {kind.__name__}")
    return other(value, canonical)


def render_json(value: Value, *, canonical: bool = False) -> bytes:
    """The UTF-8 text of a value as extended JSON, on one line."""
    return msgspec.json.encode(to_json(value, canonical=canonical))
