"""Field paths of aggregation expressions: to read, they go through arrays, and names of digits are no indexes."""

from collections.abc import Sequence

from tidemark.shared.model.values import MISSING, Document, Value

_INDEX_DIGITS = 9
"""Digits of an index in a path: no array has more items."""


def read_path(value: Value, names: Sequence[str]) -> Value:
    """The value at a path; on an array, the array of its documents' values there (documents without it are passed over)."""
    for i, name in enumerate(names):
        if type(value) is dict:
            value = value.get(name, MISSING)
            if value is MISSING:
                return MISSING
        elif type(value) is list:
            rest = names[i:]
            inner = (read_path(item, rest) for item in value if type(item) is dict)
            return [found for found in inner if found is not MISSING]
        else:
            return MISSING
    return value


def set_path(document: Document, names: Sequence[str], value: Value) -> Document:
    """The document with the value at a path, or without it for MISSING."""
    name, rest = names[0], names[1:]
    if not rest:
        if value is not MISSING:
            return {**document, name: value}
        return {key: item for key, item in document.items() if key != name}
    inner = document.get(name, MISSING)
    if type(inner) is not dict:
        if value is MISSING:
            return document
        inner = {}
    return {**document, name: set_path(inner, rest, value)}


def index_of(name: str, items: Sequence[object]) -> int | None:
    """The index that a name is for an array in queries and sort keys; None if it is none, or beyond the end."""
    if not name.isascii() or not name.isdigit() or (name[0] == "0" and len(name) > 1) or len(name) > _INDEX_DIGITS:
        return None
    return int(name) if int(name) < len(items) else None
