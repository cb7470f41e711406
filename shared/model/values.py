"""The values a document is made of: BSON's types as cheap Python ones.

Rules:

- V1 A value is one of: `None`, `bool`, `int` (an int within 32 bits is MongoDB's int, any other is a long), `Long` (a long
  that would fit 32 bits), `float`, `Decimal` (at most 34 digits), `str`, `Date`, `ObjectId`, `Binary`, `Regex`, `Timestamp`,
  `MinKey`, `MaxKey`, `list` (array), `dict` (document, its fields in order, keys `str`).
- V2 Values are never changed in place: code that changes a document builds a new one that may share parts with the old.
- V3 `MISSING` is the value of an absent field; it never stands inside a list or a dict.
- V4 Types are told apart with `type(v) is …`, never with `isinstance` or `==`: `Date(5) == 5 == Long(5)` for Python.
  `tidemark.shared.language.values` has the comparison, equality and keys that MongoDB defines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple, Self, TypeAlias

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
"""A type of documents."""
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
"""A type of documents."""


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"

    def __bool__(self) -> bool:
        """A missing value is false."""
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""The value of a field path where there is no such field."""


class Long(int):
    """A 64-bit integer that keeps its type although 32 bits would do; build with `long`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Long({int(self)})"


def long(value: int) -> int:
    """A long (64 bits): `Long` within 32 bits, a plain int beyond, where the size alone tells (V1)."""
    return Long(value) if INT32_MIN <= value <= INT32_MAX else int(value)


class Date(int):
    """An instant: UTC, milliseconds since 1970, 64 bits."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Date({int(self)})"


UUID_SUBTYPE: Final = 4
"""BSON's, of a UUID."""
_UUID_BYTES: Final = 16
"""Part of the format of UUIDs."""


class Binary(bytes):
    """Bytes with BSON's subtype (0 generic, 4 UUID, …)."""

    subtype: int

    def __new__(cls, data: bytes, subtype: int = 0) -> Self:
        """Bytes of a subtype, 0 to 255."""
        self = super().__new__(cls, data)
        self.subtype = subtype
        return self

    @property
    def is_uuid(self) -> bool:
        """Whether it is a UUID's."""
        return self.subtype == UUID_SUBTYPE and len(self) == _UUID_BYTES

    def __repr__(self) -> str:
        return f"Binary({bytes(self)!r}, {self.subtype})"

    def __eq__(self, other: object) -> bool:
        return type(other) is Binary and self.subtype == other.subtype and bytes.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((self.subtype, bytes(self)))

    def __reduce__(self) -> tuple[type["Binary"], tuple[bytes, int]]:
        return Binary, (bytes(self), self.subtype)


@dataclass(frozen=True, slots=True)
class ObjectId:
    """BSON's object id: twelve bytes."""

    data: bytes

    def __post_init__(self) -> None:
        if len(self.data) != 12:  # noqa: PLR2004 - BSON's size
            raise ValueError(f"an ObjectId has 12 bytes, not {len(self.data)}")

    def __str__(self) -> str:
        """24 hex digits."""
        return self.data.hex()


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression as a value; options are letters of `imsxu`, sorted."""

    pattern: str
    options: str = ""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """BSON's timestamp: seconds since 1970 and a counter, 32 bits each."""

    seconds: int
    increment: int


class EndKey(Enum):
    """Below and above every other value."""

    MIN = "minKey"
    MAX = "maxKey"


MIN_KEY: Final = EndKey.MIN
MAX_KEY: Final = EndKey.MAX

Value: TypeAlias = Any
"""A value (V1) or MISSING. Spelled out in V1; to the type checker it is Any, as the language's own types are dynamic."""
Document: TypeAlias = dict[str, Any]
"""A document: field name to value, in order."""
ReadonlyDocument: TypeAlias = Mapping[str, Any]

__all__ = [
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "INT64_MIN",
    "MAX_KEY",
    "MIN_KEY",
    "MISSING",
    "Binary",
    "Date",
    "Decimal",
    "Document",
    "EndKey",
    "Long",
    "Missing",
    "ObjectId",
    "ReadonlyDocument",
    "Regex",
    "Timestamp",
    "Value",
    "long",
]


class Found(NamedTuple):
    """A document of a table. `place` tells it from all others of this table; documents stand in the order of places."""

    place: int
    document: Document
