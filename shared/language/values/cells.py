"""Cells of a database, as its driver has them, as values of the language."""

import contextlib
import datetime as dt
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.language.values.extended_json import ExtendedJsonError, from_json
from tidemark.shared.language.values.instants import ms_of
from tidemark.shared.model.values import UUID_SUBTYPE, Binary, Date, Value, long

_DIGITS_MAX: Final = 34
"""Of BSON's decimal: part of its format, as the exponents are."""
_EXPONENT_MAX: Final = 6111
"""See `_DIGITS_MAX`."""
_EXPONENT_MIN: Final = -6176
JSON_DEPTH_MAX: Final = DEPTH_MAX - 3
"""Of a json cell: a document, an event or an array of such cells, and a number's type are around it."""
_DIMENSIONS_MAX: Final = 6
"""Of PostgreSQL's arrays."""


def is_decimal(number: Decimal) -> bool:
    """Whether documents hold the number digit by digit."""
    _, digits, exponent = number.as_tuple()
    return not isinstance(exponent, int) or (len(digits) <= _DIGITS_MAX and _EXPONENT_MIN <= exponent <= _EXPONENT_MAX)


def _is_text(text: str) -> bool:
    """Whether it has no half of a character, which json columns may name."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def value_of(cell: object, room: int = _DIMENSIONS_MAX) -> Value:
    """A cell as a value; NULL is null. A cell without counterpart becomes text. Arrays are read so deep, `room`."""
    match cell:
        case None | bool() | float():
            return cell
        case str():
            text = cell if type(cell) is str else "".join(cell)  # the driver's bits are a type of their own
            return text if _is_text(text) else json.dumps(text)
        case Decimal():
            return cell if is_decimal(cell) else f"{cell:f}"
        case dt.date():
            return Date(ms_of(cell))
        case bytes() | memoryview() | bytearray():
            return Binary(bytes(cell))
        case uuid.UUID():
            return Binary(cell.bytes, UUID_SUBTYPE)
        case int() | dict() | list():
            with contextlib.suppress(ExtendedJsonError):
                if _is_text(json.dumps(cell, ensure_ascii=False, default=str)):
                    return from_json(cell)
            if isinstance(cell, list) and room > 0:
                return [value_of(each, room - 1) for each in cell]
            return json.dumps(cell, default=str)
        case _:
            return str(cell)


def cell_reader(*, wide: bool) -> Callable[[Any], Value]:
    """How the cells of a column are read; `wide`: it has 64 bits, and its whole numbers are longs, whatever their size."""
    if wide:
        return lambda cell: long(cell) if type(cell) is int else value_of(cell)
    return value_of
