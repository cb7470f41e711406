"""Forms of records in topics other than JSON: schemas that a registry knows, MessagePack, and formats of other packages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemark.shared.model.schemas import SchemaReference
from tidemark.shared.model.values import Document

SubjectStrategy = Literal["TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"]


PluginKind = Literal["source", "sink", "format", "lookup"]


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plug-in that a document names, and where."""

    kind: PluginKind | Literal["computation"]
    plugin: str
    config: Mapping[str, Any]
    path: str
    connection_name: str | None = None


@dataclass(frozen=True, slots=True)
class PluginFormat:
    """A format of another package, by its name there; or one of Tidemark's own with the interface of these."""

    path: str
    plugin: str
    config: Document = field(default_factory=dict)
    own: bool = False


def plugin_uses_of(*forms: PluginFormat | None) -> Iterator[PluginUse]:
    """Those of other packages, as all plug-ins of a document are told."""
    return (PluginUse("format", f.plugin, f.config, f.path) for f in forms if f is not None and not f.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema that records are written by, and how a registry knows it."""

    type: Literal["avro", "json", "protobuf"]
    text: str
    """Its JSON; of Protobuf its own text."""
    name: str
    """The full name of an Avro record, or of the message; the title of a JSON Schema; "" if it has none, or for the first message."""
    auto_register_schemas: bool = True
    subject_name_strategy: SubjectStrategy = "TopicNameStrategy"
    references: tuple[SchemaReference, ...] = ()
    """The registry's schemas that a schema of Protobuf imports."""

    def subject(self, topic: str, part: Literal["key", "value"]) -> str:
        """Under which the registry has the schema."""
        match self.subject_name_strategy:
            case "TopicNameStrategy":
                return f"{topic}-{part}"
            case "RecordNameStrategy":
                return self.name
            case "TopicRecordNameStrategy":
                return f"{topic}-{self.name}"
