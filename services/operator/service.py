"""Wiring of an operator worker's process."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from tidemark.services.operator import child
from tidemark.services.operator.apart import Computations
from tidemark.services.operator.body import Enrichment, OperatorBody
from tidemark.services.operator.connecting import table_of
from tidemark.services.operator.deaths import Deaths
from tidemark.services.operator.lookups import Lookups
from tidemark.services.operator.requests import Requests
from tidemark.services.operator.rockskeys import Scratch
from tidemark.services.operator.settings import OperatorSettings, operator_settings
from tidemark.services.operator.shelved import shelved
from tidemark.services.operator.users import UsersCode
from tidemark.shared.adapters.children import ForkedChildren
from tidemark.shared.compiled import compiling
from tidemark.shared.language.expressions.ast import loops
from tidemark.shared.language.stages import Https, Lookup
from tidemark.shared.model.ids import Place
from tidemark.shared.model.plan import Vertex
from tidemark.shared.operators.build import build_chain, build_operator
from tidemark.shared.operators.computation_keys import Cooling
from tidemark.shared.operators.context import Shelve
from tidemark.shared.operators.specs import ComputeSpec
from tidemark.shared.planning import LookupHead
from tidemark.shared.ports.children import Children
from tidemark.shared.ports.tables import Table
from tidemark.shared.process.allocator import arrow_on_heaps
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.host import allow_pandas
from tidemark.shared.process.outside import make_outside
from tidemark.shared.process.settings import ProcessSettings
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.requests import Asking
from tidemark.shared.runtime.worker import Worker


class OperatorService:
    """Builds operator tasks."""

    name = "operator"

    def __init__(
        self,
        connections: Connections,
        scratch: Scratch | None = None,
        settings: OperatorSettings | None = None,
        children: Children | None = None,
        shelve: Shelve | None = None,
    ) -> None:
        """`scratch`: where keyed state lies that does not stay in memory; None: all of it does.

        `children`: where computations run; None: in this process. `shelve`: see `operators.context.TaskContext`; None: files in `scratch`.
        """
        self._connections = connections
        self._children = children
        self._settings = settings or OperatorSettings()
        self._scratch = scratch
        self._shelve = partial(shelved, scratch.root) if shelve is None and scratch is not None else shelve

    async def build(self, context: AssignedTask) -> TaskBody:
        """The chain of the vertex; the KeyBy behind a `copy` edge stands apart, as its rows are filtered behind it."""
        specs = context.vertex.chain
        outside, operators = context.outside, context.operators
        key_by = None
        # Elsewhere a KeyBy that comes first is the sender's half of the next shuffle: all of its rows go on.
        if any(edge.partitioning == "copy" for edge in context.plan.inputs_of(context.vertex.id)):
            key_by, specs = build_operator(specs[0], operators), specs[1:]
        lookups = self._enrichment(context)
        operators = replace(operators, shelve=self._shelve)
        users = UsersCode()
        if any(isinstance(spec, ComputeSpec) for spec in specs):
            users = await self._users(context)
        try:
            chain = await outside.executor.blocking(build_chain, specs, users.known_to(operators))
        except BaseException:
            await users.close(outside.executor, idle=True)
            raise
        return OperatorBody(context, chain, key_by, lookups, users, _bounds(context.vertex, self._settings))

    def _enrichment(self, context: AssignedTask) -> Enrichment | None:
        if not isinstance(context.vertex.head, LookupHead):
            return None
        stage, processor, outside = context.vertex.head.stage, context.processor, context.outside
        settings, operators = outside.settings.lookup, context.operators
        if isinstance(stage, Https):
            connection, job = self._connections.get(processor, stage.connection_name), context.assign.job
            client = self._connections.http()
            asking = Asking(stage, connection, client, outside.clock, outside.executor, settings, context.waits)
            return Requests(stage, asking, operators, job)

        def table(of: Lookup) -> Table:
            return table_of(self._connections, processor, of, settings, outside.executor, outside.clock)

        return Lookups(stage, table, outside.clock, settings, operators, context.waits)

    async def _users(self, context: AssignedTask) -> UsersCode:
        """The environment of users' code in this task. Where one of its processes has died, the code runs apart whatever is set."""
        outside = context.outside
        deaths = Deaths(outside.blobs, context.assign, outside.unique, outside.settings.deaths)
        await deaths.open()
        if self._children is not None and self._scratch is not None and (self._settings.apart or deaths.watching):
            apart = Computations(self._children, deaths, self._scratch, self._settings, outside.settings)
            return UsersCode(deaths, apart=apart)
        if self._scratch is None:
            return UsersCode(deaths)
        stores = self._scratch.stores()
        return UsersCode(deaths, stores, Cooling(outside.settings.keys_in_memory, stores.make))

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        await self._connections.close()


def _bounds(vertex: Vertex, settings: OperatorSettings) -> OperatorSettings:
    """Of a vertex's tasks: where an expression goes through items a row may take seconds, so each is worked on beside the loop."""
    return replace(settings, beside_rows=1) if loops((vertex.head, vertex.chain)) else settings


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service. ProcessSettingsError, SettingsError."""
    arrow_on_heaps()
    compiling.load()
    own = operator_settings(settings)
    if not own.apart:
        allow_pandas()
    outside = make_outside(settings)
    given = own.scratch
    scratch = Scratch(Path(given or tempfile.gettempdir()), settings.place, settings.runtime.keys_buffer_bytes)
    if given:
        scratch.sweep()
    children = ForkedChildren(child.work, [child.__name__], memory_bytes_max=own.memory_bytes_max)
    connections = Connections(settings.place, settings.runtime.connections_max)
    service = OperatorService(connections, scratch, own, children)
    return Worker(Place(settings.place), settings.incarnation, service, outside)
