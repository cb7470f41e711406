# ruff: noqa: N802 -- a test carries its rule's name
"""Tables: what any reader of the format, or of the folder, finds is what was released (protocol, S2, S4)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.contract.sinks_targets import FilesWorld
from tidemark.services.audit.expected import expected_in_files
from tidemark.services.library.release_world import IDENTITY, JOB, InlineSpawner, Task, World, batch_of, row_of
from tidemark.services.sink.connectors import delta
from tidemark.services.sink.connectors.destination import LocalDestination, sha256
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.files import FileSink, FileSinkSettings
from tidemark.services.sink.connectors.formats import SUFFIXES, parquet_bytes
from tidemark.services.sink.connectors.manifests import (
    MANIFESTS,
    STAGED,
    Manifest,
    encode_manifest,
    manifest_name,
)
from tidemark.services.sink.connectors.released import read_released, read_released_rows
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.services.sink.connectors.tablereleases import CommitConflict, TableReleases, app_of, table_releases
from tidemark.shared.adapters.creating import Folders
from tidemark.shared.language.stages import EmitFormat, FileEmit, FileFormat
from tidemark.shared.language.values import parse_json, render_json
from tidemark.shared.model.ids import Epoch, VertexId
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.ports.sink import Identity, SinkPort, TargetRefused


class DeltaLooks:
    """A table as others see it."""

    def __init__(self, target: FilesWorld) -> None:
        self.target = target

    def _table(self) -> Any:
        return DeltaTable(self.target.root)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._table().to_pyarrow_table().to_pylist()
        return rows

    def marker(self, identity: Identity) -> int | None:
        found: int | None = self._table().transaction_version(app_of(str(identity)))
        return found

    def version(self) -> int:
        return int(self._table().version())


class IcebergLooks(DeltaLooks):
    def _table(self) -> Any:
        assert self.target.encoding.table is not None
        with load_catalog("default", **self.target.encoding.table.catalog) as catalog:
            return catalog.load_table("lake.out")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._table().scan().to_arrow().to_pylist()
        return rows

    def marker(self, identity: Identity) -> int | None:
        found = self._table().properties.get(app_of(str(identity)))
        return None if found is None else int(found)

    def version(self) -> int:
        return len(self._table().metadata.snapshots)


LOOKS: dict[EmitFormat, type[DeltaLooks]] = {"parquet": DeltaLooks, "iceberg": IcebergLooks}


@pytest.fixture(params=list(LOOKS))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> FilesWorld:
    return FilesWorld(tmp_path, request.param)


def looks_at(target: FilesWorld) -> DeltaLooks:
    return LOOKS[target.encoding.format](target)


def releases_of(target: FilesWorld) -> TableReleases[Any]:
    releases = table_releases(LocalDestination(target.root, "x"), target.encoding)
    assert releases is not None
    return releases


def check_readers(target: FilesWorld, expected: Sequence[int]) -> None:
    """Each of the usual readers finds these rows, by its own means."""
    folder = str(target.root)
    found = [
        [row["id"] for row in looks_at(target).rows()],
        read_released(folder, encoding=target.encoding).column("id").to_pylist(),
    ]
    if target.encoding.format == "parquet":
        found += [
            pd.read_parquet(folder)["id"].tolist(),
            ds.dataset(folder, format="parquet").to_table().column("id").to_pylist(),
            pq.read_table(folder).column("id").to_pylist(),
        ]
    assert [sorted(ids) for ids in found] == [list(expected)] * len(found)


async def epoch(sink: SinkPort, number: int, *groups: Sequence[Document], before: int | None = None) -> None:
    """Rows of one epoch, to the release."""
    for group in groups:
        assert not await sink.accept(documents_batch(group))
    last = number - 1 if before is None else before
    staged = await sink.stage(Epoch(number), Epoch(last))
    await sink.release(row_of(number, last, staged), staged)


async def test_S4_every_reader_finds_what_is_released_and_nothing_else(target: FilesWorld) -> None:
    """pandas, pyarrow and the format's own reader agree at each step: staged output is seen by none, released output by all."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    for _ in range(3):
        await task.accept()
        await task.stage()
        check_readers(target, range(world.committed_rows))
        await task.commit()
        await task.release()
        check_readers(target, range(world.committed_rows))
    again = Task(world)
    await again.start()
    await again.epoch()
    check_readers(target, range(world.committed_rows))


