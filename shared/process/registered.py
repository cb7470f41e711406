"""Whether a schema registry would take the schemas of a document, looked at before anything starts."""

from collections.abc import Sequence
from typing import Final, Literal

from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.forms import RegisteredSchema
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.ports.registry import SchemaRegistry, SchemaType, SchemaUnknown

SCHEMA_TYPES: Final[dict[str, SchemaType]] = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
"""As the registry calls the types of a document."""


async def refused_schemas(stage: KafkaEmit, registry: SchemaRegistry) -> Sequence[str]:
    """Why records could not be written; nothing is registered. RegistryUnavailable, RegistryDenied."""
    topic = stage.topic.value if isinstance(stage.topic, Constant) else None
    schemas: tuple[tuple[Literal["value", "key"], RegisteredSchema | None], ...] = (
        ("value", stage.value_schema),
        ("key", stage.key_schema),
    )
    found = []
    for part, schema in schemas:
        if schema is None or (topic is None and schema.subject_name_strategy != "RecordNameStrategy"):
            continue
        subject, kind = schema.subject(str(topic), part), SCHEMA_TYPES[schema.type]
        if schema.auto_register_schemas:
            why = await registry.refused(subject, kind, schema.text, schema.references)
        else:
            why = await _unknown(registry, subject, kind, schema)
        if why:
            found.append(f"schemaRegistry.{part}Schema: {why}")
    return found


async def _unknown(registry: SchemaRegistry, subject: str, kind: SchemaType, schema: RegisteredSchema) -> str:
    try:
        await registry.number(subject, kind, schema.text, schema.references, register=False)
    except SchemaUnknown as error:
        return f"{error}; register it, or set autoRegisterSchemas"
    return ""
