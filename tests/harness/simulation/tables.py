"""Delta tables of a simulation: the library writes into a folder of this machine; all around it is the simulation's."""

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from tidemark.services.sink.connectors.delta import DeltaReleases
from tidemark.services.sink.connectors.deltacolumns import DeltaColumns
from tidemark.services.sink.connectors.filerows import Encoding, Fit
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.manifests import Manifest, Releases


class Folder(MutableMapping[str, bytes]):
    """The files of a folder by name."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError as error:
            raise KeyError(name) from error

    def __setitem__(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def __delitem__(self, name: str) -> None:
        try:
            (self.root / name).unlink()
        except FileNotFoundError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        for at, _, files in os.walk(self.root):
            for file in files:
                yield (Path(at) / file).relative_to(self.root).as_posix()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def rows(self) -> list[dict[str, Any]]:
        """Of the table; none if there is no table yet."""
        if not DeltaTable.is_deltatable(str(self.root)):
            return []
        rows: list[dict[str, Any]] = DeltaTable(str(self.root)).to_pyarrow_table().to_pylist()
        return rows


@runtime_checkable
class Commits(Protocol):
    """Has the table's commits made, and lets some of them fail."""

    def before_commit(self) -> None: ...
    def after_commit(self, manifest: Manifest) -> None: ...


class SimDelta(DeltaReleases):
    """Releases into a table, at whose commits a process may die and an answer get lost."""

    commits: Commits

    def _commit(self, table: DeltaTable, manifest: Manifest, adds: list[AddAction | RemoveAction]) -> None:
        self.commits.before_commit()
        super()._commit(table, manifest, adds)
        self.commits.after_commit(manifest)


class SimFileSink(FileSink):
    """The sink, with such releases."""

    def _kind(self, encoding: Encoding) -> tuple[Releases, Fit | None]:
        if encoding.format != "parquet":
            return super()._kind(encoding)
        settings, destination = self._settings, self._destination
        table = SimDelta(
            destination,
            encoding.partition_by,
            compact_files=settings.compact_releases,
            target_bytes=settings.file_bytes,
        )
        assert isinstance(destination, Commits)
        table.commits = destination
        return table, DeltaColumns(table.agree, encoding.partition_by).fit
