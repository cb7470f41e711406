"""File systems of fsspec: listings that are whole, or an error; and the errors for places that cannot be reached."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem


def unreachable(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """For `except`, with others besides.

    Errors of S3's library on a name that nobody resolves, or a connection that is refused or broken, are no OSErrors.
    """
    names = {"botocore.exceptions": ("ConnectionError", "HTTPClientError"), "aiohttp": ("ClientError",)}
    # Where none of a library was loaded, none of its errors can have been raised: file systems load theirs.
    loaded = [(sys.modules[module], each) for module, kinds in names.items() if module in sys.modules for each in kinds]
    return (*others, OSError, TimeoutError, *(getattr(module, each) for module, each in loaded))


def raise_unless_gone(error: OSError) -> None:
    """For `os.walk`, which passes over a folder that it cannot read: raise, but where the folder is gone, for then nothing is in it."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def opened(place: str, config: Mapping[str, object]) -> tuple[Any, str]:
    """Fsspec's file system of a path or URL, and the path in it. ValueError, ImportError, TypeError.

    It is nobody else's. Its walks, finds and globs raise OSError for a folder that they cannot read. fsspec's own pass over it, below the
    first one even where they are told to raise.
    """
    filesystem, path = fsspec.url_to_fs(place, **{**config, "skip_instance_cache": True})
    name = "_walk" if isinstance(filesystem, AsyncFileSystem) else "walk"
    setattr(filesystem, name, partial(getattr(filesystem, name), on_error=raise_unless_gone))
    return filesystem, str(path)


def listing_of(filesystem: Any, path: str) -> list[str]:
    """All files and objects below a path of a file system (`opened`), as it names them; [] if there is no such path. Blocks; OSError."""
    filesystem.invalidate_cache()
    try:
        return list(filesystem.find(path))
    except FileNotFoundError:
        if filesystem.exists(path):
            raise  # A folder in it is gone: the rest is not known.
        return []


def folders_of(filesystem: Any, path: str) -> list[str]:
    """The entries directly below a path, as the file system names them; [] if there is no such path. Blocks; OSError."""
    filesystem.invalidate_cache()
    try:
        return [found["name"] for found in filesystem.ls(path, detail=True) if found["type"] == "directory"]
    except FileNotFoundError:
        return []
