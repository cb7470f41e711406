"""Where log lines go: a disk that is full takes none, which stops nothing; how many were lost is said with the next."""

from typing import TextIO


class Lines:
    """A text stream for loggers whose writes never fail.

    A service waits an outage out; if its own log raised then, the log would end the service.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0
        """Writes that were refused since the last that was not."""

    def write(self, text: str) -> int:
        """Write, after a note about lost text; the number of characters taken, all of them."""
        try:
            if self.lost:
                self._stream.write(f"{self.lost} log writes were lost: the disk was full or the stream closed\n")
                self._stream.flush()
                self.lost = 0
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Flush the stream's buffer, if possible."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
