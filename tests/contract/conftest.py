"""A PostgreSQL server for the whole session, whose database each test gets empty; and databases as the sinks address them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.postgres import postgres as running_postgres
from tidemark.shared.adapters.executor import AsyncExecutor

if TYPE_CHECKING:
    from tests.harness.shop import Shop


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The server's URL. Tests take `postgres_url`."""
    with running_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The URL of an empty database; what an earlier test left open or behind is gone."""
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgres_server


@pytest.fixture(scope="module")
def logical_server() -> Iterator[str]:
    """The URL of a server of the module's own, which tells changes."""
    with running_postgres(logical=True) as url:
        yield url


@pytest.fixture
async def shop(logical_server: str) -> AsyncIterator["Shop"]:
    """A shop whose changes are read."""
    from tests.harness.shop import Shop

    executor = AsyncExecutor()
    made = Shop(logical_server, executor)
    yield made
    await made.close()
    await executor.close()


@pytest.fixture
async def sqlite_threads() -> AsyncIterator[None]:
    """Wait for the driver's threads: one that was told to stop still reports to the loop, which must be there."""
    yield
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join)


@pytest.fixture
def postgres(postgres_url: str) -> str:
    """A fresh database, as SQLAlchemy addresses it."""
    return postgres_url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    found: str = request.getfixturevalue("postgres")
    return found
