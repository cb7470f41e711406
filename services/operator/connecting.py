"""From a document's `$lookup` to the table that it asks."""

from tidemark.services.operator.tables.files import FileTable
from tidemark.services.operator.tables.held import HeldTable
from tidemark.services.operator.tables.sql import SqlTable, engine_of
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import InlineTable, Lookup
from tidemark.shared.ports.tables import Table, TableRefused
from tidemark.shared.process.connections import Connections, filesystem_at
from tidemark.shared.runtime.context import Outside


def table_of(connections: Connections, outside: Outside, processor: Processor, stage: Lookup) -> Table:
    """The table, not yet asked. TableRefused for a connection of another type."""
    settings = outside.settings.lookup
    if isinstance(stage.from_, InlineTable):
        return HeldTable(stage.from_.documents)
    connection = connections.get(processor, stage.from_.connection_name)
    config = dict(connection.settings.get("config", {}))
    if connection.type == "sql":
        engine = engine_of(str(connection.settings["url"]), config, settings.wait_ms_max)
        return SqlTable(engine, stage.from_.table, outside.executor, settings)
    if connection.type != "files":
        raise TableRefused(
            f"{stage.path}.from: connection {connection.name!r} is of type {connection.type}; expected sql or files"
        )
    root = str(connection.settings["path"]).rstrip("/")
    filesystem, path = filesystem_at(f"{root}/{stage.from_.table}", f"{stage.path}.from", config)
    return FileTable(filesystem, path, outside.executor, outside.clock, settings)
