"""What a store of cold keys owes its computation: whichever it is, what was put is found, group by group and in order."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.operator.rockskeys import RocksKeys, Scratch
from shared.model.ids import KeyGroup
from shared.operators.cold_keys import ColdKeys
from shared.operators.errors import OperatorError
from tests.harness.cold_memory import MemoryColdKeys

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


def test_what_a_killed_worker_left_goes_with_its_successor(tmp_path: Path) -> None:
    """Of its own place alone."""
    first, other = Scratch(tmp_path, "operator-0"), Scratch(tmp_path, "operator-1")
    for scratch in (first, other):
        scratch.stores().make().put(ONE, b"a", b"1")
    Scratch(tmp_path, "operator-0").sweep()
    assert [left.name.startswith("tidemark-keys-operator-1-") for left in tmp_path.iterdir()] == [True]
