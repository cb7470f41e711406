"""Wiring of an operator worker's process."""

import tempfile
from dataclasses import replace
from pathlib import Path

from services.operator.body import OperatorBody
from services.operator.connecting import table_of
from services.operator.deaths import Deaths
from services.operator.lookups import Lookups
from services.operator.rockskeys import Scratch
from services.operator.settings import OperatorSettings, operator_settings
from shared.language.documents import parse
from shared.model.ids import Place
from shared.operators.build import build_chain, build_operator
from shared.operators.cold_keys import Cooling
from shared.operators.specs import ComputeSpec, KeyBySpec
from shared.planning import LookupHead
from shared.process.allocator import arrow_on_heaps
from shared.process.connections import Connections
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings
from shared.runtime.body import TaskBody
from shared.runtime.context import TaskContext
from shared.runtime.worker import Worker


class OperatorService:
    """Builds operator tasks."""

    name = "operator"

    def __init__(
        self, connections: Connections, scratch: Scratch | None = None, settings: OperatorSettings | None = None
    ) -> None:
        """`scratch`: where keyed state lies that does not stay in memory; None: all of it does."""
        self._connections = connections
        self._settings = settings or OperatorSettings()
        self._scratch = scratch

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
        deaths, stores = None, None
        if any(isinstance(spec, ComputeSpec) for spec in specs):
            deaths = Deaths(outside.blobs, context.assign, outside.unique, outside.settings.deaths)
            await deaths.open()
            operators = replace(operators, guard=deaths)
            if self._scratch is not None:
                stores = self._scratch.stores()
                operators = replace(operators, cooling=Cooling(outside.settings.keys_in_memory, stores.make))
        return OperatorBody(context, build_chain(specs, operators), key_by, lookups, stores, deaths, self._settings)

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connections.close()


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service. ProcessSettingsError, SettingsError."""
    arrow_on_heaps()
    own = operator_settings(settings)
    outside = make_outside(settings)
    given = own.scratch
    scratch = Scratch(Path(given or tempfile.gettempdir()), settings.place, settings.runtime.keys_buffer_bytes)
    if given:
        scratch.sweep()
    return Worker(
        Place(settings.place),
        settings.incarnation,
        OperatorService(Connections(settings.place, settings.runtime.connections_max), scratch, own),
        outside,
    )
