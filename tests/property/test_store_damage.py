# ruff: noqa: N802 -- a test carries its rule's name
"""A real coordinator.db that is damaged at random: either it works as before, or a sentence says what is lost."""

import os
import random
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.commit_support import JOB, LEASE_MS, NOW_MS, commit_of, expected_of, row_of
from tests.harness.share import share
from tidemark.shared.adapters import commit_schema as schema
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, ProcessorName
from tidemark.shared.ports.commits import CommitStore, StoreUnusable

SEEDS = range(100)
CHANGES_OF_A_TERM = 14
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


def _log_of(db: Path) -> Path:
    return db.with_name(f"{db.name}-wal")


def _log_deleted(db: Path, _: Path, __: random.Random) -> None:
    _log_of(db).unlink()


def _log_truncated(db: Path, _: Path, rng: random.Random) -> None:
    os.truncate(_log_of(db), rng.randrange(_log_of(db).stat().st_size))


def _log_flipped(db: Path, copy: Path, rng: random.Random) -> None:
    _flipped(_log_of(db), copy, rng)


STOPPED: tuple[Damage, ...] = (_truncated, _zeroed, _flipped, _deleted, _older)
KILLED: tuple[Damage, ...] = (_log_deleted, _older, _log_truncated, _log_flipped)


def _back_up(db: Path, copy: Path) -> None:
    with closing(sqlite3.connect(db)) as here, closing(sqlite3.connect(copy)) as there:
        here.backup(there)


async def _filled(db: Path, copy: Path, rng: random.Random) -> int:
    """Processors, lineage, commits and connections under several leaders: how many changes. `copy`: a backup from between two of them."""
    changes, backup_at = 0, rng.randrange(3, 3 * CHANGES_OF_A_TERM)
    for term in range(3):
        store = await _opened(db)
        token = await _lead(store, changes)

        async def done(work: Awaitable[Any], store: CommitStore = store) -> None:
            await work
            if store.changes == backup_at:
                _back_up(db, copy)

        await done(store.renew(token, LEASE_MS, NOW_MS))
        for number in range(3):
            name, job = ProcessorName(f"p-{term}-{number}"), JobId(f"{term}{number}" * 16)
            row = row_of(token, name=name, job=job, plan=bytes(range(256)) * 8)
            await done(store.create(row))
            entry = LineageEntry(Generation(2), Epoch(0), 1)
            await done(store.new_generation(expected_of(row), replace(row, generation=Generation(2)), entry))
            await done(store.put_connection(token, f"c-{term}-{number}", "{}"))
        row = row_of(token, name=ProcessorName(f"with-commits-{term}"), job=JobId(f"{term}" + JOB[1:]))
        await done(store.create(row))
        for epoch in range(1, 4):
            await done(_commit(store, row, epoch))
            row = replace(row, last=Epoch(epoch))
        changes = store.changes
        await store.close()
    assert changes == 3 * CHANGES_OF_A_TERM
    return changes


async def _commit(store: CommitStore, row: Any, epoch: int) -> Any:
    after = replace(row, last=Epoch(epoch))
    made = replace(commit_of(epoch, row.last, row.generation), job=row.job)
    await store.commit(expected_of(row), after, made)
    return after


async def _opened(db: Path) -> SqlCommitStore:
    store = SqlCommitStore(f"sqlite:///{db}")
    await store.open()
    return store


async def _lead(store: CommitStore, told: int) -> LeaderToken:
    token = await store.lead("a", LEASE_MS, NOW_MS + 2 * LEASE_MS, told)
    assert token is not None
    return token


async def _known(store: CommitStore) -> list[Any]:
    rows = await store.processors()
    of_jobs = [(await store.commits(row.job, Epoch(0)), await store.lineage(row.job)) for row in rows]
    return [*(replace(row, leader=LeaderToken(0)) for row in rows), *of_jobs, await store.connections()]


async def _read_again(db: Path, told: int) -> list[Any] | None:
    """What a leader reads in it; None where a sentence says that something is lost."""
    store, found = SqlCommitStore(f"sqlite:///{db}"), None
    with suppress(StoreUnusable):
        await store.open()
        await _lead(store, told)
        found = await _known(store)
    await store.close()
    return found


@pytest.mark.parametrize("seed", share(SEEDS, 18))
async def test_C8_a_damaged_store_works_as_before_or_says_what_is_lost(tmp_path: Path, seed: int) -> None:
    """Truncated, zeroed, flipped, deleted or replaced while nothing runs: no other error, and no processor or commit less."""
    db, copy, rng = tmp_path / "coordinator.db", tmp_path / "copy.db", random.Random(seed)
    told = await _filled(db, copy, rng)
    store = await _opened(db)
    before = await _known(store)
    await store.close()
    damage = STOPPED[seed % len(STOPPED)]
    damage(db, copy, rng)
    found = await _read_again(db, told)
    assert found in (None, before)
    assert found is None or damage not in (_deleted, _older)


