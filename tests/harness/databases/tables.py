"""Tables that are written, as their publication shows them: which events a change is."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.harness.databases.kinds import BIG, KINDS, NR, NULL, ODD_NAMES, SCHEMA, Column, Row, big, document, quoted
from tidemark.shared.model.values import Document, long

Identity = Literal["default", "full", "index", "nothing", "none"]
PARTS: Final = 3
"""A partitioned table's partitions: by the remainder of its column `part`."""
_NAMES: Final = (*ODD_NAMES, "lsn", "documentKey", "id")


@dataclass
class Table:
    """A table as its transactions have left it so far; rows by a number that no statement changes."""

    schema: str
    name: str
    columns: list[Column]
    key: tuple[str, ...] = ()
    """Columns of the primary key, or of the index that is the identity."""
    identity: Identity = "none"
    parts: bool = False
    rows: dict[int, Row] = field(default_factory=dict)
    """Also those of transactions that are open: each session has rows of its own."""
    gone: bool = False

    @property
    def sql(self) -> str:
        """Its name in statements."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def changeable(self) -> bool:
        """The server publishes no updates and deletions of tables without an identity."""
        return self.identity in ("default", "full", "index")

    def keys(self) -> tuple[str, ...]:
        """The columns of its identity."""
        if self.identity == "full":
            return tuple(each.name for each in self.columns if not each.generated)
        return tuple(name for name in self.key if name != "gen") if self.changeable else ()

    def moved(self, old: Row, new: Row) -> bool:
        """Whether the identity's values are others; a computed column follows `nr`."""
        names = {"nr" if name == "gen" else name for name in self.key}
        return any(old[name] != new[name] for name in names)

    def written(self) -> list[Column]:
        """Columns that statements give values."""
        return [each for each in self.columns if not each.generated]

    def ddl(self, rng: random.Random) -> list[str]:
        """The statements that make it."""
        columns = [self._column(each) for each in self.columns]
        if self.key and self.identity != "index":
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")
        tail = " PARTITION BY LIST (part)" if self.parts else ""
        made = [f"CREATE TABLE {self.sql} ({', '.join(columns)}){tail}"]
        if self.identity == "index":
            index = quoted(f"{self.name[:40]} ix")
            made.append(f"CREATE UNIQUE INDEX {index} ON {self.sql} ({', '.join(map(quoted, self.key))})")
            made.append(f"ALTER TABLE {self.sql} REPLICA IDENTITY USING INDEX {index}")
        for part in range(PARTS if self.parts else 0):
            mixed = rng.sample(columns[:-1], len(columns) - 1)
            own = f"{quoted(self.schema)}.{quoted(self.leaf(part))}"
            made += [f"CREATE TABLE {own} ({', '.join(mixed)})",
                     f"ALTER TABLE {self.sql} ATTACH PARTITION {own} FOR VALUES IN ({part})"]  # fmt: skip
        for own in self.stored():
            made += (
                [f"ALTER TABLE {own} REPLICA IDENTITY {self.identity}"] if self.identity in ("full", "nothing") else []
            )
            made += [
                f"ALTER TABLE {own} ALTER {quoted(each.name)} SET STORAGE EXTERNAL"
                for each in self.columns
                if each.kind.big
            ]
        return made

    def _column(self, column: Column) -> str:
        tail = f" GENERATED ALWAYS AS ({column.generated}) STORED" if column.generated else ""
        needed = " NOT NULL" if column.name in self.key else ""
        return f"{quoted(column.name)} {column.kind.sql}{tail}{needed}"

    def stored(self) -> list[str]:
        """The table, and its partitions."""
        parts = [f"{quoted(self.schema)}.{quoted(self.leaf(part))}" for part in range(PARTS if self.parts else 0)]
        return [self.sql, *parts]

    def leaf(self, part: int) -> str:
        """A partition's name."""
        return f"{self.name}_{part}"


@dataclass
class Shown:
    """How a publication shows a table."""

    names: tuple[str, ...] | None = None
    """A list of columns; None: all."""
    odd: bool = False
    """Rows with an odd `nr` alone."""

    def clause(self, table: Table) -> str:
        """The table in a publication's statement."""
        names = f" ({', '.join(map(quoted, self.names))})" if self.names is not None else ""
        return f"{table.sql}{names}" + (" WHERE (nr % 2 = 1)" if self.odd else "")


@dataclass
class Event:
    """What a source has to give: its form but for time and number."""

    kind: str
    coll: str
    fields: Document
    unsent: frozenset[str] = frozenset()
    """Columns that the server may not have sent."""


