"""A log that cannot be written stops nothing, and nothing is lost without a count."""

import errno
import io
import sys
from typing import Any

import pytest

from tidemark.shared.process.logged import Lines, is_terminal


class _Disk(io.StringIO):
    """A stream whose disk can be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_what_a_full_disk_refused_is_counted() -> None:
    """Writes while it is full raise nothing; the first that works says how many were lost."""
    disk = _Disk()
    lines = Lines(disk)
    lines.write("one\n")
    disk.full = True
    lines.write("two\n")
    lines.write("three\n")
    disk.full = False
    lines.write("four\n")
    lines.write("five\n")
    one, lost, four, five = disk.getvalue().splitlines()
    assert (one, four, five) == ("one", "four", "five")
    assert lost.startswith("2 log writes were lost")


def test_a_closed_stream_is_no_reason_to_fail() -> None:
    """At the end of a process the stream may be gone."""
    disk = _Disk()
    disk.close()
    lines = Lines(disk)
    lines.write("one\n")
    assert lines.lost == 1


@pytest.mark.parametrize(
    "stream", [None, _Disk(), type("Writes", (), {"write": lambda _, text: len(text)})(), object()]
)
def test_standard_error_is_what_the_program_has_there(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have none, replace it between two writes, or put something there that only writes; none of these is a terminal."""
    lines, before, after = Lines(), _Disk(), _Disk()
    for each in (before, stream, after):
        monkeypatch.setattr(sys, "stderr", each)
        assert not is_terminal(each)
        lines.write("said\n")
        lines.flush()
    assert before.getvalue() == "said\n"
    assert after.getvalue().endswith("said\n")
    before.close()
    assert not is_terminal(before)
