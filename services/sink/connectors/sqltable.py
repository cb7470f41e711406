"""The table that a `$merge` writes into, as its database describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.services.sink.connectors.mergechanges import place_of
from tidemark.shared.adapters.sql import reflected
from tidemark.shared.language.stages import Merge
from tidemark.shared.ports.sink import TargetRefused


def target_table(engine: sa.Engine, stage: Merge) -> sa.Table:
    """The table, reflected. TargetRefused if it is not there, or `on` is no unique key of it."""
    try:
        table = reflected(engine, str(stage.table))
    except exc.NoSuchTableError as error:
        raise TargetRefused(
            f"{place_of(stage)}: no such table; create it, with a unique key on {', '.join(stage.on)}"
        ) from error
    inspector = sa.inspect(engine)
    name, schema = table.name, table.schema
    keys = [inspector.get_pk_constraint(name, schema)["constrained_columns"]]
    keys += [found["column_names"] for found in inspector.get_unique_constraints(name, schema)]
    # Indexes of expressions, or of some rows only, tell no row from all others.
    keys += [
        [column for column in index["column_names"] if column is not None]
        for index in inspector.get_indexes(name, schema)
        if index["unique"] and None not in index["column_names"] and not _is_partial(index)
    ]
    if set(stage.on) not in [set(key) for key in keys]:
        raise TargetRefused(
            f"{place_of(stage)}: `on` is ({', '.join(stage.on)}), which is no unique key of the table; the table has"
            f" {'; '.join(', '.join(key) for key in keys if key) or 'none'}. Add a unique index, or change `on`"
        )
    return table


@dataclass(frozen=True, slots=True)
class ColumnType:
    """PostgreSQL's names of a column's type, as statements have them."""

    base: str
    """Without length, and without the domain: a cast to it cuts and rounds nothing."""
    whole: str
    """With its length and digits: a cast to it, or to a domain that has some, cuts and rounds."""
    bounded: bool
    """Whether such a cast can lose something."""


_TYPES: Final = """
WITH RECURSIVE made AS (
    SELECT oid, typbasetype AS base, typtypmod AS bound FROM pg_type WHERE typtype = 'd'
    UNION ALL
    SELECT made.oid, t.typbasetype, greatest(made.bound, t.typtypmod) FROM made JOIN pg_type t ON t.oid = made.base WHERE t.typtype = 'd'),
roots AS (SELECT made.* FROM made JOIN pg_type t ON t.oid = made.base WHERE t.typtype <> 'd')
SELECT a.attname,
       CASE WHEN a.atttypid::regtype IN ('name', '"char"') THEN 'text'
            ELSE format_type(coalesce(own.base, nullif(item.typarray, 0), a.atttypid), -1) END,
       format_type(a.atttypid, a.atttypmod),
       greatest(a.atttypmod, own.bound, items.bound) <> -1 OR a.atttypid::regtype IN ('name', '"char"')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN roots own ON own.oid = t.oid
     LEFT JOIN roots items ON items.oid = t.typelem AND t.typcategory = 'A' LEFT JOIN pg_type item ON item.oid = items.base
WHERE a.attrelid = CAST(%s AS regclass) AND a.attnum > 0 AND NOT a.attisdropped
"""
"""Domains with what they are made of, also in arrays; `name` and `"char"` are cut to their length like texts."""


def types_of(connection: sa.Connection, table: sa.Table) -> Mapping[str, ColumnType]:
    """The types of a table's columns."""
    # Quoted for a statement's text it has its percent signs twice; here it is a parameter.
    name = connection.dialect.identifier_preparer.format_table(table).replace("%%", "%")
    found = connection.exec_driver_sql(_TYPES, (name,)).all()
    return {
        name: ColumnType(base.replace("%", "%%"), whole.replace("%", "%%"), bounded)
        for name, base, whole, bounded in found
    }


def _is_partial(index: Mapping[str, Any]) -> bool:
    return any(option.endswith("_where") for option in index.get("dialect_options", {}))
