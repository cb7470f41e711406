"""What `tidemark check --connect` asks about rights in databases: nothing is changed by it."""

from typing import Final
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.shared.adapters.sql import patience, with_driver
from tidemark.shared.language.stages import Merge

_INSUFFICIENT: Final = "42501"
"""PostgreSQL's code for rights that are missing."""
_READ_ONLY: Final = (
    "it is read-only: a replica, or default_transaction_read_only is set; name the primary, or set it off"
)


def merge_rights(engine: sa.Engine, stage: Merge, markers: str) -> list[str]:
    """What a sink may not that merges into a table, and keeps its markers in another. Of PostgreSQL; others have no users."""
    if engine.dialect.name != "postgresql":
        return []
    does = {"INSERT"} if stage.when_not_matched == "insert" else set()
    does |= {"SELECT"} if stage.on else set()
    does |= {"delete": {"DELETE"}, "replace": {"UPDATE"}, "merge": {"UPDATE"}}.get(str(stage.when_matched), set())
    with engine.connect() as connection:
        if connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "on":
            return [_READ_ONLY]
        found = _lacks(connection, str(stage.table), sorted(does))
        if sa.inspect(connection).has_table(markers):
            found += _lacks(connection, markers, ["INSERT", "SELECT", "UPDATE"])
        elif not connection.exec_driver_sql("SELECT has_schema_privilege(current_schema(), 'CREATE')").scalar():
            found.append(f"CREATE in the schema in which {markers} is to be made")
    return [f"the user lacks {', '.join(found)}; grant it"] if found else []


def select_rights(engine: sa.Engine, table: str) -> list[str]:
    """Of a lookup."""
    if engine.dialect.name != "postgresql":
        return []
    with engine.connect() as connection:
        found = _lacks(connection, table, ["SELECT"])
    return [f"the user lacks {', '.join(found)}; grant it"] if found else []


def slot_rights(url: str) -> list[str]:
    """Of a source of changes. Rights are looked at before the slot is: one that is not there may be named."""
    engine = sa.create_engine(with_driver(sa.make_url(url)), connect_args=patience(sa.make_url(url).query))
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_logical_slot_peek_binary_changes(%s, NULL, 1)", (f"no_{uuid4().hex}",)
            )
    except exc.ProgrammingError as error:
        return [str(error.orig)] if getattr(error.orig, "sqlstate", "") == _INSUFFICIENT else []
    finally:
        engine.dispose()
    return []


def _lacks(connection: sa.Connection, table: str, rights: list[str]) -> list[str]:
    """A right to some of the columns may do: which, shows when rows are written."""
    schema, _, name = table.rpartition(".")
    quoted = connection.dialect.identifier_preparer.format_table(sa.Table(name, sa.MetaData(), schema=schema or None))
    query = {right: "has_table_privilege" if right == "DELETE" else "has_any_column_privilege" for right in rights}
    return [
        f"{right} on {table}"
        for right, function in query.items()
        if not connection.scalar(sa.text(f"SELECT {function}(:table, :right)"), {"table": quoted, "right": right})
    ]
