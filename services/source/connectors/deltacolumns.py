"""The columns of a Delta Lake table as its log tells them: their types, and the values of those that divide it.

(delta.io, PROTOCOL.md: Schema Serialization Format, Partition Value Serialization.)
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

_PLAIN: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),\s?(\d{1,2})\)")
_DEPTH_MAX: Final = 100
"""Levels of columns in each other, as of expressions: Arrow goes through types by calls of itself."""
_MAPPED: Final = ("delta.columnMapping.id", "delta.columnMapping.physicalName")


def columns_of(told: Any) -> pa.Schema:
    """The table's, by its `schemaString`'s JSON. ValueError, or what Python raises for wrong types, where it is damaged."""
    return pa.schema(_fields(told, 0))


def _fields(told: Any, depth: int) -> list[pa.Field]:
    found = []
    for each in told["fields"]:
        kind = _type(each["type"], depth + 1)
        about = {name: str(each["metadata"][name]) for name in _MAPPED if name in (each.get("metadata") or {})}
        found.append(pa.field(str(each["name"]), kind, bool(each["nullable"]), about or None))
    if len({field.name for field in found}) < len(found):
        raise ValueError(f"columns have the same name: {', '.join(sorted(field.name for field in found))}")
    return found


def _type(told: Any, depth: int) -> pa.DataType:
    if depth > _DEPTH_MAX:
        raise ValueError(f"columns lie in each other, more than {_DEPTH_MAX} deep")
    if isinstance(told, str):
        if told in _PLAIN:
            return _PLAIN[told]
        if found := _DECIMAL.fullmatch(told):
            return pa.decimal128(int(found[1]), int(found[2]))
        raise ValueError(f"a column has the type {told:.100}, which is not read here")
    match told["type"]:
        case "struct":
            return pa.struct(_fields(told, depth))
        case "array":
            return pa.list_(pa.field("element", _type(told["elementType"], depth + 1), bool(told["containsNull"])))
        case "map":
            key, value = _type(told["keyType"], depth + 1), _type(told["valueType"], depth + 1)
            return pa.map_(
                pa.field("key", key, nullable=False), pa.field("value", value, bool(told["valueContainsNull"]))
            )
    raise ValueError(f"a column has the type {told['type']!r:.100}, which is not read here")


def divided_by(columns: pa.Schema, names: Sequence[str], values: Mapping[str, str | None]) -> Mapping[str, pa.Scalar]:
    """What the columns that divide the table are in a file. `values`: by the names that files have. ValueError for one of another type."""
    found = {}
    for name in names:
        column = columns.field(name)
        stored = (column.metadata or {}).get(b"delta.columnMapping.physicalName", name.encode()).decode()
        found[name] = _value(values.get(stored), column)
    return found


def _value(text: str | None, column: pa.Field) -> pa.Scalar:
    """An empty text is null, too."""
    kind = column.type
    if not text:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind) and kind.tz is not None and not text.endswith("Z"):
            return (
                pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)
            )  # times without a zone are UTC
        return pa.scalar(text).cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"column {column.name} divides the table, and is {text!r:.100} in a file: {error}") from error
