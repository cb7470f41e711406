"""Bounds of the coordinator's database and of the blob store, as one process uses them."""

from dataclasses import dataclass

from tidemark.shared.model.settings import check_positive, knob


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Of the coordinator's database. Raises ValueError, naming the setting."""

    timeout_ms: int = knob(15_000)
    """For one transaction up to its COMMIT, and again for the COMMIT; half of it for a lock of SQLite's."""
    connections_max: int = knob(4)
    """Connections to the database."""

    def __post_init__(self) -> None:
        check_positive(self, "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobSettings:
    """Of the blob store. Raises ValueError, naming the setting."""

    chunk_bytes: int = 1 << 20
    """Read at once when an object is only looked through for its digest."""
    folders_kept_max: int = 10_000
    """Folders of a directory that are remembered as durable; beyond it all are made durable again."""
    link_tries_max: int = 5
    """A folder may be removed, as empty, between being made and being used."""
    request_timeout_ms: int = knob(60_000)
    """For S3 to take a connection, and to answer."""
    delete_names_max: int = 1_000
    """Names in one request of S3, which takes no more than a thousand."""

    def __post_init__(self) -> None:
        check_positive(self, "blobs")
        if self.delete_names_max > 1_000:  # noqa: PLR2004 - S3's
            raise ValueError(f"blobs setting delete_names_max: expected 1 to 1000, found {self.delete_names_max}")
