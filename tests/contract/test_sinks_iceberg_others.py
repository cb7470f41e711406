"""Other programs write the same Iceberg table while the sink does: what they did stays, no row is lost, and none comes back."""

import random
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions.visitors import _ManifestEvalVisitor
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, LongType, StringType

from tests.contract.sinks_targets import FilesWorld
from tidemark.services.library.release_world import IDENTITY, row_of
from tidemark.services.sink.connectors import filerows, iceberg
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.tablecolumns import numbers_of, paths_of
from tidemark.services.source.connectors.icebergtable import IcebergVersions
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.sink import SinkPort, TargetRefused

pytestmark = pytest.mark.asyncio
_POSITIONS = pa.schema([
    pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
    pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
])  # fmt: skip
"""Of the format's files that tell which rows of others are deleted."""


class _DeletesWriter(ManifestWriterV2):  # type: ignore[misc]
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):  # type: ignore[misc]
    """A commit of files that tell deleted rows: the library reads them, and writes none."""

    def _manifests(self) -> list[ManifestFile]:
        path = f"{self._transaction.table_metadata.location}/metadata/{uuid.uuid4()}-deletes.avro"
        metadata = self._transaction.table_metadata
        with _DeletesWriter(
            metadata.spec(), metadata.schema(), self._io.new_output(path), self.snapshot_id, "deflate"
        ) as writer:
            for file in self._added_data_files:
                writer.add(ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, sequence_number=None, data_file=file,
                ))  # fmt: skip
        return [writer.to_manifest_file(), *self._existing_manifests()]


class Lake:
    """A table to which a sink and others write, and its sink."""

    def __init__(self, folder: Path) -> None:
        self.target = FilesWorld(folder, "iceberg")
        self.target.settings = FileSinkSettings(compact_releases=3, buffer_bytes_max=1)
        self.sink: SinkPort = self.target.sink()
        self.epoch = 0

    async def opened(self) -> None:
        """As a later generation."""
        self.sink = self.target.sink()
        await self.sink.open(IDENTITY, Epoch(self.epoch))

    async def release(self, *documents: Document) -> None:
        """An epoch of these."""
        assert not await self.sink.accept(batch_of(documents))
        staged = await self.sink.stage(Epoch(self.epoch + 1), Epoch(self.epoch))
        await self.sink.release(row_of(self.epoch + 1, self.epoch, staged), staged)
        self.epoch += 1

    def table(self) -> Table:
        """As another program opens it."""
        assert self.target.encoding.table is not None
        return load_catalog("default", **self.target.encoding.table.catalog).load_table("lake.out")

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: int(row["id"]))

    def append(self, key: int) -> None:
        table = self.table()
        kinds = {field.name: field.type for field in table.schema().as_arrow()}
        table.append(pa.table({"id": pa.array([key], kinds["id"])}))

    def delete(self, key: int) -> None:
        """The files that have the row are written anew."""
        self.table().delete(f"id == {key}")

    def mark_deleted(self, key: int) -> None:
        """A file beside them tells the row's place (merge-on-read)."""
        table = self.table()
        path, place = next(
            (task.file.file_path, place)
            for task in table.scan().plan_files()
            for place, found in enumerate(pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist())
            if found == key
        )
        name = f"{table.location()}/{uuid.uuid4()}-deletes.parquet"
        local = Path(name.removeprefix("file://"))
        pq.write_table(pa.table({"file_path": [path], "pos": [place]}, schema=_POSITIONS), local)
        commit_deletes(table, name, content=DataFileContent.POSITION_DELETES)

    def delete_value(self, key: int) -> None:
        """A file beside them tells the row's value, as Flink's upserts do."""
        table = self.table()
        name = f"{table.location()}/{uuid.uuid4()}-deletes.parquet"
        number = table.schema().find_field("id").field_id
        keys = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": str(number)})])
        pq.write_table(pa.table({"id": [key]}, schema=keys), name.removeprefix("file://"))
        commit_deletes(table, name, content=DataFileContent.EQUALITY_DELETES, equality_ids=[number])

    def read(self) -> list[int]:
        """The ids of the rows that the source of tables reads."""
        assert self.target.encoding.table is not None
        versions = IcebergVersions(("lake", "out"), self.target.encoding.table.catalog, lambda _: None)
        files = versions.files(versions.newest())
        versions.close()
        return sorted(key for file in files for batch in file.read() for key in batch["id"].to_pylist())


