"""Reads the released output of a file sink, by its manifests (protocol, S4): for the audit, tests, and users who check.

Manifests lie in a folder of their own, or in the commits of a table. Everything is checked on the way: the chain of each identity's
manifests, and size, digest and rows of every file. The first discrepancy is an error that names the file. Where small files became one
large file, the table tells that they did, and names the large one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeVar, cast, get_args

import pyarrow as pa

from tidemark.services.sink.connectors.destination import Destination, LocalDestination, sha256
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.formats import rows_of, table_from
from tidemark.services.sink.connectors.manifests import Manifest, ManifestStore
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.services.sink.connectors.tablereleases import ReadTable, table_releases
from tidemark.shared.language.stages import FileFormat
from tidemark.shared.ports.sink import TargetRefused

_DELTA: Final = Encoding("parquet")
Content = TypeVar("Content", pa.Table, list[dict[str, Any]])


class Discrepancy(Exception):
    """Released output differs from its manifests. The message names the manifest or file, and the expected and found values."""


@dataclass(frozen=True, slots=True)
class ReleasedFile:
    """One file that a manifest lists, checked against it."""

    manifest: Manifest
    file: StagedFile
    data: bytes
    schema: pa.Schema | None = None
    """Of the table that the file is in; None where it is in none."""
    partition: Mapping[str, Any] = field(default_factory=dict)
    """The values of the table's columns that are not in the file."""

    def table(self) -> pa.Table:
        """The rows of a table's file, with all columns. Discrepancy if it is damaged."""
        assert self.schema is not None
        return _whole(_content(self, table_from), self.partition, self.schema)


def table_at(destination: Destination, encoding: Encoding = _DELTA) -> ReadTable | None:
    """The table at a destination, for readers; None if there is none. Raises as `Releases`."""
    releases = table_releases(destination, encoding)
    if releases is None:
        return None
    try:
        return releases.read()
    finally:
        releases.close()


def read_released(path: str, *, encoding: Encoding = _DELTA) -> pa.Table:
    """All released rows of a local table, in the order of identity and epoch.

    Args:
        path: the `path` of `$emit`.
        encoding: of the table.

    Raises:
        Discrepancy: the first place that differs from the manifests.
    """
    destination = LocalDestination(path, "reader")
    table = table_at(destination, encoding)
    if table is not None:
        return _table_of(destination, table)
    list(released_files(destination))  # which checks them
    return pa.table({})


def _table_of(destination: Destination, table: ReadTable) -> pa.Table:
    files = released_files(destination, table=table)
    found = [*(released.table() for released in files), *large_files(destination, table).values()]
    return pa.concat_tables(found) if found else table.schema.empty_table()


def large_files(
    destination: Destination, table: ReadTable | None, known: Collection[str] = frozenset()
) -> dict[str, pa.Table]:
    """The rows of the files that were made of several checkpoints' small ones, if that was done; by name.

    known: files that are not wanted.
    """
    if table is None or not table.is_compacted:
        return {}
    named = {*known, *(file.name for manifest in table.manifests for file in manifest.files)}
    found = {}
    for name in sorted(table.live.keys() - named):
        if (data := destination.read(name)) is None:
            raise Discrepancy(f"{destination.uri(name)}: the table lists it, but it is not there")
        found[name] = _whole(table_from(data), table.live[name], table.schema)
    return found


def small_file_is_gone(table: ReadTable | None, manifest: Manifest) -> bool:
    """Whether files of a manifest have become part of a larger one."""
    return table is not None and bool({file.name for file in manifest.files} - table.live.keys())


