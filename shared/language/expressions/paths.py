"""Field paths of aggregation expressions: they go through arrays, and names of digits are no indexes."""

from collections.abc import Sequence
from typing import Any

from shared.model.values import MISSING, Value


def read_path(value: Value, names: Sequence[str]) -> Value:
    """The value at a path; on an array, the array of what its documents have there (documents without it are passed over)."""
    for i, name in enumerate(names):
        if type(value) is dict:
            value = value.get(name, MISSING)
            if value is MISSING:
                return MISSING
        elif type(value) is list:
            rest = names[i:]
            found: list[Any] = []
            for item in value:
                if type(item) is dict and (inner := read_path(item, rest)) is not MISSING:
                    found.append(inner)
            return found
        else:
            return MISSING
    return value
