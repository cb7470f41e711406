"""Checks of the things outside that a document names, made where this process sees the same as tasks: topics of sources, and schemas."""

from dataclasses import replace
from typing import Final

from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.documents import Processor, all_stages
from tidemark.shared.language.problems import DocumentError, join
from tidemark.shared.language.redaction import redacted_line
from tidemark.shared.language.stages import Connection, KafkaEmit, KafkaSource
from tidemark.shared.ports.log import LogError
from tidemark.shared.ports.registry import RegistryDenied, RegistryUnavailable
from tidemark.shared.ports.setup import WrongSetup
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.registered import refused_schemas

ANSWER_MS_MAX: Final = 3_000
"""For a cluster to answer whether topics are there."""


async def refused_outside(processor: Processor, connections: Connections) -> list[DocumentError]:
    """What can never run: missing topics, and schemas that a registry refuses."""
    return [*await missing_topics(processor, connections), *await refused_by_registries(processor, connections)]


async def refused_by_registries(processor: Processor, connections: Connections) -> list[DocumentError]:
    """Schemas of `$emit` that their registry would not take. A registry that is away may come back: it is no error."""
    errors: list[DocumentError] = []
    for stage in all_stages(processor.pipeline):
        if not isinstance(stage, KafkaEmit) or stage.registry is None or stage.registry not in processor.connections:
            continue
        try:
            registry = connections.registry(connections.get(processor, stage.registry))
            found = await refused_schemas(stage, registry)
        except (WrongSetup, RegistryDenied) as error:
            errors.append(DocumentError(stage.path, redacted_line(str(error))))
        except RegistryUnavailable:
            continue
        else:
            errors += [DocumentError(stage.path, redacted_line(why)) for why in found]
    return errors


async def missing_topics(processor: Processor, connections: Connections) -> list[DocumentError]:
    """Sources whose topics are not there, or that a document may not reach. A cluster that is away may come back: it is no error."""
    errors: list[DocumentError] = []
    for stage in all_stages(processor.pipeline):
        if not isinstance(stage, KafkaSource) or stage.connection_name not in processor.connections:
            continue
        try:
            connection = connections.get(processor, stage.connection_name)
            found = await connections.log(connection).describe_topics(stage.topics)
        except WrongSetup as error:
            errors.append(DocumentError(stage.path, redacted_line(str(error))))
        except LogError:
            continue
        else:
            cluster = connections.kafka_settings(connection).bootstrap
            errors += [
                DocumentError(join(stage.path, "topic"), f"the topic {topic} is not in the cluster {cluster}")
                for topic in stage.topics
                if topic not in found
            ]
    return errors


class Briefly(Connections):
    """Connections for a single question, which does not wait for a cluster that is away."""

    def kafka_settings(self, connection: Connection) -> KafkaSettings:
        """See `Connections`."""
        return replace(super().kafka_settings(connection), request_timeout_ms=ANSWER_MS_MAX)
