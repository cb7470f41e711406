"""One story of a source of changes: tables, their writers, whoever alters them, breaks, and the events that have to come."""

import random
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.harness.databases.altering import Altering
from tests.harness.databases.kinds import OBJECTS
from tests.harness.databases.reading import Reading
from tests.harness.databases.sessions import Session, Writer
from tests.harness.databases.tables import Event, Publication, Shown, Table, table
from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Executor

ACTS = 120
_MANY = 80
_REFUSING = 180000
"""PostgreSQL from here on refuses changes where computed columns are of the identity, and not published."""
"""Rows of a large transaction: more than the server decodes in memory at once."""


@dataclass
class Story:
    """What was drawn, and what came."""

    seed: int
    server: Any
    executor: Executor
    sync: bool = False
    wrong: str = ""
    traits: dict[str, int] = field(default_factory=dict)
    expected: list[list[Event]] = field(default_factory=list)
    """Of each committed transaction with events, in the order of commits."""
    tables: list[Table] = field(default_factory=list)

    async def run(self) -> str:
        """What is wrong with it; empty if nothing is."""
        self.rng = random.Random(self.seed)
        self.sync = self.rng.random() < 0.4
        self.database = f"d{self.seed}_{secrets.token_hex(3)}"
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.database}")
        try:
            self._set_up()
            await self._act()
            return self.wrong or self._compared()
        finally:
            await self._close()

    @property
    def url(self) -> str:
        """The database's."""
        return str(self.server.get_uri(self.database))

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, options="-c lock_timeout=4s")

    def do(self, words: str) -> None:
        """A statement in a transaction of its own."""
        self.admin.execute(words)

    def _set_up(self) -> None:
        rng = self.rng
        self.admin = self._connected()
        for words in OBJECTS:
            self.do(words)
        self.publication = Publication(root=rng.random() < 0.5)
        self.writer = Writer(rng, self.publication)
        self.altering = Altering(rng, self.publication, tame=self.sync)
        self.sessions = [Session(lane, self._connected()) for lane in range(4)]
        for _ in range(rng.randint(1, 4)):
            self._create()
        shown = [self._shown(each) for each in self.tables]
        clauses = ", ".join(self.publication.tables[id(each)].clause(each) for each in self.tables if shown)
        self.do(f"CREATE PUBLICATION p FOR TABLE {clauses} WITH (publish_via_partition_root = {self.publication.root})")
        for session in self.sessions:
            for each in self.tables:
                if rng.random() < 0.7:
                    self.writer.insert(session, each, rng.randint(1, 6))
            session.pending, session.undo, session.touched = [], [], set()
        self.do(f"SELECT pg_create_logical_replication_slot('{self.database}', 'pgoutput')")
        small = {"peek_messages": rng.choice((1, 5, 100)), "fetch_messages": rng.choice((1, 3, 50)), "anchors_max": rng.choice((2, 4, 64)),
                 "quiet_bytes": rng.choice((100, 10_000)), "lock_wait_ms": 20}  # fmt: skip
        self.reading = Reading(self.url, self.database, self.executor, rng, {**small, "initial_sync": self.sync})

    def _create(self) -> Table:
        made = table(self.rng, len(self.tables), keyed=self.sync, computed=self.admin.info.server_version < _REFUSING)
        for words in made.ddl(self.rng):
            self.do(words)
        self.tables.append(made)
        return made

    def _shown(self, made: Table) -> Shown:
        shown = Shown()
        if not made.parts and made.identity != "full" and "gen" not in made.key and self.rng.random() < 0.2:
            free = [each.name for each in made.written() if each.name not in made.key]
            shown.names = (
                (*made.key, *self.rng.sample(free, self.rng.randint(0 if made.key else 1, len(free)))) if free else None
            )
        if (
            not made.parts
            and (not made.key or "nr" in made.key)
            and self.rng.random() < 0.2
            and made.identity != "nothing"
        ):
            shown.odd = True
        self.publication.tables[id(made)] = shown
        return shown

    # --- what happens -----------------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        await self.reading.begin()
        acts: list[tuple[int, Any]] = [
            (30, self._write), (12, self._settle), (14, self.reading.read), (3, self.reading.resume), (2, self._cut), (4, self._alter),
            (2, self._truncate), (3, self._publish), (2, self._tidy), (3, self._savepoint), (2, self._prepare), (1, self._many),
        ]  # fmt: skip
        weights = [weight for weight, _ in acts]
        for _ in range(ACTS):
            act = self.rng.choices(acts, weights)[0][1]
            self.last = act.__name__
            found = act()
            if found is not None and hasattr(found, "__await__"):
                await found
        if self.rng.random() < 0.3:
            self._restart()
        self._settle_all()
        if self.rng.random() < 0.3:
            await self.reading.drain()
            for session in self.sessions:
                self._write(session)
            before = len(self.expected)
            self._settle_all()
            self.late = self.expected[before:]
            del self.expected[before:]
            await self.reading.finish()
            return
        for _ in range(2):  # the first end may be as of a look that was taken before
            while not await self.reading.read():
                pass

    late: list[list[Event]] = field(default_factory=list)

    def _count(self, what: str) -> None:
        self.traits[what] = self.traits.get(what, 0) + 1

    def _free(self, session: Session) -> list[Table]:
        """Tables that no other session has altered or truncated, which others may not touch meanwhile."""
        return [each for each in self.tables if not each.gone and id(each) not in self._held(session)]

    def _held(self, but: Session) -> set[int]:
        return {each for other in self.sessions if other is not but for each in other.held}

    def _write(self, session: Session | None = None) -> None:
        session = session or self.rng.choice(self.sessions)
        tables = self._free(session)
        if session.prepared or not tables:
            return
        session.begin()
        one = self.rng.choice(tables)
        ways = [lambda: self.writer.insert(session, one, self.rng.randint(1, 4))] * 2
        if one.changeable:
            ways += [lambda: self.writer.update(session, one, moves=self.rng.random() < 0.25)] * 3
            ways += [lambda: self.writer.delete(session, one), lambda: self.writer.upsert(session, one)]
        session.touched.add(id(one))
        self.rng.choice(ways)()

    def _many(self) -> None:
        session = self.rng.choice(self.sessions)
        tables = self._free(session)
        if tables and not session.prepared:
            session.begin()
            self.writer.insert(session, self.rng.choice(tables), _MANY)
            self._count("many")

    def _settle(self) -> None:
        self._end(self.rng.choice(self.sessions))

    def _end(self, session: Session) -> None:
        if session.is_open:
            found = session.end(commits=self.rng.random() < 0.75)
            session.held.clear()
            if found:
                self.expected.append(found)

    def _settle_all(self) -> None:
        for session in self.rng.sample(self.sessions, len(self.sessions)):
            self._end(session)

    def _savepoint(self) -> None:
        session = self.rng.choice(self.sessions)
        if not session.is_open or session.prepared:
            return
        if session.savepoints and self.rng.random() < 0.5:
            number = self.rng.randrange(len(session.savepoints))
            if self.rng.random() < 0.5:
                with suppress(psycopg.errors.DivisionByZero):
                    session.connection.execute("SELECT 1 / 0")
            session.connection.execute(f"ROLLBACK TO s{number}")
            session.back_to(*session.savepoints[number])
            del session.savepoints[number + 1 :]
        else:
            session.connection.execute(f"SAVEPOINT s{len(session.savepoints)}")
            session.savepoints.append((len(session.pending), len(session.undo)))

    def _prepare(self) -> None:
        session = self.rng.choice(self.sessions)
        if session.is_open and not session.prepared:
            name = f"{self.database}_{self.writer.fresh()}"
            session.connection.execute(f"PREPARE TRANSACTION '{name}'")
            session.prepared = name
            self._count("prepared")

    def _alone(self) -> tuple[Session, list[Table]] | None:
        """A session, and tables that it alone may alter; none while their rows are read."""
        session = self.rng.choice(self.sessions)
        others = {each for other in self.sessions if other is not session for each in other.touched | other.held}
        found = [each for each in self.tables if not each.gone and id(each) not in others]
        return None if session.prepared or not found or self.reading.holds() else (session, found)

    def _alter(self) -> None:
        if (alone := self._alone()) is not None:
            session, tables = alone
            session.begin()
            one = self.rng.choice(tables)
            session.held.add(id(one))
            self.altering.alter(session, one)
            self._count("altered")

    def _truncate(self) -> None:
        if (alone := self._alone()) is not None:
            session, tables = alone
            session.begin()
            chosen = self.rng.sample(tables, self.rng.randint(1, len(tables)))
            session.held.update(map(id, chosen))
            self.writer.truncate(session, chosen)
            self._count("truncated")

    def _publish(self) -> None:
        """Another publication: only where nobody writes, for what one in between sees is the server's own affair."""
        if self.sync:
            return
        self._settle_all()
        if self.rng.random() < 0.3:
            kinds = self.rng.sample(("insert", "update", "delete", "truncate"), self.rng.randint(1, 4))
            self.publication.kinds = frozenset(kinds)
            self.publication.root = self.rng.random() < 0.5
            words = f"publish = '{', '.join(kinds)}', publish_via_partition_root = {self.publication.root}"
            self.do(f"ALTER PUBLICATION p SET ({words})")
            self._count("published kinds")
            return
        if self.rng.random() < 0.3:
            self._create()
        elif self.rng.random() < 0.3 and len(self.tables) > 1:
            self._drop()
        there = [each for each in self.tables if not each.gone]
        chosen = self.rng.sample(there, self.rng.randint(1, len(there)))
        self.publication.tables.clear()
        for each in chosen:
            self._shown(each)
        clauses = ", ".join(self.publication.tables[id(each)].clause(each) for each in chosen)
        self.do(f"ALTER PUBLICATION p SET TABLE {clauses}")
        self._count("published")

    def _drop(self) -> None:
        there = [each for each in self.tables if not each.gone]
        if len(there) > 1:
            one = self.rng.choice(there)
            self.do(f"DROP TABLE {one.sql}")
            one.gone = True
            self.publication.tables.pop(id(one), None)

    def _tidy(self) -> None:
        if (alone := self._alone()) is None:
            return
        one = self.rng.choice(alone[1])
        if id(one) in alone[0].touched | alone[0].held:
            return
        self.do(self.rng.choice((f"VACUUM FULL {one.sql}", f"REINDEX TABLE {one.sql}", "CHECKPOINT", f"VACUUM {one.sql}",
                                 f"ANALYZE {one.sql}", "SELECT pg_switch_wal()")))  # fmt: skip

    def _cut(self) -> None:
        self.do(
            f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tidemark {self.database}'"
        )

    def _restart(self) -> None:
        """The server stops and starts: open transactions are gone, prepared ones stay."""
        for session in self.sessions:
            if session.is_open and not session.prepared:
                session.end(commits=False)
                session.held.clear()
        for connection in (self.admin, *(each.connection for each in self.sessions)):
            connection.close()
        self.server.stop()
        self.server.ensure_postgres_running()
        self.admin = self._connected()
        for session in self.sessions:
            session.connection = self._connected()
        self._count("restarted")

    # --- what came --------------------------------------------------------------------------------------------------------

    def _compared(self) -> str:
        events = [event for _, event in self.reading.events]
        found = _numbered(events)
        if found:
            return found
        return _folded(events, self) if self.sync else _told(events, self.expected)

    async def _close(self) -> None:
        with suppress(psycopg.Error, AttributeError):
            await self.reading.source.close()
        with suppress(psycopg.Error, AttributeError):
            for session in self.sessions:
                if session.prepared:
                    session.end(commits=False)
                session.connection.close()
            self.admin.close()
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                (self.database,),
            )
            connection.execute(f"DROP DATABASE {self.database} WITH (FORCE)")


