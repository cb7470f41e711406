"""Of a local installation: its folder, while nobody works on it. Broker, store and blobs are of one moment then, whatever processors did.

A restored folder is as after a loss of power at that moment: what was committed is released, what was not is read again.
"""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidemark.services.backup.files import (
    Backup,
    BackupFailed,
    BackupWriter,
    check_free,
    checked,
    listing,
    read_backup,
    write,
)
from tidemark.services.backup.rows import check_whole, processors_of, read_tables, write_tables
from tidemark.services.local.folder_lock import FolderLock
from tidemark.services.local.folders import STORE
from tidemark.services.local.supervisor import KEYS_FILE, TOKEN_FILE
from tidemark.shared.adapters.commit_store import SqlCommitStore

_TREES: Final = ("blobs", "kafka")
_FILES: Final = (KEYS_FILE, TOKEN_FILE, "environment.json")
_LEFT_OUT: Final = ("blobs/.tmp/", "kafka/diagnostics/")
"""Writes that were not finished, and the broker's own logs."""
_OWNERS: Final = 0o700


async def back_up_folder(data_dir: Path, target: Path) -> Backup:
    """Write a backup. BackupFailed, BrokerError where something runs on the folder, StoreUnusable where the store is damaged."""
    data_dir = _outside(data_dir, target)
    lock = FolderLock(data_dir)
    lock.take()
    try:
        url = f"sqlite:///{data_dir / STORE}"
        store = SqlCommitStore(url)
        try:
            await store.open()  # looks through all rows: damage is told now
        finally:
            await store.close()
        with BackupWriter(target) as out:
            tables = read_tables(url)
            write_tables(f"sqlite:///{out.path_of(STORE)}", tables)
            out.add_written(STORE)
            for name in _names(data_dir):
                out.copy(name, data_dir / name)
            check_whole(tables, out.files(), data_dir)
            return out.finish(lambda files: listing("folder", processors_of(tables), files))
    finally:
        lock.release()


def _outside(data_dir: Path, target: Path) -> Path:
    """The folder's absolute path. BackupFailed for a backup inside of what it is a backup of."""
    found = data_dir.resolve()
    if target.resolve().is_relative_to(found):
        raise BackupFailed(f"{target}: expected a place outside of {data_dir}, with which it would be lost")
    return found


def _names(data_dir: Path) -> Iterator[str]:
    """Files of the installation, by name below its folder."""
    yield from (name for name in _FILES if (data_dir / name).exists())
    for tree in _TREES:
        for path in sorted((data_dir / tree).rglob("*")):
            name = path.relative_to(data_dir).as_posix()
            if path.is_file() and not name.startswith(_LEFT_OUT):
                yield name


def restore_folder(source: Path, data_dir: Path) -> Backup:
    """Make a folder from a backup, whole or not at all. BackupFailed."""
    check_free(data_dir, "an installation")
    found = read_backup(source)
    if found.kind != "folder":
        raise BackupFailed(
            f"{source}: expected a backup of a local installation, found one of an installation elsewhere: TIDEMARK_STORE, TIDEMARK_BLOBS"
            " and TIDEMARK_KAFKA name the parts that it goes into"
        )
    check_whole(
        read_tables(f"sqlite:///{(source / STORE).resolve()}"), {file.path: file for file in found.files}, source
    )
    made = data_dir.resolve().with_name(f".{data_dir.name}.{uuid.uuid4().hex}")
    try:
        for file in found.files:
            path = made / file.path
            path.parent.mkdir(mode=_OWNERS, parents=True, exist_ok=True)
            write(path, checked(source, file))
        made.replace(data_dir)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found
