"""A registry of schemas: numbers for schemas, which records carry in front of their bytes (Confluent's wire format).

A registry never gives a number to another schema, so answers may be kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from tidemark.shared.model.failures import Lasting, Outage
from tidemark.shared.model.schemas import SchemaReference

MAGIC: Final = 0
"""The first byte of a record of a registry's schema; four bytes with the schema's number follow, the highest first."""
HEADER_BYTES: Final = 5
"""Of the wire format: the magic byte and a number of 32 bits."""
SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]


class RegistryUnavailable(Outage):
    """The registry does not answer now; waiting may help."""


class RegistryDenied(Exception):
    """The registry refuses the client: a password, a right. Waiting does not mend it, but it is tried as often as any failure (C10)."""


class SchemaUnknown(Exception):
    """The registry does not have the schema."""


class SchemaRefused(Lasting):
    """The registry takes the schema for none, or for incompatible with those before it under the subject."""


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A schema as the registry has it."""

    type: SchemaType
    text: str
    references: tuple["KnownSchema", ...] = ()
    """Schemas that it refers to by name, those that they refer to in front of them."""
    name: str = ""
    """Under which another refers to it: of Protobuf the file that it imports."""


class SchemaRegistry(Protocol):
    """One registry. Errors: RegistryUnavailable, RegistryDenied, and those named."""

    async def schema(self, number: int) -> KnownSchema:
        """The schema that has a number; asked for once. SchemaUnknown."""
        ...

    async def referenced(self, references: Sequence[SchemaReference]) -> tuple[KnownSchema, ...]:
        """Schemas that a new one refers to, those that they refer to in front of them. SchemaUnknown, also of one that refers to itself."""
        ...

    async def number(
        self, subject: str, kind: SchemaType, text: str, references: Sequence[SchemaReference] = (), *, register: bool
    ) -> int:
        """The number of a schema under a subject; registered first if it is to be. The same answer each time.

        SchemaUnknown without `register`; SchemaRefused with it.
        """
        ...

    async def refused(
        self, subject: str, kind: SchemaType, text: str, references: Sequence[SchemaReference] = ()
    ) -> str:
        """Why the registry would refuse the schema under the subject; "" if it would take it, or has it."""
        ...


def header_of(number: int) -> bytes:
    """The bytes in front of a record of the schema with a number."""
    return bytes([MAGIC]) + number.to_bytes(HEADER_BYTES - 1, "big")
