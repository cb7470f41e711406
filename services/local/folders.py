"""Installations on folders of this machine: which one a command means, and where it writes its address."""

from contextlib import suppress
from pathlib import Path
from typing import Final

ADDRESS_FILE: Final = "control.json"
"""The control service's URL and the file of its token, while it runs."""
BROKER_VARIABLE: Final = "LOCAL_KAFKA"
"""The variable that a local installation sets for documents: the address of its own broker. `KAFKA` is the user's."""
_HOME: Final = Path(".tidemark")
RUN: Final = _HOME / "run"
"""Where `tidemark run` keeps broker, state and logs unless told otherwise."""
DEMO: Final = _HOME / "demo"
"""The same for `tidemark demo`."""
STORE: Final = "coordinator.db"
"""Where it lies, something has run."""


class NoInstallation(Exception):
    """There is no installation in a folder. The message names the commands that make one."""


def chosen(data: Path | None) -> Path:
    """The folder that was named, or the one of run and demo that was written last. NoInstallation if nothing is there."""
    if data is not None:
        if not (data / STORE).exists():
            message = f"{data}: no installation is kept there (no {STORE}); `tidemark run FILE --data {data}` makes one"
            raise NoInstallation(message)
        return data
    found = [folder for folder in (RUN, DEMO) if (folder / STORE).exists()]
    if not found:
        message = f"no installation in {RUN} or {DEMO}: `tidemark demo` or `tidemark run FILE` makes one, --data names another"
        raise NoInstallation(message)
    return max(found, key=_written_s)


def _written_s(folder: Path) -> float:
    """When the store was last written. A change is first in the write-ahead log, which is deleted when the store's last user closes it."""
    found = (folder / STORE).stat().st_mtime
    with suppress(FileNotFoundError):
        found = max(found, (folder / f"{STORE}-wal").stat().st_mtime)
    return found