async def test_S2_the_marker_lies_in_the_commit_of_the_table(target: FilesWorld) -> None:
    """One commit of the table a release, empty ones too, each with the identity's application transaction."""
    task = Task(World(target))
    await task.start()
    await task.epoch()
    versions = looks_at(target).version()
    await task.epoch()
    await task.stage()
    await task.commit()
    await task.release()
    assert looks_at(target).marker(IDENTITY) == 3
    assert looks_at(target).version() == versions + 2


async def test_S2_of_two_that_release_one_commit_the_second_changes_nothing(target: FilesWorld) -> None:
    """A zombie that looked at the table before its successor committed meets the conflict, and finds the commit released."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await task.accept()
    await task.stage()
    await task.commit()
    zombie = target.sink()
    await zombie.open(IDENTITY, world.last)
    await task.release()
    before = looks_at(target).version()
    await zombie.release(*world.commits[-1])
    assert looks_at(target).version() == before
    check_readers(target, range(world.committed_rows))


async def test_S2_a_table_that_has_come_since_begins_where_the_manifests_end(target: FilesWorld) -> None:
    """A zombie that goes on when there is a table releases nothing again that its successor did, and sets no marker back."""
    world = World(target)
    task, zombie = Task(world), target.sink()
    await task.start()
    await zombie.open(IDENTITY, Epoch(0))
    for _ in range(2):
        await task.stage()
        await task.commit()
        await task.release()
    beside = target.sink()
    await beside.open(Identity(JOB, VertexId("emit"), 1), Epoch(0))
    assert not await beside.accept(batch_of(range(3)))
    before = looks_at(target).version()
    await zombie.release(*world.commits[0])
    assert looks_at(target).version() == before
    await task.epoch()
    check_readers(target, range(world.committed_rows))
    assert looks_at(target).marker(IDENTITY) == 3


async def test_S2_another_history_in_the_table_is_refused(target: FilesWorld) -> None:
    """A marker that is no predecessor of the commit is told with both numbers; nothing is added."""
    task = Task(World(target))
    await task.start()
    await task.epoch()
    releases = releases_of(target)
    other = Manifest(
        identity=str(IDENTITY),
        job=JOB,
        vertex="emit",
        index=0,
        epoch=9,
        predecessor=7,
        format="parquet",
        rows=0,
        files=(),
    )
    with pytest.raises(TargetRefused, match=r"expected marker 7 .*, found 1"):
        releases.publish(other)


async def test_columns_are_added_and_what_no_column_takes_is_rescued(target: FilesWorld) -> None:
    """New fields become columns, null before; other types, nested ones and names the format has not lie in `_rescued_data`."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await epoch(sink, 1, [{"id": 1, "n": 1, "o": {"a": 1}}])
    await epoch(sink, 2, [{"id": 2, "n": "many", "o": {"b": 2}, "new": 0.5}, {"id": 3, "n": 3.0}])
    await epoch(sink, 3, [{"id": 4, "a name": True, "N": 1, "n": 2.5}], [{"id": 5, "z": None}, {"id": 6, "new": 7}])
    rows = sorted(looks_at(target).rows(), key=lambda row: row["id"])
    assert [row["n"] for row in rows] == [1, None, 3, None, None, None]
    assert [row["new"] for row in rows] == [None, 0.5, None, None, None, 7.0]
    rescued = [json.loads(row["_rescued_data"] or "{}") for row in rows]
    assert rescued == [{}, {"n": "many", "o": {"b": 2}}, {}, {"N": 1, "a name": True, "n": 2.5}, {}, {}]
    assert len(read_released_rows(str(target.root), encoding=target.encoding)) == 6


