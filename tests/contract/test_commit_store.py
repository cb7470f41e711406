# ruff: noqa: N802 -- a test carries its rule's name
"""The CommitStore port's contract, against memory, SQLite and PostgreSQL; trouble is in test_commit_trouble."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.commit_support import JOB, LEASE_MS, NOW_MS, begin, commit, commit_of, expected_of, lead
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName
from tidemark.shared.ports.commits import CommitStore, Stale

pytestmark = pytest.mark.usefixtures("sqlite_threads")

Opener = Callable[[], Awaitable[CommitStore]]
"""Another client of the same store."""


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def another(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    opened: list[CommitStore] = []
    state = MemoryCommitState()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")

    async def open_one() -> CommitStore:
        store: CommitStore = MemoryCommitStore(state) if request.param == "memory" else SqlCommitStore(url)
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(another: Opener) -> CommitStore:
    return await another()


async def test_C8_leadership_has_one_holder_and_growing_tokens(another: Opener) -> None:
    """A held lease refuses others until it is over; each take-over, also by its holder, has a higher token."""
    one, two = await another(), await another()
    first = await lead(one, "a")
    assert await two.lead("b", LEASE_MS, NOW_MS + LEASE_MS - 1) is None
    assert await one.renew(first, LEASE_MS, NOW_MS + 5_000)
    assert await two.lead("b", LEASE_MS, NOW_MS + LEASE_MS + 1) is None, "the lease was renewed"
    second = await lead(one, "a", NOW_MS + 6_000)
    assert await two.lead("b", LEASE_MS, NOW_MS + 6_000 + LEASE_MS) is None, "it has just seen a new leader"
    assert await two.lead("b", LEASE_MS, NOW_MS + 6_000 + 3 * LEASE_MS // 2) is None
    third = await lead(two, "b", NOW_MS + 6_000 + 2 * LEASE_MS)
    assert first < second < third
    assert not await one.renew(second, LEASE_MS, NOW_MS + 6_000 + LEASE_MS)
    assert await two.renew(third, LEASE_MS, NOW_MS + 6_000 + LEASE_MS)


async def test_C8_who_asks_in_vain_changes_nothing(another: Opener) -> None:
    """A candidate that gets no lease counts as no change: a copy that has lost some would catch up with what was told."""
    one, two = await another(), await another()
    await lead(one, "a")
    changes = one.changes
    for _ in range(3):
        assert await two.lead("b", LEASE_MS, NOW_MS) is None
    await lead(one, "a")
    assert one.changes == changes + 1


async def test_C8_a_lease_of_a_clock_that_is_ahead_does_not_outlive_its_holder(another: Opener) -> None:
    """While it is renewed it holds; a candidate that has seen it unchanged for its length takes it, whatever time it is said to end."""
    one, two = await another(), await another()
    hours_ms = 7_200_000
    token = await lead(one, "a", NOW_MS + hours_ms)
    for passed_ms in range(0, 3 * LEASE_MS, LEASE_MS // 2):
        assert await one.renew(token, LEASE_MS, NOW_MS + hours_ms + passed_ms)
        assert await two.lead("b", LEASE_MS, NOW_MS + passed_ms, looked_ms=passed_ms) is None
    for wall_ms, later_ms in ((NOW_MS, LEASE_MS // 2), (NOW_MS - hours_ms, LEASE_MS - 1), (NOW_MS, LEASE_MS - 1)):
        at_ms = passed_ms + later_ms
        assert await two.lead("b", LEASE_MS, wall_ms, looked_ms=at_ms) is None, "its own clock is set to and fro"
    taken = await two.lead("b", LEASE_MS, NOW_MS - hours_ms, looked_ms=passed_ms + LEASE_MS)
    assert taken is not None
    assert taken > token


@pytest.mark.parametrize(
    "every_ms", [LEASE_MS // 4, LEASE_MS // 2, LEASE_MS // 2 + 1, LEASE_MS, LEASE_MS + 1_000, 50 * LEASE_MS]
)
async def test_C8_a_candidate_that_looks_seldom_takes_a_dead_leaders_lease(another: Opener, every_ms: int) -> None:
    """Two looks behind the last renewal that it has seen, or a lease; one look is not enough, however late: the leader stood still, too."""
    one, two = await another(), await another()
    ahead_ms, looks = NOW_MS + 100 * LEASE_MS, max(2, -(-LEASE_MS // every_ms))
    token = await lead(one, "a", ahead_ms)
    for moment in range(3):
        assert await two.lead("b", LEASE_MS, NOW_MS, looked_ms=NOW_MS + 3 * moment * every_ms) is None
        assert await two.lead("b", LEASE_MS, NOW_MS, looked_ms=NOW_MS + (3 * moment + 1) * every_ms) is None
        assert await one.renew(token, LEASE_MS, ahead_ms + (moment + 1) * every_ms)
    got = [await two.lead("b", LEASE_MS, NOW_MS, looked_ms=NOW_MS + (9 + n) * every_ms) for n in range(looks + 1)]
    assert got[-1] == token + 1
    assert set(got[:-1]) == {None}


@pytest.mark.parametrize("ahead_ms", [LEASE_MS + 1, 3_600_000, 12 * 366 * 86_400_000])
@pytest.mark.parametrize("moment", ["from the first", "set while it looks", "stood still"])
async def test_C8_a_candidate_whose_clock_is_ahead_takes_no_lease_from_a_leader_that_lives(
    another: Opener, ahead_ms: int, moment: str
) -> None:
    """Once it has seen it renewed: by any time, also where the clock jumps, or the candidate stood still beside the leader."""
    one, two = await another(), await another()
    token = await lead(one, "a")
    for n in range(20):
        passed_ms = n * LEASE_MS // 4
        ahead = ahead_ms if n > 0 and (moment == "from the first" or n > 9) else 0
        at_ms = NOW_MS + passed_ms + ahead
        if moment != "stood still" or n != 10:  # else both go on, and the candidate asks first
            assert await one.renew(token, LEASE_MS, NOW_MS + passed_ms)
        assert await two.lead("b", LEASE_MS, at_ms) is None, n
    dead_ms = NOW_MS + 5 * LEASE_MS + ahead_ms
    assert [await two.lead("b", LEASE_MS, dead_ms + n * LEASE_MS // 4) is None for n in range(3)] == [True] * 3
    assert await lead(two, "b", dead_ms + LEASE_MS) > token


async def test_C8_concurrent_candidates_get_one_leader(another: Opener) -> None:
    """Of candidates that ask at the same time exactly one leads."""
    stores = [await another() for _ in range(4)]
    tokens = await asyncio.gather(*(s.lead(f"holder-{i}", LEASE_MS, NOW_MS) for i, s in enumerate(stores)))
    assert len([token for token in tokens if token is not None]) == 1


async def test_a_processor_comes_back_whole(store: CommitStore, another: Opener) -> None:
    """A created row is read back as written, by every client; a name is taken once."""
    row = await begin(store)
    assert await (await another()).processors() == [row]
    with pytest.raises(Stale, match=r"orders|already"):
        await store.create(replace(row, job=JobId("b" * 32)))
    other = replace(row, name=ProcessorName("a-first"))
    await store.create(other)
    assert await store.processors() == [other, row]


async def test_updates_keep_what_commits_own(store: CommitStore) -> None:
    """An update replaces the rest of the row and leaves generation and last; trying to change those is refused."""
    row = await begin(store)
    changed = replace(row, state="RUNNING", reason="why", reserved=Epoch(200), failures=3, extra=b"", plan=b"p")
    await store.update(expected_of(row), changed)
    assert await store.processors() == [changed]
    for wrong in (replace(row, last=Epoch(1)), replace(row, generation=Generation(2)), replace(row, leader=99)):
        with pytest.raises(ValueError, match="orders"):
            await store.update(expected_of(row), wrong)
    assert await store.processors() == [changed]


@pytest.mark.parametrize("wrong", [{"leader": 99}, {"generation": 7}, {"last": 7}, {"name": "other"}])
async def test_C8_every_change_needs_the_row_as_expected(store: CommitStore, wrong: dict[str, Any]) -> None:
    """If leader, generation, last or name differ, each kind of change is Stale and nothing is changed (C8)."""
    row = await commit(store, await begin(store), 5)
    off = replace(row, **wrong)
    expected = expected_of(off)
    after = replace(off, generation=Generation(off.generation + 1))
    entry = LineageEntry(after.generation, off.last, 1)
    changes: list[Callable[[], Awaitable[None]]] = [
        lambda: store.update(expected, off),
        lambda: store.new_generation(expected, after, entry),
        lambda: store.commit(expected, replace(off, last=Epoch(9)), commit_of(9, off.last, off.generation)),
        lambda: store.drop(expected),
    ]
    for change in changes:
        with pytest.raises(Stale):
            await change()
    assert await store.processors() == [row]
    assert await store.lineage(JOB) == []
    assert [c.epoch for c in await store.commits(JOB, Epoch(0))] == [5]


async def test_C9_commits_follow_each_other(store: CommitStore) -> None:
    """A commit writes its row and the processor's `last` together; rows come back whole, in order, above an epoch."""
    row = await begin(store)
    for epoch in (3, 4, 10):
        row = await commit(store, row, epoch)
    assert await store.processors() == [row]
    assert await store.commits(JOB, Epoch(0)) == [commit_of(3, 0), commit_of(4, 3), commit_of(10, 4)]
    assert await store.commits(JOB, Epoch(4)) == [commit_of(10, 4)]
    leader = row.leader
    await store.forget(leader, JOB, [Epoch(3), Epoch(4), Epoch(77)])
    await store.forget(leader, JOB, [])
    assert [c.epoch for c in await store.commits(JOB, Epoch(0))] == [10]
    with pytest.raises(ValueError, match="behind 10"):
        await store.commit(expected_of(row), replace(row, last=Epoch(9)), commit_of(9, 10))
    with pytest.raises(ValueError, match="predecessor"):
        await store.commit(expected_of(row), replace(row, last=Epoch(11)), commit_of(11, 4))


