# ruff: noqa: N802 -- a test carries its rule's name
"""Whatever deletes has a proof for it: no listing that failed, or that was not whole, takes what somebody names (C12, S4).

Each case is told in the product by the README of what deletes.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sinks_targets import FilesWorld, ObjectsWorld
from tidemark.services.cli.demo import DemoFailed, _check_ours, _empty
from tidemark.services.library.release_world import Task, World
from tidemark.services.local import broker as local_broker
from tidemark.services.local.broker import BrokerError
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.services.operator.rockskeys import Scratch
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.manifests import MANIFESTS
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.services.sink.connectors.released import Discrepancy, released_manifests
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import Epoch, JobId
from tidemark.shared.ports.blobs import BlobUnavailable
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.upkeep import delete

ERRORS = (errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EACCES)


def outside_of_blobs(blobs: DirectoryBlobs, executor: AsyncExecutor) -> Outside:
    """What the coordinator's deletions need."""
    clock = SystemClock()
    log = MemoryLog(MemoryBroker(clock))
    return Outside(log, blobs, clock, executor, Topics(), RuntimeSettings(), lambda: "u")


async def released(world: World) -> list[int]:
    """Two tasks release six commits; what a third staged, and no commit has, waits to be collected."""
    for _ in range(2):
        task = Task(world)
        await task.start()
        for _ in range(3):
            await task.epoch()
    left = Task(world)
    await left.start()
    await left.accept()
    await left.stage()
    # The next commit passes what was left.
    last = Task(world)
    await last.start()
    await last.epoch()
    return sorted(await world.target.visible())


async def restarts(world: World) -> None:
    """A task begins anew, or is kept from it: what it cannot read, and a marker that seems to be gone, are told."""
    with contextlib.suppress(TargetUnavailable, TargetRefused):
        await Task(world).start()


@pytest.mark.parametrize("code", ERRORS, ids=[errno.errorcode[code] for code in ERRORS])
@pytest.mark.parametrize("call", range(4))
async def test_S4_a_listing_that_fails_takes_nothing_that_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, code: int
) -> None:
    """Whichever listing of a folder fails, and however: all that was released is there, and the next start goes on."""
    world = World(FilesWorld(tmp_path, "json"))
    before = await released(world)
    real, calls = os.scandir, iter(range(10_000))

    def scandir(path: Any = ".") -> Any:
        if MANIFESTS in str(path) and next(calls) == call:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    await restarts(world)
    monkeypatch.undo()
    assert sorted(await world.target.visible()) == before
    await restarts(world)
    assert sorted(await world.target.visible()) == before


@pytest.mark.parametrize("code", ERRORS, ids=[errno.errorcode[code] for code in ERRORS])
@pytest.mark.parametrize("call", range(2))
async def test_S4_a_reader_of_a_folder_that_cannot_be_read_finds_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, code: int
) -> None:
    """A part of the released output is not taken for all of it, whichever folder fails: the one of manifests, or an identity's."""
    target = FilesWorld(tmp_path, "json")
    await released(World(target))
    real, calls = os.scandir, iter(range(10_000))

    def scandir(path: Any = ".") -> Any:
        if MANIFESTS in str(path) and next(calls) == call:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises((TargetUnavailable, Discrepancy), match=os.strerror(code)):
        released_manifests(LocalDestination(target.root, "reader"))


def lacking(names: Callable[[Any, str], list[str]], number: int) -> Callable[[Any, str], list[str]]:
    """Listings that lack one manifest that is there: the store's view is old, or a page of it is missing."""

    def listed(self: Any, folder: str) -> list[str]:
        found = names(self, folder)
        manifests = [name for name in found if name.startswith(MANIFESTS)]
        return [name for name in found if name not in manifests[number : number + 1]]

    return listed


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("kind", ["files", "objects"])
async def test_S4_a_listing_that_lacks_a_manifest_takes_nothing_that_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """Manifests name the one before: what is missing in between, or at the end, is known, and nothing is collected."""
    world = World(FilesWorld(tmp_path, "json") if kind == "files" else ObjectsWorld())
    before = await released(world)
    of = LocalDestination if kind == "files" else ObjectDestination
    monkeypatch.setattr(of, "names", lacking(of.names, number))
    await restarts(world)
    monkeypatch.undo()
    assert sorted(await world.target.visible()) == before


