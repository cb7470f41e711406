"""Wiring of a sink worker's process."""

from functools import partial

from tidemark.services.sink.body import SinkBody
from tidemark.services.sink.connecting import RealSinks, SinkConnectors
from tidemark.services.sink.settings import SinkSettings, sink_settings
from tidemark.shared.compiled import compiling
from tidemark.shared.model.ids import Place
from tidemark.shared.planning import DeadLetterHead
from tidemark.shared.process.allocator import arrow_on_heaps
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.outside import make_outside
from tidemark.shared.process.settings import ProcessSettings
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.worker import Worker


class SinkService:
    """Builds sink tasks."""

    name = "sink"

    def __init__(self, connectors: SinkConnectors, settings: SinkSettings | None = None) -> None:
        self._connectors = connectors
        self._settings = settings or SinkSettings()

    async def build(self, context: AssignedTask) -> TaskBody:
        """The body of a `$emit`, a `$merge` or the dead letter queue."""
        processor = context.processor
        head = context.vertex.head
        make = partial(self._connectors.make, context, processor, head)
        rejects = not isinstance(head, DeadLetterHead)
        return SinkBody(context, make, rejected_to_dlq=rejects, settings=self._settings)

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connectors.close()


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service."""
    arrow_on_heaps()
    compiling.load()
    sinks = sink_settings(settings)
    connections = Connections(settings.place, settings.runtime.connections_max)
    service = SinkService(RealSinks(connections, sinks), sinks)
    return Worker(Place(settings.place), settings.incarnation, service, make_outside(settings))
