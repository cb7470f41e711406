"""A command that names no folder means the installation that was used last."""

import os
from pathlib import Path

import pytest

from tidemark.services.local.folders import DEMO, RUN, NoInstallation, chosen


def _make(folder: Path, written_at: int) -> None:
    folder.mkdir(parents=True)
    store = folder / "coordinator.db"
    store.touch()
    os.utime(store, (written_at, written_at))


def test_the_last_used_one_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folders of run and demo the one written last; a folder that is named wins."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoInstallation, match="tidemark demo"):
        chosen(None)
    _make(DEMO, 2)
    assert chosen(None) == DEMO
    _make(RUN, 1)
    assert chosen(None) == DEMO
    os.utime(RUN / "coordinator.db", (3, 3))
    assert chosen(None) == RUN
    (DEMO / "coordinator.db-wal").touch()
    assert chosen(None) == DEMO, "a commit lies in the log until the file is written"
    (DEMO / "coordinator.db-wal").unlink()
    (DEMO / "coordinator.db-wal").symlink_to("gone")
    (DEMO / "coordinator.db-shm").touch()
    assert chosen(None) == RUN, "the log may go while it is looked at; who only reads writes into the index of the log"
    assert chosen(DEMO) == DEMO


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    """Nothing is started or made in a folder that a person mistyped."""
    with pytest.raises(NoInstallation, match=str(tmp_path)):
        chosen(tmp_path)
    assert list(tmp_path.iterdir()) == []
