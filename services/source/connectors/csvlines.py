"""Lines of a CSV file as text, with the bytes of each record. `csv` tells neither where a record begins nor which bytes it cannot read."""

from typing import Any, Final

from tidemark.shared.ports.log import LogError

_UTF8_MARK: Final = b"\xef\xbb\xbf"


class CsvLines:
    """An iterator for `csv.reader`, positioned at a byte. A record above the bound is a LogError: it is more likely none at all."""

    def __init__(self, file: Any, record_bytes_max: int, name: str, at: int = 0) -> None:
        file.seek(at)
        self._file = file
        self._most = record_bytes_max
        self._name = name
        self.at = at
        self.begin = at
        """Where the record began: with quoted fields it may have many lines."""
        self.first_end = at
        """Where its first line ends."""
        self.complete = True
        """The last line had its end."""
        self.ended = False
        """There was no further line."""
        self.undecodable = ""
        """The bytes of the record that are not UTF-8."""

    def begin_record(self) -> None:
        """The lines read next belong to another record."""
        self.begin = self.first_end = self.at
        self.undecodable = ""

    def between(self, end: int) -> bytes:
        """The record's bytes up to a position, without its line end. Reading goes on where it was."""
        self._file.seek(self.begin)
        data: bytes = self._file.read(end - self.begin)
        self._file.seek(self.at)
        return data.rstrip(b"\r\n")

    def __iter__(self) -> "CsvLines":
        return self

    def __next__(self) -> str:
        line: bytes = self._file.readline(self._most)
        if not line:
            self.ended = True
            raise StopIteration
        text = line.removeprefix(_UTF8_MARK) if self.at == 0 else line
        first = self.at == self.begin
        self.at += len(line)
        self.first_end = self.at if first else self.first_end
        self.complete = line.endswith(b"\n")
        if self.at - self.begin > self._most or (not self.complete and len(line) == self._most):
            raise LogError(
                f"{self._name}: byte {self.begin}: no end of a record within {self._most} bytes;"
                " options.limits.recordBytes allows longer ones"
            )
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            self.undecodable = (
                self.undecodable
                or f"byte {text[error.start]:#04x} at its byte {self.at - len(line) - self.begin + error.start}"
            )
            return text.decode("utf-8", "replace")
