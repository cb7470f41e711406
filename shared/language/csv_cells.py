"""Cells of CSV: a value as text, and a text as a value of a declared type."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.values import render_json
from tidemark.shared.language.values.instants import format_iso
from tidemark.shared.model.values import Binary, Date, Long, ObjectId


def text_of(value: object) -> str:
    """A value as the text of a cell or a folder's name."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case Date():
            # Outside years 0 to 9999 it is a number.
            return format_iso(value) or str(int(value))
        case Long() | int():
            return str(int(value))
        case Decimal() | ObjectId():
            return str(value)
        case Binary():
            return bytes(value).hex()
        case float():
            return repr(value)
        case _:
            return render_json(value).decode()


def _bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_CONVERSIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": int,
    "long": int,
    "double": float,
    "decimal": Decimal,
    "bool": _bool,
}


def value_of(text: str, type_name: str | None) -> Any:
    """The value of a cell of a declared type, or of none; the text itself where it does not convert, for the schema to refuse."""
    convert = _CONVERSIONS.get(type_name or "string")
    if convert is None:
        return text
    if "_" in text or not text.isascii():
        # Python reads more as numbers than anybody writes into a CSV.
        return text
    try:
        return convert(text)
    except (ValueError, KeyError, ArithmeticError):
        return text