def shown(value: Any) -> str:
    """A value with its types: two that are equal as shown are the same."""
    return render_json({"v": value}, canonical=True).decode()


def _sorted(row: Document) -> str:
    return shown(dict(sorted(row.items())))


def _numbered(events: Sequence[Document]) -> str:
    """Numbers run within a transaction, and transactions come in the order of their commits."""
    last, index, time = (0, 0), 0, 0
    for event in events:
        high, low = event["_id"]["lsn"].split("/")
        lsn = int(high, 16), int(low, 16)
        index = index + 1 if lsn == last else 0
        if lsn < last or (event["_id"]["index"] != index and "snapshot" not in event["_id"] and not _sync_seam(events)):
            return f"number {index} of {lsn} behind {last}: {event['_id']}"
        if event["wallTime"] < time:
            return f"the time goes back: {event}"
        last, time = lsn, event["wallTime"]
    return ""


def _sync_seam(events: Sequence[Document]) -> bool:
    return bool(events) and "snapshot" in events[0]["_id"]


def _told(events: Sequence[Document], expected: Sequence[Sequence[Event]]) -> str:
    """Each event is the one that its transaction made."""
    rest = list(events)
    for number, transaction in enumerate(expected):
        mine, rest = rest[: len(transaction)], rest[len(transaction) :]
        lsns = {event["_id"]["lsn"] for event in mine}
        if len(mine) < len(transaction) or len(lsns) > 1:
            return f"transaction {number}: expected {len(transaction)} events of one commit, found {len(mine)} of {sorted(lsns)}"
        for n, (event, want) in enumerate(zip(_sorted_truncations(mine), _by_name(transaction), strict=True)):
            if (why := _differs(event, want)) != "":
                return f"transaction {number}, event {n}: {why}\n  expected {want}\n  found {event}"
    return f"expected no more, found {rest[0]}" if rest else ""


