"""The wall clock of each process, set from outside while it runs, by a small library before the system's own (`wall.c`).

Only the wall clock moves: the monotonic clock is the machine's, as on a machine whose time is set. We did not take libfaketime: it
also takes the waits of a JVM into its own hands, and a broker then takes seconds for what takes milliseconds.
"""

import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("wall.c")


def can_set() -> bool:
    """Whether this machine can: it has a compiler of C."""
    return shutil.which("cc") is not None


class Clocks:
    """By place. A folder has a file for each: by how many seconds it is ahead."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ahead: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._library = folder / "wall.so"
        if can_set():
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE)], check=True)

    def variables(self, place: str) -> dict[str, str]:
        """What a process at a place is given; it may be started before or after its clock is set."""
        if not self._library.exists():
            return {}
        self._write(place)
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK": str(self._file(place))}

    def put(self, places: Iterable[str], ahead_s: float) -> None:
        """Set clocks; 0: right."""
        for place in places:
            self._ahead[place] = ahead_s
            self._write(place)

    def ahead_s(self, place: str) -> float:
        """By how much it is ahead now."""
        return self._ahead.get(place, 0.0)

    def _file(self, place: str) -> Path:
        return self._folder / f"{place}.clock"

    def _write(self, place: str) -> None:
        path = self._file(place)
        path.touch()
        with path.open("r+b") as file:  # the same file: processes have it in their memory
            file.write(struct.pack("d", self.ahead_s(place)))
