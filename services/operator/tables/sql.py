"""Rows of an SQL table (PostgreSQL, SQLite) as documents: asked by the lookup's keys, one query a batch.

Columns whose equality the database and the language see alike narrow the query (sqlvalues.py); others are looked at here. Rows come in the
order of the primary key, where there is one. A table that nothing narrows is read whole, within `rows_max`.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.services.operator.tables.sqlvalues import NOTHING, Parameter, parameter_of
from tidemark.shared.adapters.sql import (
    DIALECTS,
    bound_lock_waits,
    is_denied,
    is_passing,
    patience,
    reflected,
    with_driver,
    with_server,
)
from tidemark.shared.adapters.sql_cells import read_all
from tidemark.shared.language.values.cells import JSON_DEPTH_MAX, cell_reader
from tidemark.shared.model.values import Document, Found, Value
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.tables import Names, TableDenied, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings


def engine_of(url: str, config: Mapping[str, object], wait_ms: int) -> sa.Engine:
    """An engine for reading; locks and connections are waited for so long, ms. TableRefused for another kind of database."""
    parsed = sa.make_url(url)
    backend = parsed.get_backend_name()
    if backend not in DIALECTS:
        raise TableRefused(f"{parsed!r}: expected postgresql://… or sqlite:///…")
    seconds = max(2, wait_ms // 1000)
    if backend == "sqlite":
        return sa.create_engine(parsed, **{"connect_args": {"timeout": seconds}, **config})
    connect = {**patience(parsed.query), **({} if "connect_timeout" in parsed.query else {"connect_timeout": seconds})}
    engine = sa.create_engine(with_driver(parsed), pool_pre_ping=True, **{"connect_args": connect, **config})
    read_all(engine, JSON_DEPTH_MAX)
    bound_lock_waits(engine, seconds * 1000)
    return engine


@dataclass(frozen=True, slots=True)
class _TableColumns:
    """The table as the database describes it."""

    table: sa.Table
    readers: Mapping[str, Callable[[Any], Value]]
    parameters: Mapping[str, Parameter]


class SqlTable:
    """`Table` over one table or view. `engine` is SQLAlchemy's, synchronous; its work runs on the executor's threads."""

    def __init__(self, engine: sa.Engine, name: str, executor: Executor, settings: LookupSettings) -> None:
        self.engine = engine
        self._name = name
        self._executor = executor
        self._settings = settings
        self._columns: _TableColumns | None = None
        self._places = itertools.count()

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[object, ...]]) -> Sequence[Found]:
        """See `Table.find`."""
        return await self._executor.blocking(self._find, tuple(columns), wanted)

    def _find(self, columns: tuple[Names, ...], wanted: Sequence[tuple[object, ...]]) -> list[Found]:
        try:
            known = self._columns or self._describe()
            self._columns = known
            condition, narrowed = self._condition(known, columns, wanted)
            if condition is None:
                return []
            query = sa.select(known.table).where(condition).order_by(*known.table.primary_key.columns)
            with self.engine.connect() as connection:
                rows = connection.execute(query.limit(self._settings.rows_max + 1)).all()
        except exc.DBAPIError as error:
            raise self._failure(error) from error
        except ValueError as error:  # A cell's value does not fit its column's type, as SQLite allows.
            raise TableRefused(f"table {self._name}: {error}") from error
        if len(rows) > self._settings.rows_max:
            raise TableRefused(
                f"table {self._name}: a batch finds more than {self._settings.rows_max} rows, which is lookup.rows_max; narrow the"
                " lookup by localField and foreignField, or by $expr with $eq in a $match that comes first; or raise the bound"
            )
        # A row found by a column has one value there, and so one key: numbers that go on tell such rows apart over queries, too.
        places = self._places if narrowed else itertools.count()
        return [Found(next(places), self._document(known, row)) for row in rows]

    async def columns(self) -> Collection[str]:
        """The names of its columns. TableRefused, TableDenied, TableUnavailable."""
        return (await self._executor.blocking(self._described)).readers.keys()

    def _described(self) -> _TableColumns:
        try:
            return self._describe()
        except exc.DBAPIError as error:
            raise self._failure(error) from error

    def _describe(self) -> _TableColumns:
        try:
            table = reflected(self.engine, self._name)
        except exc.NoSuchTableError as error:
            raise TableRefused(f"table {self._name}: no such table or view in {self.engine.url!r}") from error
        parameters = {c.name: parameter_of(c, self.engine.dialect.name) for c in table.columns}
        return _TableColumns(
            table,
            {
                "".join(c.name): cell_reader(wide=isinstance(c.type, sa.BigInteger)) for c in table.columns
            },  # names are of a type of their own
            {name: parameter for name, parameter in parameters.items() if parameter is not None},
        )

    def _condition(
        self, known: _TableColumns, columns: tuple[Names, ...], wanted: Sequence[tuple[object, ...]]
    ) -> tuple[sa.ColumnElement[bool] | None, bool]:
        """The condition that rows have to meet, None if no row can; and whether any column narrows."""
        asked = [(i, names[0]) for i, names in enumerate(columns) if len(names) == 1 and names[0] in known.parameters]
        if not asked:
            return sa.true(), False
        by_nulls: dict[tuple[bool, ...], list[tuple[Any, ...]]] = {}
        for one in wanted:
            made = tuple(None if one[i] is None else known.parameters[name](one[i]) for i, name in asked)
            if NOTHING not in made:
                by_nulls.setdefault(tuple(m is None for m in made), []).append(made)
        cells = [known.table.c[name] for _, name in asked]
        parts = [_either(cells, nulls, list(dict.fromkeys(rows))) for nulls, rows in by_nulls.items()]
        return (sa.or_(*parts) if parts else None), True

    def _document(self, known: _TableColumns, row: sa.Row[Any]) -> Document:
        return {name: read(cell) for (name, read), cell in zip(known.readers.items(), row, strict=True)}

    def _failure(self, error: exc.DBAPIError) -> Exception:
        text = f"table {self._name}: {with_server(str(error.orig), self.engine.url.render_as_string())}"
        if is_denied(error):
            return TableDenied(f"{text}; correct the connection's url")
        return TableUnavailable(text) if is_passing(error, self.engine.dialect.name) else TableRefused(text)

    async def close(self) -> None:
        """Give the connections back."""
        await self._executor.blocking(self.engine.dispose)


def _either(
    cells: Sequence[sa.Column[Any]], nulls: tuple[bool, ...], rows: list[tuple[Any, ...]]
) -> sa.ColumnElement[bool]:
    """Rows that have NULL where `nulls` says so, and elsewhere the values of one of `rows`."""
    conditions: list[sa.ColumnElement[bool]] = [c.is_(None) for c, null in zip(cells, nulls, strict=True) if null]
    there = [c for c, null in zip(cells, nulls, strict=True) if not null]
    values = [tuple(_without(row, nulls)) for row in rows]
    if len(there) == 1:
        conditions.append(there[0].in_([value for (value,) in values]))
    elif there:
        conditions.append(sa.tuple_(*there).in_(values))
    return sa.and_(*conditions)


def _without(row: tuple[object, ...], nulls: tuple[bool, ...]) -> Iterator[Any]:
    yield from (value for value, null in zip(row, nulls, strict=True) if not null)
