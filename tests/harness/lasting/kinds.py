"""What a case has outside: how a document names it, what comes out there, and how it fails."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.harness.lasting.way import Mode, Way
from tests.harness.lasting.world import World
from tidemark.services.sink.connectors.released import read_released_rows

Moment = Literal["before", "runs"]
Act = Callable[[], Awaitable[None]]
BOTH: Final[tuple[Moment, ...]] = ("before", "runs")
LOOK_S: Final = 0.1
"""Between two looks at what happens outside."""
NOWHERE: Final = "nowhere.invalid"
"""A name that no server resolves."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure. says: words of the reason that users must see, one of those that a `|` divides."""

    lasting: bool
    says: tuple[str, ...]
    strike: Act
    mend: Act | None = None
    """None: by another document alone."""
    moments: tuple[Moment, ...] = BOTH
    foreseen: bool = True
    """`check --connect` can know of it before a start."""


class Kind:
    """A pipeline from a file that grows to files, of which one part is the outside."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, world.name(type(self).__name__.lower())
        self.folder = world.folder / self.name
        self.folder.mkdir()
        self.connection: dict[str, Any] = {"type": "files", "path": str(self.folder)}
        self.troubles: dict[str, Trouble] = {}
        self._input = self.folder / "in.json"

    async def prepare(self) -> None:
        """Make what is there before all."""
        self._input.touch()

    def source(self) -> dict[str, Any]:
        return {"$source": {"path": str(self._input), "format": "json", "follow": True}}

    def middle(self) -> list[dict[str, Any]]:
        return [{"$project": {"_id": 0, "n": 1}}]

    def end(self) -> dict[str, Any]:
        return {"$emit": {"path": str(self.folder / "out"), "format": "json"}}

    def more(self) -> dict[str, Any]:
        """Other connections."""
        return {}

    def document(self) -> dict[str, Any]:
        return {
            "connections": {"c": self.connection, **self.more()},
            "pipeline": [self.source(), *self.middle(), self.end()],
            "options": {"checkpoint": {"interval": {"size": 300, "unit": "ms"}}},
        }

    async def feed(self, *numbers: int) -> None:
        with self._input.open("a") as file:
            file.writelines(json.dumps({"n": n}) + "\n" for n in numbers)

    async def rows(self) -> list[int]:
        """What came out."""
        out = self.folder / "out"
        return [row["n"] for row in read_released_rows(str(out))] if out.exists() else []

    async def close(self) -> None:
        """The case is over."""

    def by(self, way: Way, *says: str) -> None:
        """Troubles of a way to a server."""

        def becomes(mode: Mode) -> Act:
            return lambda: way.become(mode)

        told: dict[Mode, tuple[str, ...]] = {
            "refused": says,
            "cut": says,
            "silent": ("|".join((*says, "no answer, or a slow one, since")),),
        }
        for mode, words in told.items():
            self.troubles[mode] = Trouble(False, words, becomes(mode), becomes("open"))


class FilesTarget(Kind):
    """A folder."""

    async def prepare(self) -> None:
        await super().prepare()
        out = self.folder / "out"

        async def blocked() -> None:
            out.write_text("a file")

        async def unblocked() -> None:
            out.unlink()

        self.troubles["a file in its place"] = Trouble(True, ("out",), blocked, unblocked, ("before",))


class Delta(Kind):
    """A Delta table that the sink is to write to, made by somebody else."""

    def end(self) -> dict[str, Any]:
        return {"$emit": {"path": str(self.folder / "out"), "format": "delta"}}

    async def rows(self) -> list[int]:
        from deltalake import DeltaTable

        out = self.folder / "out"
        return list(DeltaTable(str(out)).to_pyarrow_table()["n"].to_pylist()) if (out / "_delta_log").exists() else []

    async def prepare(self) -> None:
        await super().prepare()
        out = self.folder / "out"

        async def others() -> None:
            import pyarrow as pa
            from deltalake import write_deltalake

            write_deltalake(str(out), pa.table({"n": pa.array(["x"]), "must": pa.array(["y"])}))

        async def blocked() -> None:
            out.write_text("a file")

        async def damaged() -> None:
            log = sorted((out / "_delta_log").glob("*.json"))
            log[-1].write_text('{"commitInfo": ')

        self.troubles["a file in its place"] = Trouble(True, ("out",), blocked, None, ("before",))
        self.troubles["a damaged log"] = Trouble(True, ("out", "delta"), damaged, None, ("runs",))


class Sqlite(Kind):
    """A table of a file."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.file = self.folder / "t.db"
        self.connection = {"type": "sql", "url": f"sqlite:///{self.file}"}

    def end(self) -> dict[str, Any]:
        return {"$merge": {"into": {"connectionName": "c", "table": "t"}, "on": ["n"]}}

    def do(self, *statements: str) -> list[Any]:
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(self.file, timeout=30)) as connection, connection:
            return [connection.execute(statement).fetchall() for statement in statements]

    async def rows(self) -> list[int]:
        try:
            return [n for (n,) in self.do("select n from t")[0]]
        except Exception:  # noqa: BLE001 - there is no such table now
            return []

    async def prepare(self) -> None:
        await super().prepare()
        self.do("create table t (n integer primary key)")

        async def dropped() -> None:
            self.do("drop table t")

        async def made() -> None:
            self.do("create table t (n integer primary key)")

        async def absent() -> None:
            self.file.rename(self.file.with_suffix(".away"))

        async def back() -> None:
            self.file.with_suffix(".away").rename(self.file)

        async def none() -> None:
            self.file.write_bytes(b"no database at all" * 100)

        self.troubles["no table"] = Trouble(True, ("no such table",), dropped, made, ("before",))
        self.troubles["no file"] = Trouble(True, ("no file",), absent, back, ("before",))
        self.troubles["no database"] = Trouble(True, ("not a database",), none, None, ("before",))


def address(way: Way, rest: str = "") -> str:
    """By a way."""
    return f"127.0.0.1:{way.port}{rest}"