async def test_R1_generations_and_their_lineage(store: CommitStore) -> None:
    """A new generation writes row and lineage together (R1); a start without state begins a new job at 0 (E2)."""
    row = await commit(store, await begin(store), 5)
    second = replace(row, generation=Generation(2))
    await store.new_generation(expected_of(row), second, LineageEntry(Generation(2), Epoch(5), 1))
    anew = replace(second, generation=Generation(3), job=JobId("b" * 32), last=Epoch(0), plan_version=2)
    await store.new_generation(expected_of(second), anew, LineageEntry(Generation(3), Epoch(0), 2))
    assert await store.processors() == [anew]
    assert await store.lineage(JOB) == [LineageEntry(Generation(2), Epoch(5), 1)]
    assert await store.lineage(anew.job) == [LineageEntry(Generation(3), Epoch(0), 2)]
    assert [c.epoch for c in await store.commits(JOB, Epoch(0))] == [5], "kept until dropped or forgotten"
    with pytest.raises(ValueError, match="expected a generation above 3, found 3"):
        await store.new_generation(expected_of(anew), anew, LineageEntry(Generation(3), Epoch(0), 2))
    with pytest.raises(ValueError, match="lineage entry"):
        await store.new_generation(
            expected_of(anew), replace(anew, generation=Generation(4)), LineageEntry(Generation(5), Epoch(0), 2)
        )


