"""What stands in a command's way is said in a sentence; only our own mistakes show a trace."""

import errno
from pathlib import Path

import pytest
import typer

from services.cli.saying import finish, sentence
from services.local.supervisor import LocalCluster, LocalSettings
from shared.ports.log import LogUnavailable


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LogUnavailable("reader: connecting to a:1: no answer; try again"), "a:1"),
        (OSError(errno.ENOSPC, "No space left on device", "out/demo"), "the disk is full at out/demo: free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full: free some space"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "p.yaml"), "p.yaml: No such file"),
    ],
)
def test_what_a_person_can_mend_has_a_sentence(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names place and remedy, ends with status 1 and shows no trace."""

    async def fail() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        finish(fail())
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_a_mistake_of_ours_is_not_hidden() -> None:
    """An error without a sentence goes on as it is."""
    assert sentence(KeyError("x")) is None

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        finish(fail())


async def test_a_disk_that_fills_stops_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its state cannot be written, it says so, goes on, and takes it back when it can be written again."""
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object, **__: object) -> int:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", refuse)
        cluster._write_state()
    assert ["No space left on device" in said for said in cluster.troubles()] == [True]
    cluster._write_state()
    assert cluster.troubles() == []