def _by_name(events: Sequence[Event]) -> list[Event]:
    """Runs of truncations by their names: which comes first is not told."""
    found: list[Event] = []
    run: list[Event] = []
    for each in [*events, None]:
        if each is not None and each.kind == "truncate":
            run.append(each)
            continue
        found += sorted(run, key=lambda one: one.coll)
        run = []
        found += [each] if each is not None else []
    return found


def _sorted_truncations(events: Sequence[Document]) -> list[Document]:
    found: list[Document] = []
    run: list[Document] = []
    for each in [*events, None]:
        if each is not None and each["operationType"] == "truncate":
            run.append(each)
            continue
        found += sorted(run, key=lambda one: str(one["ns"]["coll"]))
        run = []
        found += [each] if each is not None else []
    return found


def _differs(event: Document, want: Event) -> str:
    if (event["operationType"], event["ns"]["coll"]) != (want.kind, want.coll):
        return "another operation or table"
    fields = {
        name: event[name] for name in event if name not in ("_id", "operationType", "clusterTime", "wallTime", "ns")
    }
    unsent = fields.pop("updateDescription", {}).get("notSent", [])
    if not set(unsent) <= want.unsent:
        return f"not sent: {unsent}"
    wanted = {name: dict(value) for name, value in want.fields.items()}
    for name in unsent:
        wanted["fullDocument"].pop(name, None)
        wanted["documentKey"].pop(name, None)
    for name in wanted.keys() | fields.keys():
        if name not in fields or name not in wanted:
            return f"{name} is {'missing' if name in wanted else 'more than expected'}"
        if _sorted(fields[name]) != _sorted(wanted[name]):  # a partition may have its columns in another order
            odd = [each for each in wanted[name].keys() | fields[name].keys()
                   if shown(wanted[name].get(each, "missing")) != shown(fields[name].get(each, "missing"))]  # fmt: skip
            return f"{name}: " + (", ".join(f"{each}: expected {wanted[name].get(each, 'missing')!r:.200}, found"
                                  f" {fields[name].get(each, 'missing')!r:.200}" for each in odd) or "another order")  # fmt: skip
    return ""


