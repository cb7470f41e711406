"""A table as its library knows it: versions, and the files of each with their rows. `deltatable` and `icebergtable` are its kinds.

A version never changes, so a source that reads one reads the same rows whatever becomes of the table. What it needs can go, though: others
delete files that only earlier versions have (VACUUM, snapshots that expire). Then it fails, and says so.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.adapters.tablebytes import DAMAGED
from tidemark.shared.model.failures import Lasting
from tidemark.shared.ports.log import LogError, LogUnavailable

_A_DIRECTORY: Final = "is a directory"
"""How Arrow tells it, without a number."""
_NAMED_MAX: Final = 500
"""Letters of a name that is too long, for messages."""
Batches = Iterator[pa.RecordBatch]


class VersionRefused(LogError, Lasting):
    """Rows of the table would be wrong, or cannot be read any more: which table and version, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a version. Functions block, and raise what the library raises."""

    name: str
    """Below the table."""
    changed_ms: int
    """When it came, ms since 1970: the arrival of its rows."""
    count: Callable[[], int]
    """How many rows it has."""
    read: Callable[[], Batches]
    """Its rows with the version's columns, in an order that is always the same."""


class TableVersions(Protocol):
    """One table. Functions block; LogUnavailable where waiting may help, VersionRefused."""

    place: str
    """For messages."""

    def identity(self) -> str:
        """Of the table that is there now: another one of its name has another."""
        ...

    def newest(self) -> int:
        """The number of the present version."""
        ...

    def files(self, version: int) -> Sequence[TableFile]:
        """All of a version, those first that came first."""
        ...

    def next(self, version: int) -> int | None:
        """The next version; None: there is none yet. VersionRefused where it takes rows away that were there."""
        ...

    def added(self, version: int) -> Sequence[TableFile]:
        """The files of rows that came with a version that `next` gave; those into which rows were put together are none."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def gone(place: str, version: int, what: str) -> VersionRefused:
    """A version cannot be read to its end."""
    return VersionRefused(
        f"{place}: version {version} is read, and {what}: others have deleted what only earlier versions need (VACUUM, expired snapshots)."
        " Start without state, to read the present version; let such deletions wait for longer than a version is read"
    )


def taken_away(place: str, version: int, operation: str) -> VersionRefused:
    """A version has other rows than the one before it, and not only more."""
    return VersionRefused(
        f"{place}: version {version} ({operation or 'an unnamed operation'}) takes away or changes rows that were read: a table with"
        " follow: true may only grow, and nothing that was given out is taken back. Start without state, to read the table as it is from"
        " there on; or leave follow away, to read one version"
    )


@contextmanager
def reading(place: str, version: int, file: str) -> Iterator[None]:
    """Errors of a file's reading in the words of a source."""
    try:
        yield
    except FileNotFoundError as error:
        raise gone(place, version, f"its file {file} is not there any more") from error
    except DAMAGED as error:
        raise VersionRefused(
            f"{place}: version {version} cannot be read: {file}: not a file of the table's rows as its metadata has them: {error}"
        ) from error
    except unreachable() as error:
        raise away(f"{place}: {file}", error) from error


def away(where: str, error: BaseException) -> LogError:
    """What cannot be reached now; or a name of what can be no file, which time does not mend."""
    if isinstance(error, OSError) and (
        error.errno in (errno.ENAMETOOLONG, errno.ELOOP) or str(error).endswith(_A_DIRECTORY)
    ):
        return VersionRefused(
            f"{where}: a table is damaged, and names what is no file, and can be none: {str(error)[:_NAMED_MAX]}"
        )
    return LogUnavailable(f"{where}: {error}; it is tried again")
