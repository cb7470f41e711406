# ruff: noqa: N802 -- a test carries its rule's name
"""A task's state: what travels in an ack, what lies in blobs, and that each checkpoint stands alone (C5, C7, C12, R4)."""

import itertools
from typing import Any, Self

import pytest

from tests.harness.worker_stand import JOB
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.virtual import InlineExecutor, VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import BlobRef, PartHandle, TaskHandle, TaskProtocolState, state_bytes
from tidemark.shared.model.ids import Epoch, Generation, JobId, StatePart, VertexId
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.protocol.coordinator.retention import blob_may_go, blobs_kept, parse_blob_name
from tidemark.shared.runtime.state import StateBounds, StateStore, blobs_of, load_parts, with_parts

A, B, C = (StatePart(f"kg:{n}") for n in range(3))
COUNT = VertexId("count")


def store(
    blobs: MemoryBlobs,
    *,
    generation: int = 1,
    inline: int = 20,
    blobs_max: int = 3,
    bytes_max: int = 1_000,
    parts_max: int = 9,
) -> StateStore:
    numbers = itertools.count()
    return StateStore(
        blobs, JOB, COUNT, Generation(generation), lambda: f"u{next(numbers)}",
        StateBounds(inline, blobs_max, bytes_max, parts_max),
    )  # fmt: skip


def handle(parts: tuple[PartHandle, ...], index: int = 0) -> TaskHandle:
    return TaskHandle(COUNT, index, TaskProtocolState(), parts, blobs_of(parts))


async def content(blobs: MemoryBlobs, parts: tuple[PartHandle, ...]) -> dict[StatePart, bytes]:
    return await load_parts(blobs, [handle(parts)], lambda _: True)


def with_blobs(story: Any) -> None:
    async def main(_: VirtualWorld) -> None:
        blobs = MemoryBlobs(InlineExecutor())
        await story(blobs)
        await blobs.close()

    run_virtual(main)


def test_C7_small_state_travels_in_the_ack_and_large_state_lies_in_one_blob() -> None:
    """Below the bound no blob is written; above it what is inline becomes one, and the handles say where each part is."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs)
        small = await state.store(Epoch(1), {A: b"a" * 10, B: b"b" * 10})
        assert await blobs.list("") == []
        large = await state.store(Epoch(2), {C: b"c"})
        assert len(await blobs.list("")) == 1
        assert all(part.blob is not None for part in large)
        assert await content(blobs, small) == {A: b"a" * 10, B: b"b" * 10}
        assert await content(blobs, large) == {A: b"a" * 10, B: b"b" * 10, C: b"c"}

    with_blobs(story)


def test_C5_each_checkpoint_holds_all_whatever_became_of_the_one_before() -> None:
    """What changed at an aborted checkpoint is in the next one; what was taken away stays away."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs)
        first = await state.store(Epoch(1), {A: b"a" * 30})
        await state.store(Epoch(2), {A: b"A" * 30, B: b"b" * 30, C: b"c" * 30})  # aborted
        third = await state.store(Epoch(3), {B: None})
        assert await content(blobs, third) == {A: b"A" * 30, C: b"c" * 30}
        assert await content(blobs, first) == {A: b"a" * 30}

    with_blobs(story)


def test_C7_state_lies_under_names_that_no_other_attempt_can_have() -> None:
    """Two attempts of one task at one epoch write two objects; neither overwrites the other's."""

    async def story(blobs: MemoryBlobs) -> None:
        one = await store(blobs, generation=1).store(Epoch(5), {A: b"1" * 30})
        two = await store(blobs, generation=2).store(Epoch(5), {A: b"2" * 30})
        assert await content(blobs, one) == {A: b"1" * 30}
        assert await content(blobs, two) == {A: b"2" * 30}

    with_blobs(story)


