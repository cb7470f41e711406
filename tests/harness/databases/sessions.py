"""Sessions that write drawn tables: each has rows of its own, and what it leaves is what its committed transactions leave."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.harness.databases.kinds import Row, Value, quoted
from tests.harness.databases.tables import Event, Publication, Table, value, values


@dataclass
class Session:
    """One connection with its open transaction, perhaps a prepared one."""

    lane: int
    connection: psycopg.Connection[Any]
    pending: list[Event] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    savepoints: list[tuple[int, int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    """Tables (`id`) that it has altered: nobody else touches them meanwhile."""
    is_open: bool = False
    prepared: str = ""

    def begin(self) -> None:
        """A transaction, if none is open."""
        if not self.is_open:
            self.connection.execute("BEGIN")
            self.is_open = True

    def back_to(self, pending: int, undo: int) -> None:
        """What was done since then is undone."""
        for each in reversed(self.undo[undo:]):
            each()
        del self.pending[pending:], self.undo[undo:]

    def end(self, *, commits: bool) -> list[Event]:
        """The transaction ends; its events, if it has committed."""
        word = "COMMIT" if commits else "ROLLBACK"
        self.connection.execute(f"{word} PREPARED '{self.prepared}'" if self.prepared else word)
        found = list(self.pending) if commits else []
        if not commits:
            self.back_to(0, 0)
        self.pending, self.undo, self.savepoints, self.touched = [], [], [], set()
        self.is_open, self.prepared = False, ""
        return found


class Writer:
    """Draws statements over the sessions' connections, and keeps what the tables have."""

    def __init__(self, rng: random.Random, publication: Publication) -> None:
        self.rng = rng
        self.publication = publication
        self._nr = 0

    def fresh(self) -> int:
        """A number that no row has had."""
        self._nr += 1
        return self._nr

    def _set(self, session: Session, table: Table, handle: int, row: Row | None) -> None:
        old = table.rows.get(handle)

        def back() -> None:
            table.rows.pop(handle, None)
            if old is not None:
                table.rows[handle] = old

        session.undo.append(back)
        table.rows.pop(handle, None)
        if row is not None:
            table.rows[handle] = row
        session.pending += self.publication.events(table, old, row)
        session.touched.add(id(table))

    def own(self, session: Session, table: Table) -> list[int]:
        """The session's rows."""
        return [handle for handle in table.rows if handle % 4 == session.lane]

    def insert(self, session: Session, table: Table, count: int) -> None:
        """Rows by one statement, or by COPY."""
        handles = [4 * self.fresh() + session.lane for _ in range(count)]
        rows = [values(self.rng, table, handle) for handle in handles]
        columns = self.rng.sample(table.written(), len(table.written()))
        names = ", ".join(quoted(each.name) for each in columns)
        if self.rng.random() < 0.25 and not table.parts:  # partitions are filled one after another
            kinds = {each.name: each.kind.sql for each in columns}
            with session.connection.cursor() as cursor:
                texts = [
                    cursor.execute(
                        "SELECT " + ", ".join(f"({row[name][0]})::{kind}::text" for name, kind in kinds.items())
                    ).fetchone()
                    for row in rows
                ]
                with cursor.copy(f"COPY {table.sql} ({names}) FROM STDIN") as copy:
                    for each in texts:
                        copy.write_row(each or ())
        else:
            given = ", ".join(f"({', '.join(row[each.name][0] for each in columns)})" for row in rows)
            session.connection.execute(f"INSERT INTO {table.sql} ({names}) VALUES {given}")
        for handle, row in zip(handles, rows, strict=True):
            self._set(session, table, handle, row)

    def update(self, session: Session, table: Table, *, moves: bool) -> None:
        """Some columns of one row, or of several; `moves`: those of the key, too."""
        own = self.own(session, table)
        if not own:
            return
        chosen = [self.rng.choice(own)] if moves else self.rng.sample(own, min(len(own), self.rng.choice((1, 1, 1, 4))))
        new = self._some(table, moves=moves)
        if not new:
            return
        sets = ", ".join(f"{quoted(name)} = {cell[0]}" for name, cell in new.items())
        by_nr = {int(table.rows[handle]["nr"][0]): handle for handle in chosen}
        back = "" if moves else " RETURNING nr"
        found = session.connection.execute(
            f"UPDATE {table.sql} SET {sets} WHERE nr IN ({', '.join(map(str, by_nr))}){back}"
        )
        for nr in [next(iter(by_nr))] if moves else [row[0] for row in found.fetchall()]:
            handle = by_nr[nr]
            self._set(session, table, handle, {**table.rows[handle], **new})

    def _some(self, table: Table, *, moves: bool) -> dict[str, Value]:
        """New values of some columns; `moves`: of the key, too. One that may not be twice is not for several rows."""
        nr = 1_000_000_000 + self.fresh()
        fixed = {"nr", *table.key, *(["part"] if table.parts else [])}
        free = [each for each in table.written() if each.name not in fixed]
        chosen = self.rng.sample(free, self.rng.randint(0 if moves else min(1, len(free)), len(free)))
        keys = [each for each in table.written() if each.name in fixed]
        chosen += self.rng.sample(keys, self.rng.randint(1, len(keys))) if moves else []
        return {each.name: value(self.rng, table, each, nr) for each in chosen}

    def upsert(self, session: Session, table: Table) -> None:
        """A row that is there, or not."""
        own = self.own(session, table)
        if not own or not table.key:
            return
        there = self.rng.random() < 0.7
        handle = self.rng.choice(own) if there else 4 * self.fresh() + session.lane
        old = table.rows.get(handle)
        row = values(self.rng, table, handle)
        if old is not None:
            row |= {name: old[name] for name in {"nr", *table.key} if name in old}
        free = [each.name for each in table.written() if each.name not in {"nr", "part", *table.key}]
        chosen = self.rng.sample(free, self.rng.randint(1, len(free))) if free else ["nr"]
        names = ", ".join(map(quoted, row))
        sets = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in chosen)
        session.connection.execute(
            f"INSERT INTO {table.sql} ({names}) VALUES ({', '.join(cell[0] for cell in row.values())})"
            f" ON CONFLICT ({', '.join(map(quoted, table.key))}) DO UPDATE SET {sets}"
        )
        self._set(session, table, handle, row if old is None else {**old, **{name: row[name] for name in chosen}})

    def delete(self, session: Session, table: Table) -> None:
        """One row or several."""
        own = self.own(session, table)
        chosen = self.rng.sample(own, min(len(own), self.rng.choice((1, 1, 3))))
        by_nr = {int(table.rows[handle]["nr"][0]): handle for handle in chosen}
        if by_nr:
            found = session.connection.execute(
                f"DELETE FROM {table.sql} WHERE nr IN ({', '.join(map(str, by_nr))}) RETURNING nr"
            )
            for (nr,) in found.fetchall():
                self._set(session, table, by_nr[nr], None)

    def truncate(self, session: Session, tables: Sequence[Table]) -> None:
        """All rows of these, of all sessions: nobody else may have touched them."""
        session.connection.execute(f"TRUNCATE {', '.join(each.sql for each in tables)}")
        for table in tables:
            before = dict(table.rows)
            session.undo.append(lambda table=table, before=before: table.rows.update(before))  # type: ignore[misc]
            table.rows.clear()
            session.touched.add(id(table))
        session.pending += self.publication.truncated(tables)
