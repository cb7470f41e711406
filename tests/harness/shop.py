"""A database of PostgreSQL whose changes a source reads, for tests of one file or another."""

import secrets
from collections.abc import Sequence
from typing import Any

import psycopg

from tidemark.services.source.connectors.pgslot import PostgresSettings
from tidemark.services.source.connectors.postgres import SPLIT, PostgresConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.values import Document


class Shop:
    """A database of its own with a table, a publication and a slot."""

    def __init__(self, server: str, executor: AsyncExecutor) -> None:
        self.database = f"shop_{secrets.token_hex(4)}"
        self.slot = self.database
        self._server, self._executor = server, executor
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.database}")
        self.url = server.replace("/postgres?", f"/{self.database}?")
        assert self.url != server
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.do("CREATE TABLE t (id int PRIMARY KEY, n int, body text)")
        self.do("CREATE PUBLICATION p FOR TABLE t")
        self.make_slot()
        self.known: dict[Any, KnownSplit] = {}
        self.made: list[PostgresConnector] = []

    def make_slot(self) -> None:
        self.do("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)

    def drop_slot(self) -> None:
        self.do("SELECT pg_drop_replication_slot(%s)", self.slot)

    def do(self, statement: Any, *values: Any) -> None:
        self.connection.execute(statement, values or None)

    def one(self, statement: str, *values: Any) -> Any:
        row = self.connection.execute(statement, values or None).fetchone()
        assert row is not None
        return row[0]

    def confirmed(self) -> int:
        return int(
            self.one("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", self.slot)
        )

    def source(self, **changed: Any) -> PostgresConnector:
        asked: dict[str, Any] = {
            "url": self.url, "publication": "p", "slot": self.slot, "connection_name": "shop", "peek_messages": 5, "fetch_messages": 3,
            "poll_ms": 1, "anchors_max": 4, **changed,
        }  # fmt: skip
        made = PostgresConnector(PostgresSettings(**asked), self._executor, SystemClock())
        self.made.append(made)
        return made

    async def begun(self, **changed: Any) -> PostgresConnector:
        """A source that reads from where the slot stands."""
        source = self.source(**changed)
        self.known = dict(await source.found([SPLIT], first=True))
        await source.open({SPLIT: self.known[SPLIT].begin})
        return source

    async def resumed(self, position: Offset, origins: Any, **changed: Any) -> PostgresConnector:
        """As a later generation: a new source with a snapshot's position and anchors."""
        source = self.source(**changed)
        await source.check(self.known)
        source.know({SPLIT: origins})
        await source.open({SPLIT: position})
        return source

    async def close(self) -> None:
        for source in self.made:
            await source.close()
        self.connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE current_database() || '%'"
        )
        self.connection.close()


async def piece(source: PostgresConnector, max_bytes: int = 1 << 20) -> list[Document]:
    batches = await source.fetch(max_bytes, 5)
    for batch in batches:
        places = batch.positions.tolist()
        assert places == list(range(places[0], places[-1] + 1))
    return [parse_json(value) for batch in batches for value in batch.values.to_pylist()]


async def drain(source: PostgresConnector, max_bytes: int = 1 << 20) -> list[Document]:
    found = await piece(source, max_bytes)
    while not source.status()[0].at_end:
        found += await piece(source, max_bytes)
    return found


def ids(events: Sequence[Document]) -> list[int]:
    return [event["documentKey"]["id"] for event in events]


def stands(source: PostgresConnector) -> tuple[Offset, dict[str, str]]:
    """What a checkpoint has behind all that was read: position and origins."""
    position = source.status()[0].next_position
    return position, dict(source.origins(SPLIT, position))
