# ruff: noqa: N802 -- a test carries its rule's name
"""Tables: what any reader of the format, or of the folder, finds is what was released (protocol, S2, S4)."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.contract.sinks_support import IDENTITY, JOB, Inline, Task, World, batch_of, row_of
from tests.contract.sinks_targets import FilesWorld
from tidemark.services.sink.connectors.delta import DeltaReleases, app_of
from tidemark.services.sink.connectors.destination import LocalDestination, sha256
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.files import FileSink, FileSinkSettings
from tidemark.services.sink.connectors.formats import SUFFIXES, parquet_bytes
from tidemark.services.sink.connectors.manifests import STAGED, Manifest, ManifestStore
from tidemark.services.sink.connectors.released import read_released, read_released_rows
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.shared.language.stages import FileFormat
from tidemark.shared.model.ids import Epoch, VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.ports.sink import Identity, Sink, TargetRefused


def found_by_readers(root: Path) -> list[list[int]]:
    """What each of the usual readers finds, by its own means."""
    folder = str(root)
    return [
        sorted(pd.read_parquet(folder)["id"].tolist()),
        sorted(ds.dataset(folder, format="parquet").to_table().column("id").to_pylist()),
        sorted(pq.read_table(folder).column("id").to_pylist()),
        sorted(DeltaTable(folder).to_pyarrow_table().column("id").to_pylist()),
        sorted(read_released(folder).column("id").to_pylist()),
    ]


async def epoch(sink: Sink, number: int, *groups: Sequence[Document], before: int | None = None) -> None:
    """Rows of one epoch, to the release."""
    for group in groups:
        assert not await sink.accept(documents_batch(group))
    last = number - 1 if before is None else before
    staged = await sink.stage(Epoch(number), Epoch(last))
    await sink.release(row_of(number, last, staged), staged)


async def test_S4_every_reader_finds_what_is_released_and_nothing_else(tmp_path: Path) -> None:
    """pandas, pyarrow and the format's own reader agree at each step: staged output is seen by none, released output by all."""
    target = FilesWorld(tmp_path, "parquet")
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    for _ in range(3):
        await task.accept()
        await task.stage()
        assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5
        await task.commit()
        await task.release()
        assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5
    again = Task(world)
    await again.start()
    await again.epoch()
    assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5


async def test_S2_the_marker_lies_in_the_commit_of_the_table(tmp_path: Path) -> None:
    """One commit of the table a release, empty ones too, each with the identity's application transaction."""
    target = FilesWorld(tmp_path, "parquet")
    task = Task(World(target))
    await task.start()
    await task.epoch()
    versions = DeltaTable(target.root).version()
    await task.epoch()
    await task.stage()
    await task.commit()
    await task.release()
    table = DeltaTable(target.root)
    assert table.transaction_version(app_of(str(IDENTITY))) == 3
    assert table.version() == versions + 2


async def test_S2_of_two_that_release_one_commit_the_second_changes_nothing(tmp_path: Path) -> None:
    """A zombie that looked at the table before its successor committed meets the conflict, and finds the commit released."""
    target = FilesWorld(tmp_path, "parquet")
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
    before = DeltaTable(target.root).version()
    await zombie.release(*world.commits[-1])
    assert DeltaTable(target.root).version() == before
    assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5


async def test_S2_a_table_that_has_come_since_begins_where_the_manifests_end(tmp_path: Path) -> None:
    """A zombie that goes on when there is a table releases nothing again that its successor did, and sets no marker back."""
    target = FilesWorld(tmp_path, "parquet")
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
    before = DeltaTable(target.root).version()
    await zombie.release(*world.commits[0])
    assert DeltaTable(target.root).version() == before
    await task.epoch()
    assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5
    assert DeltaTable(target.root).transaction_version(app_of(str(IDENTITY))) == 3


async def test_S2_another_history_in_the_table_is_refused(tmp_path: Path) -> None:
    """A marker that is no predecessor of the commit is told with both numbers; nothing is added."""
    target = FilesWorld(tmp_path, "parquet")
    task = Task(World(target))
    await task.start()
    await task.epoch()
    releases = DeltaReleases(LocalDestination(target.root, "x"))
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


