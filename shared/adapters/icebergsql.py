"""Iceberg's catalogs in SQL databases, which are left as they were found until a namespace is made: to look at a catalog changes nothing.

PyIceberg makes the tables of a catalog, and SQLite its file, as it opens one, and changes those of an earlier format.
"""

import sqlalchemy as sa
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy.exc import OperationalError, ProgrammingError

from tidemark.shared.adapters.icebergfiles import NoCatalogError
from tidemark.shared.adapters.sql import file_of, only_existing

_MAKES = "init_catalog_tables"
_FORMAT = "schema_version"


class FoundSqlCatalog(SqlCatalog):  # type: ignore[misc]
    """One whose tables are made with the first namespace, unless its settings forbid it."""

    def __init__(self, name: str, **properties: object) -> None:
        """Of a connection's settings. Raises as PyIceberg."""
        self._makes = str(properties.get(_MAKES, True)).lower() not in ("false", "0", "f", "n", "no", "off")
        kept = {name: value for name, value in properties.items() if name != _FORMAT}
        super().__init__(name, **{**kept, _MAKES: "false"})

    def _init_catalog(self) -> None:
        only_existing(self.engine)
        super()._init_catalog()

    def load_table(self, identifier: str | Identifier) -> Table:
        """See `Catalog.load_table`. NoCatalogError where nobody has made the catalog, and it can be made."""
        try:
            return super().load_table(identifier)
        except (OperationalError, ProgrammingError) as error:
            path = file_of(self.engine.url)
            if self._is_there() or not (path is None or path.parent.is_dir()):
                raise
            raise NoCatalogError(str(error.orig)) from error

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """See `Catalog.create_namespace`."""
        if self._makes and not self._is_there():
            self._make()
        super().create_namespace(namespace, properties)

    def _is_there(self) -> bool:
        """Whether the tables of a catalog are. A server that does not answer raises."""
        path = file_of(self.engine.url)
        return (path is None or path.exists()) and sa.inspect(self.engine).has_table(IcebergTables.__tablename__)

    def _make(self) -> None:
        path = file_of(self.engine.url)
        if path is not None and path.parent.is_dir():
            path.touch()
        try:
            self.create_tables()
        except (OperationalError, ProgrammingError):
            # Another task was faster.
            if not self._is_there():
                raise