def _whole(rows: pa.Table, partition: Mapping[str, object], schema: pa.Schema) -> pa.Table:
    """The rows of a file with all columns of their table."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.array([partition.get(field.name)] * rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def read_released_rows(path: str, *, encoding: Encoding = _DELTA) -> list[dict[str, Any]]:
    """All released rows of a local destination of any format: JSON lines as JSON, CSV as text. Raises Discrepancy."""
    destination = LocalDestination(path, "reader")
    table = table_at(destination, encoding)
    if table is not None:
        rows: list[dict[str, Any]] = _table_of(destination, table).to_pylist()
        return rows
    files = released_files(destination)
    return [row for released in files for row in _content(released, _reader_of(released.manifest))]


def released_files(
    destination: Destination,
    *,
    job: str | None = None,
    table: ReadTable | None = None,
    since: Mapping[str, int] | None = None,
    until: int | None = None,
) -> Iterator[ReleasedFile]:
    """Every released file, checked, in the order of identity and epoch. Raises Discrepancy.

    since: by identity, the epoch behind which they are wanted. until: the last epoch that is wanted.
    """
    seen: set[str] = set()
    for manifest in released_manifests(destination, job=job, table=table):
        if manifest.rows != sum(file.rows for file in manifest.files):
            raise Discrepancy(f"{_place(manifest)}: its files' rows do not add up to the {manifest.rows} that it names")
        for file in manifest.files:
            if file.name in seen:
                raise Discrepancy(f"{_place(manifest)}: {file.name} is released a second time")
            seen.add(file.name)
            if manifest.epoch <= (since or {}).get(manifest.identity, -1) or (
                until is not None and manifest.epoch > until
            ):
                continue
            schema, partition = None, dict[str, Any]()
            if table is not None:
                schema, partition = table.schema, table.live.get(file.name, {})
                if file.name not in table.live:
                    if table.is_compacted:
                        continue
                    raise Discrepancy(
                        f"{destination.uri(file.name)}: {_place(manifest)} lists it, but the table does not"
                    )
            yield ReleasedFile(manifest, file, _checked(destination, manifest, file), schema, partition)


def released_manifests(
    destination: Destination, *, job: str | None = None, table: ReadTable | None = None
) -> list[Manifest]:
    """All manifests in the order of identity and epoch; each names the one before it. Raises Discrepancy."""
    store = ManifestStore(destination)
    try:
        loose = [store.get(name) for name in store.names()]
        told_twice = {(manifest.identity, manifest.epoch): manifest for manifest in loose}
        found = store.bound()
        for manifest in found:
            if told_twice.pop((manifest.identity, manifest.epoch), manifest) != manifest:
                raise Discrepancy(f"{_place(manifest)}: a volume and the manifest itself differ")
        found = sorted([*found, *told_twice.values()], key=lambda manifest: (manifest.identity, manifest.epoch))
    except TargetRefused as error:
        raise Discrepancy(str(error)) from error
    begins: dict[str, int] = {}
    if table is not None:
        # Manifests from before the table, or from before its log, may be gone.
        begins = {manifest.identity: manifest.epoch for manifest in reversed(table.manifests)}
        found = sorted([*found, *table.manifests], key=lambda manifest: (manifest.identity, manifest.epoch))
    for identity, chain in groupby(found, key=lambda manifest: manifest.identity):
        before: int | None = None
        for manifest in chain:
            if manifest.predecessor != before and begins.get(identity) != manifest.epoch:
                raise Discrepancy(
                    f"{_place(manifest)}: follows {manifest.predecessor}, but the manifest before it is {before}"
                )
            before = manifest.epoch
    return [manifest for manifest in found if job is None or manifest.job == job]


def _checked(destination: Destination, manifest: Manifest, file: StagedFile) -> bytes:
    data = destination.read(file.name)
    if data is None:
        raise Discrepancy(f"{destination.uri(file.name)}: {_place(manifest)} lists it, but it is not there")
    if len(data) != file.size_bytes or sha256(data) != file.digest:
        raise Discrepancy(
            f"{destination.uri(file.name)}: {_place(manifest)} says {file.size_bytes} bytes with digest {file.digest},"
            f" found {len(data)} with {sha256(data)}"
        )
    return data


def _content(released: ReleasedFile, read: Callable[[bytes], Content]) -> Content:
    try:
        content = read(released.data)
    except ValueError as error:
        raise Discrepancy(f"{released.file.name}: {error}") from error
    count = len(content)
    if count != released.file.rows:
        raise Discrepancy(
            f"{released.file.name}: {_place(released.manifest)} says {released.file.rows} rows, found {count}"
        )
    return content


def _reader_of(manifest: Manifest) -> Callable[[bytes], list[dict[str, Any]]]:
    if manifest.format not in get_args(FileFormat):
        raise Discrepancy(
            f"{_place(manifest)}: format {manifest.format!r}, expected one of {', '.join(get_args(FileFormat))}"
        )
    format_ = cast("FileFormat", manifest.format)
    return lambda data: rows_of(format_, data)


def _place(manifest: Manifest) -> str:
    return f"manifest {manifest.epoch} of {manifest.identity}"
