"""The coordinator's store on SQLite changes threads for what waits, and for nothing else; its answers are those of the library."""

from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from tests.contract.commit_support import begin, commit
from tidemark.shared.adapters import sqlite
from tidemark.shared.adapters.commit_store import SqlCommitStore


async def test_a_commit_takes_two_trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To BEGIN, which waits for a lock, and to COMMIT, which waits for the disk."""
    store = SqlCommitStore(f"sqlite:///{tmp_path / 'store.db'}")
    await store.open()
    row = await begin(store)
    trips: list[object] = []
    execute = aiosqlite.Connection._execute

    async def noted(self: aiosqlite.Connection, work: Any, *given: Any, **named: Any) -> Any:
        trips.append(work)
        return await execute(self, work, *given, **named)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(aiosqlite.Connection, "_execute", noted)
    row = await commit(store, row, 1)
    assert len(trips) == 2
    assert await store.processors() == [row]
    await store.close()


async def test_what_is_done_at_once_is_part_of_its_transaction(tmp_path: Path) -> None:
    """It is read in it, seen by nobody else, undone with it, and refused with the driver's own errors."""
    path = tmp_path / "x.db"
    engine = create_async_engine("sqlite+aiosqlite:///" + str(path), connect_args={"async_creator_fn": sqlite.connect})
    numbers = sa.Table("numbers", sa.MetaData(), sa.Column("n", sa.Integer, primary_key=True))

    async def seen(connection: Any) -> list[int]:
        return list((await connection.execute(sa.select(numbers.c.n).order_by(numbers.c.n))).scalars())

    async with engine.begin() as first:
        await first.run_sync(numbers.metadata.create_all)
        await first.execute(sa.insert(numbers), [{"n": n} for n in range(3)])
    async with engine.connect() as mine, engine.connect() as others:
        changed = await mine.execute(sa.update(numbers).where(numbers.c.n > 0).values(n=numbers.c.n + 10))
        assert changed.rowcount == 2
        added = await mine.execute(sa.insert(numbers).values(n=5).returning(numbers.c.n))
        assert added.scalar_one() == 5
        assert await seen(mine) == [0, 5, 11, 12]
        assert await seen(others) == [0, 1, 2]
        with pytest.raises(IntegrityError, match="UNIQUE"):
            await mine.execute(sa.insert(numbers).values(n=5))
        await mine.rollback()
        assert await seen(mine) == [0, 1, 2]
    await engine.dispose()
