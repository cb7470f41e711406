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
        names = [name for name in self._names if name in rows.values]
        found = self._found(begin, rows, names, np.arange(rows.size)) if names else []
        return {**misfits, **{int(fit[number]): why for number, why in found}}

    def _found(self, begin: Begin, rows: SqlRows, names: Sequence[str], numbers: Any) -> list[tuple[int, Misfit]]:
        """Of rows that are refused together each half is asked for alone, and of one row each column."""
        try:
            with begin() as connection:
                self._ask(connection, rows.taken(numbers), names)
        except (exc.DBAPIError, _Lossy) as error:
            if isinstance(error, exc.DBAPIError) and is_passing(error, self._dialect):
                raise
            if len(numbers) > 1:
                half = len(numbers) // 2
                halves = (numbers[:half], numbers[half:])
                return [found for each in halves for found in self._found(begin, rows, names, each)]
            if len(names) > 1:
                return [found for name in names for found in self._found(begin, rows, [name], numbers)][:1]
            said = " ".join(str(getattr(error, "orig", error)).split())
            kind = self._types[names[0]].whole.replace("%%", "%")
            return [(int(numbers[0]), Misfit(f"{names[0]}: expected {kind}: {said}"))]
        return []

    def _ask(self, connection: sa.Connection, rows: SqlRows, names: Sequence[str]) -> None:
        """Have the database read values, and write nothing. _Lossy."""
        asked, lost = [], ["0"]
        for k, name in enumerate(names):
            kind = self._types[name]
            whole = f"CAST(CAST(u.c{k} AS {kind.base}) AS {kind.whole})"
            asked.append(f"count({whole})")
            if kind.bounded:
                lost.append(
                    f"count(*) FILTER (WHERE CAST({whole} AS {kind.base}) IS DISTINCT FROM CAST(u.c{k} AS {kind.base}))"
                )
        arrays = ", ".join("CAST(%s AS text[])" for _ in names)
        columns = ", ".join(f"c{k}" for k in range(len(names)))
        query = f"SELECT {' + '.join(lost)}, {', '.join(asked)} FROM unnest({arrays}) AS u ({columns})"  # noqa: S608 - types as the server writes them
        values = tuple(array_literal(pa.array(rows.values[name], pa.string())) for name in names)
        if connection.exec_driver_sql(query, values).one()[0]:
            cells = [rows.values[name][0] for name in names]
            raise _Lossy(f"it would cut or round {cells[0]!r:.40}")
