"""A database that refuses who asks is told from one that is away: the one ends the task, the other is waited for."""

from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import errors
from sqlalchemy import exc

from tests.contract.sinks_targets import SqlWorld
from tidemark.services.library.release_world import IDENTITY
from tidemark.services.operator.tables.sql import SqlTable
from tidemark.services.operator.tables.sql import engine_of as table_engine
from tidemark.services.sink.connectors.sql import engine_of as sink_engine
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.sql import is_denied, patience, with_server
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.log import LogDenied
from tidemark.shared.ports.sink import TargetDenied, TargetRefused
from tidemark.shared.ports.tables import TableDenied, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings

FATAL = 'connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


@pytest.mark.postgres
@pytest.mark.parametrize("wrong", [{"username": "nobody"}, {"database": "nowhere"}], ids=str)
async def test_a_sink_and_a_table_are_told_that_they_may_not(postgres_url: str, wrong: dict[str, str]) -> None:
    """A user or a database that is not there is named, with what to correct, to who writes and to who looks up."""
    right = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    refused = sa.make_url(right).set(**wrong).render_as_string(hide_password=False)  # type: ignore[arg-type]
    world = SqlWorld(right)
    sink = world.sink()
    sink._engine = sink_engine(refused)
    table = SqlTable(table_engine(refused, {}, 1_000), "t", AsyncExecutor(), LookupSettings())
    try:
        with pytest.raises(TargetDenied, match=r"does not exist; correct the connection's url"):
            await sink.open(IDENTITY, Epoch(0))
        with pytest.raises(TableDenied, match=r"does not exist; correct the connection's url"):
            await table.find([], [])
    finally:
        sink._engine.dispose()
        world.engine.dispose()
        await table.close()


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (exc.OperationalError("ask", None, errors.StatementTooComplex("stack depth limit exceeded")), False),
        (exc.InternalError("ask", None, errors.ReadOnlySqlTransaction("a replica")), True),
        (exc.OperationalError("ask", None, errors.QueryCanceled("statement timeout")), True),
        (exc.OperationalError("ask", None, psycopg.OperationalError("connection refused")), True),
        (exc.ProgrammingError("ask", None, errors.UndefinedColumn("no such column")), False),
    ],
    ids=lambda value: type(getattr(value, "orig", value)).__name__,
)
def test_a_lookup_waits_for_what_may_pass_by_the_servers_code(error: exc.DBAPIError, outage: bool) -> None:
    """As a sink does: the driver calls some errors operational that no waiting mends, and others not that pass."""
    engine = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    failure = SqlTable(engine, "t", AsyncExecutor(), LookupSettings())._failure(error)
    assert isinstance(failure, TableUnavailable if outage else TableRefused)


@pytest.mark.parametrize(
    ("said", "denied"),
    [
        (FATAL + 'password authentication failed for user "u"', True),
        ("connection failed: fe_sendauth: no password supplied", True),
        (FATAL + 'no pg_hba.conf entry for host "10.0.0.7", user "u", database "d", no encryption', True),
        (FATAL + 'role "u" is not permitted to log in', True),
        (
            'connection to server at "10.0.0.7", port 5432 failed: server does not support SSL, but SSL was required',
            True,
        ),
        ('connection to server at "db", port 5432 failed: SSL error: certificate verify failed', True),
        ('server certificate for "a" does not match host name "b"', True),
        ('root certificate file "/no/root.crt" does not exist', True),
        ("connection refused: is the server running on that host?", False),
        (FATAL + "the database system is starting up", False),
        (FATAL + "sorry, too many clients already", False),
    ],
)
def test_refusals_are_known_by_the_servers_words(said: str, denied: bool) -> None:
    """Of an error of connecting the driver gives the server's sentence and no code."""
    assert is_denied(exc.OperationalError("connect", None, psycopg.OperationalError(said))) == denied


async def test_a_file_that_is_no_database_is_refused_at_once(tmp_path: Path) -> None:
    """No waiting makes a database of it; the driver tells it as an error without a kind."""
    (tmp_path / "t.db").write_bytes(b"no database at all" * 100)
    url = f"sqlite:///{tmp_path / 't.db'}"
    world = SqlWorld(f"sqlite:///{tmp_path / 'other.db'}")
    sink = world.sink()
    sink._engine = sink_engine(url)
    table = SqlTable(table_engine(url, {}, 1_000), "t", AsyncExecutor(), LookupSettings())
    with pytest.raises(TargetRefused, match="not a database"):
        await sink.open(IDENTITY, Epoch(0))
    with pytest.raises(TableRefused, match="not a database"):
        await table.find([], [])
    await table.close()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("connection timeout expired", "connection timeout expired (at db:5433)"),
        ("failed to resolve host 'db'", "failed to resolve host 'db' (at db:5433)"),
        (
            'connection to server at "10.0.0.7", port 5433 failed',
            'connection to server at "10.0.0.7", port 5433 failed',
        ),
        ("permission denied for table t", "permission denied for table t"),
    ],
)
def test_an_error_of_connecting_names_the_server(said: str, shown: str) -> None:
    """The driver names none where nobody answers; and never a password."""
    assert with_server(said, "postgresql://me:hunter2@db:5433/d?sslmode=require") == shown


def test_a_server_that_is_gone_without_a_word_is_found_out() -> None:
    """Unless the url says otherwise, no connection is waited for, or kept, for hours."""
    assert patience([]).keys() >= {"connect_timeout", "keepalives_idle", "tcp_user_timeout"}
    assert "connect_timeout" not in patience(["connect_timeout"])


@pytest.mark.parametrize("error", [LogDenied("no"), TargetDenied("no"), TableDenied("no")], ids=repr)
def test_a_refusal_counts_towards_failed(error: Exception) -> None:
    """It is no outage, which would be waited out for ever, and not for good at its first word (C10)."""
    assert (is_lasting(error), is_outage(error)) == (False, False)
