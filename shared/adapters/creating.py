"""Files and objects that are created only if there is none of their name, also if the answer to the first attempt is lost.

A client library repeats a request whose answer did not come, and a file server a link: the repeat then finds the name taken, by the first
try. The content tells: the same inode, or the same bytes, are our own attempt, for a name is given to one content only.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class Folders:
    """Folders below a root that survive a loss of power, also those of another process: it may have died before they did. Blocks; OSError.

    fsync: False: they survive the process only. folders_max: how many are known to be durable; beyond it all are forced once more.
    """

    def __init__(self, root: Path, *, fsync: bool, folders_max: int) -> None:
        self._root = root
        self._fsync = fsync
        self._folders_max = folders_max
        self._durable: dict[Path, int] = {}
        """Inodes of the folders whose entries in the folders above this object has forced."""

    def make(self, folder: Path) -> None:
        """Make it where it is not there, and those above it, each durable in the one above."""
        found = []
        while folder != folder.parent and not self._is_durable(folder):
            found.append(folder)
            folder = folder.parent
        if len(self._durable) > self._folders_max:
            self._durable.clear()
        for path in reversed(found):
            path.mkdir(exist_ok=True)
            # A user without the right to read the folder above the root did not make the root.
            with suppress(*([PermissionError] if path == self._root else [])):
                self.force(path.parent)
            self._durable[path] = path.stat().st_ino

    def keep(self, folder: Path) -> None:
        """Make the entries of a folder durable, and its own: it may have gone, and been made anew by others, since `make`."""
        self.make(folder)
        self.force(folder)

    def gone(self, folder: Path) -> None:
        """Know no more of a folder that was removed: each commit has one."""
        self._durable.pop(folder, None)

    def force(self, path: Path) -> None:
        """Make a file, or the entries of a folder, durable."""
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _is_durable(self, folder: Path) -> bool:
        """Folders above the root are durable, if they are there."""
        if not folder.is_relative_to(self._root):
            return folder.is_dir()
        try:
            return self._durable.get(folder) == folder.stat().st_ino
        except FileNotFoundError:
            return False


def create_object(filesystem: Any, path: str, data: bytes) -> bool:
    """Write an object of an fsspec file system whole, if there is none; False if another content has the name. Blocks; OSError."""
    try:
        filesystem.pipe_file(path, data, mode="create")
    except OSError as error:
        if not _name_taken(error):
            raise
        # Some stores answer from a listing that they remember.
        filesystem.invalidate_cache()
        return bool(filesystem.cat_file(path) == data)
    return True


def link_file(temporary: Path, final: Path) -> bool:
    """Give a complete file its name, if it is free; False if another content has it. Blocks; OSError."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        return final.samefile(temporary) or final.read_bytes() == temporary.read_bytes()
    return True


def _name_taken(error: OSError) -> bool:
    """Whether the store refused because of the condition: s3fs knows S3's answer, but not that of stores that name no condition."""
    answer = getattr(error.__cause__, "response", None) or {}
    return isinstance(error, FileExistsError) or answer.get("Error", {}).get("Code") in ("PreconditionFailed", "412")
