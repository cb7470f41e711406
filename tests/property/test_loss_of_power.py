# ruff: noqa: N802 -- a test carries its rule's name
"""What a file sink and the blob store say is durable survives the death of processes, followed by a loss of power; and no name is torn."""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.disk import Disk
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor

SHARED_MEMORY = Path("/dev/shm")
SEEDS = range(60)
STEPS = 40


@contextmanager
def _disk(seed: int) -> Iterator[Disk]:
    """In memory, where an inode's number is given once."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        disk = Disk(Path(folder), seed)
        with disk.attached():
            yield disk


def _data(rng: random.Random, number: int) -> bytes:
    return f"{number}.".encode() * rng.randint(1, 50)


def _lived(disk: Disk, rng: random.Random, work: Callable[[], Any]) -> bool:
    """Do something in a process that dies of it now and then; whether it was done."""
    if rng.random() < 0.5:
        work()
        return True
    return not disk.killed(work, rng.randint(0, 14))


@pytest.mark.parametrize("seed", SEEDS)
def test_S4_what_a_file_sink_has_written_survives_a_loss_of_power(seed: int) -> None:
    """Staged, published, manifests: each whole under its name, whichever process made the folders, and died; else whole or not there."""
    with _disk(seed) as disk:
        rng = random.Random(seed)
        root = disk.root / "target"
        writers = [LocalDestination(root, f"a{n}") for n in range(3)]
        contents: dict[str, bytes] = {}
        durable: set[str] = set()
        staged: list[str] = []
        for number in range(STEPS):
            at = rng.randrange(len(writers))
            writer, data = writers[at], _data(rng, number)
            match rng.choice(("prepare", "stage", "stage", "publish", "manifest", "delete", "loss")):
                case "prepare":
                    _lived(disk, rng, writer.prepare)
                    writers[at] = LocalDestination(root, f"b{number}")
                case "stage" | "manifest" as what:
                    folder = "_staged" if what == "stage" else "_manifests"
                    name = f"{folder}/{rng.choice('xy')}/{number}"
                    contents[name] = data
                    if _lived(disk, rng, partial(writer.create, name, data)):
                        durable.add(name)
                        staged += [name] if what == "stage" else []
                    else:
                        writers[at] = LocalDestination(root, f"b{number}")
                case "publish" if staged:
                    name = staged.pop(rng.randrange(len(staged)))
                    visible = f"day={rng.choice('pq')}/{number}"
                    contents[visible] = contents[name]
                    if _lived(disk, rng, partial(writer.publish, name, visible)):
                        durable.add(visible)
                    else:
                        writers[at] = LocalDestination(root, f"b{number}")
                    durable.discard(name)
                case "delete" if staged:
                    name = staged.pop(rng.randrange(len(staged)))
                    durable.discard(name)
                    if not _lived(disk, rng, partial(writer.delete, [name])):
                        writers[at] = LocalDestination(root, f"b{number}")
                case "loss":
                    disk.lose_power()
                    writers = [LocalDestination(root, f"c{number}-{n}") for n in range(3)]
                    found = {name: (root / name).read_bytes() for name in writers[0].names("")}
                    assert found == {name: contents[name] for name in found}, "a name is torn"
                    assert durable <= found.keys()
                    staged = [name for name in staged if name in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_C7_blobs_that_are_durable_survive_a_loss_of_power(seed: int) -> None:
    """Whole under their names, whichever process made the folders, or took them away."""
    executor = AsyncExecutor(1)
    with _disk(seed) as disk:
        rng = random.Random(seed)
        root = disk.root / "blobs"
        stores = [DirectoryBlobs(root, executor) for _ in range(3)]
        contents: dict[str, bytes] = {}
        durable: set[str] = set()
        for number in range(STEPS):
            at = rng.randrange(len(stores))
            store, data = stores[at], _data(rng, number)
            match rng.choice(("put", "put", "delete", "loss")):
                case "put":
                    name = f"job/{rng.choice('vw')}/1/{rng.choice('23')}/{number}"
                    contents[name] = data
                    if _lived(disk, rng, partial(store._put, name, data)):
                        durable.add(name)
                    else:
                        stores[at] = DirectoryBlobs(root, executor)
                case "delete" if durable:
                    name = rng.choice(sorted(durable))
                    durable.discard(name)
                    if not _lived(disk, rng, partial(store._delete, "", [name])):
                        stores[at] = DirectoryBlobs(root, executor)
                case "loss":
                    disk.lose_power()
                    stores = [DirectoryBlobs(root, executor) for _ in range(3)]
                    found = {name: (root / name).read_bytes() for name in stores[0]._list("")} if root.is_dir() else {}
                    assert found == {name: contents[name] for name in found}, "a name is torn"
                    assert durable <= found.keys()
