"""From a `$source` of files to a connector: plain files, or the table that they are part of. Loads no other source's client."""

from typing import Final, Protocol

from tidemark.services.source.connectors.files import FileConnector, FileSourceSettings
from tidemark.services.source.connectors.tablefolders import TableFolders
from tidemark.services.source.connectors.tables import TableConnector
from tidemark.services.source.connectors.tableversions import TableRefused, TableVersions
from tidemark.services.source.settings import SourceSettings
from tidemark.shared.adapters.tablelibraries import delta_place
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import FileSource
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.process.connections import Connections

_DEFAULTS: Final = SourceSettings()


class Machine(Protocol):
    """The part of `Outside` that a source of files needs."""

    @property
    def executor(self) -> Executor:
        """For what blocks."""
        ...

    @property
    def clock(self) -> Clock:
        """Of waits."""
        ...


async def file_source(
    connections: Connections,
    outside: Machine,
    processor: Processor,
    stage: FileSource,
    bounds: SourceSettings = _DEFAULTS,
) -> FileConnector | TableConnector:
    """Files, below the folder of their connection if they have one; or the table that they are part of. WrongSetup, LogError."""
    versions = await table_of(connections, outside.executor, processor, stage)
    if versions is not None:
        return TableConnector(
            versions,
            outside.executor,
            outside.clock,
            ordered=stage.ordered,
            follow=stage.follow,
            poll_ms=bounds.file_poll_ms,
        )
    filesystem, glob = connections.files_of(processor, stage)
    assert stage.format != "iceberg"
    settings = FileSourceSettings(
        glob=glob,
        format=stage.format,
        ordered=stage.ordered,
        follow=stage.follow,
        types={field.name: field.type for field in stage.schema.fields},
        files_max=bounds.files_max,
        poll_ms=bounds.file_poll_ms,
        record_bytes_max=processor.options.limits.record_bytes_max,
    )
    return FileConnector(settings, filesystem, outside.executor, outside.clock)


async def table_of(
    connections: Connections, executor: Executor, processor: Processor, stage: FileSource
) -> TableVersions | None:
    """The table that a source of files names; None: plain files. WrongSetup, LogError."""
    if stage.format == "iceberg":
        from tidemark.services.source.connectors.icebergtable import IcebergVersions  # noqa: PLC0415 - as below

        name, catalog, check = connections.catalog_of(processor, stage)
        return IcebergVersions(name, catalog, check)
    if stage.format != "parquet":
        return None
    filesystem, glob = connections.files_of(processor, stage)
    folder = await executor.blocking(TableFolders(filesystem, glob).delta_table)
    if folder is None:
        return None
    from tidemark.services.source.connectors.deltatable import DeltaVersions  # noqa: PLC0415 - a library that few need

    place = delta_place(filesystem, folder)
    if place is None:
        raise TableRefused(
            f"{stage.path}.path: {folder} is a Delta Lake table, and one is read in a directory or on S3"
        )
    return DeltaVersions(filesystem, folder, *place)
