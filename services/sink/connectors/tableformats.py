"""The formats of tables, by the name that `$emit` gives them. A library is loaded where its format is used."""

from typing import Any

from tidemark.services.sink.connectors.destination import Destination
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.tablereleases import TableReleases


def table_releases(destination: Destination, encoding: Encoding, **bounds: int) -> TableReleases[Any] | None:
    """Releases into the table at a destination, with the bounds of `TableReleases`; None for a format that is no table."""
    if encoding.format == "parquet":
        from tidemark.services.sink.connectors.delta import DeltaReleases  # noqa: PLC0415

        return DeltaReleases(destination, encoding.partition_by, **bounds)
    if encoding.format == "iceberg":
        from tidemark.services.sink.connectors.iceberg import IcebergReleases  # noqa: PLC0415

        assert encoding.table is not None
        name, catalog = encoding.table.name, encoding.table.catalog
        return IcebergReleases(destination, encoding.partition_by, name=name, catalog=catalog, **bounds)
    return None
