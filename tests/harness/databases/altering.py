"""Statements that change a table while its changes are read. Each is undone with the transaction that it is in."""

import random
from collections.abc import Callable
from dataclasses import replace

from tests.harness.databases.kinds import INT, KINDS, LONG, SCHEMA, TEXT, Column, Kind, Value, literal, quoted
from tests.harness.databases.sessions import Session
from tests.harness.databases.tables import Identity, Publication, Table
from tidemark.shared.model.values import long

_TRUE = Kind("bool", (("true", True), ("false", False)), keyable=True)


class Altering:
    """Draws ALTER TABLE."""

    def __init__(self, rng: random.Random, publication: Publication, *, tame: bool) -> None:
        """tame: no row changes without an event, so that rows that were read once can be told from events."""
        self._rng = rng
        self._publication = publication
        self._ways: list[Callable[[Session, Table], None]] = [self._add, self._drop]
        if not tame:
            self._ways += [self._add_filled, self._rename, self._retype, self._rename_table, self._identity]
        self._count = 0

    def alter(self, session: Session, table: Table) -> None:
        """One change, in the session's transaction: nobody else may have touched the table."""
        shown = self._publication.tables.get(id(table))
        if shown is not None and shown.names is not None:
            return
        columns, rows = list(table.columns), dict(table.rows)
        schema, name, identity = table.schema, table.name, table.identity

        def back() -> None:
            table.columns, table.rows = columns, rows
            table.schema, table.name, table.identity = schema, name, identity

        session.undo.append(back)
        session.touched.add(id(table))
        self._rng.choice(self._ways)(session, table)

    def _do(self, session: Session, table: Table, words: str) -> None:
        session.connection.execute(f"ALTER TABLE {table.sql} {words}")

    def _free(self, table: Table) -> list[Column]:
        fixed = {"nr", *table.key, *(["part"] if table.parts else [])}
        return [each for each in table.columns if each.name not in fixed]

    def _name(self) -> str:
        self._count += 1
        return f"new {self._count}"

    def _add(self, session: Session, table: Table) -> None:
        column = Column(self._name(), self._rng.choice(KINDS))
        self._do(session, table, f"ADD {quoted(column.name)} {column.kind.sql}")
        table.columns = [*table.columns, column]
        table.rows = {handle: {**row, column.name: ("NULL", None)} for handle, row in table.rows.items()}

    def _add_filled(self, session: Session, table: Table) -> None:
        """With a default of all rows: a constant is not written to them, another one is."""
        if self._rng.random() < 0.5:
            kind = self._rng.choice(KINDS)
            cell = self._rng.choice(kind.values)
            words = cell[0]
        else:
            kind, cell, words = _TRUE, ("true", True), "(clock_timestamp() IS NOT NULL)"
        column = Column(self._name(), kind)
        needed = " NOT NULL" if cell[1] is not None and self._rng.random() < 0.3 else ""
        self._do(session, table, f"ADD {quoted(column.name)} {kind.sql}{needed} DEFAULT {words}")
        if needed:
            self._do(session, table, f"ALTER {quoted(column.name)} DROP NOT NULL")
        table.columns = [*table.columns, column]
        table.rows = {handle: {**row, column.name: cell} for handle, row in table.rows.items()}

    def _drop(self, session: Session, table: Table) -> None:
        free = self._free(table)
        if not free:
            return
        column = self._rng.choice(free)
        self._do(session, table, f"DROP {quoted(column.name)}")
        table.columns = [each for each in table.columns if each is not column]
        table.rows = {
            handle: {name: cell for name, cell in row.items() if name != column.name}
            for handle, row in table.rows.items()
        }

    def _rename(self, session: Session, table: Table) -> None:
        free = [each for each in self._free(table) if not each.generated]
        if not free:
            return
        column, name = self._rng.choice(free), self._name()
        self._do(session, table, f"RENAME {quoted(column.name)} TO {quoted(name)}")
        table.columns = [replace(each, name=name) if each is column else each for each in table.columns]
        table.rows = {
            handle: {name if each == column.name else each: cell for each, cell in row.items()}
            for handle, row in table.rows.items()
        }

    def _retype(self, session: Session, table: Table) -> None:
        """To a wider type: with and without a new file of the table."""
        wider = {"int4": LONG, "varchar(5)": TEXT, "int2": INT, "bool": TEXT}
        found = [each for each in self._free(table) if each.kind.sql in wider]
        if not found:
            return
        column = self._rng.choice(found)
        kind = wider[column.kind.sql]
        self._do(session, table, f"ALTER {quoted(column.name)} TYPE {kind.sql}")
        table.columns = [replace(each, kind=kind) if each is column else each for each in table.columns]
        table.rows = {
            handle: {**row, column.name: _wider(row[column.name], column.kind, kind)}
            for handle, row in table.rows.items()
        }

    def _rename_table(self, session: Session, table: Table) -> None:
        if table.parts:
            return
        if self._rng.random() < 0.5:
            name = self._name()
            self._do(session, table, f"RENAME TO {quoted(name)}")
            table.name = name
        else:
            schema = SCHEMA if table.schema == "public" else "public"
            self._do(session, table, f"SET SCHEMA {quoted(schema)}")
            table.schema = schema

    def _identity(self, session: Session, table: Table) -> None:
        if table.parts or not table.key or table.identity not in ("default", "full"):
            return
        words: Identity = "full" if table.identity == "default" else "default"
        shown = self._publication.tables.get(id(table))
        if (shown is not None and shown.odd) or any(each.generated for each in table.columns):
            return
        self._do(session, table, f"REPLICA IDENTITY {words}")
        table.identity = words


def _wider(cell: Value, was: Kind, kind: Kind) -> Value:
    text, value = cell
    if value is not None and kind is LONG:
        return text, long(value)
    return (literal(text), text) if value is not None and was.sql == "bool" else cell
