"""Tables that Delta Lake's own writer made on Spark (`tables/write_delta.py`): each version has the rows that Spark reads of it."""

import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tidemark.services.source.connectors.deltatable import DeltaVersions
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.services.source.connectors.tableversions import TableFile, TableVersions, VersionRefused

HERE = Path(__file__).parent / "tables" / "delta"
REFUSED = {
    "clone": "its rows lie outside of its folder, as those of a shallow clone",
    "variant": "it has features that are not read here: variantType",
}
"""Tables that are not read, and what of the sentence names the reason."""
READ = sorted({file.stem for file in HERE.glob("*.zip")} - REFUSED.keys())
Documents = Counter[bytes]


def table_of(name: str, folder: Path) -> tuple[DeltaVersions, dict[int, Documents]]:
    """The table, and of each version the documents of the rows that Spark reads."""
    with zipfile.ZipFile(HERE / f"{name}.zip") as packed:
        packed.extractall(folder)
    rows = {
        int(file.stem): Counter(text for batch in pq.read_table(file).to_batches() for text in texts_of(batch))
        for file in (folder / "rows").glob("*.parquet")
    }
    place = str(folder / "table")
    return DeltaVersions(LocalFileSystem(), place, lambda _: None), dict(sorted(rows.items()))


def read(files: Iterable[TableFile]) -> Documents:
    """Their rows; each has as many as it says."""
    found = Documents()
    for file in files:
        texts = [text for batch in file.read() for text in texts_of(batch)]
        assert file.count() == len(texts)
        found.update(texts)
    return found


@pytest.mark.parametrize("name", READ)
def test_each_version_has_the_rows_that_its_writer_reads(tmp_path: Path, name: str) -> None:
    """Whatever the mapping of columns, the vectors, the types, the checkpoints."""
    versions, rows = table_of(name, tmp_path)
    assert versions.newest() == max(rows)
    for version, expected in rows.items():
        assert read(versions.files(version)) == expected, version


@pytest.mark.parametrize("name", READ)
def test_a_version_that_follows_adds_its_rows_or_is_refused(tmp_path: Path, name: str) -> None:
    """None passes that takes rows away, by a vector or else; those that put rows into other files add none."""
    versions, rows = table_of(name, tmp_path)
    passed = []
    for before, after in zip(rows, list(rows)[1:], strict=False):
        if after != before + 1:
            continue  # of one between them files were vacuumed
        following = next_of(versions, before)
        if following is None:
            continue
        assert following == after
        added = read(versions.added(after))
        assert added <= rows[after]
        assert added.total() == rows[after].total() - rows[before].total()
        passed.append(after)
    assert versions.next(max(rows)) is None
    assert passed or name == "vacuumed"


@pytest.mark.parametrize("name", ["v2checkpoint", "dv_parts", "partition_types"])
def test_a_table_is_read_on_any_file_system(tmp_path: Path, name: str) -> None:
    """Of fsspec: the log is read by what reads its files."""
    versions, rows = table_of(name, tmp_path)
    memory = MemoryFileSystem()
    memory.put(str(tmp_path / "table"), f"/{tmp_path.name}", recursive=True)
    versions = DeltaVersions(memory, f"/{tmp_path.name}", lambda _: None)
    assert versions.place.startswith("memory://")
    assert {version: read(versions.files(version)) for version in rows} == rows
    memory.rm(f"/{tmp_path.name}", recursive=True)


def test_what_is_refused_names_the_feature(tmp_path: Path) -> None:
    """Rows would be wrong, or lie where the document may not read."""
    for name, reason in REFUSED.items():
        versions, rows = table_of(name, tmp_path / name)
        with pytest.raises(VersionRefused, match=reason):
            versions.files(max(rows, default=2))


def test_vectors_passed_over_are_refused(tmp_path: Path) -> None:
    """A version's rows are read alone, and a delete by a vector ends a table that is followed."""
    versions, rows = table_of("dv_parts", tmp_path)
    assert [version for version in list(rows)[:-1] if next_of(versions, version) is None] == [1, 2, 4]


def next_of(versions: TableVersions, version: int) -> int | None:
    """The one that follows it; None where that takes rows away."""
    try:
        return versions.next(version)
    except VersionRefused as error:
        if "takes away or changes rows that were read" not in str(error):
            raise
        return None
