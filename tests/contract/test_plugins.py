# ruff: noqa: N802 -- a test carries its rule's name
"""Plug-ins behind the ports: the meaning of their errors, and the suites that certify them, which find what is wrong."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tidemark_shelf import ShelfSink, ShelfSource
from tidemark_shelf.file import Place, ShelfFile

from tests.contract.sinks_targets import PluginWorld
from tests.contract.sources_worlds import PluginLanes
from tests.harness.opening import open_splits
from tidemark.plugins import Away, Batch, Document, Overtaken, Record, Refused, Split
from tidemark.services.library.release_world import IDENTITY, Task, World, batch_of
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.shared.model.ids import Epoch, Offset, SplitId
from tidemark.shared.plugins.interface import PluginError, PluginFailed
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable
from tidemark.shared.ports.source import SourceReplaced
from tidemark.testing import SinkContract, SourceContract

Given = tuple[dict[str, Any], dict[str, Any]]


class Raising(ShelfSink):
    """Raises in its next calls, before or behind what they do."""

    before: tuple[Exception, ...] = ()
    behind: tuple[Exception, ...] = ()

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        if Raising.before:
            error, Raising.before = Raising.before[0], Raising.before[1:]
            raise error
        super().write(identity, documents, marker, after)
        if Raising.behind:
            error, Raising.behind = Raising.behind[0], Raising.behind[1:]
            raise error


class RaisingWorld(PluginWorld):
    def make(self) -> ShelfSink:
        return Raising(Raising.Config("out"), Raising.Settings(str(self.file)))


@pytest.fixture
async def task(tmp_path: Path) -> Task:
    Raising.before = Raising.behind = ()
    task = Task(World(RaisingWorld(tmp_path)))
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    return task


@pytest.mark.parametrize(
    ("raised", "kind", "outage", "lasting"),
    [
        (Away("no answer"), TargetUnavailable, True, False),
        (Refused("too long"), TargetRefused, False, True),
        (KeyError("x"), PluginFailed, False, False),
        (ValueError("x"), PluginFailed, False, False),
        (PluginError("x"), PluginError, False, True),
    ],
)
async def test_C10_a_plugins_errors_have_the_meaning_of_sinks(
    task: Task, raised: Exception, kind: type[Exception], outage: bool, lasting: bool
) -> None:
    """Away is waited for, Refused fails the processor, all else is tried again; and the commit is released then, once."""
    Raising.before = (raised,)
    with pytest.raises(kind) as found:
        await task.release()
    assert (is_outage(found.value), is_lasting(found.value)) == (outage, lasting)
    assert type(raised).__name__ in str(found.value) or str(raised) in str(found.value)
    await task.release()
    await task.world.complete()


@pytest.mark.parametrize("raised", [Away("lost"), KeyError("lost")])
async def test_S3_a_write_whose_answer_was_lost_is_not_repeated(task: Task, raised: Exception) -> None:
    """Markers are read back after every error: each part of two that was written stays, and the others follow."""
    Raising.behind = (raised, raised)
    for _ in range(2):
        with pytest.raises((TargetUnavailable, PluginFailed)):
            await task.release()
        await task.world.check()
    await task.release()
    await task.world.complete()


async def test_S3_a_plugin_that_is_overtaken_by_nobody_has_failed(task: Task) -> None:
    """Overtaken, and the last marker is the one that was named: to try again at once would have no end."""
    Raising.before = (Overtaken(), Overtaken())
    with pytest.raises(PluginFailed, match="raises Overtaken behind the marker that it names as the last"):
        await task.release()
    Raising.before = ()
    await task.release()
    await task.world.complete()


async def test_S6_rows_that_a_plugin_refuses_are_rejected_and_a_skip_passes_over_a_part(tmp_path: Path) -> None:
    """Before staging by `refused`; at release the part in which one is, by a user's order."""
    target = RaisingWorld(tmp_path)
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    Raising.before = (Refused("no room"), Refused("no room"))
    with pytest.raises(TargetRefused, match=r"a plug-in, writing: no room"):
        await task.release()
    assert await task.sink.skip(*task.world.commits[0]) == 2
    assert await target.visible() == [2]
    needing = PluginWorld(tmp_path)
    needing.needs = "place"
    sink = needing.sink()
    await sink.open(IDENTITY, Epoch(1))
    assert [(each.row, each.reason) for each in await sink.accept(batch_of([3]))] == [
        (0, "a plug-in: has no field place")
    ]
    assert await sink.stage(Epoch(2), Epoch(1)) == b"", (
        "a row that is refused is a dead letter, and must not be staged as well"
    )


