"""Wiring of a source worker's process: from the document's `$source` to a connector."""

import uuid

from services.source.body import SourceTaskBody
from services.source.connectors.kafka import KafkaSource, KafkaSourceSettings
from shared.adapters.kafka_raw import RawReader
from shared.language.documents import Processor, parse
from shared.language.stages import KafkaSource as KafkaStage
from shared.language.stages import Source as SourceStage
from shared.model.ids import Place, WorkerIncarnation
from shared.operators.build import build_chain
from shared.operators.context import TaskContext as OperatorContext
from shared.operators.source_front import SourceFront
from shared.operators.specs import FrontSpec
from shared.ports.source import Source
from shared.process.connections import Connections
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings
from shared.runtime.body import TaskBody
from shared.runtime.context import TaskContext
from shared.runtime.worker import Worker


class SourceService:
    """Builds source tasks."""

    name = "source"

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def build(self, context: TaskContext) -> TaskBody:
        """Connector, front, and what is fused behind it."""
        processor = parse(context.assign.plan.document)
        front, *behind = context.vertex.chain
        if not isinstance(front, FrontSpec):
            message = f"{context.task}: expected the source's front first in the chain, found {type(front).__name__}"
            raise TypeError(message)
        stage = front.source
        topics = stage.topics if isinstance(stage, KafkaStage) else ()
        operators = OperatorContext(processor=context.assign.name, topic=topics[0] if len(topics) == 1 else None)
        source = await self._source(context, processor, stage)
        return SourceTaskBody(
            context,
            source,
            SourceFront(front, operators),
            build_chain(tuple(behind), operators),
            stage.partition_idle_timeout_ms,
        )

    async def _source(self, context: TaskContext, processor: Processor, stage: SourceStage) -> Source:
        match stage:
            case KafkaStage():
                connection = self._connections.get(processor, stage.connection_name)
                reader = RawReader(self._connections.kafka_settings(connection))
                await reader.start()
                settings = KafkaSourceSettings(topics=stage.topics, start_at=stage.start_at, until=stage.until)
                return KafkaSource(settings, self._connections.log(connection), reader, context.outside.clock)
        message = f"{stage.path}: no connector for {type(stage).__name__}"
        raise TypeError(message)

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connections.close()


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service."""
    service = SourceService(Connections(settings.place))
    return Worker(Place(settings.place), WorkerIncarnation(uuid.uuid4().hex), service, make_outside(settings))