def commit_deletes(table: Table, name: str, **told: Any) -> None:
    """A commit of a file of deletes."""
    size = Path(name.removeprefix("file://")).stat().st_size
    file = DataFile.from_args(
        file_path=name,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=size,
        **told,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as change, _Deletes(Operation.APPEND, change, table.io) as deletes:
        deletes.append_data_file(file)


@pytest.mark.parametrize("transform", ["identity", "bucket[4]", "day"])
async def test_a_division_that_the_files_would_not_keep_is_refused_at_open(tmp_path: Path, transform: str) -> None:
    """A file has rows of several parts: not only the release that brings such a file says so."""
    lake = Lake(tmp_path)
    assert lake.target.encoding.table is not None
    with load_catalog("default", **lake.target.encoding.table.catalog) as catalog:
        catalog.create_namespace("lake")
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])
        made = catalog.create_table("lake.out", schema, location=f"file://{lake.target.root}")
        with made.update_spec() as spec:
            spec.add_field("at" if transform == "day" else "id", transform, "part")
    with pytest.raises(
        TargetRefused, match=r"the table is divided by (id|bucket\[4\] of id|day of at), and partitionBy"
    ):
        await lake.opened()
    with lake.table().update_spec() as spec:
        spec.remove_field("part")
    await lake.opened()
    await lake.release({"id": 1})
    assert [row["id"] for row in lake.rows()] == [1]


def live_files(lake: Lake) -> list[str]:
    """The paths of the files of the table as it is."""
    return [task.file.file_path.removeprefix("file://") for task in lake.table().scan().plan_files()]


@pytest.fixture
async def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    await made.opened()
    return made


async def test_rows_that_others_marked_as_deleted_do_not_come_back(lake: Lake) -> None:
    """A compaction reads files as the format says: with the places of deleted rows beside them, or not at all."""
    await lake.release({"id": 1}, {"id": 2})
    lake.mark_deleted(1)
    for key in range(3, 9):
        await lake.release({"id": key})
        assert [row["id"] for row in lake.rows()] == [2, *range(3, key + 1)]


async def test_rows_that_others_deleted_by_value_do_not_come_back(lake: Lake) -> None:
    """Rows would be younger than their delete in a file that is written anew; versions go all the same."""
    await lake.release({"id": 1}, {"id": 2})
    lake.delete_value(1)
    for key in range(3, 12):
        await lake.release({"id": key})
        assert lake.read() == [2, *range(3, key + 1)]
    assert len(lake.table().snapshots()) < 6


async def test_a_column_that_others_renamed_keeps_its_values(lake: Lake) -> None:
    """Files tell columns by names: those of earlier files stay known."""
    await lake.release({"id": 1, "a": 10, "o": {"x": 1}})
    with lake.table().update_schema() as update:
        update.rename_column("a", "b")
        update.rename_column("o.x", "y")
    for key in range(2, 9):
        await lake.release({"id": key})
        assert [(row["b"], row["o"]) for row in lake.rows()] == [(10, {"y": 1})] + [(None, None)] * (key - 1)


@pytest.mark.parametrize("again", [False, True])
async def test_a_renamed_column_that_documents_still_have_comes_again(lake: Lake, *, again: bool) -> None:
    """Earlier values stay where others put them, later ones have the name that documents tell, and no release waits for ever."""
    await lake.release({"id": 1, "a": 10})
    with lake.table().update_schema() as update:
        update.rename_column("a", "b")
    if again:
        await lake.opened()
    for key in range(2, 7):
        await lake.release({"id": key, "a": 10 * key})
        assert lake.rows() == [{"id": 1, "a": None, "b": 10}] + [
            {"id": n, "a": 10 * n, "b": None} for n in range(2, key + 1)
        ]


