"""Wiring of an operator worker's process."""

import uuid

from services.operator.body import OperatorBody
from services.operator.connecting import table_of
from services.operator.lookups import Lookups
from shared.language.documents import parse
from shared.model.ids import Place, WorkerIncarnation
from shared.operators.build import build_chain, build_operator
from shared.operators.specs import KeyBySpec
from shared.planning import LookupHead
from shared.process.connections import Connections
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings
from shared.runtime.body import TaskBody
from shared.runtime.context import TaskContext
from shared.runtime.worker import Worker


class OperatorService:
    """Builds operator tasks."""

    name = "operator"

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def build(self, context: TaskContext) -> TaskBody:
        """The chain of the vertex; a leading KeyBy of a `copy` edge stands apart, as its rows are filtered behind it."""
        specs = context.vertex.chain
        outside, operators = context.outside, context.operators
        key_by = None
        if specs and isinstance(specs[0], KeyBySpec):
            key_by, specs = build_operator(specs[0], operators), specs[1:]
        lookups = None
        if isinstance(context.vertex.head, LookupHead):
            stage = context.vertex.head.stage
            table = table_of(self._connections, outside, parse(context.assign.plan.document), stage)
            lookups = Lookups(stage, table, outside.clock, outside.settings.lookup, operators)
        return OperatorBody(context, build_chain(specs, operators), key_by, lookups)

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connections.close()


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service."""
    outside = make_outside(settings)
    return Worker(
        Place(settings.place),
        WorkerIncarnation(uuid.uuid4().hex),
        OperatorService(Connections(settings.place)),
        outside,
    )
