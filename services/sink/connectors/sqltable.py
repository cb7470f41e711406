"""The table that a `$merge` writes into, as its database describes it."""

from collections.abc import Mapping
from typing import Any

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


def types_of(connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
    """PostgreSQL's names of the columns' types, without lengths: a cast to one cuts and rounds nothing."""
    # Quoted for a statement's text it has its percent signs twice; here it is a parameter.
    name = connection.dialect.identifier_preparer.format_table(table).replace("%%", "%")
    query = (
        "SELECT attname, format_type(atttypid, -1) FROM pg_attribute"
        " WHERE attrelid = CAST(%s AS regclass) AND attnum > 0 AND NOT attisdropped"
    )
    found = connection.exec_driver_sql(query, (name,)).all()
    return {row[0]: row[1] for row in found}


def _is_partial(index: Mapping[str, Any]) -> bool:
    return any(option.endswith("_where") for option in index.get("dialect_options", {}))
