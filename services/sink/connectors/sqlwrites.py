"""`$merge` as statements over many rows, for documents with a row in the table and for documents without one.

Rows of one key are first folded into one, so each key stands in a statement once. PostgreSQL takes the rows as an array a column,
SQLite as parameters of a statement that is prepared once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from tidemark.services.sink.connectors.sqlrows import SqlRows, array_literal
from tidemark.services.sink.connectors.sqltable import types_of
from tidemark.services.sink.connectors.sqlvalues import is_computed, makes_itself
from tidemark.shared.compiled.columns import Bools, Int64s
from tidemark.shared.language.stages import Merge

_EXACT: Final = (sa.Integer, sa.String, sa.Uuid, sa.Date, sa.DateTime, sa.Boolean, sa.LargeBinary)
"""Types of which two values are equal if they are written alike, and only then."""
_THERE: Final = "the row is there, and whenMatched is fail"
_NOT_THERE: Final = "the row is not there, and whenNotMatched is fail"


class Unwanted(Exception):
    """`fail` was asked for: a row is there, or it is not."""


class MergeWriter:
    """Writes rows into a table, in their order, inside the caller's transaction."""

    def __init__(self, connection: sa.Connection, table: sa.Table, stage: Merge) -> None:
        self._stage = stage
        self._statements = _Statements(connection, table, stage.on)
        self._others = [
            column.name for column in table.columns if column.name not in stage.on and not is_computed(column)
        ]
        self._made = {column.name for column in table.columns if makes_itself(column, table)}
        self._exact = all(_is_exact(table.c[name]) for name in stage.on)

    def write(self, connection: sa.Connection, rows: SqlRows) -> None:
        """Write rows. An error is about all of them together: to find the row, write fewer.

        Raises:
            Unwanted: a row is there, or not, where `fail` was asked for.
            sqlalchemy.exc.DBAPIError: the database refuses a row, or is away.
        """
        if self._stage.when_matched == "keepExisting" and self._stage.when_not_matched == "discard":
            return
        # Where the database may find two keys equal that are written differently, it is asked about one at a time.
        for some in [rows] if self._exact else [rows.taken([row]) for row in range(rows.size)]:
            if some.size:
                self._write(connection, some)

    def _write(self, connection: sa.Connection, rows: SqlRows) -> None:
        matched, unmatched = self._stage.when_matched, self._stage.when_not_matched
        assert isinstance(matched, str), "pipelines and expressions have been looked at before"
        keys = RowKeys.of(rows, self._stage.on)
        once = keys.folded(rows, matched)
        if unmatched == "insert" and matched in ("replace", "merge", "keepExisting"):
            self._insert(connection, once, upsert=True)
            return
        there = self._statements.there(connection, once)
        repeated = keys.counts > 1
        if matched == "fail" and bool((there | (repeated if unmatched == "insert" else False)).any()):
            raise Unwanted(_THERE)
        if unmatched == "fail" and bool((~there | (repeated if matched == "delete" else False)).any()):
            raise Unwanted(_NOT_THERE)
        if matched == "delete":
            self._statements.delete(connection, once.taken(there))
            # An existing row is deleted, and a missing one inserted: with each row of the key in turn.
            there = there ^ (keys.counts % 2 == 0)
        elif matched in ("replace", "merge"):
            self._update(connection, once.taken(there))
        if unmatched == "insert":
            self._insert(connection, once.taken(~there), upsert=False)

    def _insert(self, connection: sa.Connection, rows: SqlRows, *, upsert: bool) -> None:
        for names, some in shapes(rows):
            self._statements.insert(connection, some, names, self._changed(names) if upsert else None)

    def _changed(self, names: Sequence[str]) -> Sequence[str]:
        """The columns that an insert sets of an existing row. Replacing sets columns that the document does not name to their defaults."""
        match self._stage.when_matched:
            case "replace":
                return self._others
            case "merge":
                return [name for name in names if name in self._others]
            case _:
                return ()

    def _update(self, connection: sa.Connection, rows: SqlRows) -> None:
        """Update existing rows. Replacing sets columns that the document does not name to null, but for those that the database numbers."""
        if self._stage.when_matched == "replace":
            absent = np.full(rows.size, None)
            others = [name for name in self._others if name in rows.values or name not in self._made]
            values = {name: rows.values.get(name, absent) for name in (*self._stage.on, *others)}
            self._statements.update(connection, SqlRows(values, {}, rows.size), others)
            return
        for names, some in shapes(rows):
            self._statements.update(connection, some, [name for name in names if name in self._others])


