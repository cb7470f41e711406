"""From a document's `$lookup` to the table that it asks."""

from tidemark.services.operator.tables.files import FileTable
from tidemark.services.operator.tables.held import HeldTable
from tidemark.services.operator.tables.plugin import PluggedTable
from tidemark.services.operator.tables.sql import SqlTable, engine_of
from tidemark.shared.adapters.sql import only_existing
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import InlineTable, Lookup, PluginTable
from tidemark.shared.plugins.installed import make_plugin
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.tables import Table, TableRefused
from tidemark.shared.process.connections import Connections, filesystem_at
from tidemark.shared.runtime.settings import LookupSettings


def table_of(
    connections: Connections,
    processor: Processor,
    stage: Lookup,
    settings: LookupSettings,
    executor: Executor,
    clock: Clock,
) -> Table:
    """The table, not yet asked. TableRefused for a connection of another type."""
    if isinstance(stage.from_, InlineTable):
        return HeldTable(stage.from_.documents)
    if isinstance(stage.from_, PluginTable):
        asked, given = stage.from_, connections.plugin_settings(processor, stage.from_)
        return PluggedTable(
            lambda: make_plugin("lookup", asked.plugin, asked.config, given),
            f"{asked.path}, plug-in {asked.plugin}",
            executor,
            settings,
        )
    connection = connections.get(processor, stage.from_.connection_name)
    if connection.type == "sql":
        options = dict(connection.settings.get("config", {}))
        engine = engine_of(str(connection.settings["url"]), options, settings.wait_ms_max)
        only_existing(engine)
        return SqlTable(engine, stage.from_.table, executor, settings)
    if connection.type == "mongodb":
        from tidemark.services.operator.tables.mongodb import CollectionTable  # noqa: PLC0415 - a driver that few need

        return CollectionTable.at(str(connection.settings["url"]), stage.from_.table, executor, settings)
    if connection.type != "files":
        expected = "expected sql, mongodb or files"
        raise TableRefused(
            f"{stage.path}.from: connection {connection.name!r} is of type {connection.type}; {expected}"
        )
    where = f"{stage.path}.from"
    place, config = connections.place_of(processor, connection.name, stage.from_.table, where)
    filesystem, path = filesystem_at(place, where, config)
    return FileTable(filesystem, path, executor, clock, settings)