@pytest.mark.parametrize("call", range(5))
async def test_S4_a_page_of_a_stores_listing_that_fails_is_no_listing(
    monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Fsspec's walk passes over what it cannot list, if it is not told otherwise."""
    target = ObjectsWorld()
    world = World(target)
    before = await released(world)
    kind, calls = type(target.filesystem), iter(range(10_000))
    real = kind.ls

    def ls(self: Any, path: str, **more: Any) -> Any:
        if next(calls) == call:
            raise OSError(errno.EIO, "a page is missing", path)
        return real(self, path, **more)

    monkeypatch.setattr(kind, "ls", ls)
    await restarts(world)
    monkeypatch.undo()
    assert sorted(await target.visible()) == before


@pytest.mark.parametrize("code", ERRORS[:5], ids=[errno.errorcode[code] for code in ERRORS[:5]])
async def test_C12_a_folder_of_blobs_that_cannot_be_read_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A job's blobs are told whole or not at all: its deletion is not done while some of them were not seen."""
    executor = AsyncExecutor()
    blobs = DirectoryBlobs(tmp_path / "blobs", executor, fsync=False)
    job = JobId("a" * 32)
    for name in (f"{job}/v/1/2/x", f"{job}/w/1/2/y"):
        await blobs.put(name, b"1")
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if str(path).endswith("/w"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BlobUnavailable):
        await blobs.list(f"{job}/")
    outside = outside_of_blobs(blobs, executor)
    event = await delete(do.DeleteBlobs(do.OpId(1), job, None, frozenset()), outside)
    assert isinstance(event, ev.DeletionFailed)
    monkeypatch.undo()
    assert len(await blobs.list(f"{job}/")) == 2
    await executor.close()


async def test_C12_blobs_that_a_kept_commit_names_stay_whatever_the_listing_says(tmp_path: Path) -> None:
    """What goes is chosen from what is listed, less what is kept: a listing that lacks a name spares it."""
    executor = AsyncExecutor()
    blobs = DirectoryBlobs(tmp_path / "blobs", executor, fsync=False)
    job = JobId("a" * 32)
    names = [f"{job}/v/1/{epoch}/x" for epoch in range(1, 5)]
    for name in names:
        await blobs.put(name, b"1")
    await delete(do.DeleteBlobs(do.OpId(1), job, Epoch(3), frozenset({names[0]})), outside_of_blobs(blobs, executor))
    left = await blobs.list("")
    assert names[0] in left
    assert names[3] in left
    await executor.close()


def test_a_brokers_data_stays_where_its_mark_is_gone_or_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what a format that was cut off has written may go; a folder with a partition in it is told, and stays."""
    settings = BrokerSettings(data_dir=tmp_path)
    settings.log_dir.mkdir(parents=True)
    (settings.log_dir / "meta.properties").write_text("half")
    partition = settings.log_dir / "departures-0"
    partition.mkdir()
    with pytest.raises(BrokerError, match="holds departures-0, but its mark"):
        local_broker._format_once(settings)
    assert partition.exists()
    partition.rmdir()
    local_broker._clear_cut_off_format(settings)
    assert not settings.log_dir.exists()
    real = Path.stat

    def stat(path: Path, **more: Any) -> Any:
        if path.name == "formatted":
            raise OSError(errno.EIO, "input/output error", str(path))
        return real(path, **more)

    partition.mkdir(parents=True)
    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(BrokerError, match="is not known"):
        local_broker._format_once(settings)
    assert partition.exists()


def test_a_demo_empties_no_folder_but_a_demos(tmp_path: Path) -> None:
    """What it did not write stays: it says what it found, and asks for another folder."""
    theirs = tmp_path / "home"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years")
    with pytest.raises(DemoFailed, match=r"holds thesis\.tex, which no demo wrote"):
        _check_ours(theirs, {"summary.json"})
    assert (theirs / "thesis.tex").exists()
    ours = tmp_path / "out"
    for _ in range(2):
        _check_ours(ours, {"summary.json"})
        _empty(ours)
        (ours / "anything").write_text("1")
    _check_ours(ours, {"summary.json"})
    _empty(ours)
    assert [path.name for path in ours.iterdir()] == [".tidemark-demo"]


def test_a_place_whose_name_begins_with_anothers_keeps_its_state(tmp_path: Path) -> None:
    """`operator-1` sweeps what it left itself, not what `operator-1-b` is making."""
    other = tmp_path / "tidemark-keys-operator-1-b-x1y2z3w4"
    own = tmp_path / "tidemark-keys-operator-1-x1y2z3w4"
    other.mkdir()
    own.mkdir()
    Scratch(tmp_path, "operator-1").sweep()
    assert other.exists()
    assert not own.exists()
