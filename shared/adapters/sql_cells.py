"""PostgreSQL's cells that Python has no value for, as text.

These are `infinity`, years before 1 and after 9999, 24:00:00, all intervals, and json that is too deep or has numbers too long for
Python's reader. The driver fails a whole query for one of them, and takes a month of an interval for thirty days.
"""

import functools
import json
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

_KINDS: Final = ("date", "timestamp", "timestamptz", "time", "timetz")


def read_all(engine: sa.Engine, json_depth_max: int) -> None:
    """Let the engine's connections read every cell; json in which more levels lie in each other is text."""
    if engine.dialect.driver == "psycopg":
        sa.event.listen(engine, "connect", lambda connection, _: _register(connection, json_depth_max))


def _register(connection: Any, json_depth_max: int) -> None:
    from psycopg.types.json import set_json_loads  # noqa: PLC0415 - an installation without PostgreSQL loads none of it
    from psycopg.types.string import TextLoader  # noqa: PLC0415

    set_json_loads(_json_reader(json_depth_max), connection)
    connection.adapters.register_loader("interval", TextLoader)
    for name in _KINDS:
        connection.adapters.register_loader(name, _or_text(connection.adapters.types[name].oid))


@functools.lru_cache(maxsize=1)
def _json_reader(depth_max: int) -> Callable[[str | bytes], Any]:
    """One object for all connections: for each other one, and each function with a closure, the driver makes a class that stays."""
    return functools.partial(_json_or_text, depth_max)


def _json_or_text(depth_max: int, data: str | bytes) -> Any:
    text = data if isinstance(data, str) else data.decode()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if _is_deeper(tree, depth_max) else tree


def _is_deeper(tree: Any, depth_max: int) -> bool:
    """Python's reader goes deeper than the language, how deep hangs on its version."""
    level = [tree]
    for _ in range(depth_max):
        if not level:
            return False
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in level)


def _or_text(oid: int) -> type[Any]:
    from psycopg import DataError, adapters  # noqa: PLC0415
    from psycopg.adapt import Buffer, Loader  # noqa: PLC0415
    from psycopg.pq import Format  # noqa: PLC0415

    usual = adapters.get_loader(oid, Format.TEXT)

    def made(oid: int, connection: Any) -> Callable[[Buffer], Any]:
        assert usual is not None, "these types are the driver's own"
        return usual(oid, connection).load

    class OrText(Loader):
        """The driver's loader, or the server's text."""

        def __init__(self, oid: int, connection: Any = None) -> None:
            super().__init__(oid, connection)
            self._usual = made(oid, connection)

        def load(self, data: Buffer) -> Any:
            try:
                return self._usual(data)
            except DataError:
                return bytes(data).decode()

    return OrText
