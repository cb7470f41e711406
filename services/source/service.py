"""Wiring of a source worker's process: from the document's `$source` to a connector."""

from tidemark.services.source.body import SourceTaskBody
from tidemark.services.source.connecting import RealSources, SourceConnectors
from tidemark.services.source.connectors.plugin import PluginConnector
from tidemark.services.source.settings import SourceSettings, source_settings
from tidemark.services.source.steps import Steps, looks_at_time, rows_close, sets_clock
from tidemark.shared.compiled import compiling
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.expressions.ast import loops
from tidemark.shared.language.stages import DocumentsSource, ScriptSource, Source
from tidemark.shared.model.ids import Place
from tidemark.shared.operators.build import build_chain
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.outside import make_outside
from tidemark.shared.process.settings import ProcessSettings
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.waiting import waiting
from tidemark.shared.runtime.worker import Worker


class SourceService:
    """Builds source tasks."""

    name = "source"

    def __init__(self, connectors: SourceConnectors, settings: SourceSettings | None = None) -> None:
        self._connectors = connectors
        self._settings = settings or SourceSettings()

    async def build(self, context: AssignedTask) -> TaskBody:
        """Connector, front, and the stages fused behind it."""
        processor = context.processor
        front, *behind = context.vertex.chain
        if not isinstance(front, FrontSpec):
            message = f"{context.task}: expected the source's front first in the chain, found {type(front).__name__}"
            raise TypeError(message)
        stage = front.source
        operators = context.operators
        with waiting(context.waits, context.outside.clock, "connecting", "connecting", stage.path):
            source = await self._connectors.connect(context.outside, processor, stage)
        body = SourceTaskBody(
            context,
            source,
            SourceFront(front, operators),
            build_chain(tuple(behind), operators),
            stage.partition_idle_timeout_ms,
            _steps(context, processor, stage, self._connectors),
            bounded=await source.bounded() if isinstance(source, PluginConnector) else stage.bounded,
            settings=self._settings,
        )
        body.always_beside = loops(context.vertex.chain)
        return body

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connectors.close()


def _steps(context: AssignedTask, processor: Processor, stage: Source, connectors: SourceConnectors) -> Steps:
    """Steps are taken one by one where it matters; a clock that they set is seen everywhere after two ticks, for one may be under way."""
    given = isinstance(stage, DocumentsSource) and not stage.documents
    one_by_one = isinstance(stage, DocumentsSource | ScriptSource) and looks_at_time(processor, given=given)
    settle_ms = 2 * context.outside.settings.tick_interval_ms if sets_clock(stage) else 0
    return Steps(connectors.set_time, one_by_one, one_by_one and rows_close(processor), settle_ms)


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service. ProcessSettingsError, SettingsError."""
    own = source_settings(settings)
    compiling.load()
    service = SourceService(RealSources(Connections(settings.place, settings.runtime.connections_max), own), own)
    return Worker(Place(settings.place), settings.incarnation, service, make_outside(settings))