async def test_dates_that_the_format_does_not_reach_are_rescued(target: FilesWorld) -> None:
    """Tables have microseconds, of some 292,000 years; other rows, nested dates and columns of text are as ever."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    far, near = Date(2**63 - 1), Date(1000)
    await epoch(
        sink, 1, [{"id": 1, "at": far, "o": {"at": near}}, {"id": 2, "at": near, "o": {"at": Date(-far)}, "t": "x"}]
    )
    await epoch(sink, 2, [{"id": 3, "at": Date(-far), "s": [near, far], "t": far}, {"id": 4, "at": near, "s": [near]}])
    rows = sorted(looks_at(target).rows(), key=lambda row: row["id"])
    second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert [row["at"] for row in rows] == [None, second, None, second]
    assert [row["o"] for row in rows] == [{"at": second}, None, None, None]
    assert [row["s"] for row in rows] == [None, None, None, [second]]
    assert [row["t"] for row in rows] == [None, "x", render_json(far).decode(), None]
    rescued = [parse_json((row["_rescued_data"] or "{}").encode()) for row in rows]
    assert rescued == [{"at": far}, {"o": {"at": Date(-far)}}, {"at": Date(-far), "s": [near, far]}, {}]


@pytest.mark.parametrize("far_ms", [253_402_300_800_000, -62_135_600_000_000])
async def test_C12_dates_beyond_pythons_years_are_compacted_more_than_once(target: FilesWorld, far_ms: int) -> None:
    """A compaction leaves bounds of columns in the log, of which Python has no value."""
    target.settings = replace(target.settings, compact_releases=2)
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    for number in range(1, 8):
        await epoch(sink, number, [{"id": number, "at": Date(far_ms + number)}])
    found = read_released(str(target.root), encoding=target.encoding)
    assert sorted(found.column("id").to_pylist()) == [*range(1, 8)]
    assert len([*target.root.rglob("*.parquet")]) < 4


async def test_a_column_of_whole_numbers_takes_no_negative_zero(target: FilesWorld) -> None:
    """It would come back as another value, alone and within."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await epoch(sink, 1, [{"id": 1, "n": 1, "o": {"n": 1}, "l": [1]}])
    await epoch(sink, 2, [{"id": 2, "n": -0.0, "o": {"n": -0.0}, "l": [-0.0]}, {"id": 3, "n": 0.0, "o": {"n": 2.0}}])
    rows = sorted(looks_at(target).rows(), key=lambda row: row["id"])
    assert [(row["n"], row["o"]) for row in rows] == [(1, {"n": 1}), (None, None), (0, {"n": 2})]
    assert rows[1]["_rescued_data"] == '{"l":[-0.0],"n":-0.0,"o":{"n":-0.0}}'


@pytest.mark.parametrize("together", [True, False])
async def test_objects_of_nulls_alone_are_no_nulls_and_no_reason_to_end(target: FilesWorld, *, together: bool) -> None:
    """They decide on no column's type."""
    values: list[Any] = [{"a": None}, {"a": None, "b": {"c": None}, "d": 1}, [{"a": None}], [[{"a": None}], None]]
    documents: list[Document] = [{"id": number, f"f{number}": value} for number, value in enumerate(values)]
    documents += [{"id": 4, "f0": {"a": 1}}, {"id": 5, "f0": {"a": None}}]
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    groups = [documents] if together else [[document] for document in documents]
    for number, group in enumerate(groups):
        await epoch(sink, number + 1, group)
    rows = {row.pop("id"): row for row in looks_at(target).rows()}
    objects = [{"a": None}, {"a": 1}, {"a": None}]
    told = [rows[number]["f0"] or json.loads(rows[number]["_rescued_data"])["f0"] for number in (0, 4, 5)]
    assert told == objects
    assert rows[1]["f1"] == {"b": '{"c":null}', "d": 1}
    assert (rows[2]["f2"], rows[3]["f3"]) == (['{"a":null}'], [['{"a":null}'], None])


async def test_objects_within_lose_no_field_and_no_type(target: FilesWorld) -> None:
    """A cast of Arrow's drops fields that the column has not, and reads numbers out of texts, below arrays and objects."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    first = {"a": [{"b": 1}], "o": {"p": {"q": 1}}}
    later: list[Document] = [
        {"a": [{"b": 1, "c": 2}], "o": {"p": {"q": 1}}},
        {"a": [{"b": 1.0}], "o": {"p": {"q": 1, "r": 2}}},
        {"a": [{"b": "7"}], "o": {"p": {"q": "7"}}},
    ]
    await epoch(sink, 1, [{"id": 0, **first}])
    for number, document in enumerate(later):
        await epoch(sink, 2 + number, [{"id": 1 + number, **document}])
    rows = sorted(looks_at(target).rows(), key=lambda row: row["id"])
    assert [row["a"] or None for row in rows] == [[{"b": 1}], None, [{"b": 1}], None]
    assert [row["o"] for row in rows] == [{"p": {"q": 1}}, {"p": {"q": 1}}, None, None]
    rescued = [json.loads(row["_rescued_data"] or "{}") for row in rows]
    assert rescued == [{}, {"a": later[0]["a"]}, {"o": later[1]["o"]}, later[2]]


async def test_fields_within_that_case_alone_tells_apart_are_text(target: FilesWorld) -> None:
    """Delta refuses such a column, and with it all rows; where the column is known, what it does not take is rescued."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await epoch(sink, 1, [{"id": 1, "o": {"A": 1}, "p": {"a": 1}}, {"id": 2, "o": {"a": 2}}])
    await epoch(sink, 2, [{"id": 3, "p": {"a": 1, "A": 2}}, {"id": 4, "p": {"a": 3}}])
    rows = sorted(looks_at(target).rows(), key=lambda row: row["id"])
    assert [json.loads(row["o"] or "null") for row in rows] == [{"A": 1}, {"a": 2}, None, None]
    assert [row["p"] for row in rows] == [{"a": 1}, None, None, {"a": 3}]
    assert [json.loads(row["_rescued_data"] or "{}") for row in rows] == [{}, {}, {"p": {"a": 1, "A": 2}}, {}]


