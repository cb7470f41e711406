"""From a `$source` of files to a connector: plain files, or the table that they are part of. Loads no other source's client."""

from typing import Any, Final, Protocol

from tidemark.services.source.connectors.files import FileConnector, FileSourceSettings
from tidemark.services.source.connectors.tablefolders import TableFolders, is_pattern
from tidemark.services.source.connectors.tables import TableConnector
from tidemark.services.source.connectors.tableversions import TableVersions
from tidemark.services.source.settings import SourceSettings
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import FileSource
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.process.connections import Connections

_DEFAULTS: Final = SourceSettings()


class NothingYet(LogUnavailable):
    """What is to be followed is not there: a file, or another job's table, which may come. Until then nobody knows which."""


class Machine(Protocol):
    """The part of `Outside` that a source of files needs."""

    @property
    def executor(self) -> Executor:
        """The executor of what blocks."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that waits go by."""
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
    if stage.follow:
        await outside.executor.blocking(_check_there, stage, filesystem, glob)
    settings = FileSourceSettings(
        glob=glob,
        format=stage.format,
        place=stage.path,
        ordered=stage.ordered,
        follow=stage.follow,
        types={field.name: field.type for field in stage.schema.fields},
        files_max=bounds.files_max,
        poll_ms=bounds.file_poll_ms,
        record_bytes_max=processor.options.limits.record_bytes_max,
    )
    may_read = connections.check_file_at(stage.path)
    return FileConnector(settings, filesystem, outside.executor, outside.clock, may_read)


def _check_there(stage: FileSource, filesystem: Any, glob: str) -> None:
    """A path without a pattern names a file. LogUnavailable where a folder is there, or nothing yet that says whether it is a table."""
    if is_pattern(glob):
        return
    tables = stage.format == "parquet"
    try:
        filesystem.invalidate_cache()
        kind = "folder" if filesystem.isdir(glob) else "file" if filesystem.exists(glob) else "nothing"
    except unreachable() as error:
        raise LogUnavailable(f"{stage.path}.path {glob}: {error}; it is tried again") from error
    expected = f"{stage.path}.path: expected a file{' or a Delta Lake table' if tables else ''} at {glob}"
    if kind == "folder":
        raise LogUnavailable(
            f"{expected}, found a folder: for the files in it give {glob.rstrip('/')}/*; it is looked for again"
        )
    if kind == "nothing" and tables:
        raise NothingYet(f"{expected}, found nothing; it is looked for again")


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
    from tidemark.services.source.connectors.deltatable import DeltaVersions  # noqa: PLC0415 - Arrow's readers, which few need

    return DeltaVersions(filesystem, folder, connections.check_at(stage.path))
