"""Tables of a simulation: the library writes into a folder of this machine; all around it is the simulation's."""

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.filerows import CatalogTable, Encoding, Fit
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.formats import table_from
from tidemark.services.sink.connectors.manifests import Manifest, Releases
from tidemark.services.sink.connectors.released import table_at
from tidemark.services.sink.connectors.tablereleases import TableReleases
from tidemark.shared.language.stages import EmitFormat


class Folder(MutableMapping[str, bytes]):
    """The files of a folder, by name, in which a table of a format lies."""

    def __init__(self, root: str, format_: EmitFormat) -> None:
        self.root = Path(root)
        self.format = format_

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
        found = table_at(LocalDestination(self.root, "reader"), self.encoding)
        return [
            row
            for name in sorted(found.live if found is not None else ())
            for row in table_from(self[name]).to_pylist()
        ]

    @property
    def encoding(self) -> Encoding:
        """Of the table: its name and its catalog, where the format has one."""
        catalog = {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"}
        return Encoding(self.format, table=CatalogTable("simulated/table", catalog))


@runtime_checkable
class Commits(Protocol):
    """Has the table's commits made, and lets some of them fail."""

    def before_commit(self) -> None: ...
    def after_commit(self, manifest: Manifest) -> None: ...


class SimFileSink(FileSink):
    """The sink; at commits of its table a process may die and an answer get lost."""

    def _kind(self, encoding: Encoding) -> tuple[Releases, Fit | None]:
        releases, fit = super()._kind(encoding)
        if isinstance(releases, TableReleases):
            destination, commit = self._destination, releases._commit
            assert isinstance(destination, Commits)
            commits: Commits = destination

            def faulty(table: Any, manifest: Manifest) -> None:
                commits.before_commit()
                commit(table, manifest)
                commits.after_commit(manifest)

            setattr(releases, "_commit", faulty)  # noqa: B010 - of this object alone
        return releases, fit
