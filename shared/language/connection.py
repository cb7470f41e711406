"""Connections, as documents and the registry name them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemark.shared.model.values import Value


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection by name: its type and settings, `${NAME}` references not yet replaced (`documents.connections.resolve`)."""

    name: str
    type: Literal["kafka", "files", "sql", "mongodb", "gateway", "sample", "schemaRegistry", "https", "plugin"]
    settings: Mapping[str, Value] = field(default_factory=dict, repr=False)