@pytest.mark.parametrize("seed", share(range(40), 18))
async def test_C8_a_write_ahead_log_that_is_damaged_loses_nothing_unsaid(tmp_path: Path, seed: int) -> None:
    """What a killed coordinator confirmed lies in the log beside the file: SQLite opens a file without it, or with half of it."""
    db, copy, rng = tmp_path / "coordinator.db", tmp_path / "copy.db", random.Random(seed)
    store = await _opened(db)
    token = await _lead(store, 0)
    backup_at = rng.randrange(9)
    for number in range(9):
        await store.put_connection(token, f"c-{number}", "{}" * rng.randrange(1, 3_000))
        if number == backup_at:
            _back_up(db, copy)
    before, told = await _known(store), store.changes
    (killed := tmp_path / "killed").mkdir()
    for file in (db, _log_of(db)):
        shutil.copy(file, killed)
    await store.close()
    assert await _read_again(shutil.copytree(killed, tmp_path / "sound") / db.name, told) == before
    damage = KILLED[seed % len(KILLED)]
    damage(killed / db.name, copy, rng)
    found = await _read_again(killed / db.name, told)
    assert found in (None, before)
    assert found is None or damage is not _log_deleted


async def test_a_store_of_before_there_were_counts_is_led(tmp_path: Path) -> None:
    """Columns that came later are added; rows without a CRC are read."""
    db, rng = tmp_path / "coordinator.db", random.Random(0)
    await _filled(db, tmp_path / "copy.db", rng)
    store = await _opened(db)
    before = await _known(store)
    await store.close()
    with closing(sqlite3.connect(db)) as there:
        for table, column in (("leadership", "changes"), ("lineage", "crc"), ("connections", "crc")):
            there.execute(f"ALTER TABLE tidemark_{table} DROP COLUMN {column}")
    assert await _read_again(db, 0) == before
    store = await _opened(db)
    assert await store.lead("a", LEASE_MS, NOW_MS, 1) is not None, "it has counted since"
    await store.close()


@pytest.mark.parametrize(
    ("table", "column"),
    [(table.name, column.name) for table in schema.metadata.sorted_tables for column in table.columns],
)
async def test_C8_a_value_that_changed_in_its_place_is_read_as_before_or_named(
    tmp_path: Path, table: str, column: str
) -> None:
    """Where SQLite itself finds nothing wrong: each column of each table, in the last row."""
    db, rng = tmp_path / "coordinator.db", random.Random(0)
    told = await _filled(db, tmp_path / "copy.db", rng)
    store = await _opened(db)
    before = await _known(store)
    await store.close()
    with closing(sqlite3.connect(db, isolation_level=None)) as there:
        row, value = there.execute(f"SELECT rowid, {column} FROM {table} ORDER BY rowid DESC LIMIT 1").fetchone()
        there.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (_other(value), row))
    assert await _read_again(db, told) in (None, before)


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    return value + (" " if isinstance(value, str) else 1)


@pytest.mark.parametrize("table", sorted(schema.metadata.tables))
async def test_C8_tables_that_are_gone_are_not_made_anew(tmp_path: Path, table: str) -> None:
    """They would be empty, and what they held forgotten without a word."""
    db = tmp_path / "coordinator.db"
    await (await _opened(db)).close()
    with closing(sqlite3.connect(db)) as there:
        there.execute(f"DROP TABLE {table}")
    store = SqlCommitStore(f"sqlite:///{db}")
    with pytest.raises(StoreUnusable, match=f"{table}.*backup"):
        await store.open()
    await store.close()


def _cut_off(db: Path, _: Path, rng: random.Random) -> None:
    """Not so that it grows to what it was by what the log beside it still holds."""
    os.truncate(db, rng.choice([0, 4096]))


@pytest.mark.parametrize("damage", [_deleted, _older, _cut_off])
async def test_C8_a_file_that_is_taken_away_while_it_is_in_use_is_a_lost_store(tmp_path: Path, damage: Damage) -> None:
    """SQLite would go on in a file that nobody can find any more, or on pages in memory, and confirm what is gone with the process."""
    db, copy = tmp_path / "coordinator.db", tmp_path / "copy.db"
    await _filled(db, copy, random.Random(0))
    store = await _opened(db)
    token = await _lead(store, 0)
    row = replace(row_of(token), name=ProcessorName("with-commits-2"), job=JobId("2" + JOB[1:]), last=Epoch(3))
    damage(db, copy, random.Random(0))
    for work in (store.processors, lambda: store.renew(token, LEASE_MS, NOW_MS), lambda: _commit(store, row, 4)):
        with pytest.raises(StoreUnusable, match=r"while it was in use.*backup"):
            await work()
    await store.close()
