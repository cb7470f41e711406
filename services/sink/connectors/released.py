"""Reading what a file sink released, by its manifests alone (protocol, S4): for the audit, tests, and whoever wants to be sure.

Everything is checked on the way: the chain of each identity's manifests, and size, digest and rows of every file. The first
discrepancy is an error that names the file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar, cast, get_args

import pyarrow as pa

from services.sink.connectors.destination import Destination, LocalDestination, sha256
from services.sink.connectors.formats import rows_of, table_from
from services.sink.connectors.manifests import Manifest, ManifestStore
from services.sink.connectors.staging import StagedFile
from shared.language.stages.source import FileFormat
from shared.ports.sink import TargetRefused

Content = TypeVar("Content", pa.Table, list[dict[str, Any]])


class Discrepancy(Exception):
    """Released output is not as its manifests say: names the manifest or file, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class ReleasedFile:
    """One file that a manifest lists, checked against it."""

    manifest: Manifest
    file: StagedFile
    data: bytes


def read_released(path: str, *, job: str | None = None) -> pa.Table:
    """All released rows of a local Parquet destination, in the order of identity and epoch.

    Args:
        path: the `path` of `$emit`.
        job: only what this job released; None for all.

    Raises:
        Discrepancy: the first thing that is not as the manifests say.
    """
    tables = [
        _content(released, table_from)
        for released in released_files(LocalDestination(path, "reader"), job=job)
        if released.manifest.format == "parquet"
    ]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read_released_rows(path: str, *, job: str | None = None) -> list[dict[str, Any]]:
    """All released rows of a local destination of any format: JSON lines as JSON, CSV as text. Raises Discrepancy."""
    rows: list[dict[str, Any]] = []
    for released in released_files(LocalDestination(path, "reader"), job=job):
        rows += _content(released, _reader_of(released.manifest))
    return rows


def released_files(destination: Destination, *, job: str | None = None) -> Iterator[ReleasedFile]:
    """Every released file, checked, in the order of identity and epoch. Raises Discrepancy."""
    seen: set[str] = set()
    for manifest in released_manifests(destination, job=job):
        if manifest.rows != sum(file.rows for file in manifest.files):
            raise Discrepancy(f"{_place(manifest)}: its files' rows do not add up to the {manifest.rows} that it names")
        for file in manifest.files:
            if file.name in seen:
                raise Discrepancy(f"{_place(manifest)}: {file.name} is released a second time")
            seen.add(file.name)
            yield ReleasedFile(manifest, file, _checked(destination, manifest, file))


def released_manifests(destination: Destination, *, job: str | None = None) -> list[Manifest]:
    """All manifests in the order of identity and epoch; each names the one before it. Raises Discrepancy."""
    store = ManifestStore(destination)
    try:
        found = [store.get(name) for name in store.names()]
    except TargetRefused as error:
        raise Discrepancy(str(error)) from error
    for _, chain in groupby(found, key=lambda manifest: manifest.identity):
        before: int | None = None
        for manifest in chain:
            if manifest.predecessor != before:
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
