"""Binary data from strings and numbers, and back: `$convert` with `format`, `subtype` and `byteOrder`."""

import base64
import binascii
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from tidemark.shared.language.expressions.errors import CONVERSION, TYPE, VALUE, UnknownName, fail
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.values.types import is_integral, type_name
from tidemark.shared.model.values import UUID_SUBTYPE, Binary, Value, long

_UUID_BYTES: Final = 16
"""The format of a UUID."""
_PREDEFINED_MAX: Final = 9
"""Subtypes that BSON defines."""
_CUSTOM: Final = 128
FORMATS: Final = ("auto", "base64", "base64url", "hex", "utf8", "uuid")
ORDERS: Final = ("little", "big")


def format_of(value: Value) -> str | None:
    """A `format`; None for null."""
    if is_null(value):
        return None
    if value not in list(FORMATS):
        raise UnknownName("format of $convert", value, FORMATS)
    return str(value)


def order_of(value: Value) -> str:
    """A `byteOrder`, little by default."""
    if is_null(value):
        return "little"
    if value not in list(ORDERS):
        raise UnknownName("byteOrder of $convert", value, ORDERS)
    return str(value)


def subtype_of(value: Value) -> int:
    """A `subtype`: 0 to 9, and 128 to 255, which are the user's."""
    if not is_integral(value) or not (0 <= value <= _PREDEFINED_MAX or _CUSTOM <= value <= 0xFF):  # noqa: PLR2004 - a byte
        raise fail(f"the subtype of $convert is a number from 0 to 9 or from 128 to 255, found {value!r}", TYPE)
    return int(value)


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def _from_uuid(text: str) -> bytes:
    if len(text) != 36:  # noqa: PLR2004 - five groups of digits with dashes
        raise ValueError("no UUID")
    return uuid.UUID(text).bytes


def _from_base64url(text: str) -> bytes:
    if "+" in text or "/" in text:
        raise ValueError("letters of base64 alone")
    return base64.b64decode(_padded(text.rstrip("=")), altchars=b"-_", validate=True)


_READ: Final[dict[str, Callable[[str], bytes]]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "base64url": _from_base64url,
    "hex": binascii.unhexlify,
    "utf8": str.encode,
    "uuid": _from_uuid,
}
_WRITE: Final[dict[str, Callable[[Binary], str]]] = {
    "base64": lambda data: base64.b64encode(data).decode(),
    "base64url": lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
    "hex": lambda data: bytes(data).hex().upper(),
    "utf8": lambda data: bytes(data).decode(),
    "uuid": lambda data: str(uuid.UUID(bytes=bytes(data))),
}
_FROM_NUMBER: Final = {"int": "i", "long": "q", "double": "d"}
_TO_NUMBER: Final = {
    "int": {1: "b", 2: "h", 4: "i"},
    "long": {1: "b", 2: "h", 4: "i", 8: "q"},
    "double": {4: "f", 8: "d"},
}


def to_binary(value: Value, subtype: int, form: str | None, order: str) -> Binary:
    """Binary data of a string (which needs a format), a number, or binary data of the same subtype."""
    if type(value) is Binary and value.subtype == subtype:
        return value
    if type(value) is str:
        if form is None:
            raise fail("$convert from a string to binData needs a format", VALUE)
        if form not in _READ or (form == "uuid") != (subtype == UUID_SUBTYPE):
            raise fail(f"no conversion from a string to binData of subtype {subtype} by {form}", CONVERSION)
        try:
            return Binary(_READ[form](value), subtype)
        except ValueError:
            raise fail(f"{value[:60]!r} is not {form}", CONVERSION) from None
    code = _FROM_NUMBER.get(type_name(value))
    if code is None:
        raise fail(f"no conversion from {type_name(value)} to binData of subtype {subtype}", CONVERSION)
    return Binary(struct.pack(_sign(order) + code, value), subtype)


def to_text(value: Binary, form: str | None) -> str:
    """The text of binary data; `auto` is a UUID's own form, else base64."""
    if form is None:
        raise fail("$convert from binData to string needs a format", VALUE)
    if form == "auto":
        form = "uuid" if value.is_uuid else "base64"
    if form == "uuid" and not value.is_uuid:
        raise fail("the binary data is no UUID", CONVERSION)
    try:
        return _WRITE[form](value)
    except UnicodeDecodeError:
        raise fail("the binary data is not utf8", CONVERSION) from None


def to_number(value: Binary, target: str, order: str) -> Any:
    """The number whose bytes these are."""
    code = _TO_NUMBER[target].get(len(value))
    if code is None:
        raise fail(f"{len(value)} bytes are no {target}", CONVERSION)
    (number,) = struct.unpack(_sign(order) + code, value)
    return long(number) if target == "long" else number


def _sign(order: str) -> str:
    return "<" if order == "little" else ">"
