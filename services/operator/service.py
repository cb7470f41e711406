"""Wiring of an operator worker's process."""

import uuid

from services.operator.body import OperatorBody
from shared.model.ids import Place, WorkerIncarnation
from shared.operators.build import build_chain, build_operator
from shared.operators.specs import KeyBySpec
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings
from shared.runtime.body import TaskBody
from shared.runtime.context import TaskContext
from shared.runtime.worker import Worker


class OperatorService:
    """Builds operator tasks."""

    name = "operator"

    async def build(self, context: TaskContext) -> TaskBody:
        """The chain of the vertex; a leading KeyBy of a `copy` edge stands apart, as its rows are filtered behind it."""
        specs = context.vertex.chain
        operators = context.operators
        key_by = None
        if specs and isinstance(specs[0], KeyBySpec):
            key_by, specs = build_operator(specs[0], operators), specs[1:]
        return OperatorBody(context, build_chain(specs, operators), key_by)

    async def close(self) -> None:
        """Tasks share nothing."""


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service."""
    outside = make_outside(settings)
    return Worker(Place(settings.place), WorkerIncarnation(uuid.uuid4().hex), OperatorService(), outside)
