"""A log that cannot be written stops nothing, and nothing is lost without a count."""

import errno
import io

from tidemark.shared.process.logged import Lines


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
