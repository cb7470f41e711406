# ruff: noqa: N802 -- a test carries its rule's name
"""The file sink's own promises: what is released is what manifests list, whatever operation fails (protocol, S4, C12)."""

import errno
import json
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.sinks_targets import FilesWorld, ObjectsWorld
from tidemark.services.library.release_world import IDENTITY, JOB, InlineSpawner, Task, World, batch_of, row_of
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.formats import SUFFIXES
from tidemark.services.sink.connectors.manifests import (
    STAGED,
    SUMMARY,
    Manifest,
    ManifestStore,
    manifest_name,
    summary_of,
    total_of,
)
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.services.sink.connectors.released import released_manifests
from tidemark.services.sink.connectors.staging import FileList, decode_handle
from tidemark.shared.language.stages import EmitFormat
from tidemark.shared.model.ids import Epoch, VertexId
from tidemark.shared.ports.sink import Identity, SinkPort, TargetRefused, TargetUnavailable


class Failing(LocalDestination):
    """A directory whose n-th operation fails, before or after it was done."""

    def __init__(self, root: Path, attempt: str, nth: int, *, after: bool) -> None:
        super().__init__(root, attempt)
        self.left, self.after = nth, after

    def _next(self) -> bool:
        self.left -= 1
        return self.left == -1

    def create(self, name: str, data: bytes) -> bool:
        fails = self._next()
        if fails and not self.after:
            raise TargetUnavailable("the disk is full")
        made = super().create(name, data)
        if fails:
            raise TargetUnavailable("the answer is lost")
        return made

    def replace(self, name: str, data: bytes) -> None:
        if self._next():
            raise TargetUnavailable("the disk is full")
        super().replace(name, data)

    def delete(self, names: Iterable[str]) -> None:
        if self._next():
            raise TargetUnavailable("the disk is away")
        super().delete(names)


class FailingWorld(FilesWorld):
    """Its first sink has a failing destination, the later ones have not."""

    def __init__(self, root: Path, nth: int, *, after: bool) -> None:
        super().__init__(root, "json")
        self.failing: Failing | None = Failing(self.root, "failing", nth, after=after)

    def sink(self) -> SinkPort:
        if self.failing is None:
            return super().sink()
        destination, self.failing = self.failing, None
        return FileSink(destination, self.encoding, "failing", InlineSpawner(), self.settings)


async def insist(step: object) -> None:
    """Repeat a step until the target is there again, as the driver does."""
    while True:
        try:
            await step()  # type: ignore[operator]
        except TargetUnavailable:
            continue
        return