def _is_exact(column: sa.Column[Any]) -> bool:
    kind = column.type
    plain = isinstance(kind, _EXACT) and not isinstance(kind, sa.CHAR)
    return plain and getattr(kind, "collation", None) is None


def shapes(rows: SqlRows) -> list[tuple[list[str], SqlRows]]:
    """The rows that name the same columns together, with these, in the order in which such rows first come."""
    names = list(rows.named)
    whole = [name for name in names if bool(rows.named[name].all())]
    partly = [name for name in names if name not in whole and bool(rows.named[name].any())]
    if not partly or not rows.size:
        return [(whole, rows)] if rows.size else []
    masks = np.array([rows.named[name] for name in partly])
    different, firsts, place = np.unique(masks, axis=1, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    order = np.argsort(firsts).tolist()
    return [
        (
            [name for name in names if name in whole or (name in partly and different[partly.index(name), shape])],
            rows.taken(np.flatnonzero(place == shape)),
        )
        for shape in order
    ]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Which rows have the same key; k different keys, in the order of their last rows."""

    place: Int64s
    """Of each row, shape (n,): the number of its key."""
    lasts: Int64s
    """The last row of each key, shape (k,)."""
    counts: Int64s
    """How many rows each key has, shape (k,)."""

    @classmethod
    def of(cls, rows: SqlRows, on: Sequence[str]) -> "RowKeys":
        """By the columns `on`."""
        keys = list(zip(*(rows.values[name].tolist() for name in on), strict=True))
        last = {key: row for row, key in enumerate(keys)}
        lasts = np.fromiter(last.values(), np.int64, len(last))
        if len(last) == rows.size:
            return cls(lasts, lasts, np.ones(rows.size, dtype=np.int64))
        lasts.sort()
        numbers = {row: number for number, row in enumerate(lasts.tolist())}
        place = np.fromiter((numbers[last[key]] for key in keys), np.int64, rows.size)
        return cls(place, lasts, np.bincount(place, minlength=len(lasts)))

    def folded(self, rows: SqlRows, when_matched: str) -> SqlRows:
        """One row a key: the first if existing rows are kept, the last if they are replaced; a merged one names the columns of all."""
        if len(self.lasts) == rows.size:
            return rows
        if when_matched == "keepExisting":
            _, firsts = np.unique(self.place, return_index=True)
            return rows.taken(firsts)
        if when_matched != "merge":
            return rows.taken(self.lasts)
        values, named = {}, {}
        for name, mask in rows.named.items():
            newest: Int64s = np.full(len(self.lasts), -1, dtype=np.int64)
            there = np.flatnonzero(mask)
            np.maximum.at(newest, self.place[there], there)
            named[name] = newest >= 0
            values[name] = rows.values[name][newest]
        return SqlRows(values, named, len(self.lasts))


class _Statements:
    """Statements of a table in its database's words, and how rows are handed over."""

    def __init__(self, connection: sa.Connection, table: sa.Table, on: Sequence[str]) -> None:
        quoted = connection.dialect.identifier_preparer
        self._arrays = connection.dialect.name == "postgresql"
        self._types = types_of(connection, table) if self._arrays else {}
        # A driver that takes a percent sign for a parameter is given two: quoting doubles them.
        self._table = quoted.format_table(table)
        self._quoted = {column.name: quoted.quote(column.name) for column in table.columns}
        self._on = on

    def insert(
        self, connection: sa.Connection, rows: SqlRows, names: Sequence[str], changed: Sequence[str] | None
    ) -> None:
        """Insert rows; of those that are there change these columns, None: there are none such."""
        marks = f"({', '.join('?' for _ in names)})"
        given = ("SELECT * FROM", self._source(names)) if self._arrays else ("VALUES", marks)
        words = ["INSERT INTO", self._table, f"({self._listed(names)})", *given]
        if changed is not None:
            sets = ", ".join(f"{self._quoted[name]} = excluded.{self._quoted[name]}" for name in changed)
            words += ["ON CONFLICT", f"({self._listed(self._on)})", "DO", f"UPDATE SET {sets}" if sets else "NOTHING"]
        self._run(connection, words, rows, names)

    def update(self, connection: sa.Connection, rows: SqlRows, names: Sequence[str]) -> None:
        """Set columns of rows that are there."""
        if not names or not rows.size:
            return
        given = [*names, *self._on]
        sets = ", ".join(f"{self._quoted[name]} = {self._value(at)}" for at, name in enumerate(names))
        words = ["UPDATE", self._table, "AS t SET", sets, *self._from("FROM", given), "WHERE", self._same(len(names))]
        self._run(connection, words, rows, given)

    def delete(self, connection: sa.Connection, rows: SqlRows) -> None:
        """Delete rows that are there."""
        if rows.size:
            words = ["DELETE FROM", self._table, "AS t", *self._from("USING", self._on), "WHERE", self._same(0)]
            self._run(connection, words, rows, self._on)

    def there(self, connection: sa.Connection, rows: SqlRows) -> Bools:
        """Which rows' keys the table has, shape (n,)."""
        found = np.zeros(rows.size, dtype=np.bool_)
        if self._arrays:
            source = self._source(self._on, numbered=True)
            query = " ".join(["SELECT v.number FROM", source, "JOIN", self._table, "AS t ON", self._same(0)])
            numbers = connection.exec_driver_sql(query, self._literals(rows, self._on)).scalars()
            found[[number - 1 for number in numbers]] = True
            return found
        query = " ".join(["SELECT 1 FROM", self._table, "AS t WHERE", self._same(0)])
        for row, key in enumerate(self._tuples(rows, self._on)):
            found[row] = connection.exec_driver_sql(query, key).first() is not None
        return found

    def _run(self, connection: sa.Connection, words: Sequence[str], rows: SqlRows, names: Sequence[str]) -> None:
        given: Any = self._literals(rows, names) if self._arrays else self._tuples(rows, names)
        connection.exec_driver_sql(" ".join(words), given)

    def _from(self, word: str, names: Sequence[str]) -> Sequence[str]:
        return (word, self._source(names)) if self._arrays else ()

    def _listed(self, names: Sequence[str]) -> str:
        return ", ".join(self._quoted[name] for name in names)

    def _value(self, at: int) -> str:
        return f"v.c{at}" if self._arrays else "?"

    def _same(self, first: int) -> str:
        """The key's columns are those of the rows that are given, from column number `first` on."""
        return " AND ".join(f"t.{self._quoted[n]} = {self._value(first + k)}" for k, n in enumerate(self._on))

    def _source(self, names: Sequence[str], *, numbered: bool = False) -> str:
        """The rows as a relation `v` with columns c0, c1, …: each an array of texts, cast to the column's type."""
        number, ordinality = (", number", " WITH ORDINALITY") if numbered else ("", "")
        columns = ", ".join(f"c{k}" for k in range(len(names)))
        cast = ", ".join(f"CAST(c{k} AS {self._types[name].base}) AS c{k}" for k, name in enumerate(names))
        arrays = ", ".join("CAST(%s AS text[])" for _ in names)
        relation = f"unnest({arrays}){ordinality} AS u ({columns}{number})"
        return f"(SELECT {cast}{number} FROM {relation}) AS v"  # noqa: S608 - names are quoted

    def _literals(self, rows: SqlRows, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(array_literal(pa.array(rows.values[name], pa.string())) for name in names)

    def _tuples(self, rows: SqlRows, names: Sequence[str]) -> list[tuple[Any, ...]]:
        return list(zip(*(rows.values[name].tolist() for name in names), strict=True))