def _folded(events: Sequence[Document], story: Story) -> str:
    """Rows and changes, one after another, make the tables as they are."""
    rows: dict[tuple[str, str], Document] = {}
    for n, event in enumerate(events):
        kind, coll = event["operationType"], event["ns"]["coll"]
        if kind == "truncate":
            rows = {key: row for key, row in rows.items() if key[0] != coll}
            continue
        olds = (event.get("documentKeyBeforeChange"), event.get("fullDocumentBeforeChange"))
        old: Document = olds[0] or olds[1] or event["documentKey"]
        before = (coll, shown(old["nr"]))
        if (before in rows) == (kind == "insert"):
            return f"event {n}: {kind} of a row that is {'there' if before in rows else 'not there'}: {event}"
        was = rows.pop(before, {})
        if kind != "delete":
            row = event["fullDocument"]
            unsent = event.get("updateDescription", {}).get("notSent", [])
            rows[coll, shown(row["nr"])] = {**{name: was[name] for name in unsent if name in was}, **row}
    return _compare_rows(rows, story)


def _compare_rows(rows: dict[tuple[str, str], Document], story: Story) -> str:
    late = {id(each) for each in story.late}
    if late:
        return ""  # rows that were written behind the end are in the tables
    wanted: dict[tuple[str, str], str] = {}
    names: dict[str, list[str]] = {}
    for each in story.tables:
        publication = story.publication
        if each.gone or id(each) not in publication.tables:
            continue
        for row in each.rows.values():
            for event in publication.events(each, None, row):
                names[event.coll] = list(event.fields["fullDocument"])
                wanted[event.coll, str(row["nr"][0])] = shown(_clean(event.fields["fullDocument"], names[event.coll]))
    found = {(coll, str(int(row["nr"]))): shown(_clean(row, names.get(coll, []))) for (coll, _), row in rows.items()}
    for key in wanted.keys() | found.keys():
        if wanted.get(key) != found.get(key):
            return f"row {key}: expected {wanted.get(key)!s:.700}, found {found.get(key)!s:.700}"
    return ""


def _clean(row: Document, names: Sequence[str]) -> Document:
    """Columns that are there at the end; one that came without a word of its rows is null in them."""
    return {name: row.get(name) for name in sorted(names)}
