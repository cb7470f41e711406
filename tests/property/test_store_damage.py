# ruff: noqa: N802 -- a test carries its rule's name
"""A real coordinator.db that is damaged at random: either it works as before, or a sentence says what is lost."""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shared.adapters.commit_store import SqlCommitStore
from shared.model.ids import Epoch, JobId, LeaderToken, ProcessorName
from shared.ports.commits import CommitStore, StoreUnusable
from tests.contract.commit_support import JOB, LEASE_MS, NOW_MS, commit_of, expected_of, row_of

SEEDS = range(60)
Damage = Callable[[Path, Path, random.Random], None]


def _truncated(db: Path, _: Path, rng: random.Random) -> None:
    os.truncate(db, rng.choice([0, rng.randrange(db.stat().st_size)]))


def _zeroed(db: Path, _: Path, rng: random.Random) -> None:
    size = db.stat().st_size
    begin = rng.randrange(size)
    with db.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(rng.randrange(1, size - begin + 1)))


def _flipped(db: Path, _: Path, rng: random.Random) -> None:
    data = bytearray(db.read_bytes())
    for _flip in range(rng.choice([1, 1, 8, 64])):
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    db.write_bytes(data)


def _deleted(db: Path, _: Path, __: random.Random) -> None:
    db.unlink()


def _older(db: Path, copy: Path, _: random.Random) -> None:
    shutil.copy(copy, db.with_name("new"))
    db.with_name("new").replace(db)


DAMAGES: tuple[Damage, ...] = (_truncated, _zeroed, _flipped, _deleted, _older)


async def _filled(db: Path, copy: Path) -> LeaderToken:
    """Processors with commits under several leaders; `copy` is the file as it was under one of before."""
    token = LeaderToken(0)
    for term in range(3):
        store = await _opened(db)
        token = await _lead(store, token)
        for number in range(3):
            name, job = ProcessorName(f"p-{term}-{number}"), JobId(f"{term}{number}" * 16)
            row = row_of(token, name=name, job=job, plan=bytes(range(256)) * 8)
            await store.create(row)
        row = row_of(token, name=ProcessorName(f"with-commits-{term}"), job=JobId(f"{term}" + JOB[1:]))
        await store.create(row)
        for epoch in range(1, 4):
            row = await _commit(store, row, epoch)
        await store.close()
        if term == 1:
            shutil.copy(db, copy)
    return token


async def _commit(store: CommitStore, row: Any, epoch: int) -> Any:
    after = replace(row, last=Epoch(epoch))
    made = replace(commit_of(epoch, row.last, row.generation), job=row.job)
    await store.commit(expected_of(row), after, made)
    return after


async def _opened(db: Path) -> SqlCommitStore:
    store = SqlCommitStore(f"sqlite:///{db}")
    await store.open()
    return store


async def _lead(store: CommitStore, told: LeaderToken) -> LeaderToken:
    token = await store.lead("a", LEASE_MS, NOW_MS, told)
    assert token is not None
    return token


async def _known(store: CommitStore) -> list[Any]:
    rows = await store.processors()
    commits = [await store.commits(row.job, Epoch(0)) for row in rows]
    return [*(replace(row, leader=LeaderToken(0)) for row in rows), *commits]


@pytest.mark.parametrize("seed", SEEDS)
async def test_C8_a_damaged_store_works_as_before_or_says_what_is_lost(tmp_path: Path, seed: int) -> None:
    """Truncated, zeroed, flipped, deleted or replaced while nothing runs: no other error, and no processor or commit less."""
    db, copy, rng = tmp_path / "coordinator.db", tmp_path / "copy.db", random.Random(seed)
    told = await _filled(db, copy)
    store = await _opened(db)
    before = await _known(store)
    await store.close()
    DAMAGES[seed % len(DAMAGES)](db, copy, rng)
    store = SqlCommitStore(f"sqlite:///{db}")
    found = None
    with suppress(StoreUnusable):
        await store.open()
        assert await _lead(store, told) > told
        found = await _known(store)
    await store.close()
    assert found in (None, before)
    assert found is None or DAMAGES[seed % len(DAMAGES)] not in (_deleted, _older)


@pytest.mark.parametrize("damage", [_deleted, _older])
async def test_C8_a_file_that_is_taken_away_while_it_is_in_use_is_a_lost_store(tmp_path: Path, damage: Damage) -> None:
    """SQLite would go on in a file that nobody can find any more, and confirm what is gone with the process."""
    db, copy = tmp_path / "coordinator.db", tmp_path / "copy.db"
    token = await _filled(db, copy)
    store = await _opened(db)
    row = replace(row_of(token), name=ProcessorName("with-commits-2"), job=JobId("2" + JOB[1:]), last=Epoch(3))
    damage(db, copy, random.Random(0))
    for work in (store.processors, lambda: store.renew(token, LEASE_MS, NOW_MS), lambda: _commit(store, row, 4)):
        with pytest.raises(StoreUnusable, match=r"while it was in use.*backup"):
            await work()
    await store.close()