async def test_columns_are_added_and_what_no_column_takes_is_rescued(tmp_path: Path) -> None:
    """New fields become columns, null before; other types, nested ones and names the format has not lie in `_rescued_data`."""
    target = FilesWorld(tmp_path, "parquet")
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await epoch(sink, 1, [{"id": 1, "n": 1, "o": {"a": 1}}])
    await epoch(sink, 2, [{"id": 2, "n": "many", "o": {"b": 2}, "new": 0.5}, {"id": 3, "n": 3.0}])
    await epoch(sink, 3, [{"id": 4, "a name": True, "N": 1, "n": 2.5}], [{"id": 5, "z": None}, {"id": 6, "new": 7}])
    rows = sorted(DeltaTable(target.root).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [row["n"] for row in rows] == [1, None, 3, None, None, None]
    assert [row["new"] for row in rows] == [None, 0.5, None, None, None, 7.0]
    rescued = [json.loads(row["_rescued_data"] or "{}") for row in rows]
    assert rescued == [{}, {"n": "many", "o": {"b": 2}}, {}, {"N": 1, "a name": True, "n": 2.5}, {}, {}]
    assert len(read_released_rows(str(target.root))) == 6


async def test_two_tasks_agree_on_a_columns_type_before_they_stage(tmp_path: Path) -> None:
    """Whose rows come first decides, for both; neither fails at its release."""
    target = FilesWorld(tmp_path, "parquet")
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
    rows = DeltaTable(target.root).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["v"] for row in rows} == {0: "text", 1: "5"}


async def test_a_table_is_divided_as_the_document_says(tmp_path: Path) -> None:
    """Any text, blanks and slashes too; null and missing are null; a reader of the folder finds the same."""
    target = FilesWorld(tmp_path, "parquet", partition_by=("p",))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    values = ["plain", "a b/c", "ü%20", "1", True, 5, None]
    await epoch(sink, 1, [{"id": n, "p": value} for n, value in enumerate(values)])
    rows = {row["id"]: row["p"] for row in DeltaTable(target.root).to_pyarrow_table().to_pylist()}
    assert rows == {0: "plain", 1: "a b/c", 2: "ü%20", 3: "1", 4: "true", 5: "5", 6: None}
    folder = ds.dataset(str(target.root), format="parquet", partitioning="hive").to_table()
    assert sorted(folder.column("id").to_pylist()) == list(rows)
    refused = await sink.accept(documents_batch([{"id": 9, "p": ""}]))
    assert "read as null" in refused[0].reason


async def test_C12_small_files_become_large_ones_and_nothing_else_goes(tmp_path: Path) -> None:
    """Every reader finds the same rows after it; what another task has made visible and not yet committed stays."""
    target = FilesWorld(tmp_path, "parquet")
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
    assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5
    again = Task(world)
    await again.start()
    await again.epoch()
    assert found_by_readers(target.root) == [list(range(world.committed_rows))] * 5


def older_layout(root: Path, files: int = 3, format_: FileFormat = "parquet") -> None:
    """As an earlier version left it: files below `_staged`, each in a manifest."""
    destination = LocalDestination(root, "old")
    store = ManifestStore(destination)
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
        store.publish(
            Manifest(
                identity=str(IDENTITY), job=JOB, vertex="emit", index=0, epoch=number, predecessor=before,
                format=format_, rows=len(listed), files=listed,
            )
        )  # fmt: skip


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
    assert found_by_readers(root) == [[1, 2, 3, 4]] * 5


def _fail(*_: object) -> None:
    raise OSError("cut off")


async def test_json_lines_lie_under_visible_names_once_they_are_released(tmp_path: Path) -> None:
    """Nothing of the output is below a name that begins with `_`; older output is given its names."""
    sink = FileSink(LocalDestination(tmp_path, "a"), Encoding("json"), "a", Inline())
    await sink.open(IDENTITY, Epoch(0))
    await sink.accept(batch_of([1, 2]))
    staged = await sink.stage(Epoch(1), Epoch(0))
    assert list(tmp_path.glob("*.jsonl")) == []
    await sink.release(row_of(1, 0, staged), staged)
    (path,) = tmp_path.glob("*.jsonl")
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 2]
    assert not [p for p in tmp_path.rglob("*.jsonl") if p.parent != tmp_path]
