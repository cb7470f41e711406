"""Tables that other programs made, as targets: their rows stay as they are, or the table is refused before anything is written."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest
from deltalake import DeltaTable
from fsspec.implementations.local import LocalFileSystem

from tests.contract.sinks_targets import FilesWorld
from tests.contract.test_sinks_tables_others import Shared
from tests.golden.test_tables_delta import HERE, read
from tests.golden.test_tables_delta import REFUSED as NOT_READ
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.source.connectors.deltatable import DeltaVersions
from tidemark.shared.ports.sink import TargetRefused

REFUSED: Mapping[str, str] = {
    "clustered": "clustering, domainMetadata",
    "defaults": "allowColumnDefaults",
    "dropped_map": "delta.columnMapping.mode: name",
    "generated_partition": "delta.generationExpression",
    "ict_cdf": "inCommitTimestamp",
    "map_dv": "delta.columnMapping.mode: name",
    "map_id": "delta.columnMapping.mode: id",
    "map_name": "delta.columnMapping.mode: name",
    "map_upgraded": "delta.columnMapping.mode: name",
    "odd_names": "delta.columnMapping.mode: name",
    "rowtracking": "rowTracking",
    "widening": "typeWidening",
}
"""Tables that the sink does not write, and what of the sentence names the reason."""
WRITTEN = sorted({file.stem for file in HERE.glob("*.zip")} - REFUSED.keys() - NOT_READ.keys())


class Target:
    """A table of another program, and a sink that compacts every second release."""

    def __init__(self, name: str, folder: Path) -> None:
        with ZipFile(HERE / f"{name}.zip") as packed:
            packed.extractall(folder)
        (folder / "table").rename(folder / "out")
        self.place = str(folder / "out")
        self.divided = tuple(DeltaTable(self.place).metadata().partition_columns)
        self.shared = Shared(folder, "delta")
        self.shared.target = FilesWorld(folder, "parquet", partition_by=self.divided)
        self.shared.target.settings = FileSinkSettings(compact_releases=2, buffer_bytes_max=1)

    def rows(self) -> Counter[bytes]:
        versions = DeltaVersions(LocalFileSystem(), self.place, lambda _: None)
        return read(versions.files(versions.newest()))

    async def write(self) -> None:
        """Five releases of a row."""
        await self.shared.opened()
        for number in range(1000, 1005):
            await self.shared.release({"id": number, **dict.fromkeys(self.divided)})


@pytest.mark.parametrize("name", WRITTEN)
async def test_rows_of_others_stay_as_they_are(tmp_path: Path, name: str) -> None:
    """Deleted ones do not come back, and none comes twice, whatever the sink puts together and cleans up."""
    target = Target(name, tmp_path)
    before = target.rows()
    await target.write()
    after = target.rows()
    assert not before - after
    assert sum((after - before).values()) == 5


@pytest.mark.parametrize("name", REFUSED)
async def test_a_table_that_the_sink_cannot_keep_right_is_refused(tmp_path: Path, name: str) -> None:
    """With the reason, when the sink opens, or when the table becomes such a one."""
    target = Target(name, tmp_path)
    version = DeltaTable(target.place).version()
    with pytest.raises(TargetRefused, match=REFUSED[name]):
        await target.shared.opened()
    assert DeltaTable(target.place).version() == version