def test_C12_what_a_checkpoint_lists_is_named_so_that_it_stays() -> None:
    """Names say job, vertex, generation and the epoch that lists them first; an older blob stays as long as it is listed."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs)
        await state.store(Epoch(1), {A: b"a" * 30})
        second = await state.store(Epoch(2), {B: b"b" * 30})
        names = [ref.name for ref in blobs_of(second)]
        assert [name.split("/")[:4] for name in sorted(names)] == [[JOB, "count", "1", "1"], [JOB, "count", "1", "2"]]
        assert all(parse_blob_name(name) is not None for name in names)
        third = await state.store(Epoch(3), {A: b"x" * 30})
        assert {n.split("/")[3] for n in (ref.name for ref in blobs_of(third))} == {"2", "3"}
        keep = frozenset(ref.name for ref in blobs_of(third))
        gone = [n for n in await blobs.list("") if blob_may_go(n, JOB, Epoch(3), keep)]
        assert [n.split("/")[3] for n in gone] == ["1"]
        assert blobs_kept([]) == frozenset()

    with_blobs(story)


def test_C7_parts_that_lie_in_too_many_blobs_are_gathered() -> None:
    """A checkpoint never needs more blobs than the bound; nothing of the old ones is overwritten."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs, blobs_max=2)
        parts: tuple[PartHandle, ...] = ()
        for epoch, part in enumerate((A, B, C, StatePart("kg:3")), start=1):
            parts = await state.store(Epoch(epoch), {part: str(epoch).encode() * 30})
            assert len(blobs_of(parts)) <= 3
        assert sorted((await content(blobs, parts)).values()) == [str(n).encode() * 30 for n in range(1, 5)]

    with_blobs(story)


def test_C7_large_state_lies_in_blobs_of_a_bounded_size() -> None:
    """A blob holds parts up to the bound, or one that is larger alone; so many blobs are not scattered ones, and are not gathered."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs, blobs_max=2, bytes_max=100)
        first = {StatePart(f"kg:{n}"): bytes([n]) * (250 if n == 3 else 40) for n in range(12)}
        parts = await state.store(Epoch(1), first)
        sizes: dict[str, int] = {}
        for part in parts:
            assert part.blob is not None
            sizes[part.blob.name] = sizes.get(part.blob.name, 0) + part.length
        assert sorted(sizes.values()) == [40, 80, 80, 80, 80, 80, 250]
        parts = await state.store(Epoch(2), {C: b"c" * 30})
        assert len([name for name in await blobs.list("") if name.split("/")[3] == "2"]) == 1, (
            "nothing else is written anew"
        )
        assert await content(blobs, parts) == {**first, C: b"c" * 30}
        for epoch in range(3, 40):
            parts = await state.store(Epoch(epoch), {StatePart(f"kg:{epoch % 12}"): bytes([epoch]) * 40})
            assert len(blobs_of(parts)) <= 2 + 2 * sum(part.length for part in parts) // 100 + 1

    with_blobs(story)


def test_C7_what_is_gathered_is_what_lies_in_the_smallest_blobs() -> None:
    """Much state that lies still is not written again because little changes often: what is written is a few times what changed."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs, blobs_max=4, bytes_max=100_000)
        still = {StatePart(f"kg:{n}"): b"s" * 900 for n in range(100, 110)}
        await state.store(Epoch(1), still)
        parts: tuple[PartHandle, ...] = ()
        for epoch in range(2, 42):
            parts = await state.store(Epoch(epoch), {StatePart(f"kg:{epoch}"): bytes([epoch]) * 30})
            assert len(blobs_of(parts)) <= 5
        sizes = [ref.size_bytes for ref in await refs(blobs)]
        assert sizes.count(9_000) == 1
        assert sum(sizes) < 9_000 + 40 * 30 * 8
        assert await content(blobs, parts) == {**still, **{StatePart(f"kg:{n}"): bytes([n]) * 30 for n in range(2, 42)}}

    with_blobs(story)


def test_C7_a_list_of_many_parts_is_a_blob() -> None:
    """Up to the bound the parts travel as they are; beyond it what is listed is what was stored, inline or in any blob."""

    async def story(blobs: MemoryBlobs) -> None:
        state = store(blobs, parts_max=9, bytes_max=100, blobs_max=9)
        first = {StatePart(f"kg:{n}"): b"%02d" % n * 15 for n in range(9)}
        parts = await state.store(Epoch(1), first)
        assert len({part.blob for part in parts}) == 3
        assert await state.listed(Epoch(1), parts) is None
        more = {StatePart("kg:20"): b"more" * 8, StatePart("kg:20#0"): b"t"}
        await state.store(Epoch(2), {StatePart("kg:20"): more[StatePart("kg:20")]})
        parts = await state.store(Epoch(3), {StatePart("kg:20#0"): b"t"})
        assert [part.inline for part in parts if part.blob is None] == [b"t"]
        listed = await state.listed(Epoch(3), parts)
        assert listed is not None
        assert parse_blob_name(listed.name) is not None
        by_reference = TaskHandle(COUNT, 0, TaskProtocolState(), (), (*blobs_of(parts), listed), listed=listed)
        (found,) = await with_parts(blobs, [by_reference])
        assert found.parts == parts
        assert await content(blobs, found.parts) == {**first, **more}
        await blobs.delete([listed.name])
        with pytest.raises(BlobError):
            await with_parts(blobs, [by_reference])

    with_blobs(story)


