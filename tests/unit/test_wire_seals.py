# ruff: noqa: N802 -- a test carries its rule's name
"""Seals bind a record to its place and to all of it; keys are changed while the installation runs."""

import itertools

import pytest

from tests.harness.sealing import sealed
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.wire.limits import WireError
from tidemark.shared.wire.seals import HEADER, SEALS, Seal, SealKeys

OLD, NEW = "old-key-of-more-than-32-characters", "new-key-of-more-than-32-characters"
PLACE = ("tidemark.commands", 0)
OWN, THEIRS = TopicPartition("tidemark.commands", 0), TopicPartition("letters", 0)


def test_F10_a_seal_is_of_one_record_at_one_place() -> None:
    """Any other topic, partition, key, value, header or key of an installation is refused; the record itself is not."""
    keys = SealKeys.of(OLD)
    headers = (("tidemark-leader", b"3"), ("x", b""))
    seal = keys.seal(PLACE, b"k", b"v", headers)
    whole = (*headers, (HEADER, seal))
    keys.check(PLACE, b"k", b"v", whole)
    changed = [
        (("tidemark.reports", 0), b"k", b"v", whole),
        (("tidemark.commands", 1), b"k", b"v", whole),
        (PLACE, b"", b"v", whole),
        (PLACE, None, b"v", whole),
        (PLACE, b"kv", b"", whole),
        (PLACE, b"k", b"w", whole),
        (PLACE, b"k", None, whole),
        (PLACE, b"k", b"v", whole[1:]),
        (PLACE, b"k", b"v", (("tidemark-leader", b"4"), *whole[1:])),
        (PLACE, b"k", b"v", (whole[1], whole[0], whole[2])),
        (PLACE, b"k", b"v", (*whole, ("more", b""))),
        (PLACE, b"k", b"v", headers),
        (PLACE, b"k", b"v", (*whole, (HEADER, seal))),
        (PLACE, b"k", b"v", (*headers, (HEADER, SEALS.encode(SEALS.decode(seal)._replace(mac=b""))))),
    ]
    for place, key, value, found in changed:
        with pytest.raises(WireError):
            keys.check(place, key, value, found)
    with pytest.raises(WireError, match="not among this installation's"):
        SealKeys.of(NEW).check(PLACE, b"k", b"v", whole)


@pytest.mark.parametrize("bit", range(0, 8 * 60, 7))
def test_F10_a_seal_that_was_changed_is_none(bit: int) -> None:
    """Each bit of it counts."""
    keys = SealKeys.of(OLD)
    seal = bytearray(keys.seal(PLACE, None, b"v", ()))
    seal[bit // 8 % len(seal)] ^= 1 << bit % 8
    with pytest.raises(WireError):
        keys.check(PLACE, None, b"v", ((HEADER, bytes(seal)),))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"x" * 100_000, b"\x91" * 200, SEALS.encode(Seal(b"", b"")), b"\x92\x02\x93"]
)
def test_F10_bytes_that_are_no_seal_are_refused(data: bytes) -> None:
    """Whatever stands in the header."""
    with pytest.raises(WireError):
        SealKeys.of(OLD).check(PLACE, None, b"v", ((HEADER, data),))


def test_F10_keys_are_changed_one_process_after_the_other() -> None:
    """Old alone, old and new, new and old, new alone: neighbours in this order read each other, whoever is first."""
    steps = [SealKeys.of(text) for text in (OLD, f"{OLD},{NEW}", f"{NEW}\n{OLD}\n", NEW)]
    for a, b in itertools.pairwise(steps):
        for writer, reader in ((a, b), (b, a)):
            reader.check(PLACE, None, b"v", ((HEADER, writer.seal(PLACE, None, b"v", ())),))
    with pytest.raises(WireError):
        steps[3].check(PLACE, None, b"v", ((HEADER, steps[0].seal(PLACE, None, b"v", ())),))


@pytest.mark.parametrize("text", ["", " ,\n", "short", f"{OLD},short"])
def test_a_key_that_is_none_is_said_and_not_shown(text: str) -> None:
    """How many characters, and no key of them."""
    with pytest.raises(ValueError, match="expected") as raised:
        SealKeys.of(text)
    assert "short" not in str(raised.value)
    assert OLD not in f"{raised.value}{SealKeys.of(OLD)!r}"


async def values(log: Log, partition: TopicPartition) -> list[bytes | None]:
    reader = await log.reader()
    await reader.assign({partition: Offset(0)})
    found = []
    while records := await reader.fetch(100, 10):
        found += [record.value for record in records]
    await reader.close()
    return found


def test_F10_the_installations_topics_give_what_is_sealed_and_users_topics_all() -> None:
    """A stranger's record is counted by its topic and skipped, what is behind it is read; a user's topic has no seals."""

    async def story(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock)
        stranger = MemoryLog(broker)
        log = sealed(stranger)
        for partition in (OWN, THEIRS):
            await stranger.create_topic(partition.topic, 1)
            for each, value in ((log, b"first"), (stranger, b"strange"), (log, b"last")):
                writer = await each.writer("w")
                await (await writer.send(partition, NewRecord(value)))
                await writer.close()
        transaction = await (await log.transactional_writer("t")).begin([OWN])
        await transaction.send_batch(OWN, [NewRecord(b"in a transaction")])
        await transaction.commit()
        reader = await stranger.reader()
        await reader.assign({OWN: Offset(0)})
        copied = (await reader.fetch(1, 10))[0]
        broker.append(THEIRS, [NewRecord(b"x")])
        other = TopicPartition("tidemark.reports", 0)
        await stranger.create_topic(other.topic, 1)
        broker.append(other, [NewRecord(copied.value, copied.key, copied.headers)])
        assert await values(log, OWN) == [b"first", b"last", b"in a transaction"]
        assert await values(log, THEIRS) == [b"first", b"strange", b"last", b"x"]
        assert await values(log, other) == []
        assert log.unreadable.counts == {OWN.topic: 1, other.topic: 1}
        reader = await stranger.reader()
        await reader.assign({THEIRS: Offset(0)})
        assert {record.headers for record in await reader.fetch(100, 10)} == {()}

    run_virtual(story)
