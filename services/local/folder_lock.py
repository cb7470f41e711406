"""One supervisor a data folder. The kernel holds the lock for the process that took it, however that ends: nothing stale is left behind."""

import fcntl
import os
from pathlib import Path
from typing import IO

from tidemark.services.local.broker import BrokerError

_NAME = "lock"


class FolderLock:
    """Taken before anything in the folder is touched. The file stays, with the process id of the last holder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        """Whether the folder is ours."""
        return self._file is not None

    def take(self) -> None:
        """Raises BrokerError: somebody else works on the folder."""
        file = (self._data_dir / _NAME).open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise BrokerError(
                f"{self._data_dir}: expected a folder that nobody works on, found a run on it (pid {holder or 'not known yet'});"
                " `tidemark create FILE --start` adds a pipeline to that one; --data, or `folder` in Python, names another"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Nothing if it was not taken."""
        if self._file is not None:
            self._file.close()
            self._file = None