@pytest.mark.parametrize("dies", [False, True], ids=["repeats", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(12))
async def test_S4_any_operation_may_fail_or_be_the_last(tmp_path: Path, nth: int, after: bool, dies: bool) -> None:
    """Whichever write fails, done or not, repeating or dying there leaves every committed row visible once."""
    target = FailingWorld(tmp_path, nth, after=after)
    world = World(target)
    task = Task(world)
    for step in (
        task.start,
        *[s for _ in range(2) for s in (task.accept, task.accept, task.stage, task.commit, task.release)],
    ):
        try:
            await step()
        except TargetUnavailable:
            if dies:
                break
            await insist(step)
        await world.check()
    newest = Task(world)
    await newest.start()
    await newest.epoch()
    await world.complete()


async def test_S4_a_manifest_is_never_overwritten(tmp_path: Path) -> None:
    """A manifest that says something else is there already: refused with both digests, and it stays as it was."""
    target = FilesWorld(tmp_path, "json")
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await sink.accept(batch_of([1]))
    staged = await sink.stage(Epoch(1), Epoch(0))
    name = target.root / manifest_name(str(IDENTITY), Epoch(1))
    elsewhere = FilesWorld(tmp_path / "elsewhere", "json")
    other = elsewhere.sink()
    await other.open(IDENTITY, Epoch(0))
    await other.accept(batch_of([2]))
    its = await other.stage(Epoch(1), Epoch(0))
    await other.release(row_of(1, 0, its), its)
    written = (elsewhere.root / manifest_name(str(IDENTITY), Epoch(1))).read_text()
    name.write_text(written)
    with pytest.raises(TargetRefused, match="expected the manifest with digest"):
        await sink.release(row_of(1, 0, staged), staged)
    assert name.read_text() == written


async def test_S4_a_zombie_and_its_successor_write_the_same_manifest(tmp_path: Path) -> None:
    """Both release the same commit: one manifest, no error."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    old = Task(world)
    await old.start()
    await old.accept()
    await old.stage()
    await old.commit()
    new = Task(world)
    await new.start()
    await old.release()
    await world.complete()
    assert len(released_manifests(LocalDestination(target.root, "r"))) == 2


def staged_files(target: FilesWorld) -> set[str]:
    return {p.relative_to(target.root).as_posix() for p in (target.root / STAGED).rglob("*") if p.is_file()}


async def test_C12_what_can_no_longer_be_committed_is_removed_and_nothing_that_is_listed(tmp_path: Path) -> None:
    """Staged files of a dead attempt go once a later checkpoint is restored and released; released ones stay for ever."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    dead = Task(world)
    await dead.start()
    await dead.epoch()
    released = staged_files(target)
    await dead.accept()
    await dead.stage()
    orphans = staged_files(target) - released
    assert orphans
    second = Task(world)
    await second.start()
    assert orphans <= staged_files(target), (
        "label 1 is not below restored_from 1: another generation may still commit it"
    )
    await second.epoch()
    third = Task(world)
    await third.start()
    assert not orphans & staged_files(target)
    assert released <= staged_files(target)
    await world.complete()


async def test_C12_a_zombie_that_opens_late_removes_nothing_of_a_later_generation(tmp_path: Path) -> None:
    """Opening with an old checkpoint while a newer generation stages, commits and waits for release takes nothing from it."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    first = Task(world)
    await first.start()
    await first.epoch()
    late = Task(world)
    current = Task(world)
    await current.start()
    await current.accept()
    await current.stage()
    await late.start()
    await current.commit()
    await late.release()
    await current.release()
    await world.complete()


async def test_C12_committed_output_that_waits_for_release_is_not_removed(tmp_path: Path) -> None:
    """Files of commits between marker and restored_from are kept until they are released."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(3):
        await task.accept()
        await task.stage()
        await task.commit()
    new = Task(world)
    assert await new.sink.open(IDENTITY, world.last) == 0
    await new.release()
    await world.complete()


async def test_S4_the_summary_lists_all_that_is_released_before_the_end_is_reported(tmp_path: Path) -> None:
    """After the final releases `_manifest.json` has every file of every identity, whoever was last."""
    target = FilesWorld(tmp_path, "json")
    staged = {}
    for index in (0, 1):
        identity = Identity(JOB, VertexId("emit"), index)
        sink = target.sink()
        await sink.open(identity, Epoch(0))
        await sink.accept(batch_of([index]))
        staged[index] = (sink, identity, await sink.stage(Epoch(1), Epoch(0)))
    for index in (0, 1):
        sink, identity, handle = staged[index]
        await sink.release(row_of(1, 0, handle, final=True, identity=identity), handle)
    summary = json.loads((target.root / SUMMARY).read_text())
    assert summary["rows"] == 2
    assert len(summary["final"]) == 2
    assert summary["released"] == {str(Identity(JOB, VertexId("emit"), index)): 1 for index in (0, 1)}
    assert [len((target.root / file["path"]).read_bytes().splitlines()) for file in summary["files"]] == [1, 1]


async def test_S4_the_summary_is_rebuilt_by_who_opens_after_a_death(tmp_path: Path) -> None:
    """A holder that died between its manifest and the summary is made good at the next open."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    assert json.loads((target.root / SUMMARY).read_text())["rows"] == 0
    await Task(world).start()
    assert json.loads((target.root / SUMMARY).read_text())["rows"] == 3


async def test_S4_the_last_of_several_writers_leaves_the_summary_complete(tmp_path: Path) -> None:
    """Manifests that came while the summary was written make it start again."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()

    class Late(LocalDestination):
        """Another identity publishes just before the summary is replaced."""

        done = False

        def replace(self, name: str, data: bytes) -> None:
            if not self.done:
                self.done = True
                source = target.root / manifest_name(str(IDENTITY), Epoch(1))
                other = json.loads(source.read_text()) | {"identity": "x.emit.1", "files": [], "rows": 0}
                self.create(manifest_name("x.emit.1", Epoch(1)), json.dumps(other).encode())
            super().replace(name, data)

    ManifestStore(Late(target.root, "late")).summarise()
    assert json.loads((target.root / SUMMARY).read_text())["released"] == {str(IDENTITY): 1, "x.emit.1": 1}


async def test_S4_old_manifests_are_bound_into_volumes_and_say_the_same(tmp_path: Path) -> None:
    """What a sink lists does not grow with what it has released; readers, the marker and the summary know of all of it."""
    target = FilesWorld(tmp_path, "json")
    target.settings = replace(target.settings, volume_manifests=2)
    world = World(target)
    task = Task(world)
    await task.start()
    for epoch in range(1, 12):
        await task.epoch()
        loose = ManifestStore(LocalDestination(target.root, "r")).names()
        assert len(loose) <= 3
        assert loose[-1] == manifest_name(str(IDENTITY), Epoch(epoch))
    again = Task(world)
    await again.start()
    await again.epoch()
    manifests = released_manifests(LocalDestination(target.root, "r"))
    assert [m.epoch for m in manifests] == list(range(13))
    ManifestStore(LocalDestination(target.root, "r")).summarise()
    summary = json.loads((target.root / SUMMARY).read_text())
    before = summary["earlier"][str(IDENTITY)]
    assert (summary["rows"], summary["released"]) == (36, {str(IDENTITY): 12})
    assert len(summary["files"]) + before["files"] == sum(len(m.files) for m in manifests)
    covered = {str(IDENTITY): total_of(m for m in manifests if m.epoch <= before["until"])}
    assert summary_of(manifests, covered) == (target.root / SUMMARY).read_bytes()
    await world.complete()


async def test_S4_a_death_between_a_volume_and_the_deletion_of_its_manifests_changes_nothing(tmp_path: Path) -> None:
    """The next one finds the volume, with the same words, and deletes what it has."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    kept = {file.name: file.read_bytes() for file in (target.root / "_manifests" / str(IDENTITY)).iterdir()}
    await task.epoch()
    volumes = sorted(file.name for file in (target.root / "_volumes" / str(IDENTITY)).iterdir())
    for name, data in kept.items():
        (target.root / "_manifests" / str(IDENTITY) / name).write_bytes(data)
    again = Task(world)
    await again.start()
    await again.epoch()
    found = sorted(file.name for file in (target.root / "_volumes" / str(IDENTITY)).iterdir())
    assert found[: len(volumes)] == volumes
    assert len(list((target.root / "_manifests" / str(IDENTITY)).iterdir())) == 1
    await world.complete()


async def test_S4_manifests_of_a_listing_that_lacks_one_are_not_bound(tmp_path: Path) -> None:
    """They would be deleted, and the volume had a hole for ever."""

    class Lacking(LocalDestination):
        def names(self, folder: str) -> list[str]:
            return [name for name in super().names(folder) if not name.endswith("03.json")]

    destination = Lacking(tmp_path, "a")
    destination.prepare()
    store = ManifestStore(destination, volume_manifests=2)
    for epoch in range(6):
        predecessor = epoch - 1 if epoch else None
        store.publish(
            Manifest(
                identity="i", job="j", vertex="v", index=0, epoch=epoch, predecessor=predecessor, format="json",
                rows=0, files=(),
            )
        )  # fmt: skip
    assert [m.epoch for m in released_manifests(LocalDestination(tmp_path, "r"))] == list(range(6))
    assert [m.epoch for m in store.bound()] == []


async def test_S4_a_staged_file_that_is_gone_is_refused_for_good(tmp_path: Path) -> None:
    """Release checks that what the commit names is there in its size; otherwise nothing is released."""
    target = FilesWorld(tmp_path, "json")
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    (name,) = staged_files(target)
    (target.root / name).unlink()
    with pytest.raises(TargetRefused, match="commit 1 needs this staged file"):
        await task.release()
    assert await target.visible() == []


async def test_S6_by_order_a_staged_file_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    """`skip` releases the files of the commit that are whole, and says how many rows are not."""
    target = FilesWorld(tmp_path, "json")
    world = World(target)
    task = Task(world)
    await task.start()
    await task.accept()
    await task.accept()
    await task.stage()
    await task.commit()
    first = min(staged_files(target))
    (target.root / first).unlink()
    assert await task.sink.skip(*world.commits[0]) == 3
    assert sorted(await target.visible()) == [3, 4, 5]
    later = Task(world)
    await later.start()
    assert later.marker == 1


async def test_C7_many_files_are_listed_at_the_destination(tmp_path: Path) -> None:
    """A handle that would be too large names a list, which is checked by its digest at release."""
    target = FilesWorld(tmp_path, "json", handle_bytes_max=200)
    task = Task(World(target))
    await task.start()
    for _ in range(5):
        await task.accept()
    await task.stage()
    await task.commit()
    (part,) = decode_handle(task.world.commits[0][1])
    assert isinstance(part, FileList)
    (target.root / part.name).write_bytes(b"x")
    with pytest.raises(TargetRefused, match="needs this list with digest"):
        await task.release()


def test_S4_files_appear_complete_under_their_name_or_not_at_all(tmp_path: Path) -> None:
    """No temporary name is left or listed, what exists is not overwritten, and file and folder are forced to disk."""
    forced: list[str] = []
    original = os.fsync

    def fsync(handle: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        original(handle)

    destination = LocalDestination(tmp_path / "out", "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert destination.create("x/y", b"one")
    folder = str(tmp_path / "out" / "x")
    assert forced[-2].startswith(f"{folder}/.tmp-")
    assert forced[-1] == folder
    assert str(tmp_path / "out") in forced
    assert not destination.create("x/y", b"two")
    assert destination.read("x/y") == b"one"
    assert sorted(p.name for p in (tmp_path / "out" / "x").iterdir()) == ["y"]
    (tmp_path / "out" / "x" / ".tmp-b-1").write_bytes(b"half")
    assert destination.names("") == ["x/y"]


def test_folders_stay_while_something_is_staged_into_them(tmp_path: Path) -> None:
    """Staging makes folders on one thread while a release on another removes those that it has emptied."""
    destination = LocalDestination(tmp_path, "a0", fsync=False)
    staged = threading.Event()

    def release() -> None:
        while not staged.is_set():
            destination.delete(["_staged/one/nothing"])

    with ThreadPoolExecutor(1) as beside:
        releasing = beside.submit(release)
        try:
            for number in range(400):
                destination.create(f"_staged/one/{number}/part", b"x")
                destination.publish(f"_staged/one/{number}/part", f"part-{number}")
        finally:
            staged.set()
        releasing.result()
    assert len(destination.names("")) == 400


def test_names_stay_inside_the_destination(tmp_path: Path) -> None:
    """A name that leaves its folder is refused."""
    for name in ("../x", "/x", "a/../../x", ""):
        with pytest.raises(ValueError, match="relative path"):
            LocalDestination(tmp_path, "a").read(name)


def test_an_object_store_that_overwrites_is_refused() -> None:
    """A store that does not obey If-None-Match is not used."""
    world = ObjectsWorld()
    world.destination().prepare()

    class Careless:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
            self.inner.pipe_file(path, value)  # type: ignore[attr-defined]

    with pytest.raises(TargetRefused, match="If-None-Match"):
        ObjectDestination(Careless(world.filesystem), "memory://bucket/out").prepare()


async def test_errors_of_the_file_system_say_whether_waiting_helps(tmp_path: Path) -> None:
    """A full disk is waited for; a folder that cannot be a folder is refused, naming the place."""
    (tmp_path / "file").write_text("")
    sink = FileSink(LocalDestination(tmp_path / "file" / "out", "a"), Encoding("json"), "a", InlineSpawner())
    with pytest.raises(TargetRefused, match="file/out"):
        await sink.open(IDENTITY, Epoch(0))
    destination = LocalDestination(tmp_path / "out", "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(TargetUnavailable, match="No space left"):
            destination.create("x", b"1")
    assert destination.create("x", b"1")


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("format_", ["json", "csv", "parquet", "iceberg"])
async def test_S2_a_reader_that_takes_each_file_of_a_suffix_sees_no_staged_row(
    tmp_path: Path, format_: EmitFormat
) -> None:
    """Readers that go through folders by a pattern know nothing of names that begin with `_`."""
    target = FilesWorld(tmp_path, format_)
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.stage()
    pattern = f"*{SUFFIXES[format_]}"
    assert len(staged_files(target)) == 1
    assert not list(target.root.rglob(pattern))
    await task.commit()
    await task.release()
    assert len(list(target.root.rglob(pattern))) == 1
    assert staged_files(target) == set()
