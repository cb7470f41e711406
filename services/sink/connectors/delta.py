"""Releases into a Delta Lake table: one commit of the table a release, with the marker inside (protocol, S2, S4).

- The marker of an identity is the version of its `txn` action. Two commits of one identity cannot pass each other: the second meets the
  first as a conflict, reads the marker again, and finds its commit released or another's history.
- What a manifest says lies in the commit, under `tidemark`: the log of the table tells which file is of which checkpoint.
- Columns are added when rows with them are accepted, as the format allows (all may be null): so that all tasks agree on a type before
  anything is staged, and what does not fit is found there (S6).
- A table needs a column. Until there is one, markers are manifests, as those of other formats.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import deltalake
import msgspec
import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction
from msgspec import structs

from tidemark.services.sink.connectors.deltacolumns import exact, plain
from tidemark.services.sink.connectors.destination import Destination, sha256
from tidemark.services.sink.connectors.formats import parquet_bytes, table_from
from tidemark.services.sink.connectors.manifests import Manifest, ManifestStore, decode_told, visible_name
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

LOG: Final = "_delta_log"
TOLD: Final = "tidemark"
"""The key of a commit's own information under which its manifest lies."""
COMPACTED: Final = "compacted"
"""What lies there where small files became large ones."""
_log = structlog.get_logger()


def app_of(identity: str) -> str:
    """The application id of an identity's `txn` actions."""
    return f"tidemark.{identity}"


