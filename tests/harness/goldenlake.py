"""Tables of Iceberg that other programs wrote, read elsewhere: their metadata names files by the place where they were written."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from tidemark.services.source.connectors.icebergtable import IcebergVersions
from tidemark.services.source.connectors.parquetcells import texts_of

HERE: Final = Path(__file__).parent.parent / "golden" / "tables" / "iceberg"
_WRITTEN: Final = "/tmp/golden-lake/"
_MOVED: Final = "moved-to"


class _MovedVersions(IcebergVersions):
    """Of a table that lies in another folder by now."""

    def __init__(self, name: tuple[str, ...], catalog: Mapping[str, Any], folder: Path) -> None:
        super().__init__(name, catalog, lambda _: None)
        self._folder = folder

    def _open(self) -> Table:
        table = super()._open()
        table.io = _MovedIO({_MOVED: str(self._folder)})
        return table


class _MovedIO(PyArrowFileIO):  # type: ignore[misc]
    """Reads what lies in another folder by now."""

    def new_input(self, location: str) -> InputFile:
        """Of the file that was written at `location`."""
        path = location.removeprefix("file:")
        return super().new_input(path.replace(_WRITTEN, f"{self.properties[_MOVED]}/", 1))


def lake_table(name: str, folder: Path) -> tuple[IcebergVersions, dict[int, Counter[bytes]]]:
    """The table, and of each snapshot, in their order, the documents of the rows that its writer reads."""
    with ZipFile(HERE / f"{name}.zip") as packed:
        for member in packed.namelist():
            below = {"table": f"n/{name}", "files": f"files/files_{name}"}.get(member.partition("/")[0], "rows")
            place = folder / below / member.partition("/")[2]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(packed.read(member))
    settings: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": str(folder),
    }
    catalog = SqlCatalog("default", **settings)
    catalog.create_namespace("n")
    metadata = max(
        (folder / "n" / name / "metadata").glob("v*.metadata.json"),
        key=lambda file: int(file.name[1:].partition(".")[0]),
    )
    order: list[int] = []
    with suppress(ValidationError):  # of a table with what the library does not know; the catalog has it all the same
        table = catalog.register_table(("n", name), str(metadata))
        order = [entry.snapshot_id for entry in table.history()]
    rows = {
        int(file.stem): Counter(text for batch in pq.read_table(file).to_batches() for text in texts_of(batch))
        for file in (folder / "rows").glob("*.parquet")
    }
    catalog.close()
    return _MovedVersions(("n", name), settings, folder), {at: rows[at] for at in order if at in rows}
