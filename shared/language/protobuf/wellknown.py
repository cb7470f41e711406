"""Messages that stand for one value."""

from typing import Final

TIMESTAMP_NAME: Final = "google.protobuf.Timestamp"
DECIMAL_NAME: Final = "confluent.type.Decimal"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""A value, or none."""
