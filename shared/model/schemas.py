"""References between the schemas of a registry."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """Another schema that a schema needs."""

    name: str
    """Under which it is referred to: of Protobuf the file that is imported."""
    subject: str
    version: int
