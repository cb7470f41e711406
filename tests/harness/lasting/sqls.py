"""PostgreSQL as a target, as a table that is looked up, and as a source of changes."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg

from tests.harness.lasting.kinds import NOWHERE, Kind, Trouble, address
from tests.harness.lasting.way import Way
from tests.harness.lasting.world import PASSWORD

_CONNECT: Final = "?connect_timeout=3"


class _Postgres(Kind):
    way: Way

    async def prepare(self) -> None:
        await super().prepare()
        self.admin = await self.world.postgres()
        found = urlsplit(self.admin)
        folder = parse_qs(found.query)["host"][0]
        self.way = await self.world.way(Path(folder) / ".s.PGSQL.5432")
        self.user = self.name
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.name}")
        self.admin = self.admin.replace("/postgres?", f"/{self.name}?")
        self.do(
            f"CREATE ROLE {self.user} LOGIN REPLICATION PASSWORD '{PASSWORD}'",
            f"CREATE TABLE {self.name} (n integer PRIMARY KEY, {self.columns()})",
            f"GRANT USAGE, CREATE ON SCHEMA public TO {self.user}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {self.name} TO {self.user}",
        )
        self.at(address(self.way))
        self.by(self.way, str(self.way.port))

        async def nowhere() -> None:
            self.at(f"{NOWHERE}:5432")

        async def no_database() -> None:
            self.at(address(self.way), database="nothing")

        async def no_user() -> None:
            self.user = "stranger"
            self.at(address(self.way))

        async def tls() -> None:
            self.at(address(self.way), more="&sslmode=require")

        self.troubles |= {
            "name": Trouble(False, (NOWHERE,), nowhere, None, ("before",)),
            "no database": Trouble(True, ("nothing", "does not exist"), no_database, None, ("before",)),
            "no user": Trouble(True, ("stranger",), no_user, None, ("before",)),
            "tls where there is none": Trouble(True, ("ssl",), tls, None, ("before",)),
            "no rights": Trouble(
                True,
                (self.name, "permission denied"),
                self.doing(f"REVOKE ALL ON {self.name} FROM {self.user}"),
                self.doing(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {self.name} TO {self.user}"),
            ),
            "no table": Trouble(
                True,
                (self.name,),
                self.doing(f"ALTER TABLE {self.name} RENAME TO {self.name}_away"),
                self.doing(f"ALTER TABLE {self.name}_away RENAME TO {self.name}"),
            ),
        }

    def columns(self) -> str:
        return "note text"

    def at(self, where: str, database: str = "", more: str = "") -> None:
        """The address that the document has."""
        url = f"postgresql://{self.user}:{PASSWORD}@{where}/{database or self.name}{_CONNECT}{more}"
        self.connection = {"type": "sql", "url": url}

    def doing(self, *statements: str) -> Callable[[], Awaitable[None]]:
        """What strikes, or mends."""

        async def act() -> None:
            self.do(*statements)

        return act

    def do(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            found = [connection.execute(statement) for statement in statements]
            return [cursor.fetchall() if cursor.description else [] for cursor in found]


class PostgresTarget(_Postgres):
    """A table that is written."""

    def end(self) -> dict[str, Any]:
        return {"$merge": {"into": {"connectionName": "c", "table": self.name}, "on": ["n"]}}

    async def rows(self) -> list[int]:
        try:
            return [n for (n,) in self.do(f"SELECT n FROM {self.name}")[0]]
        except psycopg.errors.UndefinedTable:
            return []

    async def prepare(self) -> None:
        await super().prepare()

        self.troubles |= {
            "no right to write": Trouble(
                True,
                (self.name, "permission denied"),
                self.doing(f"REVOKE INSERT, UPDATE ON {self.name} FROM {self.user}"),
                self.doing(f"GRANT INSERT, UPDATE ON {self.name} TO {self.user}"),
            ),
            "no unique key": Trouble(
                True,
                (self.name, "unique"),
                self.doing(f"ALTER TABLE {self.name} DROP CONSTRAINT {self.name}_pkey"),
                self.doing(f"ALTER TABLE {self.name} ADD PRIMARY KEY (n)"),
            ),
            "reads alone": Trouble(
                False,
                ("read-only",),
                self.doing(f"ALTER ROLE {self.user} SET default_transaction_read_only = on"),
                self.doing(f"ALTER ROLE {self.user} RESET default_transaction_read_only"),
                ("before",),
            ),
        }


class PostgresLookup(_Postgres):
    """A table that is asked."""

    async def prepare(self) -> None:
        await super().prepare()
        self.do(f"INSERT INTO {self.name} SELECT n, 'note' FROM generate_series(1, 9) AS n")

    def middle(self) -> list[dict[str, Any]]:
        table = {"connectionName": "c", "table": self.name}
        return [
            {"$lookup": {"from": table, "localField": "n", "foreignField": "n", "as": "found"}},
            {"$unwind": "$found"},
            {"$project": {"_id": 0, "n": "$found.n"}},
        ]


class Changes(_Postgres):
    """Changes of a table."""

    def source(self) -> dict[str, Any]:
        return {"$source": {"connectionName": "c", "publication": self.name, "slot": self.name}}

    def middle(self) -> list[dict[str, Any]]:
        return [{"$project": {"_id": 0, "n": "$fullDocument.n"}}]

    async def feed(self, *numbers: int) -> None:
        self.do(*(f"INSERT INTO {self.name} VALUES ({n})" for n in numbers))

    async def prepare(self) -> None:
        await super().prepare()
        for name in ("no rights", "no table"):
            del self.troubles[name]
        slot = f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput')"
        publication = f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}"
        self.do(publication, slot)

        self.troubles |= {
            "no slot": Trouble(
                True,
                (self.name, "slot"),
                self.doing(
                    f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{self.name}' AND active",
                    f"SELECT pg_drop_replication_slot('{self.name}')",
                ),
                None,
            ),
            "no publication": Trouble(
                True, (self.name, "publication"), self.doing(f"DROP PUBLICATION {self.name}"), None, ("before",)
            ),
            "no right": Trouble(
                True,
                ("replication",),
                self.doing(f"ALTER ROLE {self.user} NOREPLICATION"),
                self.doing(f"ALTER ROLE {self.user} REPLICATION"),
            ),
        }

    async def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.do(
                f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{self.name}' AND active",
                f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{self.name}'",
            )
