"""Documents as outputs have them: relaxed or canonical extended JSON, or basic JSON, in which no value is an object of its type."""

import base64
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from tidemark.shared.language.values.extended_json import to_json
from tidemark.shared.language.values.instants import format_iso
from tidemark.shared.model.values import Binary, Date, EndKey, Long, ObjectId, Regex, Timestamp, Value

_SECOND_BITS: Final = 32


def _binary(value: Binary) -> str:
    if value.is_uuid:
        return str(uuid.UUID(bytes=bytes(value)))
    return base64.b64encode(value).decode()


def _double(value: float) -> Any:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_BASIC: Final[dict[type, Callable[[Any], Any]]] = {
    float: _double,
    Date: int,
    Long: int,
    Decimal: str,
    ObjectId: str,
    Binary: _binary,
    Regex: lambda v: {"pattern": v.pattern, "options": v.options},
    Timestamp: lambda v: v.seconds << _SECOND_BITS | v.increment,
    EndKey: to_json,
}


def written(document: Value, output_format: str = "relaxedJson", date_format: str = "default") -> bytes:
    """The UTF-8 text of a value on one line, as `outputFormat` and `dateFormat` say.

    basicJson: dates as ms since 1970, decimals, ids, binary data (base64; UUIDs by their own form) and what is not finite as text, longs as
    numbers. ISO8601: dates as text, in any of the formats; those that ISO cannot say as without it.
    """
    if date_format == "default" and output_format != "basicJson":
        return msgspec.json.encode(to_json(document, canonical=output_format == "canonicalJson"))
    return msgspec.json.encode(_tree(document, output_format, iso=date_format == "ISO8601"))


def _tree(value: Any, output_format: str, *, iso: bool) -> Any:
    kind = type(value)
    if kind is dict:
        return {name: _tree(item, output_format, iso=iso) for name, item in value.items()}
    if kind is list:
        return [_tree(item, output_format, iso=iso) for item in value]
    if kind is Date and iso and (text := format_iso(value)) is not None:
        return text
    if output_format == "basicJson" and (basic := _BASIC.get(kind)) is not None:
        return basic(value)
    return to_json(value, canonical=output_format == "canonicalJson")
