"""Files and objects that are created only if there is none of their name, also where the answer to the own attempt is lost.

A client library repeats a request whose answer did not come, and a file server a link: the repeat then finds the name taken, by the first
try. What is there tells: the same inode, or the same bytes, are the own attempt, for a name is given to one content only.
"""

import os
from pathlib import Path
from typing import Any


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