async def test_two_tasks_agree_on_a_columns_type_before_they_stage(target: FilesWorld) -> None:
    """Whose rows come first decides, for both; neither fails at its release."""
    sinks = []
    for index, value in enumerate(("text", 5)):
        identity = Identity(JOB, VertexId("emit"), index)
        sink = target.sink()
        await sink.open(identity, Epoch(0))
        assert not await sink.accept(documents_batch([{"id": index, "v": value}]))
        sinks.append((identity, sink))
    for identity, sink in reversed(sinks):
        staged = await sink.stage(Epoch(1), Epoch(0))
        await sink.release(row_of(1, 0, staged, identity=identity), staged)
    rows = looks_at(target).rows()
    assert {row["id"]: row["v"] for row in rows} == {0: "text", 1: "5"}


async def test_a_table_is_divided_as_the_document_says(target: FilesWorld) -> None:
    """Any text, blanks and slashes too; null and missing are null; a reader of the folder finds the same."""
    target.encoding = replace(target.encoding, partition_by=("p",))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    values = ["plain", "a b/c", "ü%20", "1", True, 5, None]
    await epoch(sink, 1, [{"id": n, "p": value} for n, value in enumerate(values)])
    rows = {row["id"]: row["p"] for row in looks_at(target).rows()}
    assert rows == {0: "plain", 1: "a b/c", 2: "ü%20", 3: "1", 4: "true", 5: "5", 6: None}
    if target.encoding.format == "parquet":
        folder = ds.dataset(str(target.root), format="parquet", partitioning="hive").to_table()
        assert sorted(folder.column("id").to_pylist()) == list(rows)
    batch = documents_batch([{"id": 9, "p": ""}, {"id": 10, "p": "__HIVE_DEFAULT_PARTITION__"}])
    refused = await sink.accept(batch)
    assert ["read as null" in each.reason for each in refused] == [True, True]
    stage = FileEmit(path="$emit", file_path="out", format=target.encoding.format, partition_by=("p",))
    assert list(expected_in_files(stage, None).accept(batch)) == list(refused)  # so an audit wants no such rows


@pytest.mark.parametrize(("name", "folder"), [("ü", "ü"), ("a b", "a b"), ("x/y=%", "x%2Fy%3D%25")])
async def test_folders_are_named_as_others_name_them(tmp_path: Path, name: str, folder: str) -> None:
    """As Hive does: letters beyond ASCII as they are."""
    target = FilesWorld(tmp_path, "parquet", partition_by=(name,))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await epoch(sink, 1, [{"id": 1, name: "ä/ö"}])
    folders = {path.parent.name for path in target.root.rglob("*.parquet")}
    assert f"{folder}=ä%2Fö" in folders


async def test_C12_small_files_become_large_ones_and_nothing_else_goes(target: FilesWorld) -> None:
    """Every reader finds the same rows after it; what another task has made visible and not yet committed stays."""
    target.settings = FileSinkSettings(compact_releases=4, buffer_bytes_max=1)
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    uncommitted = target.root / "emit-1-00000000000000000000-other-0-00000.parquet"
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), uncommitted)
    for _ in range(6):
        await task.epoch()
    assert uncommitted.exists()
    uncommitted.unlink()
    assert len(list(target.root.glob("*.parquet"))) < 7
    check_readers(target, range(world.committed_rows))
    again = Task(world)
    await again.start()
    await again.epoch()
    check_readers(target, range(world.committed_rows))