async def test_a_refusal_of_no_document_is_the_plugins_mistake(tmp_path: Path) -> None:
    """Else a row would be lost without a word."""

    class Strange(ShelfSink):
        def refused(self, documents: Sequence[Document]) -> Mapping[int, str]:
            return {len(documents): "beyond"}

    target = PluginWorld(tmp_path)
    target.make = lambda: Strange(Strange.Config("out"), Strange.Settings(str(target.file)))  # type: ignore[method-assign]
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    with pytest.raises(PluginFailed, match="refuses document 1 of 1, from 0"):
        await sink.accept(batch_of([0]))


class Told(ShelfSource):
    """Does as it is told."""

    batch: Batch | None = None
    raised: Exception | None = None
    listed: Sequence[Split] | None = None
    committed_: Mapping[str, int] = {}

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        if Told.raised is not None:
            error, Told.raised = Told.raised, None
            raise error
        return super().read(split, position, max_bytes) if Told.batch is None else Told.batch

    def splits(self) -> Sequence[Split]:
        return super().splits() if Told.listed is None else Told.listed

    def committed(self, positions: Mapping[str, int]) -> None:
        Told.committed_ = positions


@pytest.fixture
async def lanes(tmp_path: Path) -> PluginLanes:
    Told.batch = Told.raised = Told.listed = None
    made = PluginLanes(tmp_path, follow=True, plugin=Told)
    await made.add(0, [0, 1, 2])
    return made


@pytest.mark.parametrize(
    ("raised", "kind", "outage", "lasting"),
    [
        (Away("no answer"), LogUnavailable, True, False),
        (Refused("gone"), Exception, False, True),
        (KeyError("x"), PluginFailed, False, False),
    ],
)
async def test_C10_a_sources_errors_have_the_meaning_of_sources(
    lanes: PluginLanes, raised: Exception, kind: type[Exception], outage: bool, lasting: bool
) -> None:
    """As of sinks; the next fetch goes on with a new object, where the last one stood."""
    source = lanes.source()
    await open_splits(source)
    Told.raised = raised
    with pytest.raises(kind) as found:
        await source.fetch(100, 1)
    assert (is_outage(found.value), is_lasting(found.value)) == (outage, lasting)
    (batch,) = await source.fetch(100, 1)
    assert len(batch.positions) == 3


@pytest.mark.parametrize(
    "batch",
    [
        Batch([Record(5, b"{}", 0), Record(5, b"{}", 0)], 6),
        Batch([Record(0, b"{}", 0)], 2),
        Batch([Record(5, b"{}", 0)], 5),
        Batch([], 1),
    ],
)
async def test_I1_positions_that_do_not_grow_are_the_plugins_mistake(lanes: PluginLanes, batch: Batch) -> None:
    """A restore would repeat records, or leave some out."""
    source = lanes.source()
    await open_splits(source, {SplitId("s0"): Offset(2)})
    Told.batch = batch
    with pytest.raises(PluginFailed, match=r"split s0, read from 2: expected positions that grow"):
        await source.fetch(100, 1)


async def test_positions_have_a_bound(lanes: PluginLanes) -> None:
    """Orders of rows have no room above it."""
    source = lanes.source()
    await open_splits(source)
    Told.batch = Batch([Record(2**53, b"{}", 0)], 2**53 + 1)
    with pytest.raises(PluginFailed, match="expected positions up to"):
        await source.fetch(100, 1)


