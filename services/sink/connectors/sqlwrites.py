"""`$merge` as statements: what becomes of a document whose row is there, and of one whose row is not."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from tidemark.services.sink.connectors.sqlvalues import is_computed
from tidemark.shared.language.stages import Merge

Parameters = Mapping[str, Any]
_KEY_PREFIX: Final = "key__"
"""Names of the parameters that find the row begin with it, beside those that change it."""


class Unwanted(Exception):
    """`fail` was asked for: the row is there, or it is not."""


class MergeWriter:
    """Writes parameters of documents into a table, in their order, inside the caller's transaction."""

    def __init__(self, table: sa.Table, stage: Merge, dialect: str) -> None:
        self._table = table
        self._stage = stage
        self._insert = postgresql_insert if dialect == "postgresql" else sqlite_insert
        self._others = [
            column.name for column in table.columns if column.name not in stage.on and not is_computed(column)
        ]
        # No column may have the name of such a parameter: it would get the key's value.
        self._key_prefix = _KEY_PREFIX
        while any(column.name.startswith(self._key_prefix) for column in table.columns):
            self._key_prefix += "_"

    def write(self, connection: sa.Connection, rows: Sequence[Parameters], *, one_by_one: bool) -> None:
        """Write rows in order. `one_by_one`: a statement a row, so that the caller can tell which one fails.

        Raises:
            Unwanted: a row is there, or not, where `fail` was asked for.
        """
        if self._stage.when_matched == "keepExisting" and self._stage.when_not_matched == "discard":
            return
        if self._stage.when_not_matched == "insert" and self._stage.when_matched in (
            "replace",
            "merge",
            "keepExisting",
        ):
            for names, run in self._runs(rows, one_by_one=one_by_one):
                connection.execute(self._upsert(names), run)
            return
        for row in rows:
            self._one(connection, row)

    def _runs(
        self, rows: Sequence[Parameters], *, one_by_one: bool
    ) -> Iterator[tuple[tuple[str, ...], list[Parameters]]]:
        """Neighbours with the same columns, as one statement with many parameters."""
        if one_by_one:
            yield from ((tuple(row), [row]) for row in rows)
        else:
            yield from ((names, list(run)) for names, run in groupby(rows, key=tuple))

    def _upsert(self, names: tuple[str, ...]) -> Any:
        statement = self._insert(self._table).values({name: sa.bindparam(name) for name in names})
        # Replacing sets what the document does not name to the column's default, which the refused insert has.
        changed = (
            self._others if self._stage.when_matched == "replace" else [name for name in names if name in self._others]
        )
        if self._stage.when_matched == "keepExisting" or not changed:
            return statement.on_conflict_do_nothing(index_elements=self._stage.on)
        new = {name: statement.excluded[name] for name in changed}
        return statement.on_conflict_do_update(index_elements=self._stage.on, set_=new)

    def _one(self, connection: sa.Connection, row: Parameters) -> None:
        stage = self._stage
        matched = self._on_match(connection, row)
        if matched and stage.when_matched == "fail":
            raise Unwanted("the row is there, and whenMatched is fail")
        if matched:
            return
        match stage.when_not_matched:
            case "insert":
                connection.execute(sa.insert(self._table), dict(row))
            case "fail":
                raise Unwanted("the row is not there, and whenNotMatched is fail")
            case "discard":
                return

    def _on_match(self, connection: sa.Connection, row: Parameters) -> bool:
        """Do what is to be done if the row is there; whether it was."""
        keys = {self._key_prefix + name: row[name] for name in self._stage.on}
        found = sa.and_(*(self._table.c[name] == sa.bindparam(self._key_prefix + name) for name in self._stage.on))
        others = {name: value for name, value in row.items() if name in self._others}
        match self._stage.when_matched:
            case "replace":
                others = {name: row.get(name) for name in self._others}
            case "delete":
                return bool(connection.execute(sa.delete(self._table).where(found), keys).rowcount)
            case "merge":
                pass
            case "fail" | "keepExisting":
                others = {}
        if not others:
            return (
                connection.execute(sa.select(sa.literal(1)).select_from(self._table).where(found), keys).first()
                is not None
            )
        statement = sa.update(self._table).where(found).values({name: sa.bindparam(name) for name in others})
        return bool(connection.execute(statement, {**others, **keys}).rowcount)