@pytest.mark.parametrize("error", [AssertionError(), TargetRefused("no")])
async def test_C12_a_compaction_that_fails_however_stops_no_release(
    target: FilesWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever a library raises over files that others wrote: releases go on, and a later compaction makes up for it."""
    target.settings = FileSinkSettings(compact_releases=2, buffer_bytes_max=1)
    task = Task(World(target))
    await task.start()
    with monkeypatch.context() as patched:
        tried = []

        def fails(*_: object) -> None:
            tried.append(1)
            raise error

        patched.setattr(type(releases_of(target)), "_compact", fails)
        for _ in range(5):
            await task.epoch()
    assert tried
    check_readers(target, range(task.world.committed_rows))
    files = len(list(target.root.glob("*.parquet")))
    for _ in range(2):
        await task.epoch()
    check_readers(target, range(task.world.committed_rows))
    assert len(list(target.root.glob("*.parquet"))) < files


def _empty(number: int) -> Manifest:
    """Of an epoch without rows."""
    before = number - 1 if number > 1 else None
    return Manifest(
        identity=str(IDENTITY), job=JOB, vertex="emit", index=0, epoch=number, predecessor=before,
        format="parquet", rows=0, files=(),
    )  # fmt: skip


def _files_of_log(target: FilesWorld) -> int:
    return len(list((target.root / releases_of(target).log).iterdir()))


async def test_C12_a_table_keeps_few_versions_however_many_releases_there_were(
    target: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes one, also without rows, and a commit reads them all: early ones go, and a handle that was opened early goes on."""
    monkeypatch.setattr(delta, "LOG_KEPT", "interval 0 seconds")
    target.settings = FileSinkSettings(compact_releases=10, buffer_bytes_max=1)
    sink = await opened(target)
    await epoch(sink, 1, [{"id": 1}])
    releases = table_releases(LocalDestination(target.root, "x"), target.encoding, compact_files=10)
    assert releases is not None
    late = releases_of(target)
    assert late.marker(str(IDENTITY)) == 1
    counts = []
    for number in range(2, 202):
        releases.publish(_empty(number))
        if number % 100 == 0:
            counts.append(_files_of_log(target))
    assert counts[1] - counts[0] < 50
    late.publish(_empty(202))
    assert looks_at(target).marker(IDENTITY) == 202
    check_readers(target, [1])


async def test_S4_a_sink_that_opens_makes_durable_what_tells_the_present_alone(
    target: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each entry of a log that may reach back for long, nor all of it again with each release."""
    await epoch(await opened(target), 1, [{"id": 1}])
    releases = releases_of(target)
    for number in range(2, 132):
        releases.publish(_empty(number))
    forced: list[Path] = []
    monkeypatch.setattr(Folders, "force", lambda _, path: forced.append(path))
    again = releases_of(target)
    assert again.marker(str(IDENTITY)) == 131
    assert 0 < len(forced) < 60
    assert {path.parent.name for path in forced} <= {again.log, target.root.name}
    forced.clear()
    again.publish(_empty(132))
    assert 0 < len(forced) < 8


def older_layout(root: Path, files: int = 3, format_: FileFormat = "parquet") -> None:
    """As an earlier version left it: files below `_staged`, each in a manifest."""
    destination = LocalDestination(root, "old")
    for number in range(files + 1):
        listed: tuple[StagedFile, ...] = ()
        if number:
            data = b'{"id": %d}\n' % number
            if format_ == "parquet":
                table = pa.table({"id": [number], "t": pa.array([number], pa.timestamp("ms", "UTC"))})
                data = parquet_bytes(table, {})
            name = f"{STAGED}/{IDENTITY}/{number - 1:020d}-old-0/part-00000{SUFFIXES[format_]}"
            destination.create(name, data)
            listed = (StagedFile(name, 1, len(data), sha256(data)),)
        before = number - 1 if number else None
        manifest = Manifest(
            identity=str(IDENTITY), job=JOB, vertex="emit", index=0, epoch=number, predecessor=before,
            format=format_, rows=len(listed), files=listed,
        )  # fmt: skip
        destination.create(manifest_name(str(IDENTITY), Epoch(number)), encode_manifest(manifest))


@pytest.mark.parametrize("cut", [False, True])
async def test_output_of_an_earlier_version_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """Its rows are in the table, its marker too, also after a conversion that was cut off; the next epoch follows."""
    root = tmp_path / "out"
    older_layout(root)
    target = FilesWorld(tmp_path, "parquet")
    if cut:
        monkeypatch.setattr(LocalDestination, "delete", _fail)
        with pytest.raises(OSError, match="cut off"):
            await target.sink().open(IDENTITY, Epoch(3))
        monkeypatch.undo()
    sink = target.sink()
    assert await sink.open(IDENTITY, Epoch(3)) == 3
    assert not list(root.glob(f"{STAGED}/**/*.parquet"))
    await epoch(sink, 4, [{"id": 4}])
    check_readers(target, [1, 2, 3, 4])


def _fail(*_: object) -> None:
    raise OSError("cut off")


@pytest.mark.parametrize("lacks", [(0,), (1,), (2,), (3,), (0, 1), (1, 2)])
@pytest.mark.parametrize("listings", [1, 100])
async def test_S4_C12_output_of_an_earlier_version_that_a_listing_lacks_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: tuple[int, ...], listings: int
) -> None:
    """A store's first listings may lack manifests, also the first of them: the files that they name are there at the next start."""
    root = tmp_path / "out"
    older_layout(root, format_="json")
    target = FilesWorld(tmp_path, "json")
    names, calls = LocalDestination.names, iter(range(1_000))

    def lacking(self: LocalDestination, folder: str) -> list[str]:
        found = names(self, folder)
        whole = not folder.startswith(MANIFESTS) or next(calls) >= listings
        return found if whole else [name for at, name in enumerate(found) if at not in lacks]

    monkeypatch.setattr(LocalDestination, "names", lacking)
    await target.sink().open(IDENTITY, Epoch(3))
    monkeypatch.undo()
    await target.sink().open(IDENTITY, Epoch(3))
    assert sorted(int(json.loads(path.read_text())["id"]) for path in root.glob("*.jsonl")) == [1, 2, 3]


async def test_json_lines_lie_under_visible_names_once_they_are_released(tmp_path: Path) -> None:
    """Nothing of the output is below a name that begins with `_`; older output is given its names."""
    sink = FileSink(LocalDestination(tmp_path, "a"), Encoding("json"), "a", InlineSpawner())
    await sink.open(IDENTITY, Epoch(0))
    await sink.accept(batch_of([1, 2]))
    staged = await sink.stage(Epoch(1), Epoch(0))
    assert list(tmp_path.glob("*.jsonl")) == []
    await sink.release(row_of(1, 0, staged), staged)
    (path,) = tmp_path.glob("*.jsonl")
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 2]
    assert not [p for p in tmp_path.rglob("*.jsonl") if p.parent != tmp_path]


async def test_a_point_in_a_name_is_rescued_where_the_format_has_paths(target: FilesWorld) -> None:
    """Iceberg finds columns by paths: `a.b` beside an object `a` would be two; Delta takes it."""
    await epoch(await opened(target), 1, [{"id": 1, "a": {"b": 1}, "a.b": 2}])
    (row,) = looks_at(target).rows()
    assert row["a"] == {"b": 1}
    if target.encoding.format == "iceberg":
        assert json.loads(row["_rescued_data"]) == {"a.b": 2}
    else:
        assert row["a.b"] == 2


async def test_a_table_that_the_catalog_has_elsewhere_is_refused(tmp_path: Path) -> None:
    """Files here would not lie where its readers look: both places are named, before anything is staged."""
    first = FilesWorld(tmp_path, "iceberg")
    await epoch(await opened(first), 1, [{"id": 1}])
    second = FilesWorld(tmp_path, "iceberg")
    second.root = tmp_path / "elsewhere"
    with pytest.raises(TargetRefused, match=r"elsewhere: the catalog has the table lake\.out in file://.*/out;"):
        await opened(second)


async def opened(target: FilesWorld) -> SinkPort:
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    return sink


async def test_S2_the_librarys_own_second_try_does_not_pass_the_marker(target: FilesWorld) -> None:
    """Two handles of one state commit the same epoch: one does, the other meets a conflict, whatever the table's settings allow."""
    task = Task(World(target))
    await task.start()
    await task.epoch()
    releases = [releases_of(target) for _ in range(2)]
    tables = [each._open() for each in releases]
    manifest = Manifest(
        identity=str(IDENTITY), job=JOB, vertex="emit", index=0, epoch=2, predecessor=1,
        format="parquet", rows=0, files=(),
    )  # fmt: skip
    releases[0]._commit(tables[0], manifest)
    before = looks_at(target).version()
    with pytest.raises(CommitConflict):
        releases[1]._commit(tables[1], manifest)
    assert looks_at(target).version() == before
    for each in releases:
        each.close()