@pytest.mark.parametrize("ordinals", [(0, 0), (-1, 0), (0, 2**31)])
async def test_D11_ordinals_that_do_not_serve_are_the_plugins_mistake(
    lanes: PluginLanes, ordinals: tuple[int, int]
) -> None:
    """Two splits with one ordinal would share places in the order."""
    Told.listed = [Split("a", ordinals[0]), Split("b", ordinals[1])]
    with pytest.raises(PluginFailed, match="expected a name and an ordinal of its own for each split"):
        await lanes.source().splits()


async def test_I2_a_split_of_another_origin_is_refused(lanes: PluginLanes) -> None:
    """Its positions mean something else there."""
    known = await open_splits(lanes.source())
    with closing(sqlite3.connect(lanes.file)) as db, db:
        db.execute("UPDATE file SET id = 'another'")
    with pytest.raises(SourceReplaced, match=r"split s0: expected the one of origin .* found 'another'"):
        await lanes.source().check(known)


async def test_a_split_that_comes_later_begins_with_its_first_record(lanes: PluginLanes) -> None:
    """Where a first look would begin further on."""
    Told.listed = [Split("s0", 1, "o", begin=3, earliest=1)]
    found = [await lanes.source().found([SplitId("s0")], first=first) for first in (True, False)]
    assert [each[SplitId("s0")].begin for each in found] == [3, 1]


async def test_a_plugin_is_told_of_commits_before_its_next_read(lanes: PluginLanes) -> None:
    """So that a queue can forget."""
    source = lanes.source()
    await open_splits(source)
    await source.note("job", {SplitId("s0"): Offset(2)})
    await source.fetch(100, 1)
    assert Told.committed_ == {"s0": 2}


async def test_a_document_without_a_value_and_one_that_is_no_bytes_are_records(lanes: PluginLanes) -> None:
    """A document is written as JSON that keeps its types."""
    source = lanes.source()
    await open_splits(source)
    Told.batch = Batch([Record(1, None, 5), Record(2, {"n": 1}, 6)], 3)
    (batch,) = await source.fetch(100, 1)
    assert batch.values.to_pylist() == [None, b'{"n":{"$numberInt":"1"}}']
    assert batch.timestamps_ms.tolist() == [5, 6]


# --- the suites find what is wrong -----------------------------------------------------------------------------------------


class TwoSteps(ShelfSink):
    """Marker and documents in two transactions."""

    first = "documents"

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        if self.marker(identity) != after:
            raise Overtaken
        documents_alone = partial(super().write, f"{identity}-own", documents, marker, self.marker(f"{identity}-own"))
        if self.first == "documents":
            documents_alone()
            super().write(identity, [], marker, after)
        else:
            super().write(identity, [], marker, after)
            documents_alone()


class MarkerFirst(TwoSteps):
    """The marker in front."""

    first = "marker"


class Blind(ShelfSink):
    """Writes behind any marker, also one that came since it looked."""

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        while True:
            with suppress(Overtaken):
                return super().write(identity, documents, marker, self.marker(identity))


class Forgetful(ShelfSink):
    """Keeps its marker in memory."""

    known: dict[str, bytes]

    def open(self) -> None:
        super().open()
        self.known = {}

    def marker(self, identity: str) -> bytes | None:
        return self.known.get(identity)

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        if self.known.get(identity) != after:
            raise Overtaken
        super().write(identity, documents, marker, super().marker(identity))
        self.known[identity] = marker


class OneMarker(ShelfSink):
    """The same for all identities."""

    def marker(self, identity: str) -> bytes | None:
        return super().marker("all")

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        super().write("all", documents, marker, after)


class _OfShelf(SinkContract):
    def given(self, folder: Path) -> Given:
        return {"shelf": "out"}, {"file": str(folder / "shelf.db")}

    def visible(self, folder: Path) -> Sequence[int]:
        world = PluginWorld(folder)
        if not world.file.exists():
            return []
        with closing(sqlite3.connect(world.file)) as db:
            return [n for (n,) in db.execute("SELECT json_extract(document, '$.id') FROM documents")]