async def test_dropping_takes_everything_of_the_processor(store: CommitStore) -> None:
    """A dropped processor leaves no row, lineage or commit, of earlier jobs either; others are not touched."""
    row = await commit(store, await begin(store), 5)
    other = replace(row, name=ProcessorName("other"), job=JobId("c" * 32), last=Epoch(0))
    await store.create(other)
    anew = replace(row, generation=Generation(2), job=JobId("b" * 32), last=Epoch(0))
    await store.new_generation(expected_of(row), anew, LineageEntry(Generation(2), Epoch(0), 1))
    await store.drop(expected_of(anew))
    assert await store.processors() == [other]
    for job in (JOB, anew.job):
        assert await store.lineage(job) == []
        assert await store.commits(job, Epoch(0)) == []
    await store.create(anew)


async def test_connections(store: CommitStore) -> None:
    """Connections are written, replaced, listed by name and deleted."""
    leader = await lead(store, "a")
    await store.put_connection(leader, "kafka", '{"bootstrap": "a:1"}')
    await store.put_connection(leader, "files", "{}")
    await store.put_connection(leader, "kafka", '{"bootstrap": "b:1"}')
    assert await store.connections() == {"files": "{}", "kafka": '{"bootstrap": "b:1"}'}
    await store.put_connection(leader, "files", None)
    await store.put_connection(leader, "never", None)
    assert await store.connections() == {"kafka": '{"bootstrap": "b:1"}'}


async def test_C8_a_zombie_leader_changes_nothing(another: Opener) -> None:
    """After a take-over the earlier leader's every change is Stale, creations too; the new one reads and goes on."""
    old, new = await another(), await another()
    row = await begin(old)
    token = await lead(new, "b", NOW_MS + LEASE_MS)
    (seen,) = await new.processors()
    assert seen == replace(row, leader=token)
    changes: list[Callable[[], Awaitable[None]]] = [
        lambda: old.update(expected_of(row), replace(row, state="RUNNING")),
        lambda: old.commit(expected_of(row), replace(row, last=Epoch(1)), commit_of(1, 0)),
        lambda: old.create(replace(row, name=ProcessorName("late"))),
        lambda: old.drop(expected_of(row)),
        lambda: old.forget(row.leader, JOB, [Epoch(1)]),
        lambda: old.put_connection(row.leader, "kafka", None),
    ]
    await commit(new, seen, 1)
    await new.put_connection(token, "kafka", "{}")
    for change in changes:
        with pytest.raises(Stale):
            await change()
    assert await new.connections() == {"kafka": "{}"}
    assert [c.epoch for c in await old.commits(JOB, Epoch(0))] == [1]


async def test_C8_two_leaders_racing_commit_in_one_line(another: Opener) -> None:
    """Whatever two clients attempt with what they last read, commits form one chain of predecessors."""
    stores = [await another(), await another()]
    await begin(stores[0])

    async def work(which: int) -> None:
        store = stores[which]
        for step in range(12):
            try:
                if step % 4 == which:
                    await store.lead(f"holder-{which}", LEASE_MS, NOW_MS + (step + 1) * 10 * LEASE_MS)
                (row,) = await store.processors()
                await commit(store, row, row.last + 1)
            except Stale:
                continue

    await asyncio.gather(work(0), work(1))
    (row,) = await stores[0].processors()
    kept = await stores[1].commits(JOB, Epoch(0))
    assert [c.epoch for c in kept] == list(range(1, row.last + 1))
    assert [c.predecessor for c in kept] == list(range(row.last))
    assert row.last > 0
