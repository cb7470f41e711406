"""Where a split of files stands: in one file, or in a sequence of files that is read as one (`ordered`).

A position in a sequence is one number, so that it can stand in a snapshot and order records (D11): the file's place in the order of names
(20 bits), a check on the names up to it (8 bits), and the position in the file (35 bits). A new name that sorts before a file already begun
would move all places behind it. The check, and the names seen, turn that into an error instead of skipped or repeated records.
Another number orders records among all of the split: their byte, as if the files were one. It leaves room for a union's mark, and
tells how far two records are apart (`recordIdHorizon`).
"""

import errno
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final, Protocol

from fsspec.implementations.local import LocalFileSystem

from tidemark.services.source.connectors.filereaders import FileReader, FileRecords
from tidemark.services.source.connectors.tablefolders import TableFolders, is_pattern
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced

PLACE_BITS: Final = 20
CHECK_BITS: Final = 8
INSIDE_BITS: Final = 35
PLACE_BEGIN: Final = INSIDE_BITS + CHECK_BITS
"""The bits of a position behind a file's place."""
_KNOWN_BY_BYTES: Final = 4096
"""Read of a file to tell it from another one of its name."""
_KNOWN_BY_RECORDS: Final = 8
"""Taken of that: how many of its first records a file is known by, at most."""
_DIGEST_DIGITS: Final = 24
"""Of the digest of these records, hexadecimal: 96 bits."""
_PASSED_MAX: Final = 16
"""Files of a sequence that a position knows, its own and the last before it: they lie in each snapshot, and a restore looks at each."""
_STATE: Final = ("ino", "ETag", "mtime", "LastModified", "created", "size")
"""Attributes in a file system that change when the content of a file changes."""
_LOOKS_APART: Final = 9
"""Between two looks for files lies so many times what one took: in a folder of many files a look takes longer than reading one of them."""
_INSIDE: Final = (1 << INSIDE_BITS) - 1
_CHECK: Final = (1 << CHECK_BITS) - 1