DIES = "test_a_process_that_dies_in_a_write_leaves_all_or_nothing"
CRASHES = "test_exactly_once_whatever_the_order_of_crashes"
FOLLOWS = "test_a_write_that_does_not_follow_the_last_marker_writes_nothing"
RACE = "test_of_two_writers_behind_one_marker_one_writes"
OUTLIVES = "test_a_marker_outlives_the_object_and_is_of_its_identity_alone"


@pytest.mark.parametrize(
    ("plugin", "test"),
    [
        (TwoSteps, DIES),
        (MarkerFirst, DIES),
        (Blind, FOLLOWS),
        (Blind, RACE),
        (Forgetful, OUTLIVES),
        (Forgetful, CRASHES),
        (OneMarker, OUTLIVES),
    ],
)
def test_the_suite_of_sinks_finds(tmp_path: Path, plugin: type[ShelfSink], test: str) -> None:
    """A sink that breaks its contract in one point fails the test of that point; the example passes it."""
    (tmp_path / "wrong").mkdir()
    (tmp_path / "right").mkdir()
    wrong, right = _OfShelf(), _OfShelf()
    wrong.plugin, right.plugin = plugin, ShelfSink  # type: ignore[misc]
    with pytest.raises((AssertionError, TargetRefused, TargetUnavailable, PluginFailed)):
        getattr(wrong, test)(tmp_path / "wrong")
    getattr(right, test)(tmp_path / "right")


class Counting(ShelfSource):
    """Positions count what this object has given."""

    given = 0

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        found = super().read(split, 0, max_bytes)
        left = found.records[self.given :]
        self.given += len(left)
        records = [Record(position + n, each.value, each.timestamp_ms) for n, each in enumerate(left)]
        return Batch(records, position + len(records), "nothing yet")


class Shuffled(ShelfSource):
    """Ordinals by what else is there."""

    def splits(self) -> Sequence[Split]:
        found = super().splits()
        return [Split(each.name, n, each.origin) for n, each in enumerate(found)]


class Endless(ShelfSource):
    """Names no end of what is there now."""

    def end(self, split: str) -> int:
        return super().end(split) - 1


class Consuming(ShelfSource):
    """Takes away what is committed, and one more."""

    def committed(self, positions: Mapping[str, int]) -> None:
        with closing(sqlite3.connect(self.settings.file)) as db, db:
            for split, position in positions.items():
                db.execute("DELETE FROM documents WHERE shelf = ? AND n <= ?", (split, position))


class _FromShelf(SourceContract):
    def given(self, folder: Path) -> Given:
        return {}, {"file": str(folder / "shelf.db")}

    def add(self, folder: Path, split: int, numbers: Sequence[int]) -> None:
        self.put(folder, split, [{"n": number} for number in numbers])

    def put(self, folder: Path, split: int, documents: Sequence[Document]) -> None:
        """On a shelf whose name is in front of those of earlier ones."""
        ShelfFile(Place(str(folder / "shelf.db"))).close()
        with closing(sqlite3.connect(folder / "shelf.db")) as db, db:
            rows = [(f"in-{9 - split}", each.get("n", 0), json.dumps(each)) for each in documents]
            db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)", rows)


@pytest.mark.parametrize(
    ("plugin", "test"),
    [
        (Counting, "test_a_restart_resumes_exactly_from_any_record"),
        (Shuffled, "test_splits_that_come_keep_the_others_as_they_were"),
        (Endless, "test_a_drain_stops_behind_what_is_there"),
        (Consuming, "test_what_is_committed_takes_nothing_from_what_follows"),
    ],
)
def test_the_suite_of_sources_finds(tmp_path: Path, plugin: type[ShelfSource], test: str) -> None:
    """As that of sinks."""
    (tmp_path / "wrong").mkdir()
    (tmp_path / "right").mkdir()
    wrong, right = _FromShelf(), _FromShelf()
    wrong.plugin, right.plugin = plugin, ShelfSource  # type: ignore[misc]
    with pytest.raises((AssertionError, PluginFailed)):
        getattr(wrong, test)(tmp_path / "wrong")
    getattr(right, test)(tmp_path / "right")
