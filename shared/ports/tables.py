"""The port of lookups: a table that finds documents by values."""

from collections.abc import Sequence
from typing import Protocol

from tidemark.shared.model.failures import Lasting, Outage
from tidemark.shared.model.values import Found

Names = tuple[str, ...]
"""A path in a document."""


class TableUnavailable(Outage):
    """The table is away; waiting may help (C10: does not count)."""


class TableDenied(Exception):
    """The table refuses the client: a password, a user. It is no outage: the task fails, and after some tries the processor (C10)."""


class TableRefused(Lasting):
    """The table cannot be read as asked. The message says what was expected, and what to do."""


class Table(Protocol):
    """One table, collection or file. Calls may overlap."""

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[object, ...]]) -> Sequence[Found]:
        """The documents that equal one of `wanted` (a value for each column, None for null and missing); more may come, none may lack.

        Without columns: all. Equal is as `$group` has it, and a field that is an array is found by its items, too.
        Raises TableUnavailable, TableRefused.
        """
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...
