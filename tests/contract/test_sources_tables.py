# ruff: noqa: N802 -- a test carries its rule's name
"""Tables as sources: drawn lives of a table, read by its log at drawn moments; the oracle is the library's own scan."""

import datetime as dt
import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from moto.server import ThreadedMotoServer
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from tests.contract.sinks_targets import FilesWorld
from tests.contract.sources_worlds import CLOCK, Beside, TableLanes, catalog_in, table_at
from tests.contract.test_sinks_iceberg_others import Lake
from tests.harness.opening import open_splits
from tidemark.services.library.release_world import InlineSpawner, Task, World
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.services.source.connectors.files import FileConnector
from tidemark.services.source.connectors.icebergtable import IcebergVersions
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.services.source.connectors.tables import TableConnector
from tidemark.services.source.connectors.tableversions import VersionRefused
from tidemark.services.source.filesources import NothingYet, file_source
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.tablelibraries import delta_place
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import EmitFormat, FileSource
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import SourcePort, SourceReplaced
from tidemark.shared.process.allowed import Allowed, NotAllowed
from tidemark.shared.process.connections import Connections, filesystem_at

Documents = Counter[bytes]
EPOCH = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


def documents(table: pa.Table) -> Documents:
    """The rows of a library's scan, each as the text of its document."""
    return Counter(text for batch in table.to_batches() for text in texts_of(batch))


class Life(Protocol):
    """A table that lives: operations by name, and what the library reads of it now."""

    place: Path
    kind: str

    def do(self, operation: str, rows: pa.Table, draw: random.Random) -> None: ...

    def held(self) -> Documents: ...


