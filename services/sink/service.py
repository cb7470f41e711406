"""Wiring of a sink worker's process: from the document's stage to a connector."""

import uuid
from functools import partial
from pathlib import Path
from urllib.parse import urlparse

import fsspec

from services.sink.body import SinkBody
from services.sink.connectors.destination import Destination, LocalDestination
from services.sink.connectors.filerows import Encoding
from services.sink.connectors.files import FileSink
from services.sink.connectors.kafka import KafkaSink
from services.sink.connectors.objects import ObjectDestination
from services.sink.connectors.staging import PartStore
from shared.language.documents import FileDlq, KafkaDlq, Processor, parse
from shared.language.expressions.ast import Literal
from shared.language.stages import FileEmit, KafkaEmit, Sink
from shared.model.ids import Epoch, Place, VertexId, WorkerIncarnation
from shared.planning import DeadLetterHead, WriteHead
from shared.ports.sink import Sink as SinkPort
from shared.process.connections import Connections
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings
from shared.runtime.body import TaskBody
from shared.runtime.context import TaskContext
from shared.runtime.exchange import blob_name
from shared.runtime.worker import Worker


class SinkService:
    """Builds sink tasks."""

    name = "sink"

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def build(self, context: TaskContext) -> TaskBody:
        """The body of a `$emit`, a `$merge` or the dead letter queue."""
        processor = parse(context.assign.plan.document)
        head = context.vertex.head
        stage = _queue_stage(head) if isinstance(head, DeadLetterHead) else head.stage
        make = partial(self._make, context, processor, stage)
        rejects = processor.options.dlq is not None and isinstance(head, WriteHead)
        return SinkBody(context, make, rejected_to_dlq=rejects)

    def _make(self, context: TaskContext, processor: Processor, stage: Sink, vertex: VertexId, index: int) -> SinkPort:
        match stage:
            case KafkaEmit():
                connection = self._connections.get(processor, stage.connection_name)
                return KafkaSink(stage, self._connections.log(connection), _parts(context, vertex, index))
            case FileEmit():
                return self._files(context, processor, stage)
        message = f"{stage.path}: no sink for {type(stage).__name__}"
        raise TypeError(message)

    def _files(self, context: TaskContext, processor: Processor, stage: FileEmit) -> SinkPort:
        outside = context.outside
        attempt = outside.unique()
        encoding = Encoding(stage.format, stage.partition_by, stage.write_options)
        return FileSink(self._destination(processor, stage, attempt), encoding, attempt, outside.executor)

    def _destination(self, processor: Processor, stage: FileEmit, attempt: str) -> Destination:
        root = ""
        if stage.connection_name is not None:
            root = str(self._connections.get(processor, stage.connection_name).settings["path"])
        place = f"{root.rstrip('/')}/{stage.file_path}" if root else stage.file_path
        if urlparse(place).scheme in ("", "file"):
            return LocalDestination(Path(place.removeprefix("file://")), attempt)
        filesystem, path = fsspec.url_to_fs(place)
        return ObjectDestination(filesystem, path)

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connections.close()


def _queue_stage(head: DeadLetterHead) -> Sink:
    """The dead letter queue as an `$emit`."""
    queue = head.queue
    if isinstance(queue, KafkaDlq):
        return KafkaEmit(path="options.dlq", connection_name=queue.connection_name, topic=Literal(queue.topic))
    if isinstance(queue, FileDlq):
        return FileEmit(
            path="options.dlq", file_path=queue.file_path, format="json", connection_name=queue.connection_name
        )
    message = f"options.dlq: no sink for {type(queue).__name__}"
    raise TypeError(message)


def _parts(context: TaskContext, vertex: VertexId, index: int) -> PartStore:
    assign, outside = context.assign, context.outside

    def name_of(epoch: Epoch) -> str:
        return blob_name(assign.job, vertex, assign.generation, epoch, f"{index}-{outside.unique()}")

    return PartStore(outside.blobs, name_of)


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service."""
    service = SinkService(Connections(settings.place))
    return Worker(Place(settings.place), WorkerIncarnation(uuid.uuid4().hex), service, make_outside(settings))
