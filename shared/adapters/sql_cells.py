"""PostgreSQL's cells that Python has no value for, as text: `infinity`, years before 1 and after 9999, 24:00:00."""

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

_KINDS: Final = ("date", "timestamp", "timestamptz", "time", "timetz", "interval")


def read_all(engine: sa.Engine) -> None:
    """Let the engine's connections read every cell: the driver fails a whole query for one that Python lacks."""
    if engine.dialect.driver == "psycopg":
        sa.event.listen(engine, "connect", _register)


def _register(connection: Any, _record: Any) -> None:
    for name in _KINDS:
        connection.adapters.register_loader(name, _or_text(connection.adapters.types[name].oid))


def _or_text(oid: int) -> type[Any]:
    from psycopg import DataError, adapters  # noqa: PLC0415 - an installation without PostgreSQL loads none of it
    from psycopg.adapt import Buffer, Loader  # noqa: PLC0415
    from psycopg.pq import Format  # noqa: PLC0415

    usual = adapters.get_loader(oid, Format.TEXT)
    assert usual is not None, "these types are the driver's own"

    class OrText(Loader):
        """The driver's loader, or the server's text."""

        def __init__(self, oid: int, connection: Any = None) -> None:
            super().__init__(oid, connection)
            self._usual: Callable[[Buffer], Any] = usual(oid, connection).load

        def load(self, data: Buffer) -> Any:
            try:
                return self._usual(data)
            except DataError:
                return bytes(data).decode()

    return OrText
