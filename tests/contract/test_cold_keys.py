"""What a store of cold keys owes its computation: whichever it is, what was put is found, group by group and in order."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.cold_memory import MemoryColdKeys
from tidemark.services.operator.rockskeys import RocksKeys, Scratch
from tidemark.shared.model.ids import KeyGroup
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.operators.computation_keys import ColdKeys

ONE, TWO = KeyGroup(1), KeyGroup(256)


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ColdKeys]:
    if request.param == "memory":
        yield MemoryColdKeys()
        return
    rocks = RocksKeys(tmp_path / "keys")
    yield rocks
    rocks.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_put_is_found(store: ColdKeys) -> None:
    """The last of it, under its group alone; what was removed is not."""
    store.put(ONE, b"a", b"1")
    store.put(ONE, b"a", b"2")
    assert store.get(ONE, b"a") == b"2"
    assert store.get(TWO, b"a") is None
    store.remove(ONE, b"a")
    store.remove(ONE, b"never there")
    assert store.get(ONE, b"a") is None


def test_a_group_is_told_in_the_order_of_its_keys(store: ColdKeys) -> None:
    """All of it, and nothing of its neighbours, whatever bytes keys have; more than one buffer holds, too."""
    keys = [bytes([n % 256, n // 256]) * (1 + n % 3) for n in range(2_000)] + [b"", b"\x00", b"\xff" * 40]
    for group in (ONE, TWO):
        for key in reversed(keys):
            store.put(group, key, key + bytes([group % 256]) * 20)
    for group in (ONE, TWO):
        assert list(store.of_group(group)) == [(key, key + bytes([group % 256]) * 20) for key in sorted(set(keys))]
    assert list(store.of_group(KeyGroup(2))) == []


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    """The error says where the keys lie, and what to do."""
    rocks = RocksKeys(tmp_path / "keys")
    rocks.close()
    with pytest.raises(OperatorError, match=rf"keyed state in {tmp_path}.*keys_in_memory"):
        rocks.put(ONE, b"a", b"1")


_WORKER: Final = """
import os, sys
from pathlib import Path
from tidemark.services.operator.rockskeys import Scratch
store = Scratch(Path(sys.argv[1]), sys.argv[2]).stores().make()
store.put(1, b"a", b"1")
print("open", flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_what_killed_workers_left_goes_when_another_begins(tmp_path: Path) -> None:
    """Of its own place and of places that are no more, as containers' are; not what a living one has open, or is making."""
    places = ("operator-0", "operator-1", "operator-2")
    living = {
        place: subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(tmp_path), place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for place in places
    }
    try:
        for worker in living.values():
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"open\n"
        for place in places[:2]:
            living[place].communicate()
        (tmp_path / "tidemark-keys-operator-3-new").mkdir()
        Scratch(tmp_path, "operator-0").sweep()
        left = sorted(folder.name.rpartition("-")[0] for folder in tmp_path.iterdir())
        assert left == ["tidemark-keys-operator-2", "tidemark-keys-operator-3"]
    finally:
        for worker in living.values():
            worker.communicate()


_FULL: Final = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from tidemark.services.operator.rockskeys import Scratch
from tidemark.services.operator.shelved import shelved
from tidemark.shared.model.failures import is_outage
root = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))  # as on a full disk: files are made, and take no bytes
for work in (
    lambda: Scratch(root, "operator-0").stores().make(),
    lambda: Scratch(root / "keys" / "below", "operator-0").stores().make(),
    lambda: shelved(root, pa.table({"id": list(range(1000))})),
):
    try:
        work()
    except Exception as error:
        print(is_outage(error), error)
"""


def test_a_full_disk_is_an_outage_and_nothing_stays_on_it(tmp_path: Path) -> None:
    """Time or its owner mends it, so it is no failure that counts; where a store is made, and where ids are laid off."""
    done = subprocess.run([sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert [line.split(" ", 1)[0] for line in done.stdout.splitlines() if " in " + str(tmp_path) in line] == [
        "True"
    ] * 3
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
