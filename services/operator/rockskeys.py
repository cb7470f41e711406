"""Cold keys in RocksDB, on a local disk: state larger than memory (`shared/operators/computation_keys.py` has the contract).

Neither log nor sync: it is a copy of state that the task's snapshots hold, and is removed with the task.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar, cast

from rocksdict import Options, Rdict, WriteOptions

from tidemark.shared.model.ids import KeyGroup
from tidemark.shared.operators.base import OperatorError, ScratchUnavailable

WRITE_BUFFERS: Final = 2
"""While one is written to the disk the other is filled."""
_FOLDERS: Final = "tidemark-keys-"
_OF_THE_DISK: Final = ("IO error", "(os error ")
"""In the library's words where the disk is full or fails; others tell of damage."""
T = TypeVar("T")


class RocksKeys:
    """`ColdKeys` in a folder, made here, which `close` removes."""

    def __init__(self, folder: Path, buffer_bytes: int = 16 << 20) -> None:
        """`buffer_bytes`: of writes kept in memory; twice that at the most."""
        self._folder = folder
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(buffer_bytes)
        options.set_max_write_buffer_number(WRITE_BUFFERS)
        options.set_keep_log_file_num(1)
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever its stub says
        try:
            self._store = self._told(lambda: Rdict(str(self._folder), options))
        except OperatorError:
            shutil.rmtree(self._folder, ignore_errors=True)  # what it began to write: nobody would close it
            raise
        self._store.set_write_options(unlogged)

    def put(self, group: KeyGroup, key: bytes, data: bytes) -> None:
        """See `ColdKeys.put`."""
        self._told(lambda: self._store.put(_prefix(group) + key, data))

    def get(self, group: KeyGroup, key: bytes) -> bytes | None:
        """See `ColdKeys.get`."""
        found = self._told(lambda: self._store.get(_prefix(group) + key))
        return cast("bytes | None", found)

    def remove(self, group: KeyGroup, key: bytes) -> None:
        """See `ColdKeys.remove`."""
        self._told(lambda: self._store.delete(_prefix(group) + key))

    def of_group(self, group: KeyGroup) -> Iterator[tuple[bytes, bytes]]:
        """See `ColdKeys.of_group`."""
        prefix = _prefix(group)
        entries = self._told(lambda: cast("Iterator[tuple[bytes, bytes]]", self._store.items(from_key=prefix)))
        while (entry := self._told(lambda: next(entries, None))) is not None and entry[0].startswith(prefix):
            yield entry[0][len(prefix) :], entry[1]

    def close(self) -> None:
        """Remove the files."""
        self._store.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _told(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:  # The library raises bare exceptions for every fault of the disk.
            kind = ScratchUnavailable if any(words in str(error) for words in _OF_THE_DISK) else OperatorError
            raise kind(
                f"keyed state in {self._folder}: {error}; see that the disk has room and can be written to, raise keys_in_memory"
                " in TIDEMARK_RUNTIME, or run more tasks"
            ) from error


class Stores:
    """The stores of one task: made as its operators ask, closed with it."""

    def __init__(self, root: Path, prefix: str, buffer_bytes: int) -> None:
        self._root = root
        self._prefix = prefix
        self._buffer_bytes = buffer_bytes
        self._made: list[RocksKeys] = []

    def make(self) -> RocksKeys:
        """One more. ScratchUnavailable where the folder cannot be made."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._root))
        except OSError as error:
            raise ScratchUnavailable(
                f"keyed state in {self._root}: {error}; see that the disk can be written to"
            ) from error
        self._made.append(RocksKeys(folder, self._buffer_bytes))
        return self._made[-1]

    def close(self) -> None:
        """Remove the files of all of them."""
        while self._made:
            self._made.pop().close()


class Scratch:
    """Where the tasks of one worker have their stores."""

    def __init__(self, root: Path, place: str, buffer_bytes: int = 16 << 20) -> None:
        self.root = root
        self.prefix = f"{_FOLDERS}{place}-"
        self._buffer_bytes = buffer_bytes

    def stores(self) -> Stores:
        """The stores of one task."""
        return Stores(self.root, self.prefix, self._buffer_bytes)

    def sweep(self) -> None:
        """Remove the files of killed workers, of this place or of one that is no more; for a folder that one installation has to itself."""
        for left in self.root.glob(f"{_FOLDERS}*"):
            # Names that are drawn have no hyphen: of places that begin alike each has its own folders.
            own = left.name.startswith(self.prefix) and "-" not in left.name.removeprefix(self.prefix)
            if _is_deserted(left, own=own):
                shutil.rmtree(left, ignore_errors=True)

    def sweep_deserted(self) -> None:
        """Remove the files of ended processes that worked for this worker."""
        for left in self.root.glob(f"{self.prefix}*"):
            if _is_deserted(left, own=False):
                shutil.rmtree(left, ignore_errors=True)


def _is_deserted(folder: Path, *, own: bool) -> bool:
    """No process has it open: the library holds a lock as long as one does. One without a lock is only being made, or left by us."""
    try:
        with (folder / "LOCK").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return own
    except OSError:
        return False
    return True


def _prefix(group: KeyGroup) -> bytes:
    return int(group).to_bytes(4, "big")
