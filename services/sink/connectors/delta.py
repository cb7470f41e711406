"""Delta Lake tables (`tablereleases`): the marker of an identity is the version of its `txn` action."""

import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction

from tidemark.services.sink.connectors.manifests import Manifest
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.services.sink.connectors.tablereleases import COMPACTED, TOLD, CommitConflict, TableReleases, app_of, told
from tidemark.shared.adapters.deltalog import DeltaLog, NotWhole, entry_name
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.adapters.tablebytes import DAMAGED, Outside
from tidemark.shared.ports.sink import TargetRefused

LOG: Final = "_delta_log"
LOG_KEPT: Final = "interval 2 hours"
"""For how long a table that the sink makes keeps entries of its log in front of a checkpoint: the library lists all at each commit."""


_MAPPING: Final = "delta.columnMapping.mode"
_KEPT: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features of a table that ask nothing of one who appends, or that `_check` finds in use."""
_COMPUTED: Final = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
"""What a column's metadata says where a writer has to compute or check its values."""

_TRACE: Final = "\n   0: "
"""Where the library's trace begins, in the text of an error."""
_DAMAGE: Final = "Kernel error: "
_GONE: Final = "not found"
"""How the library tells of what it does not understand, and of a file that others may have taken away meanwhile. A store that does not
answer is an OSError."""

_OWN_FILE: Final = re.compile(r"-\d{20}-[^/]+\.parquet$")
"""The end of the name of a file of the sink (`visible_name`)."""