@dataclass(frozen=True, slots=True)
class Files:
    """Files that match, on one file system. Functions block. LogUnavailable for errors that waiting may mend."""

    filesystem: Any
    """An fsspec file system."""
    glob: str
    files_max: int
    may_read: Callable[[str], None]
    """Raises for a path of this machine that the document may not reach: a pattern, or a link, leads anywhere."""
    tables: TableFolders | None = None
    """Looks for tables among the folders of the files; None: they cannot be part of one."""

    @property
    def folder(self) -> str:
        """The part of the glob before its first pattern, up to its last slash."""
        plain = re.split(r"[*?\[{]", self.glob, maxsplit=1)[0]
        return plain[: plain.rfind("/") + 1]

    def names(self) -> list[str]:
        """All that match now, sorted. LogError if there are more than `files_max`; VersionRefused if one is part of a table."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int | None]:
        """All that match now, in the order of their names, with their sizes in bytes as far as they are known."""
        try:
            self.filesystem.invalidate_cache()
            # A glob takes a file that cannot be looked at for none.
            there = self._matching() if is_pattern(self.glob) else {self.glob: self._at(self.glob)}
        except unreachable() as error:
            raise LogUnavailable(f"$source.path {self.glob}: {error}; it is tried again") from error
        sizes = {name: info.get("size") for name, info in there.items() if info["type"] == "file"}
        if len(sizes) > self.files_max:
            raise LogError(f"$source.path {self.glob}: {len(sizes)} files match, but files_max is {self.files_max}")
        for name in sizes:
            if not _is_text(name):
                raise LogError(
                    f"$source.path {self.glob}: {name!r}: expected a name in UTF-8; rename the file, or leave it out"
                )
        if self.tables is not None:
            self.tables.check(list(sizes))
        return sizes

    def _matching(self) -> dict[str, Mapping[str, Any]]:
        found = self.filesystem.glob(self.glob, detail=True)
        return {name: self._at(name) if info.get("islink") else info for name, info in sorted(found.items())}

    def _at(self, name: str) -> Mapping[str, Any]:
        """What is there, or where the link leads that is; a link that leads nowhere is as good as nothing. OSError."""
        try:
            found: Mapping[str, Any] = self.filesystem.info(name)
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP:
                return {"type": "nothing"}
            raise
        return found

    def read(self, reader: FileReader, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """Records of one file from a position."""
        if isinstance(self.filesystem, LocalFileSystem):
            self.may_read(name)
        try:
            opening = partial(self.filesystem.open, name, "rb")
            return reader.read(opening, name, position, max_bytes, grows=grows)
        except FileNotFoundError as error:
            raise LogError(
                f"{name}: deleted before it was read to its end (position {position}); restore it, or start without state"
            ) from error
        except unreachable() as error:
            raise LogUnavailable(f"{name}: {error}; it is tried again") from error

    def origin(self, reader: FileReader, name: str, known: str = "") -> str:
        """Fingerprint of a file: the number of its first records that are known, and their digest.

        Records rather than bytes, because a Parquet file that is written again with more rows is the same file. "" for a file that has no
        record yet, or that cannot be read: the reader reports that. `known`: the earlier fingerprint. SourceReplaced if the file no longer
        begins so.
        """
        try:
            values = self.read(reader, name, 0, _KNOWN_BY_BYTES, grows=True).values
        except LogUnavailable:
            raise
        except LogError:
            return known
        count = int(known.partition(":")[0]) if known else min(len(values), _KNOWN_BY_RECORDS)
        lines = hashlib.sha256(b"\n".join(values[:count])).hexdigest()[:_DIGEST_DIGITS]
        found = f"{min(count, len(values))}:{lines}" if count else ""
        if known and found != known:
            raise SourceReplaced(
                f"{name}: its first {count} records are no longer what they were: another file has its name, and positions in the one mean"
                " nothing in the other. Bring the old file back; or start without state, to read the new one from its beginning"
            )
        return found

    def state(self, name: str) -> tuple[str, ...]:
        """As long as it stays so, the file has not changed. LogUnavailable; LogError where it is gone."""
        try:
            info = self.filesystem.info(name)
        except FileNotFoundError as error:
            raise LogError(f"{name}: deleted while it was read; restore it, or start without state") from error
        except unreachable() as error:
            raise LogUnavailable(f"{name}: {error}; it is tried again") from error
        return tuple(str(info.get(key)) for key in _STATE)

    def modified_ms(self, name: str) -> int | None:
        """When the file was last changed, ms since 1970: stands for arrival, and says the same after a restart; None if not known."""
        try:
            return int(self.filesystem.modified(name).timestamp() * 1000)
        except unreachable(NotImplementedError):
            return None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Origins:
    """Fingerprints of the files that a split's position names or has passed (I2), by their names below the folder. Functions block."""

    def __init__(self, files: Files, reader: FileReader, known: Mapping[str, str]) -> None:
        self._files = files
        self._reader = reader
        self.known = dict(known)
        """In the order in which they were begun."""
        self._state: tuple[str, ...] | None = None
        self._last = ""

    def check_all(self) -> None:
        """As `check`, each that is known."""
        for name in list(self.known):
            self._compare(self._files.folder + name)

    def check(self, name: str) -> None:
        """Check that no other file has taken the place of the one that was begun. SourceReplaced if one has.

        Call it after each read, so that records of a replacement are not handed out.
        """
        state = self._files.state(name)
        if (name, state) != (self._last, self._state):
            self._compare(name)
            self._last, self._state = name, state

    def _compare(self, name: str) -> None:
        below = name.removeprefix(self._files.folder)
        if found := self._files.origin(self._reader, name, self.known.get(below, "")):
            self.known[below] = found

    def up_to(self, last: str) -> Mapping[str, str]:
        """Of a position in this file, and of the last files before it; what lies further back is forgotten. "": of all that were begun.

        Another thread may be reading, far ahead of the position.
        """
        begun = [name for name in list(self.known) if not last or self._files.folder + name <= last]
        found = {name: self.known[name] for name in begun[-_PASSED_MAX:]}
        for name in begun[:-_PASSED_MAX]:
            del self.known[name]
        return found


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one file."""

    rows: FileRecords
    file: str
    begin: int = 0
    """Where the file begins among the orders."""
    orders: list[int] | None = None
    """Numbers that order the records among those of the split; None: their positions do."""


class Cursor(Protocol):
    """One split of files. Functions block."""

    position: int
    at_end: bool
    finished: bool
    origins: Origins

    def read(self, max_bytes: int) -> Piece | None:
        """The next records; None if there are none now."""
        ...

    def file_at(self, position: int) -> str:
        """The file that a position names; "" behind the last one."""
        ...


class FileCursor:
    """A file as a split of its own."""

    def __init__(
        self, files: Files, reader: FileReader, name: str, position: int, known: Mapping[str, str], *, follow: bool
    ) -> None:
        self.origins = Origins(files, reader, known)
        self._files = files
        self._reader = reader
        self._name = name
        self._follow = follow
        self.position = position
        self.at_end = False
        self.finished = False

    def read(self, max_bytes: int) -> Piece | None:
        """See `Cursor.read`."""
        rows = self._files.read(self._reader, self._name, self.position, max_bytes, grows=self._follow)
        self.origins.check(self._name)
        self.position = rows.next_position
        self.at_end = rows.at_end
        self.finished = rows.at_end and not self._follow
        return Piece(rows, self._name) if rows.values else None

    def file_at(self, position: int) -> str:
        """See `Cursor.file_at`."""
        del position
        return self._name


class SequenceCursor:
    """All files as one split, in the order of their names.

    With `follow`, a file is done when one with a later name is there: only the last one grows.
    """

    def __init__(
        self,
        files: Files,
        reader: FileReader,
        position: int,
        known: Mapping[str, str],
        now_ms: Callable[[], int],
        *,
        follow: bool,
        by_place: bool,
    ) -> None:
        """now_ms: of the monotonic clock."""
        self.origins = Origins(files, reader, known)
        self._files = files
        self._now_ms = now_ms
        self._look_ms = 0
        """When to look for files again."""
        self._by_place = by_place
        self._reader = reader
        self._follow = follow
        self._names: list[str] = []
        self._begins: list[int] = []
        """By place: where the file begins among the orders."""
        self._checks: list[int] = []
        """By place: the check on the names up to it."""
        self.position = position
        self.at_end = False
        self.finished = False

    def read(self, max_bytes: int) -> Piece | None:
        """See `Cursor.read`."""
        self._look()
        place, inside = self._place()
        while place < len(self._names):
            last = place == len(self._names) - 1
            rows = self._files.read(self._reader, self._names[place], inside, max_bytes, grows=self._follow and last)
            self.origins.check(self._names[place])
            self.position = self._encode(place, rows.next_position)
            if rows.at_end and not last:
                self.position = self._encode(place + 1, 0)
            self.at_end = rows.at_end and last
            self.finished = self.at_end and not self._follow
            if rows.values:
                self._encode(place, rows.positions[-1])
                shifted, begin = self._encode(place, 0), self._begins[place]
                moved = replace(
                    rows,
                    positions=[shifted | at for at in rows.positions],
                    next_position=self.position,
                    at_end=self.at_end,
                )
                return Piece(moved, self._names[place], begin, [begin + at for at in rows.positions])
            if not rows.at_end or last:
                return None
            place, inside = place + 1, 0
        self.at_end, self.finished = True, not self._follow
        return None

    def file_at(self, position: int) -> str:
        """See `Cursor.file_at`."""
        names, place = self._names, position >> PLACE_BEGIN
        return names[place] if place < len(names) else ""

    def _look(self) -> None:
        """See which files there are, and that none came before those that were begun. Looking takes a tenth of the time at most."""
        began_ms = self._now_ms()
        if self._names and (not self._follow or began_ms < self._look_ms):
            return
        sizes = self._files.sizes()
        names = list(sizes)
        place = self.position >> PLACE_BEGIN
        if self._names and names[: place + 1] != self._names[: place + 1]:
            raise LogError(self._disorder(f"expected {self._names[place]} at place {place}"))
        self._begins = self._orders(list(sizes.values()))
        if names != self._names:
            self._names, self._checks = names, self._checks_of(names)
        begun = place < len(names) or place == 0
        if not begun or (self.position and self.position & ~_INSIDE != self._encode(place, 0)):
            raise LogError(self._disorder(f"place {place} holds another file than when it was begun"))
        now_ms = self._now_ms()
        self._look_ms = now_ms + _LOOKS_APART * (now_ms - began_ms)

    def _checks_of(self, names: Sequence[str]) -> list[int]:
        """Of the names without the folder, so that moving everything changes nothing; each on all names up to its place."""
        found: list[int] = []
        check = 0
        for name in names:
            text = name.removeprefix(self._files.folder).encode()
            check = zlib.crc32(b"\n" + text if found else text, check)
            found.append(check & _CHECK)
        return found

    def _orders(self, sizes: Sequence[int | None]) -> list[int]:
        """The bytes that stand before each. By places where rows may take less than a byte (Parquet), or nobody knows the sizes."""
        if self._by_place or None in sizes:
            return [place << INSIDE_BITS for place in range(len(sizes))]
        return list(accumulate((size or 0 for size in sizes[:-1]), initial=0))

    def _disorder(self, found: str) -> str:
        return (
            f"$source.path {self._files.glob}: {found}: a file that sorts before it came or went. With `ordered` new files need"
            " names that sort last; use `ordered: false`, or start without state"
        )

    def _place(self) -> tuple[int, int]:
        return self.position >> PLACE_BEGIN, self.position & _INSIDE

    def _encode(self, place: int, inside: int) -> int:
        if place >> PLACE_BITS or inside >> INSIDE_BITS:
            raise LogError(
                f"$source.path {self._files.glob}: `ordered` reads at most {1 << PLACE_BITS} files of {1 << INSIDE_BITS} bytes"
            )
        check = self._checks[min(place, len(self._checks) - 1)] if self._checks else 0
        return place << PLACE_BEGIN | check << INSIDE_BITS | inside