@dataclass
class DeltaLife:
    """Of Delta Lake."""

    place: Path
    partition_by: list[str]
    kind: str = "delta"

    @property
    def uri(self) -> str:
        return str(self.place / "t")

    def do(self, operation: str, rows: pa.Table, draw: random.Random) -> None:
        match operation:
            case "append" | "evolve":
                write_deltalake(
                    self.uri, rows, mode="append", schema_mode="merge", partition_by=self.partition_by or None
                )
            case "overwrite":
                write_deltalake(self.uri, rows, mode="overwrite", partition_by=self.partition_by or None)
            case "compact":
                DeltaTable(self.uri).optimize.compact()
            case "delete":
                DeltaTable(self.uri).delete(f"n % 5 = {draw.randrange(5)}")
            case "vacuum":
                DeltaTable(self.uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            case "checkpoint":
                DeltaTable(self.uri).create_checkpoint()

    def held(self) -> Documents:
        return documents(DeltaTable(self.uri).to_pyarrow_table())


@dataclass
class IcebergLife:
    """Of Iceberg: snapshots that the present one does not need expire with `vacuum`."""

    place: Path
    partition_by: list[str]
    kind: str = "iceberg"
    catalog: Catalog = field(init=False)

    def __post_init__(self) -> None:
        self.catalog = load_catalog(**catalog_in(self.place))
        self.catalog.create_namespace_if_not_exists("n")
        columns = Schema(NestedField(1, "n", LongType()), NestedField(2, "lane", StringType()))
        fields = [PartitionField(2, 1000, IdentityTransform(), "lane")] if self.partition_by else []
        self.catalog.create_table_if_not_exists("n.t", columns, partition_spec=PartitionSpec(*fields))

    def table(self) -> Table:
        return self.catalog.load_table("n.t")

    def do(self, operation: str, rows: pa.Table, draw: random.Random) -> None:
        table = self.table()
        match operation:
            case "append" | "evolve" | "overwrite":
                with table.update_schema() as update:
                    update.union_by_name(rows.schema)
                (table.overwrite if operation == "overwrite" else table.append)(rows)
            case "delete":
                with warnings.catch_warnings(action="ignore"):  # it may match no row
                    table.delete(f"n >= {draw.randrange(40)} and n < {draw.randrange(40)}")
            case "vacuum":
                for snapshot in table.snapshots()[:-1]:
                    table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
            case "compact" | "checkpoint":
                pass  # the library has none

    def held(self) -> Documents:
        return documents(self.table().scan().to_arrow())


@dataclass
class Rows:
    """Rows with numbers that go on; from a drawn moment on with a further column."""

    next: int = 0
    wide: bool = False

    def some(self, draw: random.Random) -> pa.Table:
        numbers = list(range(self.next, self.next + draw.randrange(1, 12)))
        self.next += len(numbers)
        columns: dict[str, Any] = {
            "n": pa.array(numbers, pa.int64()),
            "lane": pa.array([[None, "a b/c", "é=%", "b"][n % 4] for n in numbers], pa.string()),
        }
        if self.wide:
            columns["at"] = pa.array([EPOCH + dt.timedelta(minutes=n) for n in numbers], pa.timestamp("us", "UTC"))
            columns["paid"] = pa.array([Decimal(n) / 4 if n % 3 else None for n in numbers], pa.decimal128(9, 2))
        return pa.table(columns)


@dataclass
class Reader:
    """The tasks of a source, and what the processor's row and the last snapshot have of it."""

    life: Life
    ordered: bool
    follow: bool
    row: Mapping[SplitId, KnownSplit] | None = None
    positions: dict[SplitId, Offset] = field(default_factory=dict)
    origins: dict[SplitId, Mapping[str, str]] = field(default_factory=dict)
    covered: Documents = field(default_factory=Counter)
    """Read up to the snapshot."""
    since: Documents = field(default_factory=Counter)
    tasks: list[TableConnector] = field(default_factory=list)

    def connector(self) -> TableConnector:
        versions = table_at(self.life.place, self.life.kind)
        return TableConnector(versions, InlineSpawner(), CLOCK, ordered=self.ordered, follow=self.follow, poll_ms=1)

    async def start(self, tasks: int) -> None:
        """A generation, from the last snapshot: what was read since is read again. The first task lists the splits, once."""
        for task in self.tasks:
            await task.close()
        self.since = Counter()
        self.tasks = [self.connector() for _ in range(tasks)]
        if self.row is None:
            self.row = await self.tasks[0].found(list(await self.tasks[0].splits()), first=True)
        for index, task in enumerate(self.tasks):
            mine = {split: known for split, known in self.row.items() if known.ordinal % tasks == index}
            await task.check(mine)
            task.know({split: self.origins[split] for split in mine if split in self.origins})
            await task.open({split: self.positions.get(split, known.begin) for split, known in mine.items()})

    async def read(self, fetches: int, draw: random.Random) -> None:
        for _ in range(fetches):
            batches = await draw.choice(self.tasks).fetch(draw.choice([1, 60, 1 << 20]), 1)
            self.since.update(value for batch in batches for value in batch.values.to_pylist())

    def snapshot(self) -> None:
        for task in self.tasks:
            for status in task.status():
                self.positions[status.split] = status.next_position
                self.origins[status.split] = task.origins(status.split, status.next_position)
        self.covered += self.since
        self.since = Counter()

    async def rest(self, draw: random.Random) -> Documents:
        """All that was read, when nothing is left."""
        for task in self.tasks:
            while batches := await task.fetch(draw.choice([60, 1 << 20]), 1):
                self.since.update(value for batch in batches for value in batch.values.to_pylist())
            assert all(each.at_end for each in task.status())
        return self.covered + self.since

    async def close(self) -> None:
        for task in self.tasks:
            await task.close()


def life_of(kind: str, place: Path, draw: random.Random) -> Life:
    partition_by = draw.choice([[], ["lane"]])
    return DeltaLife(place, partition_by) if kind == "delta" else IcebergLife(place, partition_by)


def live(life: Life, rows: Rows, draw: random.Random, among: Sequence[str]) -> str:
    operation = draw.choice(among)
    rows.wide = rows.wide or operation == "evolve"
    life.do(operation, rows.some(draw), draw)
    return operation


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("seed", range(12))
async def test_D20_a_version_is_read_as_the_library_reads_it(tmp_path: Path, seed: int, kind: str) -> None:
    """Whatever becomes of the table, over restarts and other numbers of tasks; or the source says that the version is gone."""
    draw = random.Random(f"{kind}{seed}")
    life, rows = life_of(kind, tmp_path, draw), Rows()
    life.do("append", rows.some(draw), draw)
    among = ["append", "append", "evolve", "compact", "delete", "overwrite", "checkpoint", "vacuum"]
    for _ in range(draw.randrange(8)):
        live(life, rows, draw, among)
    reader, held, vacuumed = Reader(life, ordered=draw.random() < 0.5, follow=False), life.held(), False
    refused = ""
    try:
        await reader.start(draw.randrange(1, 4))
        for _ in range(draw.randrange(6)):
            vacuumed = live(life, rows, draw, among) == "vacuum" or vacuumed
            await reader.read(draw.randrange(3), draw)
            if draw.random() < 0.5:
                reader.snapshot()
            if draw.random() < 0.5:
                await reader.start(draw.randrange(1, 4))
        await reader.rest(draw)
    except VersionRefused as error:
        refused = str(error)
    read = reader.covered + reader.since
    assert ("Start without state" in refused and vacuumed and not read - held) if refused else read == held
    await reader.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("seed", range(12))
async def test_D20_a_table_that_is_followed_gives_each_row_once(tmp_path: Path, seed: int, kind: str) -> None:
    """Rows that are added come; files that are put together bring none; what takes rows away is refused, by its version."""
    draw = random.Random(f"follow {kind}{seed}")
    life, rows = life_of(kind, tmp_path, draw), Rows()
    life.do("append", rows.some(draw), draw)
    for _ in range(draw.randrange(4)):
        live(life, rows, draw, ["append", "evolve", "compact", "delete", "overwrite"])
    reader = Reader(life, ordered=True, follow=True)
    await reader.start(draw.randrange(1, 4))
    for _ in range(draw.randrange(8)):
        live(life, rows, draw, ["append", "append", "evolve", "compact", "checkpoint"])
        await reader.read(draw.randrange(4), draw)
        if draw.random() < 0.5:
            reader.snapshot()
        if draw.random() < 0.4:
            await reader.start(draw.randrange(1, 4))
    ends = [await task.ends({each.split: each.next_position for each in task.status()}) for task in reader.tasks]
    assert await reader.rest(draw) == life.held()
    assert [each.next_position for task in reader.tasks for each in task.status()] == [
        end for found in ends for end in found.values()
    ]
    reader.snapshot()
    await reader.close()
    life.do("overwrite", rows.some(draw), draw)
    await reader.start(1)
    with pytest.raises(VersionRefused, match="takes away or changes rows that were read"):
        await reader.read(3, draw)
    await reader.close()


async def test_a_checkpoint_while_a_drain_counts_rows_is_of_its_position(tmp_path: Path) -> None:
    """The count is a thread's: between two of its steps a checkpoint forgets the versions that are in front of it."""
    life, rows, draw = DeltaLife(tmp_path, []), Rows(), random.Random(1)
    for _ in range(2):
        life.do("append", rows.some(draw), draw)
    source = await source_at(tmp_path, "t", follow=True)
    await open_splits(source)
    life.do("append", rows.some(draw), draw)
    while await source.fetch(1 << 20, 1):
        pass
    (status,) = source.status()

    class Meanwhile(int):
        def __ge__(self, other: object) -> bool:
            source.origins(status.split, status.next_position)
            return isinstance(other, int) and int(self) >= other

    ends = await source.ends({status.split: Offset(Meanwhile(status.next_position))})
    told = source.origins(status.split, status.next_position)
    assert ends == {status.split: status.next_position}
    again = await source_at(tmp_path, "t", follow=True)
    again.know({status.split: told})
    await again.open({status.split: status.next_position})
    life.do("append", rows.some(draw), draw)
    batches = [batch for _ in range(3) for batch in await again.fetch(1 << 20, 1)]
    assert sum(len(batch.positions) for batch in batches) + status.next_position == life.held().total()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
async def test_D20_a_version_has_its_own_files_while_another_thread_lists_the_next(tmp_path: Path, kind: str) -> None:
    """A look for splits lists the present version, beside a read of the one that the job began with."""
    lanes = TableLanes(tmp_path, kind, ordered=False, follow=False)
    await lanes.add(0, [1])
    versions: Any = table_at(tmp_path, kind)
    first = versions.newest()
    await lanes.add(0, [2])
    second = versions.newest()

    class Meanwhile(type(versions)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_known" and value[0] == first:
                assert len(self.files(second)) == 2

    versions.__class__ = Meanwhile
    assert len(versions.files(first)) == 1
    versions.close()


# --- what is refused ----------------------------------------------------------------------------------------------------


def source_at(folder: Path, path: str, **options: Any) -> Coroutine[Any, Any, FileConnector | TableConnector]:
    """As a document makes it: `path` below the folder."""
    source = {"path": f"{folder}/{path}", "format": "parquet", **options}
    processor = parse({"pipeline": [{"$source": source}, {"$emit": {"path": "out", "format": "json"}}]})
    assert isinstance(processor.source, FileSource)
    return file_source(Connections("x"), Beside(), processor, processor.source)


async def read_all(source: SourcePort) -> Documents:
    """All that is there."""
    await open_splits(source)
    found = Documents()
    while not all(each.at_end for each in source.status()):
        found.update(value for batch in await source.fetch(1 << 20, 1) for value in batch.values.to_pylist())
    await source.close()
    return found


async def test_a_table_that_is_followed_may_come_later(tmp_path: Path) -> None:
    """It is waited for, with what is there instead: files would be looked for in its place for ever, and none be found."""
    for _ in range(2):
        with pytest.raises(
            NothingYet, match=r"\$source\.path: expected a file or a Delta Lake table at .*/t, found nothing"
        ):
            await source_at(tmp_path, "t", follow=True)
    (tmp_path / "t").mkdir()
    with pytest.raises(LogUnavailable, match=r"at .*/t, found a folder: for the files in it give .*/t/\*;"):
        await source_at(tmp_path, "t", follow=True)
    write_deltalake(tmp_path / "t", pa.table({"a": [1]}))
    assert isinstance(await source_at(tmp_path, "t", follow=True), TableConnector)


@pytest.mark.parametrize("format_", ["json", "csv"])
async def test_a_folder_that_is_followed_is_no_file(tmp_path: Path, format_: str) -> None:
    """It matches itself alone, and would never give anything."""
    (tmp_path / "t").mkdir()
    with pytest.raises(
        LogUnavailable, match=r"expected a file at .*/t, found a folder: for the files in it give .*/t/\*;"
    ):
        await source_at(tmp_path, "t", follow=True, format=format_)
    assert isinstance(await source_at(tmp_path, "later.json", follow=True, format=format_), FileConnector)


@pytest.mark.parametrize(
    "path", ["t", "t/", "t/*", "t/*.parquet", "t/**", "t/**/*.parquet", "t/*/*.parquet", "t/lane=*/*.parquet"]
)
async def test_a_path_to_a_table_is_the_table(tmp_path: Path, path: str) -> None:
    """Its folder, or a pattern that means all of it."""
    life, rows, draw = DeltaLife(tmp_path, ["lane"]), Rows(), random.Random(1)
    life.do("append", rows.some(draw), draw)
    life.do("delete", rows.some(draw), draw)
    assert await read_all(await source_at(tmp_path, path)) == life.held()


@pytest.mark.parametrize(
    "path", ["t/lane=b/*.parquet", "t/part-0*.parquet", "*/*/*.parquet", "**/*.parquet", "**/*b/*.parquet"]
)
@pytest.mark.parametrize("ordered", [False, True])
async def test_parts_of_a_table_are_refused(tmp_path: Path, path: str, *, ordered: bool) -> None:
    """Files that are picked from it may be no part of it."""
    write_deltalake(tmp_path / "t", pa.table({"n": [1, 2], "lane": ["a", "b"]}), partition_by=["lane"])
    with pytest.raises(VersionRefused, match="part of the Delta Lake table"):
        await read_all(await source_at(tmp_path, path, ordered=ordered))


@pytest.mark.parametrize("path", ["tables/n/t/data/*.parquet", "tables/n/t/**/*.parquet", "tables/**/*.parquet"])
async def test_the_files_of_an_iceberg_table_are_refused(tmp_path: Path, path: str) -> None:
    """Only its catalog knows which of them are part of it."""
    life, rows, draw = IcebergLife(tmp_path, []), Rows(), random.Random(1)
    life.do("append", rows.some(draw), draw)
    with pytest.raises(VersionRefused, match="part of the Iceberg table"):
        await read_all(await source_at(tmp_path, path))


async def test_a_folder_that_becomes_a_table_is_not_read_on(tmp_path: Path) -> None:
    """Files were read as they lay; from then on the log says which are part of it."""
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "t" / "a.parquet")
    source = await source_at(tmp_path, "t/*.parquet", follow=True)
    await open_splits(source)
    assert [value for batch in await source.fetch(100, 1) for value in batch.values.to_pylist()] == [b'{"n":1}']
    write_deltalake(tmp_path / "t", pa.table({"n": [2]}))
    with pytest.raises(VersionRefused, match="start without state"):
        await source.fetch(100, 1)


FEATURES: dict[str, dict[str, Any]] = {
    "variantType": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["variantType"]},
    "unknownFeature": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["unknownFeature"]},
}