async def refs(blobs: MemoryBlobs) -> list[BlobRef]:
    """All that was ever written."""
    return [await blobs.seal(name) for name in await blobs.list("")]


class Pack(bytes):
    """Of a blob, counted while somebody holds it."""

    held = 0
    held_max = 0

    def __new__(cls, data: bytes) -> Self:
        """One more."""
        Pack.held += 1
        Pack.held_max = max(Pack.held, Pack.held_max)
        return super().__new__(cls, data)

    def __del__(self) -> None:
        """One less."""
        Pack.held -= 1


def test_the_size_of_state_counts_a_part_once_with_its_blob() -> None:
    """A blob with parts counts by its parts, dead bytes left out; one that a part's content names counts whole."""
    shared, segment = BlobRef("parts", 100, ""), BlobRef("segment", 40, "")
    parts = (PartHandle(A, inline=b"abc"), PartHandle(B, None, shared, 0, 10), PartHandle(C, None, shared, 10, 20))
    assert state_bytes(parts, (shared, segment)) == 3 + 10 + 20 + 40


def test_one_blob_at_a_time_lies_in_memory_while_state_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the parts that were cut out of those before; each blob is fetched once."""
    fetched: list[str] = []

    async def story(blobs: MemoryBlobs) -> None:
        parts = await store(blobs, bytes_max=50).store(Epoch(1), {StatePart(f"kg:{n}"): b"x" * 30 for n in range(8)})
        fetch = blobs.get

        async def get(ref: BlobRef) -> bytes:
            fetched.append(ref.name)
            return Pack(await fetch(ref))

        monkeypatch.setattr(blobs, "get", get)
        assert len(await content(blobs, parts)) == 8

    with_blobs(story)
    assert len(set(fetched)) == len(fetched) == 8
    assert (Pack.held, Pack.held_max) == (0, 1)


def test_R4_a_task_takes_the_parts_that_are_its_own_now() -> None:
    """From all tasks of the checkpoint, in whatever blobs; a part that two tasks claim is refused."""

    async def story(blobs: MemoryBlobs) -> None:
        one = await store(blobs).store(Epoch(1), {A: b"a" * 30, B: b"b"})
        two = await store(blobs, generation=9).store(Epoch(1), {C: b"c" * 5})
        found = await load_parts(blobs, [handle(one), handle(two, 1)], lambda part: part in (B, C))
        assert found == {B: b"b", C: b"c" * 5}
        with pytest.raises(BlobError, match=r"kg:0 of count is in two tasks"):
            await load_parts(blobs, [handle(one), handle(one, 1)], lambda _: True)

    with_blobs(story)


def test_C12_a_damaged_blob_is_refused() -> None:
    """State counts by its digest: other bytes under its name are an error, not a state."""

    async def story(blobs: MemoryBlobs) -> None:
        parts = await store(blobs).store(Epoch(1), {A: b"a" * 30})
        (ref,) = blobs_of(parts)
        await blobs.delete([ref.name])
        await blobs.put(ref.name, b"x" * ref.size_bytes)
        with pytest.raises(BlobError):
            await content(blobs, parts)

    with_blobs(story)


def test_C12_names_of_another_form_are_never_deleted() -> None:
    """Whatever else lies in the store is nobody's to delete."""
    job = JobId(JOB)
    for name in ("readme", f"{JOB}/count/1/x/u0", f"{JOB}/count/1", f"{'1' * 32}/count/1/2/u0"):
        assert not blob_may_go(name, job, Epoch(9), frozenset())
    assert blob_may_go(f"{JOB}/count/1/2/u0", job, Epoch(2), frozenset())
    assert not blob_may_go(f"{JOB}/count/1/3/u0", job, Epoch(2), frozenset())