class DeltaReleases:
    """`Releases` of one sink object into the table at a destination. Functions block.

    tries_max: how often a commit is tried anew because others committed meanwhile. compact_files: releases after which task 0 makes small
    files into large ones of up to target_bytes; the small ones then go, and with them older versions of the table that need them.
    """

    def __init__(
        self,
        destination: Destination,
        partition_by: tuple[str, ...] = (),
        *,
        tries_max: int = 64,
        compact_files: int = 256,
        target_bytes: int = 128 << 20,
    ) -> None:
        self._destination = destination
        self._partition_by = partition_by
        self._tries_max = tries_max
        self._compact_files = compact_files
        self._target_bytes = target_bytes
        self._manifests = ManifestStore(destination)
        self._releasing: DeltaTable | None = None
        """The handle of releases; what accepts opens its own, for the two go on side by side."""
        self._since_compaction = 0

    # --- the table

    def _open(self) -> DeltaTable | None:
        uri, options = self._destination.table()
        try:
            return DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            return None

    def _refreshed(self) -> DeltaTable | None:
        """The table as it is now; None if there is none."""
        with self._errors():
            if self._releasing is None:
                self._releasing = self._open()
            else:
                self._releasing.update_incremental()
            return self._releasing

    def agree(self, wanted: pa.Schema) -> pa.Schema:
        """The table's columns, with those of `wanted` that it did not have; the types of the others stay as they are."""
        with self._errors():
            for _ in range(self._tries_max):
                table = self._open()
                try:
                    if table is None:
                        self._create(wanted)
                        continue
                    known = pa.schema(table.schema())
                    new = [field for field in wanted if field.name not in known.names]
                    if not new:
                        return known
                    table.alter.add_columns(deltalake.Schema.from_arrow(pa.schema(new)).fields)
                except (CommitFailedError, SchemaMismatchError):
                    # Another task was faster: what it decided counts.
                    continue
        raise TargetUnavailable(
            f"{self._place}: {self._tries_max} other changes of the table at once; it is tried again"
        )

    def _create(self, schema: pa.Schema) -> None:
        uri, options = self._destination.table()
        DeltaTable.create(
            uri, schema=schema, mode="ignore", partition_by=[*self._partition_by] or None, storage_options=options
        )

    # --- Releases

    def marker(self, identity: str) -> Epoch | None:
        """See `Releases.marker`."""
        table = self._refreshed()
        found = None if table is None else table.transaction_version(app_of(identity))
        if found is None:
            return self._manifests.marker(identity)
        self._destination.settle(LOG)
        return Epoch(found)

    def publish(self, manifest: Manifest) -> None:
        """See `Releases.publish`."""
        table = self._refreshed()
        if table is None:
            self._manifests.publish(manifest)
            return
        app = app_of(manifest.identity)
        for _ in range(self._tries_max):
            at = table.transaction_version(app)
            if at is None and manifest.predecessor is not None:
                # Read behind the table: who released before there was one has written its manifest, or meets this commit.
                at = self._manifests.marker(manifest.identity)
            if at is not None and at >= manifest.epoch:
                break
            if at not in (None, manifest.predecessor):
                raise TargetRefused(
                    f"{self._place}: expected marker {manifest.predecessor} of {manifest.identity}, found {at}: another history wrote here"
                )
            with self._errors():
                try:
                    self._commit(table, manifest, [self._add(file) for file in manifest.files])
                except CommitFailedError:
                    _log.info("sink.table_changed", place=self._place, epoch=manifest.epoch)
                table.update_incremental()
        else:
            raise TargetUnavailable(f"{self._place}: {self._tries_max} other commits at once; it is tried again")
        self._destination.settle(LOG)
        self._since_compaction += bool(manifest.files)
        if manifest.index == 0 and self._since_compaction >= self._compact_files:
            self.compact()

    def _commit(self, table: DeltaTable, manifest: Manifest, adds: list[AddAction | RemoveAction]) -> None:
        told = {TOLD: json.dumps(msgspec.to_builtins(manifest), sort_keys=True, separators=(",", ":"))}
        table.create_write_transaction(
            adds,
            mode="append",
            schema=table.schema(),
            partition_by=[*self._partition_by] or None,
            commit_properties=CommitProperties(
                custom_metadata=told, app_transactions=[Transaction(app_of(manifest.identity), manifest.epoch)]
            ),
        )

    def _add(self, file: StagedFile) -> AddAction:
        return AddAction(
            file.name, file.size_bytes, file.partition, 0, data_change=True, stats=json.dumps({"numRecords": file.rows})
        )

    def settle(self) -> None:
        """See `Releases.settle`: the table's log says all; there is no summary."""

    def listed(self, identity: str, marker: Epoch) -> set[str] | None:
        """See `Releases.listed`: what is released lies elsewhere; unless manifests of an older layout are still to be read."""
        del identity, marker
        return None if self._manifests.older() else set()

    def convert(self) -> None:
        """See `Releases.convert`: each identity's rows become one commit of the table, with its marker; then the older files go."""
        older: dict[str, list[tuple[str, Manifest]]] = {}
        for name, manifest in self._manifests.older():
            older.setdefault(manifest.identity, []).append((name, manifest))
        for identity, found in older.items():
            last = max((manifest for _, manifest in found), key=lambda manifest: manifest.epoch)
            marker = self._manifests.marker(identity) or Epoch(last.epoch)
            files = [file for _, manifest in found for file in manifest.files]
            table = self._refreshed()
            if table is None or table.transaction_version(app_of(identity)) is None:
                made = tuple(self._rewritten(file) for file in files)
                rows = sum(file.rows for file in made)
                self.publish(structs.replace(last, epoch=marker, predecessor=None, rows=rows, files=made))
            self._destination.delete([file.name for file in files])
            self._manifests.forget(self._manifests.names(identity))

    def _rewritten(self, file: StagedFile) -> StagedFile:
        """A file of an earlier version as the table takes it, under a visible name."""
        data = self._destination.read(file.name)
        if data is None or sha256(data) != file.digest:
            raise TargetRefused(
                f"{self._destination.uri(file.name)}: expected this file with digest {file.digest} to be converted"
            )
        table = plain(table_from(data))
        others = [pa.field(name, pa.string()) for name in self._partition_by if name not in table.column_names]
        known = self.agree(pa.schema([*table.schema, *others]))
        try:
            columns = {
                name: exact(table.column(name), known.field(name).type)
                for name in table.column_names
                if name not in self._partition_by
            }
        except pa.ArrowInvalid as error:
            raise TargetRefused(
                f"{self._destination.uri(file.name)}: its columns are not those of the other files, which one table must be: {error};"
                " move the folder away, or name another in $emit"
            ) from error
        changed, name = parquet_bytes(pa.table(columns), {}), visible_name(file.name)
        self._destination.create(name, changed)
        return structs.replace(file, name=name, size_bytes=len(changed), digest=sha256(changed))

    # --- upkeep

    def compact(self) -> None:
        """Make small files into large ones, and delete the small ones: those that the table's log says are removed, and no others."""
        self._since_compaction = 0
        table = self._refreshed()
        if table is None:
            return
        try:
            done = table.optimize.compact(
                target_size=self._target_bytes, commit_properties=CommitProperties(custom_metadata={TOLD: COMPACTED})
            )
            table.update_incremental()
            gone = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        except (DeltaError, OSError) as error:
            # Nothing hangs on it: it is tried again after as many releases.
            _log.warning("sink.not_compacted", place=self._place, reason=str(error))
            return
        finally:
            self._releasing = None
        _log.info("sink.compacted", place=self._place, files=done["numFilesRemoved"], deleted=len(gone))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The library's errors in the words of a sink."""
        try:
            yield
        except (DeltaProtocolError, SchemaMismatchError) as error:
            raise TargetRefused(f"{self._place}: {error}") from error
        except PermissionError as error:
            raise TargetRefused(f"{self._place}: {error}; the sink needs the right to read and write there") from error
        except (DeltaError, OSError) as error:
            self._releasing = None
            raise TargetUnavailable(f"{self._place}: {error}; it is tried again") from error

    @property
    def _place(self) -> str:
        return self._destination.uri("").rstrip("/")


def _damaged(place: str, error: Exception) -> TargetRefused:
    return TargetRefused(f"{place}: the table cannot be read: {error}")


def table_at(destination: Destination) -> DeltaTable | None:
    """The Delta table at a destination, for whoever reads it; None if there is none."""
    try:
        uri, options = destination.table()
        return DeltaTable(uri, storage_options=options)
    except (TableNotFoundError, TargetRefused):
        return None
    except DeltaError as error:
        raise _damaged(destination.uri(LOG), error) from error


def manifests_in(table: DeltaTable) -> list[Manifest]:
    """What the commits of a table say, as far as its log reaches back, in the order of identity and epoch."""
    found = [
        decode_told(f"{table.table_uri}/{LOG}", told)
        for commit in table.history()
        if (told := commit.get(TOLD)) is not None and told != COMPACTED
    ]
    return sorted(found, key=lambda manifest: (manifest.identity, manifest.epoch))


def is_compacted(table: DeltaTable) -> bool:
    """Whether small files became large ones, of several checkpoints."""
    return any(commit.get(TOLD) == COMPACTED for commit in table.history())


def live_files(table: DeltaTable) -> dict[str, dict[str, Any]]:
    """The files of the table as it is now, relative to its root, with their partition's values."""
    head = "partition."
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {
        action["path"]: {name.removeprefix(head): value for name, value in action.items() if name.startswith(head)}
        for action in actions
    }