class DeltaReleases(TableReleases[DeltaTable]):
    """`Releases` into the Delta table at a destination. Functions block."""

    log = LOG
    _readable: frozenset[str] = frozenset()
    """Files of other programs that the library puts together right."""
    _placed: frozenset[str] = frozenset()
    """Checkpoints whose parts all are in the table's folder."""

    def _open(self) -> DeltaTable | None:
        self._check_places()
        uri, options = self._destination.table()
        try:
            return DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            return None

    def _update(self, table: DeltaTable) -> DeltaTable | None:
        if self._destination.size(f"{LOG}/{table.version():020d}.json") is None:
            # The log was cut behind this version, or others made the table anew: a commit would leave a gap in its log.
            return self._open()
        self._check_places()
        table.update_incremental()
        return table

    def _check_places(self) -> None:
        """TargetRefused where a checkpoint has parts out of the table's folder: the library reads them, wherever they are.

        One that it does not read may be damaged: what is behind it suffices.
        """
        log = DeltaLog(self._destination.folder(), as_library=True)
        placed = set[str]()
        with self._as_damage():
            first = log.first_read()
            for name in log.checkpoints():
                try:
                    if name not in self._placed:
                        log.sidecars(name)
                    placed.add(name)
                except FileNotFoundError:
                    continue  # its writer has let go of it
                except DAMAGED as error:
                    if isinstance(error, Outside) or name in first:
                        raise
        self._placed = frozenset(placed)

    @contextmanager
    def _as_damage(self) -> Iterator[None]:
        """What our own reading of a log says of one that is wrong."""
        try:
            yield
        except Outside as error:
            raise TargetRefused(
                f"{self._place}: the table names {error}, which is out of its folder; let its owner copy it (a deep clone)"
            ) from error
        except (NotWhole, FileNotFoundError, *DAMAGED) as error:
            raise TargetRefused(
                f"{self._place}: the Delta table is damaged: {error!r:.1000}; mend or replace it"
            ) from error

    def _check(self, table: DeltaTable) -> None:
        metadata = table.metadata()
        if list(metadata.partition_columns) != list(self._partition_by):
            raise TargetRefused(
                f"{self._place}: the table is divided by {metadata.partition_columns or 'no column'}, and partitionBy of $emit"
                f" says {list(self._partition_by) or 'none'}; make them the same"
            )
        if unknown := sorted(set(table.protocol().writer_features or ()) - _KEPT):
            raise self._asks_more(f"has features that the sink does not keep right: {', '.join(unknown)}")
        if (mapping := metadata.configuration.get(_MAPPING, "none")) != "none":
            raise self._asks_more(f"has columns of other names in files ({_MAPPING}: {mapping})")
        for column in table.schema().fields:
            if computed := sorted(set(_COMPUTED) & column.metadata.keys()):
                raise self._asks_more(
                    f"has values to compute or check of its column {column.name} ({', '.join(computed)})"
                )
        if demanded := sorted(name for name in metadata.configuration if name.startswith("delta.constraints.")):
            raise TargetRefused(
                f"{self._place}: the table has the constraint {demanded[0].removeprefix('delta.constraints.')}, which the sink"
                " does not check; drop it, and let a $validate in the pipeline hold it"
            )

    def _asks_more(self, what: str) -> TargetRefused:
        return TargetRefused(
            f"{self._place}: the Delta table {what}: rows of the sink would be wrong there. Take that from the table (ALTER TABLE … DROP"
            " FEATURE, or another table for the rows), and let its owner take rows over from a table of their own"
        )

    def _create(self, schema: pa.Schema) -> None:
        uri, options = self._destination.table()
        try:
            DeltaTable.create(
                uri,
                schema=schema,
                mode="ignore",
                partition_by=[*self._partition_by] or None,
                configuration={"delta.logRetentionDuration": LOG_KEPT},
                storage_options=options,
            )
        except (CommitFailedError, SchemaMismatchError):
            # Another task was faster: its decision counts.
            return

    def _schema(self, table: DeltaTable) -> pa.Schema:
        return pa.schema(table.schema())

    def _add_columns(self, table: DeltaTable, schema: pa.Schema) -> None:
        try:
            table.alter.add_columns(deltalake.Schema.from_arrow(schema).fields)
        except (CommitFailedError, SchemaMismatchError) as error:
            raise CommitConflict(str(error)) from error

    def _marker(self, table: DeltaTable, identity: str) -> int | None:
        return table.transaction_version(app_of(identity))

    def _commit(self, table: DeltaTable, manifest: Manifest) -> None:
        adds: list[AddAction | RemoveAction] = [self._add(file) for file in manifest.files]
        try:
            table.create_write_transaction(
                adds,
                mode="append",
                schema=table.schema(),
                partition_by=[*self._partition_by] or None,
                commit_properties=CommitProperties(
                    custom_metadata={TOLD: told(manifest)},
                    app_transactions=[Transaction(app_of(manifest.identity), manifest.epoch)],
                ),
            )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error

    def _add(self, file: StagedFile) -> AddAction:
        return AddAction(
            file.name, file.size_bytes, file.partition, 0, data_change=True, stats=json.dumps({"numRecords": file.rows})
        )

    def _compact(self, table: DeltaTable) -> tuple[int, int]:
        self._check_readable(table)
        done = table.optimize.compact(
            target_size=self._target_bytes, commit_properties=CommitProperties(custom_metadata={TOLD: COMPACTED})
        )
        table.update_incremental()
        gone = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        return done["numFilesRemoved"], len(gone)

    def _check_readable(self, table: DeltaTable) -> None:
        """TargetRefused where the library would not put the files of other programs together right, or would read others than the table's.

        Of Spark's it makes times of 96 bits those of other centuries, and does not take away files whose names are not of ASCII, so that
        their rows come twice. Of a deletion vector it allocates what that tells, and ends the process.
        """
        self._check_vectors(table.version())
        others = frozenset(path for path in self._live(table) if not _OWN_FILE.search(path))
        for path in others - self._readable:
            footer = None if not path.isascii() else self._footer(unquote(path))
            if footer is None or any(
                footer.schema.column(at).physical_type == "INT96" for at in range(footer.num_columns)
            ):
                raise TargetRefused(
                    f"{self._place}: {path} is of a program whose files the library does not put together right; let that program compact"
                    " the table (OPTIMIZE)"
                )
        self._readable = others

    def _check_log(self) -> None:
        """TargetRefused where it is damaged."""
        with self._as_damage():
            log = DeltaLog(self._destination.folder(), as_library=True)
            if (newest := log.newest()) is not None:
                log.state(newest)

    def _check_vectors(self, version: int) -> None:
        """TargetRefused for files out of the table's folder, and deletion vectors that are not what they are told to be."""
        folder = self._destination.folder()
        with self._as_damage():
            for (path, _), added in DeltaLog(folder, as_library=True).state(version).files.items():
                if added.vector is not None:
                    with folder.open(path) as file:
                        rows = pq.read_metadata(file).num_rows
                    deque(added.vector.places(folder.open, rows), maxlen=0)

    def _log_files(self, table: DeltaTable) -> Iterator[str]:
        """The last checkpoint that the library wrote, and the entries behind it."""
        since, hint = -1, DeltaLog(self._destination.folder(), as_library=True).hint()
        if hint is not None and all(self._destination.size(name) is not None for name in hint[1]):  # others may lie
            since = hint[0]
            yield from (f"{LOG}/_last_checkpoint", *hint[1])
        for version in range(since + 1, table.version() + 1):
            if since >= 0 or self._destination.size(entry_name(version)) is not None:
                yield entry_name(version)

    def _words(self, table: DeltaTable) -> list[str | None]:
        return [commit.get(TOLD) for commit in table.history()]

    def _is_cut(self, table: DeltaTable) -> bool:
        return all(commit["version"] > 0 for commit in table.history())

    def _live(self, table: DeltaTable) -> dict[str, dict[str, Any]]:
        head = "partition."
        found = pa.table(table.get_add_actions(flatten=True))
        # No bounds of columns: Python has no value for dates beyond its years.
        actions = found.select([name for name in found.column_names if name == "path" or name.startswith(head)])
        return {
            action.pop("path"): {name.removeprefix(head): value for name, value in action.items()}
            for action in actions.to_pylist()
        }

    def _in_words(self, error: Exception) -> Exception | None:
        if type(error) is DeltaError:
            told = str(error).partition(_TRACE)[0]
            with suppress(*unreachable()):  # as the store may be for the library, and then it is asked again
                try:
                    self._check_log()
                except TargetRefused as found:
                    return found
            if told.startswith(_DAMAGE) and _GONE not in told:
                return TargetRefused(f"{self._place}: the Delta table is damaged: {told}; mend or replace it")
            error = DeltaError(told)
        words: Exception | None = self._said(error, (DeltaProtocolError, SchemaMismatchError), (DeltaError,))
        return words
