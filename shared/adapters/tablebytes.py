"""The files of others' tables as bytes: only where documents may reach, and what is damaged told apart from what cannot be read now."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

DAMAGED: Final = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, IsADirectoryError, NotADirectoryError,
    pa.ArrowException,
)  # fmt: skip
"""What comes of metadata that is not what it should be."""


class Outside(ValueError):
    """A table's metadata names a place out of its folder: which."""


def inside(path: str) -> str:
    """The same path below a table's folder. Outside where it leads elsewhere."""
    if urlsplit(path).scheme or path.startswith("/") or ".." in path.split("/"):
        raise Outside(path)
    return path


class Folder:
    """A table's, on one of fsspec's file systems. `check` raises where documents may not reach a path of this machine."""

    def __init__(self, filesystem: Any, path: str, check: Callable[[str], None]) -> None:
        self.path = path.rstrip("/")
        self.filesystem = filesystem
        protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else {*filesystem.protocol}
        self.local = bool(protocols & {"file", "local"})
        self._check = check

    def open(self, name: str) -> Any:
        """The bytes of a file in it. Outside, what `check` raises, OSError."""
        path = f"{self.path}/{inside(name)}"
        if self.local:
            self._check(path)  # a link may lead anywhere; elsewhere there are none
            return self.filesystem.open(path, "rb")
        return self.filesystem.open(path, "rb", cache_type="none")  # parts are asked for, and nothing behind them

    def has(self, name: str) -> bool:
        """Whether a file is there. OSError."""
        try:
            self.filesystem.info(f"{self.path}/{name}")
        except FileNotFoundError:
            return False
        return True

    def sizes(self, name: str) -> dict[str, int]:
        """Names of what lies in a folder in it, with their bytes; none if there is none. OSError."""
        try:
            found = self.filesystem.ls(f"{self.path}/{name}", detail=True)
        except FileNotFoundError:
            return {}
        return {str(each["name"]).rstrip("/").rpartition("/")[2]: int(each["size"] or 0) for each in found}

    def modified_ms(self, name: str) -> int:
        """When a file was written. OSError."""
        return int(self.filesystem.modified(f"{self.path}/{name}").timestamp() * 1_000)


class Watched:
    """An open file, for Arrow: remembers what kept it from being read, for Arrow's errors of damage are of the same kind."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.lost: Exception | None = None

    def read(self, size: int = -1) -> Any:
        """As of a file."""
        return self._kept(self._file.read, size)

    def seek(self, place: int, whence: int = 0) -> int:
        """As of a file."""
        return int(self._kept(self._file.seek, place, whence))

    def _kept(self, do: Callable[..., object], *told: int) -> Any:
        try:
            return do(*told)
        except Exception as error:
            self.lost = error
            raise

    def tell(self) -> int:
        """As of a file."""
        return int(self._file.tell())

    def close(self) -> None:
        """As of a file."""
        self._file.close()

    @property
    def closed(self) -> bool:
        """As of a file."""
        return bool(self._file.closed)


@contextmanager
def watched(open_: Callable[[], object]) -> Iterator[Watched]:
    """A file for Arrow. ValueError, ArrowException where it is damaged; what opens and reads it raises where it cannot be read."""
    file = Watched(open_())
    try:
        yield file
    except OSError as error:
        if file.lost is not None:
            raise file.lost from error
        raise ValueError(f"it is damaged: {error}") from error  # all that was asked for was read
    finally:
        file.close()
