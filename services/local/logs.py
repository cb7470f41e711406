"""The services' log files, bounded: each process writes at the end of its own, for months perhaps. A file too long becomes `….log.1`.

The file stays the same one, for the process has it open: it is copied, and then emptied. A line that comes between the two is lost.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import structlog

from tidemark.shared.process.host import GIVES_UP

_log = structlog.get_logger()


_LAST_LINE_BYTES_MAX = 16_384
"""Read from the end of a log: a sentence is far shorter."""


def last_words(path: Path) -> str:
    """A process' last message, if it said that another start would not help; else ""."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_LINE_BYTES_MAX))
        lines = file.read().decode(errors="replace").rstrip().splitlines()
    return lines[-1].removeprefix(GIVES_UP) if lines and lines[-1].startswith(GIVES_UP) else ""


def bound(logs: Iterable[Path], bytes_max: int) -> None:
    """Move the content of each longer log into the file of the same name with `.1`; the older content of that file is gone."""
    for path in logs:
        try:
            if path.stat().st_size > bytes_max:
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
                with path.open("r+b") as file:
                    file.truncate()
        except OSError as error:
            # A full disk, say: it grows on, and is looked at again.
            _log.warning("supervisor.log_not_bounded", path=str(path), reason=error.strerror)
