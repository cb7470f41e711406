"""One story of `$merge` into a drawn table: documents that fit and that do not, breaks, locks of others, and what has to be there."""

import itertools
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.harness.databases.cells import CELLS, SQLITE, TYPES, Cell
from tests.harness.databases.kinds import ODD_NAMES, literal, quoted
from tidemark.services.library.release_world import IDENTITY, row_of
from tidemark.services.sink.connectors.sql import SqlSink, SqlSinkSettings, engine_of
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.language.stages import Merge
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Document, long
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

EPOCHS = 6
KEYS = 12
_NAMES = (*ODD_NAMES, "%(x)s", ":p", "c0", "v", "t", "number", "?")
_WAIT_MS = 40


@dataclass(frozen=True)
class Spot:
    """A column of the target."""

    name: str
    cell: Cell
    needed: bool = False
    default: tuple[str, str] | None = None
    """As SQL writes it, and the cell's text."""
    only: str = ""
    """A condition that the table has for it, which the values of a known story break with -1."""


@dataclass
class Target:
    """What was drawn, and what has to be there."""

    seed: int
    server: Any
    executor: Executor
    folder: Path
    wrong: str = ""
    traits: dict[str, int] = field(default_factory=dict)
    rows: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """By key: each column's text."""

    async def run(self) -> str:
        """What is wrong with it; empty if nothing is."""
        self.rng = rng = random.Random(self.seed)
        self.sqlite = rng.random() < 0.2
        self.database = f"g{self.seed}_{secrets.token_hex(3)}"
        self._draw()
        with self._place() as url:
            self.engine = engine_of(url, SqlSinkSettings(lock_wait_ms=_WAIT_MS))
            try:
                for words in self._ddl():
                    self.do(words)
                self._fill()
                await self._epochs()
                return self.wrong or self._compared()
            finally:
                self.engine.dispose()

    @contextmanager
    def _place(self) -> Iterator[str]:
        if self.sqlite:
            yield f"sqlite:///{self.folder}/{self.database}.db"
            return
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.database}")
            connection.execute(f"ALTER DATABASE {self.database} SET timezone = 'UTC'")
            connection.execute(f"ALTER DATABASE {self.database} SET search_path = {self.path}")
            uri = self.server.get_uri(self.database)
            try:
                yield uri.replace("postgresql://", "postgresql+psycopg://")
            finally:
                connection.execute(f"DROP DATABASE {self.database} WITH (FORCE)")

    def do(self, words: str) -> None:
        """A statement of somebody else."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(words.replace("%", "%%") if not self.sqlite else words)

    def _draw(self) -> None:
        rng = self.rng
        cells = SQLITE if self.sqlite else CELLS
        names = rng.sample(_NAMES, 7)
        self.spots = []
        for name in names[: rng.randint(1, 6)]:
            cell = rng.choice(cells)
            fit = rng.choice(cell.fits)
            default = (
                (f"CAST({literal(fit[1])} AS {cell.sql})", fit[1]) if not self.sqlite and rng.random() < 0.25 else None
            )
            self.spots.append(Spot(name, cell, rng.random() < 0.25, default))
        if rng.random() < 0.4:
            self.spots.append(Spot("checked", Cell("bigint", ((1, "1"), (long(2), "2")), ("x",)), only="checked > 0"))
        if rng.random() < 0.3 and not self.sqlite:
            self.spots.append(Spot("ref", Cell("bigint", ((1, "1"), (2, "2")), (0.5,)), only="REFERENCES"))
        keyed = [spot for spot in self.spots if spot.cell.keyable and spot.default is None]
        self.key = ["nr"]
        if keyed and rng.random() < 0.4:
            self.key.append(rng.choice(keyed).name)
        rng.shuffle(self.key)
        self.extras = [
            each for each in ("computed", "identity", "by default", "trigger", "view") if rng.random() < 0.12
        ]
        self.parts = not self.sqlite and rng.random() < 0.15
        self.schema = "" if self.sqlite else rng.choice(("", "", "Odd Schema %s", "dotted.schema"))
        self.path = (
            rng.choice(("public", "public", '"Odd Schema %s", public'.replace("%", "%"))) if not self.sqlite else ""
        )
        self.name = rng.choice(("rows", "Odd Rows", "rows%s", "select", 'q"q', "dotted.rows", "x" * 63))
        self.matched = rng.choice(("replace", "merge", "keepExisting", "delete", "merge", "replace"))
        self.unmatched = rng.choice(("insert", "insert", "insert", "discard"))

    def _ddl(self) -> Iterator[str]:
        if not self.sqlite:
            yield from TYPES
            yield 'CREATE SCHEMA "dotted.schema"'
        yield f"CREATE TABLE {self._in('parent')} (id bigint PRIMARY KEY)"
        yield f"INSERT INTO {self._in('parent')} VALUES (1), (2)"
        columns = ["nr bigint NOT NULL", *map(self._column, self.spots)]
        if "computed" in self.extras:
            columns.append("computed bigint GENERATED ALWAYS AS (nr * 2) STORED")
        if not self.sqlite and "identity" in self.extras:
            columns.append("serial bigint GENERATED ALWAYS AS IDENTITY")
        if not self.sqlite and "by default" in self.extras:
            columns.append("serial2 bigint GENERATED BY DEFAULT AS IDENTITY")
        self.rng.shuffle(columns)
        key = ", ".join(map(quoted, self.key))
        primary = self.rng.random() < 0.6
        columns += [f"PRIMARY KEY ({key})"] if primary else []
        yield f"CREATE TABLE {self.sql} ({', '.join(columns)})" + (" PARTITION BY HASH (nr)" if self.parts else "")
        for part in range(2 if self.parts else 0):
            yield f"CREATE TABLE {self._in(f'part{part}')} PARTITION OF {self.sql} FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        if not primary:
            yield (
                f"CREATE UNIQUE INDEX odd_ix ON {self.sql} ({key})"
                if not self.sqlite
                else f"CREATE UNIQUE INDEX odd_ix ON {quoted(self.name)} ({key})"
            )
        if "trigger" in self.extras and not self.sqlite:
            yield "CREATE FUNCTION passes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
            yield f"CREATE TRIGGER passing BEFORE INSERT OR UPDATE ON {self.sql} FOR EACH ROW EXECUTE FUNCTION passes()"

    def _fill(self) -> None:
        """Rows of others."""
        for nr in self.rng.sample(range(KEYS), 0 if self.sqlite else self.rng.choice((0, 3, 6))):
            row: dict[str, str | None] = {"nr": str(nr)}
            cells = [str(nr)]
            for spot in self.spots:
                text = self.rng.choice(spot.cell.fits)[1]
                row[spot.name] = text
                cells.append(f"CAST({literal(text)} AS {spot.cell.sql})")
            names = ", ".join(quoted(name) for name in row)
            self.do(f"INSERT INTO {self.sql} ({names}) VALUES ({', '.join(cells)})")
            self.rows[repr([row[name] for name in self.key])] = row

    def _column(self, spot: Spot) -> str:
        words = [quoted(spot.name), spot.cell.sql]
        words += ["NOT NULL"] if spot.needed or spot.name in self.key else []
        words += [f"DEFAULT {spot.default[0]}"] if spot.default else []
        words += (
            [f"REFERENCES {self._in('parent')} (id)"]
            if spot.only == "REFERENCES"
            else [f"CHECK ({spot.only})"]
            if spot.only
            else []
        )
        return " ".join(words)

    def _in(self, name: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}" if self.schema else quoted(name)

    @property
    def sql(self) -> str:
        """The table in statements."""
        return self._in(self.name)

    @property
    def table(self) -> str:
        """The table as the document names it; what its schema is called by the search path need not be said."""
        return f"{self.schema}.{self.name}" if self.schema and quoted(self.schema) not in self.path else self.name

    # --- what is written --------------------------------------------------------------------------------------------------

    def _sink(self) -> SqlSink:
        options: Any = {"when_matched": self.matched, "when_not_matched": self.unmatched}
        stage = Merge(path="$merge", connection_name="c", table=self.table, on=tuple(self.key), **options)
        store = PartStore(self.blobs, _names(next(self.attempts)), inline_bytes_max=100, kept_bytes_max=0)
        settings = SqlSinkSettings(part_bytes_max=self.part_bytes, lock_wait_ms=_WAIT_MS)
        return SqlSink(stage, self.engine, store, self.executor, settings)

    async def _epochs(self) -> None:
        self.blobs, self.attempts, self.part_bytes = (
            MemoryBlobs(self.executor),
            itertools.count(),
            self.rng.choice((60, 1000, 1 << 20)),
        )
        sink = self._sink()
        await sink.open(IDENTITY, Epoch(0))
        for epoch in range(1, EPOCHS + 1):
            self.breaks = self.rng.random() < 0.2 and any(spot.only for spot in self.spots)
            documents = [self._document(n) for n in range(self.rng.randint(1, 12))]
            if self.breaks:
                one = {tuple(repr(doc.get(name)) for name in self.key): doc for doc in documents}
                documents = list(one.values())
            rejected = {each.row: each.reason for each in await sink.accept(batch_of(documents))}
            taken = self._judged(documents, rejected)
            staged = await sink.stage(Epoch(epoch), Epoch(epoch - 1))
            sink = await self._released(sink, epoch, staged)
            if self.wrong:
                return
            for document in taken:
                self._apply(document)

    async def _released(self, sink: SqlSink, epoch: int, staged: bytes) -> SqlSink:
        """By this sink or a later one, with whatever breaks in between."""
        row = row_of(epoch, epoch - 1, staged)
        turn = self.rng.random()
        if turn < 0.2:
            sink = self._sink()
            await sink.open(IDENTITY, Epoch(epoch - 1))
            self._count("killed")
        elif turn < 0.35:
            await self._locked(sink, row, staged)
        elif turn < 0.45:
            self.do(f"ALTER TABLE {self.sql} ADD {quoted(f'added {epoch}')} int DEFAULT 5")
            self._count("altered")
        old = sink
        try:
            await sink.release(row, staged)
        except TargetRefused as refused:
            if not self.breaks:
                self.wrong = f"epoch {epoch}: refused: {refused}"
                return sink
            if f"commit {epoch}, record " not in str(refused):
                self.wrong = f"epoch {epoch}: the refusal names no record: {refused}"
            sink = self._sink()
            await sink.open(IDENTITY, Epoch(epoch - 1))
            await sink.skip(row, staged)
            self._count("skipped")
        if self.rng.random() < 0.3:  # the answer was lost, or a zombie goes on
            sink = self._sink()
            await sink.open(IDENTITY, Epoch(epoch))
            await sink.release(row, staged)
            try:
                await old.release(row, staged)
            except TargetRefused as refused:
                self.wrong = f"epoch {epoch}: a zombie: {refused}"
            self._count("again")
        return sink

    async def _locked(self, sink: SqlSink, row: Any, staged: bytes) -> None:
        """Others hold what the release needs: it says so, and leaves nothing."""
        if self.sqlite:
            return
        with psycopg.connect(
            self.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        ) as other:
            words = (f"LOCK TABLE {self.sql} IN ACCESS EXCLUSIVE MODE", f"SELECT 1 FROM {self.sql} FOR UPDATE",
                     f"ALTER TABLE {self.sql} ALTER nr SET STATISTICS 7")  # fmt: skip
            other.execute(self.rng.choice(words))
            try:
                await sink.release(row, staged)
            except TargetUnavailable as away:
                if "lock" not in str(away):
                    self.wrong = f"it does not say that it waits for a lock: {away}"
            except TargetRefused as refused:
                if not self.breaks:
                    self.wrong = f"beside a lock: refused: {refused}"
            self._count("locked")

    def _count(self, what: str) -> None:
        self.traits[what] = self.traits.get(what, 0) + 1

    def _document(self, number: int) -> Document:
        rng = self.rng
        found: Document = {}
        odd = rng.random() < 0.25
        for spot in self.spots:
            turn = rng.random()
            if odd and turn < 0.3 and spot.cell.unfit:
                found[spot.name] = rng.choice(spot.cell.unfit)
            elif self.breaks and spot.only and turn < 0.5:
                found[spot.name] = long(-1)
            elif (
                turn < 0.9
                or spot.name in self.key
                or (spot.needed and rng.random() < (0.9 if self.unmatched == "insert" else 0.2))
            ):
                found[spot.name] = rng.choice(spot.cell.fits)[0]
            elif turn < 0.95:
                found[spot.name] = None
        found["nr"] = long(rng.randrange(KEYS))
        if odd and rng.random() < 0.15:
            found[rng.choice(("more", "computed", "serial"))] = 1
        if odd and rng.random() < 0.05:
            found["nr"] = rng.choice((None, "x", 1.5))
        items = list(found.items())
        rng.shuffle(items)
        return dict(items)

    # --- what has to be there ---------------------------------------------------------------------------------------------

    def _judged(self, documents: list[Document], rejected: dict[int, str]) -> list[Document]:
        taken = []
        for n, document in enumerate(documents):
            odd = self._unfit(document)
            if odd and n not in rejected:
                self.wrong = f"taken: {document}, though {odd}"
            elif not odd and n in rejected:
                self.wrong = f"not taken: {document}: {rejected[n]}"
            elif odd and not any(f": {name}: " in rejected[n] for name in odd):
                self.wrong = f"the reason names none of {odd}: {rejected[n]}"
            elif not odd:
                taken.append(document)
        return taken

    def _unfit(self, document: Document) -> list[str]:
        """The fields that the table does not take, or lacks."""
        inserts = self.unmatched == "insert"
        spots = {spot.name: spot for spot in self.spots}
        odd = [name for name in document if name not in spots and name != "nr"]
        if type(document["nr"]) is not type(long(1)):
            odd.append("nr")
        for name, spot in spots.items():
            value = document.get(name)
            replaces = self.matched == "replace" and not inserts
            must = replaces or (inserts and spot.default is None)
            needed = name in self.key or (spot.needed and (must or name in document))
            if value is None:
                odd += [name] if needed else []
            elif not any(
                value is fit or (type(value) is type(fit) and repr(value) == repr(fit)) for fit, _ in spot.cell.fits
            ) and not (spot.only and value == -1):
                odd.append(name)
        return odd

    def _cells(self, document: Document) -> dict[str, str | None]:
        found: dict[str, str | None] = {"nr": str(int(document["nr"]))}
        for spot in self.spots:
            if spot.name in document:
                texts = [text for fit, text in spot.cell.fits if repr(fit) == repr(document[spot.name])]
                found[spot.name] = texts[0] if texts else None
        return found

    def _apply(self, document: Document) -> None:
        cells = self._cells(document)
        key = repr([cells[name] for name in self.key])
        there = self.rows.get(key)
        written = self.unmatched == "insert" if there is None else self.matched in ("replace", "merge")
        if written and any(spot.only and document.get(spot.name) == -1 for spot in self.spots):
            return  # refused by the table alone, and passed over
        empty = {spot.name: spot.default[1] if spot.default else None for spot in self.spots}
        if there is None and self.unmatched == "insert":
            self.rows[key] = {**empty, **cells}
        elif there is not None and self.matched == "replace":
            self.rows[key] = {**(empty if self.unmatched == "insert" else dict.fromkeys(empty)), **cells}
        elif there is not None and self.matched == "merge":
            self.rows[key] = {**there, **cells}
        elif there is not None and self.matched == "delete":
            del self.rows[key]

    def _compared(self) -> str:
        names = ["nr", *(spot.name for spot in self.spots)]
        shown = ", ".join(f"CAST({quoted(name)} AS text)" for name in names)
        with self.engine.connect() as connection:
            words = f"SELECT {shown} FROM {self.sql}"
            there = connection.exec_driver_sql(words if self.sqlite else words.replace("%", "%%")).all()
        found = [dict(zip(names, row, strict=True)) for row in there]
        for row in found:
            key = repr([row[name] for name in self.key])
            want = self.rows.pop(key, None)
            if want != row:
                odd = [name for name in names if want is None or want.get(name) != row[name]]
                return f"row {key}: {odd}: expected {want and [want.get(n) for n in odd]!r:.300}, found {[row[n] for n in odd]!r:.300}"
        return f"not there: {list(self.rows)[:5]}" if self.rows else ""


def _names(attempt: int) -> Callable[[Epoch], str]:
    """Names of an attempt's blobs."""
    count = itertools.count()
    return lambda epoch: f"job/merge/1/{epoch}/a{attempt}-{next(count)}"