@dataclass
class Publication:
    """What is published, and how."""

    tables: dict[int, Shown] = field(default_factory=dict)
    """By `id` of the tables."""
    kinds: frozenset[str] = frozenset(("insert", "update", "delete", "truncate"))
    root: bool = False

    def events(self, table: Table, old: Row | None, new: Row | None) -> list[Event]:
        """The events of a row's change."""
        shown = self.tables.get(id(table))
        moves = table.parts and old is not None and new is not None and old["part"] != new["part"]
        if shown is None or (not moves and _kind(old, new) not in self.kinds):
            return []  # what a statement was is looked at, not what a row filter makes of it
        if shown.odd:
            old, new = (None if row is None or not int(row["nr"][0]) % 2 else row for row in (old, new))
        if moves:
            return [*self._event(table, shown, old, None), *self._event(table, shown, None, new)]
        return self._event(table, shown, old, new)

    def _event(self, table: Table, shown: Shown, old: Row | None, new: Row | None) -> list[Event]:
        kind, row = _kind(old, new), new or old
        if row is None or (table.parts and kind not in self.kinds):
            return []
        names = [each.name for each in table.written() if shown.names is None or each.name in shown.names]
        identity = table.keys()
        keys = [name for name in names if name in identity]
        fields: Document = {"documentKey": document(row, keys)}
        unsent: set[str] = set()
        if new is not None:
            fields["fullDocument"] = document(new, names)
        if old is not None and table.identity == "full":
            fields["fullDocumentBeforeChange"] = document(old, names)
        elif old is not None and new is not None:
            if table.moved(old, new):
                fields["documentKeyBeforeChange"] = document(old, keys)
            unsent = {
                each.name
                for each in table.written()
                if old[each.name] == new[each.name] and len(old[each.name][0]) > 1000
            }
        return [Event(kind, self.coll(table, row), fields, frozenset(unsent))]

    def coll(self, table: Table, row: Row) -> str:
        """The name that an event has of its table."""
        name = table.leaf(int(row["part"][0])) if table.parts and not self.root else table.name
        return f"{table.schema}.{name}"

    def truncated(self, tables: Sequence[Table]) -> list[Event]:
        """The events of one truncation, in any order."""
        names = []
        for table in tables:
            if id(table) in self.tables and "truncate" in self.kinds:
                leaves = [table.leaf(part) for part in range(PARTS)] if table.parts and not self.root else [table.name]
                names += [f"{table.schema}.{name}" for name in leaves]
        return [Event("truncate", name, {}) for name in names]


def _kind(old: Row | None, new: Row | None) -> str:
    return "insert" if old is None else "delete" if new is None else "update"


def table(rng: random.Random, number: int, *, keyed: bool, computed: bool) -> Table:
    """A drawn table; computed: its identity may have columns that the database computes, which later servers refuse."""
    plain = [kind for kind in KINDS if not kind.big]
    names = rng.sample(_NAMES, 6)
    columns = [Column(name, rng.choice(plain)) for name in names[: rng.randint(1, 6)]]
    columns += [Column("big", BIG)] if rng.random() < 0.5 else []
    columns += [Column("gen", NR, "nr * 2")] if rng.random() < 0.3 else []
    identity: Identity = rng.choice(("default", "default", "full", "index", *(() if keyed else ("nothing", "none"))))
    if identity == "full" and not computed:
        columns = [each for each in columns if not each.generated]
    key = ["nr"]
    keyables = [each.name for each in columns if each.kind.keyable and not ((keyed or not computed) and each.generated)]
    if keyables and rng.random() < 0.5:
        key.append(rng.choice(keyables))
        if key[-1] == "gen" and rng.random() < 0.3:
            key = ["gen"]
    parts = rng.random() < 0.2 and identity in ("default", "full")
    if parts:
        key.append("part")
    rng.shuffle(key)
    columns.insert(rng.randint(0, len(columns)), Column("nr", NR))
    if parts:
        columns.insert(rng.randint(0, len(columns)), Column("part", KINDS[3]))
    if identity in ("none", "nothing") or (identity == "full" and not keyed and not parts and rng.random() < 0.4):
        key = []
    schema = SCHEMA if rng.random() < 0.3 else "public"
    odd = rng.choice(("", " Odd", '."q"', "%s"))
    return Table(schema, f"t{number}{odd}", columns, tuple(key), identity, parts=parts)


def values(rng: random.Random, table: Table, nr: int) -> Row:
    """A row with drawn values."""
    return {each.name: value(rng, table, each, nr) for each in table.written()}


def value(rng: random.Random, table: Table, column: Column, nr: int) -> tuple[str, Any]:
    """A drawn value of a column."""
    if column.name == "nr":
        return str(nr), long(nr)
    if column.name == "part" and table.parts:
        part = rng.randrange(PARTS)
        return str(part), part
    if column.kind.big:
        return rng.choice((big(nr), NULL, ("'short'", "short")))
    if column.name not in table.key and rng.random() < 0.2:
        return NULL
    return rng.choice(column.kind.values)