@pytest.mark.parametrize("partition_by", [(), ("p",)])
async def test_each_file_tells_the_numbers_of_all_its_fields(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    """Readers that know fields by numbers alone find no others: of new files, of joined ones, and of those that were written anew."""
    lake = Lake(tmp_path)
    lake.target.encoding = replace(lake.target.encoding, partition_by=partition_by)
    await lake.opened()
    for key in range(7):
        if key == 5:
            with lake.table().update_schema() as update:
                update.delete_column("o").add_column("o", StringType())
        await lake.release({"id": key, "p": "x", "o": {"x": 1, "l": [{"y": "z"}]}, f"new{key}": [[1.5]]})
        schema = lake.table().schema()
        for file in live_files(lake):
            found = pq.ParquetFile(file).schema_arrow
            assert numbers_of(found).keys() == paths_of(found)
            for path, number in numbers_of(found).items():
                name = schema.find_column_name(int(number))
                assert name == ".".join(path) or (key > 4 and path[0] == "o")


@pytest.mark.parametrize("kind", [LongType(), StringType()])
async def test_a_column_that_others_made_anew_has_its_own_values_alone(lake: Lake, kind: IcebergType) -> None:
    """Earlier rows can be read, and have none there; later ones do, over compactions."""
    for key in range(3):
        await lake.release({"id": key, "a": str(key)})
    with lake.table().update_schema() as update:
        update.delete_column("a")
    with lake.table().update_schema() as update:
        update.add_column("a", kind)
    await lake.opened()
    for key in range(3, 10):
        await lake.release({"id": key, "a": key})
        found = [row["a"] for row in lake.rows()]
        assert found == [None] * 3 + [str(n) if kind == StringType() else n for n in range(3, key + 1)]
    assert len(live_files(lake)) < 6


async def test_a_compaction_leaves_what_an_earlier_version_told_by_names(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without numbers: renamed and dropped columns have their values, and files are joined."""
    with monkeypatch.context() as earlier:
        for module in (filerows, iceberg):
            earlier.setattr(module, "numbered", lambda rows, _: rows)
        await lake.release({"id": 1, "a": 10, "b": 1, "o": {"x": 1}})
        await lake.release({"id": 2, "a": 20, "b": 2, "o": {"x": 2}})
    with lake.table().update_schema() as update:
        update.rename_column("a", "c").delete_column("b").rename_column("o.x", "y")
    for key in range(3, 9):
        await lake.release({"id": key, "c": 10 * key})
        assert [(row["c"], row["o"]) for row in lake.rows()] == [(10, {"y": 1}), (20, {"y": 2})] + [
            (10 * n, None) for n in range(3, key + 1)
        ]


async def test_a_compaction_finds_its_files_however_the_librarys_threads_take_turns(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest for each release and a value of the division: each thread that asks for one waits for the others."""
    others = threading.Barrier(2)
    begins = _ManifestEvalVisitor.visit_equal

    def together(visitor: _ManifestEvalVisitor, *args: Any, **named: Any) -> bool:
        with suppress(threading.BrokenBarrierError):
            others.wait(0.05)
        others.reset()
        return bool(begins(visitor, *args, **named))

    monkeypatch.setattr(_ManifestEvalVisitor, "visit_equal", together)
    lake.target.encoding = replace(lake.target.encoding, partition_by=("p",))
    lake.target.settings = FileSinkSettings(compact_releases=5, buffer_bytes_max=1)
    await lake.opened()
    for key in range(12):
        await lake.release({"id": key, "p": f"p{key % 3}"})
    assert [row["id"] for row in lake.rows()] == [*range(12)]
    assert any(iceberg.LARGE in name for name in live_files(lake))


async def test_a_column_that_others_dropped_comes_again_with_the_rows_that_have_it(lake: Lake) -> None:
    """As where it had never been there: nothing of a document is lost, and no release waits for ever."""
    await lake.release({"id": 1, "a": 10})
    with lake.table().update_schema() as update:
        update.delete_column("a")
    await lake.release({"id": 2, "a": 20})
    assert lake.rows()[1] == {"id": 2, "a": 20}
    await lake.opened()
    await lake.release({"id": 3, "a": 30})
    assert lake.rows()[1:] == [{"id": 2, "a": 20}, {"id": 3, "a": 30}]


@pytest.mark.parametrize("seed", range(4))
async def test_any_others_beside_the_sink(lake: Lake, seed: int) -> None:
    """Rows are added and deleted in each way, columns made, between releases, compactions and restarts: the rows are those of a list."""
    chooser, wanted = random.Random(seed), {0}
    await lake.release({"id": 0})
    for key in range(1, 26):
        match chooser.choice(["release", "release", "release", "append", "delete", "mark", "column", "open"]):
            case "release":
                await lake.release({"id": key, chooser.choice("abc"): 1})
                wanted.add(key)
            case "append":
                lake.append(key)
                wanted.add(key)
            case "delete" if len(wanted) > 1:
                wanted.remove(gone := chooser.choice(sorted(wanted)))
                lake.delete(gone)
            case "mark" if len(wanted) > 1:
                wanted.remove(gone := chooser.choice(sorted(wanted)))
                lake.mark_deleted(gone)
            case "column":
                with lake.table().update_schema() as update:
                    update.add_column(f"other{key}", StringType())
            case "open":
                await lake.opened()
        assert [row["id"] for row in lake.rows()] == sorted(wanted)
