"""Delta Lake tables (`tablereleases`): the marker of an identity is the version of its `txn` action."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
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

_OWN_FILE: Final = re.compile(r"-\d{20}-[^/]+\.parquet$")
"""The end of the name of a file of the sink (`visible_name`)."""


class DeltaReleases(TableReleases[DeltaTable]):
    """`Releases` into the Delta table at a destination. Functions block."""

    log = LOG
    _readable: frozenset[str] = frozenset()
    """Files of other programs that the library puts together right."""

    def _open(self) -> DeltaTable | None:
        uri, options = self._destination.table()
        try:
            return DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            return None

    def _update(self, table: DeltaTable) -> DeltaTable | None:
        if self._destination.size(f"{LOG}/{table.version():020d}.json") is None:
            # The log was cut behind this version, or others made the table anew: a commit would leave a gap in its log.
            return self._open()
        table.update_incremental()
        return table

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
        """TargetRefused where the library would not put the files of other programs together right.

        Of Spark's it makes times of 96 bits those of other centuries, and does not take away files whose names are not of ASCII, so that
        their rows come twice.
        """
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

    def _log_files(self, table: DeltaTable) -> Iterator[str]:
        """The last checkpoint that the library wrote, and the entries behind it."""
        since = -1
        pointer = f"{LOG}/_last_checkpoint"
        told = self._destination.read(pointer)
        if told is not None:
            last = json.loads(told)
            since = last["version"]
            yield pointer
            if not {"parts", "v2Checkpoint"} & last.keys():  # else another program wrote it
                yield f"{LOG}/{since:020d}.checkpoint.parquet"
        for version in range(since + 1, table.version() + 1):
            yield f"{LOG}/{version:020d}.json"

    def _words(self, table: DeltaTable) -> list[str | None]:
        return [commit.get(TOLD) for commit in table.history()]

    def _is_cut(self, table: DeltaTable) -> bool:
        return all(commit["version"] > 0 for commit in table.history())

    def _live(self, table: DeltaTable) -> dict[str, dict[str, Any]]:
        head = "partition."
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return {
            action["path"]: {name.removeprefix(head): value for name, value in action.items() if name.startswith(head)}
            for action in actions
        }

    def _in_words(self, error: Exception) -> Exception | None:
        words: Exception | None = self._said(error, (DeltaProtocolError, SchemaMismatchError), (DeltaError,))
        return words
