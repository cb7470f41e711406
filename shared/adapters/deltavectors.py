"""Deletion vectors as a Delta Lake table's log names them: in the log itself, or in a file of the table's folder.

(delta.io, PROTOCOL.md: Deletion Vectors.)
"""

import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.adapters.deletionvectors import Places, check_bytes, places_of, unframed
from tidemark.shared.adapters.tablebytes import Outside

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS: Final = {letter: number for number, letter in enumerate(_Z85)}
_INLINE: Final = "i"
_BELOW: Final = "u"
_ABSOLUTE: Final = "p"
_UUID: Final = 20
"""Letters of a file's id."""
_AROUND: Final = 8
"""Bytes of a vector's size and checksum, in a file."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`storage`: where it is, as the protocol has it."""

    storage: str
    text: str
    """Itself, or the id of its file."""
    offset: int | None
    size: int
    """Bytes."""
    cardinality: int
    """Rows that it deletes."""

    @property
    def id(self) -> str:
        """What tells it from other vectors of its file."""
        return f"{self.storage}{self.text}" + ("" if self.offset is None else f"@{self.offset}")

    @property
    def file(self) -> str | None:
        """Below the table; None: it is in the log. Outside where it is anywhere else."""
        if self.storage == _INLINE:
            return None
        if self.storage == _ABSOLUTE:
            raise Outside(self.text)
        if self.storage != _BELOW or len(self.text) < _UUID:
            raise ValueError(f"a deletion vector is stored as {self.storage!r}: {self.text!r:.300}")
        name = f"deletion_vector_{uuid.UUID(bytes=_bytes_of(self.text[-_UUID:]))}.bin"
        return f"{self.text[:-_UUID]}/{name}" if len(self.text) > _UUID else name

    def places(self, open_: Callable[[str], Any], rows: int) -> Iterator[Places]:
        """Rows that are deleted, of so many. `open_`: a file of the table. ValueError where it is damaged, or another file's."""
        check_bytes(self.size, rows)
        return places_of(self._data(open_), rows, self.cardinality)

    def _data(self, open_: Callable[[str], Any]) -> bytes:
        if self.file is None:
            data = _bytes_of(self.text)
            if not 0 <= len(data) - self.size < len(struct.pack("<I", 0)):
                raise ValueError(f"a deletion vector of {self.size} bytes has {len(data)} in the log")
            return data[: self.size]
        with open_(self.file) as file:
            whole, begin = int(file.seek(0, 2)), self.offset or 0
            if begin + self.size + _AROUND > whole:
                raise ValueError(
                    f"{self.file} of {whole} bytes has no deletion vector of {self.size} bytes behind byte {begin}"
                )
            file.seek(begin)
            data = unframed(file.read(self.size + _AROUND))
        if len(data) != self.size:
            raise ValueError(
                f"{self.file} has a deletion vector of {len(data)} bytes, and it is told to have {self.size}"
            )
        return data


def _bytes_of(text: str) -> bytes:
    """What a text of Z85 stands for: five letters are four bytes. ValueError for any other text."""
    words = []
    for at in range(0, len(text), 5):
        word = 0
        for letter in text[at : at + 5].ljust(5):
            if letter not in _DIGITS:
                raise ValueError(f"a deletion vector has {letter!r}, which is no letter of Z85")
            word = word * len(_Z85) + _DIGITS[letter]
        if word >= 1 << 32:
            raise ValueError("a deletion vector has letters that stand for no bytes")
        words.append(word)
    return struct.pack(f">{len(words)}I", *words)
