"""Values of types of which PostgreSQL alone knows what they take: networks, intervals, ranges, domains, and those of others.

It is asked before staging, so that what it would refuse is a dead letter and not the end of the processor (protocol, S6).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql

from tidemark.services.sink.connectors.sqlrows import RowMaker, SqlRows, array_literal
from tidemark.services.sink.connectors.sqltable import types_of
from tidemark.services.sink.connectors.sqlvalues import Misfit, is_open
from tidemark.shared.adapters.sql import is_passing

Begin = Callable[[], AbstractContextManager[sa.Connection]]


class _Lossy(Exception):
    """The database takes a value, and cuts or rounds it."""


class AskedColumns:
    """The columns of a table that have such types."""

    def __init__(self, connection: sa.Connection, table: sa.Table) -> None:
        self._dialect = connection.dialect.name
        kinds = {} if self._dialect != "postgresql" else {column.name: column.type for column in table.columns}
        self._names = [name for name, kind in kinds.items() if is_open(kind)]
        self._domains = {name for name in self._names if isinstance(kinds[name], postgresql.DOMAIN)}
        self._types = types_of(connection, table) if self._names else {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._names)

    def judged(
        self, begin: Begin, maker: RowMaker, documents: pa.BinaryArray, misfits: Mapping[int, object]
    ) -> Mapping[int, object]:
        """Documents that are misfits, and those that the database would refuse or change. sqlalchemy.exc.DBAPIError if it is away."""
        if not self:
            return misfits
        fit = np.setdiff1d(np.arange(len(documents)), list(misfits))
        rows, _ = maker.rows(documents.take(pa.array(fit)))
        if not rows.size:
            return misfits
        # A domain may take no null, though its column does.
        nulls = self._domains & maker.nulls
        absent = {name: np.full(rows.size, None) for name in nulls - rows.values.keys()}
        told = dict.fromkeys(nulls, np.ones(rows.size, dtype=np.bool_))
        rows = SqlRows({**absent, **rows.values}, {**rows.named, **told}, rows.size)
        if not any(name in rows.values for name in self._names):
            return misfits
        with begin() as connection:
            found = self._found(connection, rows, self._names, np.arange(rows.size))
        return {**misfits, **{int(fit[number]): why for number, why in found}}

    def _found(
        self, connection: sa.Connection, rows: SqlRows, names: Sequence[str], numbers: Any
    ) -> list[tuple[int, Misfit]]:
        """Of rows that are refused together each half is asked for alone, and of one row each column."""
        some = rows.taken(numbers)
        # A column that a row does not name gets its default.
        names = [name for name in names if name in some.values and some.named[name].any()]
        if not names:
            return []
        try:
            with connection.begin_nested():
                self._ask(connection, some, names)
        except (exc.DBAPIError, _Lossy) as error:
            if isinstance(error, exc.DBAPIError) and is_passing(error, self._dialect):
                raise
            if len(numbers) > 1:
                half = len(numbers) // 2
                halves = (numbers[:half], numbers[half:])
                return [found for each in halves for found in self._found(connection, rows, names, each)]
            if len(names) > 1:
                return [found for name in names for found in self._found(connection, rows, [name], numbers)][:1]
            said = " ".join(str(getattr(error, "orig", error)).split())
            kind = self._types[names[0]].whole.replace("%%", "%")
            return [(int(numbers[0]), Misfit(f"{names[0]}: expected {kind}: {said}"))]
        return []

    def _ask(self, connection: sa.Connection, rows: SqlRows, names: Sequence[str]) -> None:
        """Have the database read the values that rows name, and write nothing. _Lossy."""
        asked, named = [], [rows.values[name][rows.named[name]] for name in names]
        for name in names:
            kind = self._types[name]
            whole = f"CAST(CAST(u.c AS {kind.base}) AS {kind.whole})"
            changed = f"CAST({whole} AS {kind.base}) IS DISTINCT FROM CAST(u.c AS {kind.base})"
            lost = f"count(*) FILTER (WHERE {changed})" if kind.bounded else "0"
            asked.append(f"(SELECT {lost} + 0 * count({whole}) FROM unnest(CAST(%s AS text[])) AS u (c))")  # noqa: S608 - types as the server writes them
        values = tuple(array_literal(pa.array(each, pa.string())) for each in named)
        if connection.exec_driver_sql(f"SELECT {' + '.join(asked)}", values).scalar_one():
            raise _Lossy(f"it would cut or round {named[0][0]!r:.40}")
