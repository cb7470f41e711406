"""Cells of a database, as its driver has them, as values of the language."""

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.values.extended_json import ExtendedJsonError, from_json
from tidemark.shared.model.values import Binary, Date, Value, long

UUID_SUBTYPE: Final = 4
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)


def value_of(cell: Any) -> Value:
    """A cell as a value; NULL is null. A cell without counterpart becomes text."""
    match cell:
        case None | bool() | float() | str() | Decimal():
            return cell
        case int():
            return cell if type(cell) is int else int(cell)
        case dt.datetime():
            moment = cell if cell.tzinfo is not None else cell.replace(tzinfo=dt.UTC)
            return Date((moment - _EPOCH) // _MS)
        case dt.date():
            return Date((dt.datetime(cell.year, cell.month, cell.day, tzinfo=dt.UTC) - _EPOCH) // _MS)
        case bytes() | memoryview() | bytearray():
            return Binary(bytes(cell))
        case uuid.UUID():
            return Binary(cell.bytes, UUID_SUBTYPE)
        case dict() | list():
            try:
                return from_json(cell)
            except ExtendedJsonError:
                return str(cell)
        case _:
            return str(cell)


def cell_reader(*, wide: bool) -> Callable[[Any], Value]:
    """How the cells of a column are read; `wide`: it has 64 bits, and its whole numbers are longs, whatever their size."""
    if wide:
        return lambda cell: long(cell) if type(cell) is int else value_of(cell)
    return value_of
