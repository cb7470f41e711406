"""What an installation stores on its machine is its owner's alone."""

import os
import stat
from pathlib import Path

import pytest

from tidemark.services.local.supervisor import LocalCluster, LocalSettings
from tidemark.shared.adapters.commit_store import SqlCommitStore

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.mark.parametrize("made_before", [False, True])
def test_the_local_folder_is_its_owners(tmp_path: Path, *, made_before: bool) -> None:
    """Made so, and closed where an earlier version left it open."""
    folder = tmp_path / "data"
    if made_before:
        folder.mkdir(mode=0o755)
    LocalCluster(LocalSettings(data_dir=folder)).make_folder()
    assert folder.stat().st_mode & OTHERS == 0


@pytest.mark.parametrize("made_before", [False, True])
async def test_the_coordinators_database_is_its_owners(tmp_path: Path, *, made_before: bool) -> None:
    """With the files beside it, whatever the process' umask."""
    before = os.umask(0o022)
    try:
        if made_before:
            (tmp_path / "coordinator.db").touch(mode=0o644)
        store = SqlCommitStore(f"sqlite:///{tmp_path / 'coordinator.db'}")
        await store.open()
        await store.processors()
        files = list(tmp_path.iterdir())
        assert len(files) > 1
        assert [file.name for file in files if file.stat().st_mode & OTHERS] == []
        await store.close()
    finally:
        os.umask(before)
