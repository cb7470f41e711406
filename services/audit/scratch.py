"""The expected content of a table that began empty: the sink's own statements, run on an empty table of the same definition.

On SQLite the table is made by its own statements in a database in memory; on PostgreSQL it is a temporary one of the same columns, and the
transaction is rolled back. So conversion, rounding and collation are the database's, and the target is not written to.

Values are told as text that keeps their types: PostgreSQL's own, and for SQLite the type of the cell, not of the column.
"""

from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from tidemark.services.audit.outputs import KeptTable
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.settings import audit_settings
from tidemark.services.sink.connectors.sqlrows import RowMaker, documents_array
from tidemark.services.sink.connectors.sqlvalues import makes_itself
from tidemark.services.sink.connectors.sqlwrites import MergeWriter
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import encode_docs
from tidemark.shared.model.values import Document

Row = tuple[str | None, ...]
"""Values of the compared columns, in their order."""
_SCRATCH: Final = "tidemark_audit"
_AT_ONCE: Final = 10_000
"""Rows that are fetched at once."""


def rows_of(connection: sa.Connection, table: sa.Table) -> list[Row]:
    """All rows, each value as text. TooMuchHeld if there are more than a command may hold."""
    most, size = audit_settings().held_bytes_max, 0
    rows: list[Row] = []
    exact = connection.dialect.name == "postgresql"
    columns = [sa.cast(c, sa.Text) if exact else sa.type_coerce(c, sa.types.NullType()) for c in table.columns]
    with connection.execute(sa.select(*columns), execution_options={"yield_per": _AT_ONCE}) as found:
        for values in found:
            row = tuple(None if value is None else str(value) if exact else repr(value) for value in values)
            size += sum(len(text) for text in row if text is not None)
            if size > most:
                raise TooMuchHeld(
                    f"table {table.name}: its first {len(rows)} rows take {most} characters; held_bytes_max in TIDEMARK_AUDIT is less"
                )
            rows.append(row)
    return rows


def filled(table: sa.Table) -> frozenset[str]:
    """Columns that the database gives a value where a document names none; those computed of others among them."""
    alone = [c.name for c in table.primary_key.columns if len(table.primary_key.columns) == 1 and _is_whole(c)]
    return frozenset(
        [
            *alone,
            *(c.name for c in table.columns if c.server_default is not None or makes_itself(c, table)),
        ]
    )


def _is_whole(column: sa.Column[Any]) -> bool:
    """An integer: alone as a primary key, SQLite numbers it."""
    return isinstance(column.type, sa.Integer)


def folded(
    engine: sa.Engine,
    table: sa.Table,
    stage: Merge,
    epochs: Sequence[Sequence[Document]],
    begin: KeptTable | None = None,
) -> list[Row]:
    """The content of a table after these documents, an epoch at a time, in their order; begin: else it began empty. SQLAlchemyError."""
    maker = RowMaker(table, stage.on, engine.dialect, inserts=False)
    with _scratch(engine, table, stage) as (connection, scratch):
        if begin is not None:
            _fill(connection, scratch, begin)
        writer = MergeWriter(connection, scratch, stage)
        for documents in epochs:
            rows, misfits = maker.rows(documents_array(encode_docs(documents)))
            for misfit in misfits.values():
                raise misfit
            writer.write(connection, rows)
        return rows_of(connection, scratch)


def _fill(connection: sa.Connection, table: sa.Table, kept: KeptTable) -> None:
    """Rows as `rows_of` told them, each value back from its text; columns that follow from others, or came since, are not named."""
    exact = connection.dialect.name == "postgresql"
    columns = [c for c in table.columns if c.computed is None and c.name in kept.columns]
    at, rows = [kept.columns.index(column.name) for column in columns], kept.rows
    quoted = connection.dialect.identifier_preparer
    names = ", ".join(quoted.quote(column.name) for column in columns)
    kinds = [column.type.compile(connection.dialect) for column in columns]
    values = ", ".join(f"CAST(:v{n} AS {kind})" if exact else f":v{n}" for n, kind in enumerate(kinds))
    statement = sa.text(f"INSERT INTO {quoted.format_table(table)} ({names}) VALUES ({values})")  # noqa: S608 - quoted
    for begin in range(0, len(rows), _AT_ONCE):
        given = [
            {f"v{n}": text if exact or text is None else _native(text) for n, text in enumerate(row[i] for i in at)}
            for row in rows[begin : begin + _AT_ONCE]
        ]
        connection.execute(statement, given)


def _native(text: str) -> Any:
    """Of SQLite's types, whose values are told as Python writes them; an infinity is no literal there."""
    return float(text) if text in ("inf", "-inf") else literal_eval(text)


@contextmanager
def _scratch(engine: sa.Engine, table: sa.Table, stage: Merge) -> Iterator[tuple[sa.Connection, sa.Table]]:
    if engine.dialect.name == "sqlite":
        memory = sa.create_engine("sqlite://", poolclass=StaticPool)
        try:
            with memory.connect() as connection:
                for statement in _definition(engine, table):
                    connection.exec_driver_sql(statement)
                yield connection, _columns(table, table.name)
        finally:
            memory.dispose()
        return
    with engine.connect() as connection:
        quoted = engine.dialect.identifier_preparer
        connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {_SCRATCH} (LIKE {quoted.format_table(table)}) ON COMMIT DROP"
        )
        for name in sorted(filled(table) - set(stage.on)):
            connection.exec_driver_sql(f"ALTER TABLE {_SCRATCH} ALTER COLUMN {quoted.quote(name)} DROP NOT NULL")
        on = ", ".join(quoted.quote(name) for name in stage.on)
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX ON {_SCRATCH} ({on})")
        yield connection, _columns(table, _SCRATCH)
        connection.rollback()


def _columns(table: sa.Table, name: str) -> sa.Table:
    """Names and types alone: no default of the target is drawn from."""
    columns: list[sa.Column[Any]] = []
    for column in table.columns:
        computed = [] if column.computed is None else [sa.Computed(column.computed.sqltext)]
        columns.append(sa.Column(column.name, column.type, *computed))
    return sa.Table(name, sa.MetaData(), *columns)


def _definition(engine: sa.Engine, table: sa.Table) -> list[str]:
    """The statements that made a table of SQLite, and its indexes."""
    schema = engine.dialect.identifier_preparer.quote(table.schema or "main")
    query = sa.text(
        f"SELECT sql FROM {schema}.sqlite_master WHERE lower(tbl_name) = lower(:name) AND sql IS NOT NULL"  # noqa: S608 - quoted
        " AND type IN ('table', 'index') ORDER BY type = 'index'"
    )
    with engine.connect() as connection:
        return list(connection.execute(query, {"name": table.name}).scalars())