@pytest.mark.parametrize("feature", FEATURES)
async def test_what_would_give_wrong_rows_is_refused(tmp_path: Path, feature: str) -> None:
    """What nobody here knows: with the table, its version and the feature."""
    write_deltalake(tmp_path / "t", pa.table({"n": [1, 2]}))
    changed(
        tmp_path / "t",
        protocol=lambda _: {**FEATURES[feature], "writerFeatures": FEATURES[feature]["readerFeatures"]},
    )
    with pytest.raises(VersionRefused, match=feature) as refused:
        await read_all(await source_at(tmp_path, "t"))
    assert str(tmp_path / "t") in str(refused.value)


def changed(table: Path, **actions: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrites the only entry of a table's log."""
    (entry,) = (table / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    lines = [{name: actions.get(name, dict)(told) for name, told in line.items()} for line in lines]
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("path", ["../secret.parquet", "/secret.parquet", "file:///secret.parquet"])
async def test_a_table_leads_nobody_out_of_its_folder(tmp_path: Path, path: str) -> None:
    """A document is allowed its folder: a log that names other files is refused, with the path."""
    write_deltalake(tmp_path / "t", pa.table({"n": [1, 2]}))
    changed(tmp_path / "t", add=lambda was: {**was, "path": path})
    with pytest.raises(VersionRefused, match=r"cannot be read: .*secret\.parquet"):
        await read_all(await source_at(tmp_path, "t"))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
async def test_I2_another_table_of_the_name_is_another_source(tmp_path: Path, kind: str) -> None:
    """Positions in the one mean nothing in the other."""
    rows, draw = Rows(), random.Random(1)
    life = life_of(kind, tmp_path, draw)
    life.do("append", rows.some(draw), draw)
    reader = Reader(life, ordered=True, follow=False)
    await reader.start(1)
    reader.snapshot()
    if isinstance(life, IcebergLife):
        life.catalog.drop_table("n.t")
    else:
        shutil.rmtree(tmp_path / "t")
    again = life_of(kind, tmp_path, draw)
    again.do("append", rows.some(draw), draw)
    with pytest.raises(SourceReplaced, match="another table has its name"):
        await reader.start(1)
    await reader.close()


@pytest.mark.parametrize("ordered", [False, True])
async def test_I2_a_job_that_read_the_files_as_they_lay_does_not_go_on(tmp_path: Path, *, ordered: bool) -> None:
    """Its positions are of files, some of which are no part of the table."""
    write_deltalake(tmp_path / "t", pa.table({"n": [1]}))
    (file,) = (tmp_path / "t").glob("*.parquet")
    source = await source_at(tmp_path, "t", ordered=ordered)
    with pytest.raises(SourceReplaced, match="Start without state"):
        await source.check({SplitId("files" if ordered else str(file)): KnownSplit(0, "1:aa", Offset(0))})
    await source.close()


# --- tables of others and of the product's own sink -----------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["parquet", "iceberg"])
async def test_a_table_of_the_sink_is_read_as_it_is_told(tmp_path: Path, format_: EmitFormat) -> None:
    """Through releases, files that are put together, and versions that go."""
    target = FilesWorld(tmp_path, format_)
    target.settings = FileSinkSettings(compact_releases=4, buffer_bytes_max=1)
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(9):
        await task.epoch()
        (tmp_path / "out" / "emit-1-00000000000000000000-dead-0-00000.parquet").write_bytes(b"of a writer that died")
        if format_ == "iceberg":
            assert target.encoding.table is not None
            versions: Any = IcebergVersions(("lake", "out"), target.encoding.table.catalog, lambda _: None)
            found = await read_all(TableConnector(versions, InlineSpawner(), CLOCK))
        else:
            found = await read_all(await source_at(tmp_path, "out"))
        assert sorted(json.loads(each)["id"] for each in found.elements()) == list(range(world.committed_rows))


async def test_rows_that_marks_delete_do_not_come(tmp_path: Path) -> None:
    """Deletes by position beside the files (merge-on-read)."""
    lake = Lake(tmp_path)
    await lake.opened()
    await lake.release({"id": 1}, {"id": 2}, {"id": 3})
    await lake.release({"id": 4})
    lake.mark_deleted(2)
    assert lake.target.encoding.table is not None
    for ordered in (False, True):
        versions = IcebergVersions(("lake", "out"), lake.target.encoding.table.catalog, lambda _: None)
        found = await read_all(TableConnector(versions, InlineSpawner(), CLOCK, ordered=ordered))
        assert sorted(json.loads(each)["id"] for each in found.elements()) == [1, 3, 4]


async def test_a_table_of_a_catalog_is_read_where_documents_may_read(tmp_path: Path) -> None:
    """The catalog tells where the table lies: it is asked whether that is allowed, before a file is read."""
    life, rows, draw = IcebergLife(tmp_path, []), Rows(), random.Random(1)
    life.do("append", rows.some(draw), draw)
    connection = {"type": "files", "path": str(tmp_path), "catalog": catalog_in(tmp_path)}
    source = {"connectionName": "lake", "path": "n/t", "format": "iceberg"}
    tree = {
        "connections": {"lake": connection},
        "pipeline": [{"$source": source}, {"$emit": {"path": "o", "format": "json"}}],
    }
    processor = parse(tree)
    assert isinstance(processor.source, FileSource)
    made = await file_source(Connections("x"), Beside(), processor, processor.source)
    assert await read_all(made) == life.held()
    elsewhere = Allowed(schemes=("file", "sqlite"), folders=(str(tmp_path / "other"),))
    with pytest.raises(NotAllowed):
        await (await file_source(Connections("x", allowed=elsewhere), Beside(), processor, processor.source)).look()


async def test_a_table_in_an_object_store_is_read_as_one_in_a_folder() -> None:
    """By the connection's own address and keys."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    config: dict[str, Any] = {"endpoint_url": f"http://{host}:{port}", "key": "test", "secret": "test"}
    filesystem, path = filesystem_at(
        "s3://tables/t", "$source", {**config, "client_kwargs": {"region_name": "us-east-1"}}
    )
    filesystem_at("s3://tables", "$source", config)[0].mkdir("tables")
    place = delta_place(filesystem, path)
    assert place is not None
    write_deltalake(place[0], pa.table({"n": [1, 2, 3]}), storage_options=place[1])
    DeltaTable(place[0], storage_options=place[1]).delete("n = 2")
    config["client_kwargs"] = {"region_name": "us-east-1"}
    connection = {"type": "files", "path": "s3://tables", "config": config}
    source = {"connectionName": "store", "path": "t", "format": "parquet"}
    processor = parse(
        {
            "connections": {"store": connection},
            "pipeline": [{"$source": source}, {"$emit": {"path": "o", "format": "json"}}],
        }
    )
    assert isinstance(processor.source, FileSource)
    executor = AsyncExecutor()
    made = await file_source(Connections("x"), Beside(executor), processor, processor.source)
    assert await read_all(made) == Counter([b'{"n":1}', b'{"n":3}'])
    assert ObjectDestination(filesystem, path).table() == place
    await executor.close()
    server.stop()
