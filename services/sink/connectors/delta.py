"""Delta Lake tables (`tablereleases`): the marker of an identity is the version of its `txn` action."""

import json
from collections.abc import Iterator
from typing import Any, Final

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


class DeltaReleases(TableReleases[DeltaTable]):
    """`Releases` into the Delta table at a destination. Functions block."""

    log = LOG

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
        if demanded := sorted(name for name in metadata.configuration if name.startswith("delta.constraints.")):
            raise TargetRefused(
                f"{self._place}: the table has the constraint {demanded[0].removeprefix('delta.constraints.')}, which the sink"
                " does not check; drop it, and let a $validate in the pipeline hold it"
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
        done = table.optimize.compact(
            target_size=self._target_bytes, commit_properties=CommitProperties(custom_metadata={TOLD: COMPACTED})
        )
        table.update_incremental()
        gone = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        return done["numFilesRemoved"], len(gone)

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
