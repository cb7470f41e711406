"""Canonical bytes of a value, for group and session keys and the choice of a key group.

- K1 Equal values have equal bytes, different values different ones: 1, 1L, 1.0 and decimal 1.00 are one key.
- K2 Null and missing are one key.
- K3 The bytes depend on the value alone, not on the process, the platform or a library's version: they route durable data.
"""

import struct
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.model.values import MAX_KEY, Binary, Date, EndKey, Long, Missing, ObjectId, Regex, Timestamp, Value

_LENGTH: Final = struct.Struct(">I")
_INT: Final = struct.Struct(">q")
_INT64: Final = 2**63


def canonical_key(value: Value) -> bytes:
    """The canonical bytes of a value (K1 to K3). MISSING is taken as null."""
    out = bytearray()
    _append(out, value)
    return bytes(out)


def _append(out: bytearray, value: Any) -> None:
    kind = type(value)
    if kind is str:
        _text(out, b"s", value)
    elif kind is int or kind is Long:
        out += b"i"
        out += _INT.pack(value)
    elif kind is float or kind is Decimal:
        _number(out, value)
    elif value is None or kind is Missing:
        out += b"n"
    elif kind is bool:
        out += b"T" if value else b"F"
    elif kind is Date:
        out += b"d"
        out += _INT.pack(value)
    elif kind is dict:
        out += b"o"
        out += _LENGTH.pack(len(value))
        for name, item in value.items():
            _text(out, b"s", name)
            _append(out, item)
    elif kind is list:
        out += b"a"
        out += _LENGTH.pack(len(value))
        for item in value:
            _append(out, item)
    else:
        _rare(out, value)


def _text(out: bytearray, tag: bytes, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    out += tag
    out += _LENGTH.pack(len(data))
    out += data


def _number(out: bytearray, value: Any) -> None:
    """Doubles and decimals: as an int where they are one, else sign, digits and exponent without trailing zeros."""
    if value != value:  # noqa: PLR0124 - NaN
        out += b"N"
    elif value in (float("inf"), float("-inf")):
        out += b"P" if value > 0 else b"M"
    elif -_INT64 <= value < _INT64 and value == int(value):
        out += b"i"
        out += _INT.pack(int(value))
    elif type(value) is float and value != int(value):
        above, below = abs(value).as_integer_ratio()  # an odd number over a power of two: no zero stands last
        places = below.bit_length() - 1
        _text(out, b"x", f"{'-' if value < 0 else ''}{above * 5**places}E{-places}")
    else:
        sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)).lstrip("0")
        short = text.rstrip("0")
        _text(out, b"x", f"{'-' if sign else ''}{short}E{exponent + len(text) - len(short)}")


def _rare(out: bytearray, value: Any) -> None:
    if type(value) is ObjectId:
        out += b"I"
        out += value.data
    elif type(value) is Binary:
        out += b"b"
        out += bytes([value.subtype])
        out += _LENGTH.pack(len(value))
        out += value
    elif type(value) is Timestamp:
        out += b"t"
        out += struct.pack(">II", value.seconds, value.increment)
    elif type(value) is Regex:
        _text(out, b"r", value.pattern)
        _text(out, b"s", value.options)
    elif type(value) is EndKey:
        out += b"Z" if value is MAX_KEY else b"A"
    else:
        raise TypeError(f"not a value of the language: {type(value).__name__}")
