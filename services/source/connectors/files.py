"""The file source: JSON lines, CSV or Parquet files that match a glob, on any file system that fsspec knows.

- `ordered`: all files are one split, read in the order of their names. Else each file is a split; its ordinal (D11) is a hash of its
  name, which every task computes alike and no later file changes.
- `follow`: new files, and lines added to files, are read without end. Else a file ends where it ends, and with the last one the source.
- I2: all records of a file are read from the file that was begun. A snapshot has the fingerprint of the file that its position names, and
  those of the last files that a sequence has passed.
- A record's timestamp is the time of its file's last change: it is the same after a restart.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.services.source.connectors.cursorsplits import CursorSplit, CursorSplits, Turns, ended_by_outage
from tidemark.services.source.connectors.filecursors import Cursor, FileCursor, Files, Piece, SequenceCursor
from tidemark.services.source.connectors.filereaders import reader_of
from tidemark.services.source.connectors.tablefolders import TableFolders
from tidemark.shared.language.limits import DEFAULTS
from tidemark.shared.language.stages import FileFormat
from tidemark.shared.language.stages.sources.files import no_file
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import FIRST_OFFSET, Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import LogUnavailable

_SCAN_BYTES: Final = 4 * 1024 * 1024
"""Read at once when the end of a file is looked for: a piece, as of a fetch."""
SEQUENCE: Final = SplitId("files")
"""The one split of files that are read in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSourceSettings:
    """The files to read, and bounds."""

    glob: str
    format: FileFormat
    place: str = "$source"
    """Of the stage in its document, for messages."""
    ordered: bool = True
    follow: bool = False
    types: Mapping[str, str]
    """Declared type by field: CSV fields are converted to it."""
    record_bytes_max: int = DEFAULTS.record_bytes_max
    """Of a line: the document's limit."""
    files_max: int = 100_000
    poll_ms: int = 500
    """How long to wait before looking for new files and lines, at most."""


def ordinal_of(name: str) -> int:
    """The ordinal of a file that is a split of its own: 31 bits of its name's digest."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1


class FileConnector:
    """`SourcePort` over files. `filesystem` is fsspec's."""

    def __init__(
        self,
        settings: FileSourceSettings,
        filesystem: object,
        executor: Executor,
        clock: Clock,
        may_read: Callable[[str], None],
    ) -> None:
        """may_read: see `Files`."""
        self._settings = settings
        tables = TableFolders(filesystem, settings.glob) if settings.format == "parquet" else None
        self._files = Files(filesystem, settings.glob, settings.files_max, may_read, tables)
        self._reader = reader_of(settings.format, settings.types, settings.record_bytes_max)
        self._executor = executor
        self._clock = clock
        self._splits: CursorSplits[Cursor] = CursorSplits()
        self._origins: dict[SplitId, Mapping[str, str]] = {}
        self._turns = Turns()
        self._checked = False

    async def splits(self) -> Mapping[SplitId, int]:
        """The files that match now; with `ordered`, one split for all of them."""
        if self._settings.ordered:
            return {SEQUENCE: 0}
        return {SplitId(name): ordinal_of(name) for name in await self.files()}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """Files begin as they began: the first time, for each is read for it."""
        if not self._checked:
            await self._executor.blocking(self._check, known)
            self._checked = True

    def _check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        for split, was in known.items():
            if was.origin and (name := self._known_by(split)):
                self._files.origin(self._reader, name, was.origin)

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """A file is read from its beginning; where it ends shows then. LogUnavailable where none is there to be read to its end."""
        if first and not self._settings.follow and not await self.look():
            raise LogUnavailable(
                f"{no_file(self._settings.place, self._settings.glob)}; it is looked for again"
                " (a source with follow: true begins without one)"
            )
        return await self._executor.blocking(lambda: {split: self._found(split) for split in splits})

    def _found(self, split: SplitId) -> KnownSplit:
        name = self._known_by(split)
        return KnownSplit(self._ordinal(split), self._files.origin(self._reader, name) if name else "", FIRST_OFFSET)

    def _known_by(self, split: SplitId) -> str:
        """The file that a split is known by: of a sequence the first one, if there is one yet."""
        return next(iter(self._files.names()), "") if self._settings.ordered else split

    def _ordinal(self, split: SplitId) -> int:
        return 0 if self._settings.ordered else ordinal_of(split)

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """Behind the last record that is whole; a source that does not follow its files ends by itself."""
        if not self._settings.follow:
            return dict.fromkeys(positions)
        return await self._executor.blocking(self._ends, positions)

    def _ends(self, positions: Mapping[SplitId, Offset]) -> dict[SplitId, Offset | None]:
        found: dict[SplitId, Offset | None] = {}
        for split, position in positions.items():
            cursor = self._cursor(split, position)
            while not cursor.at_end:
                cursor.read(_SCAN_BYTES)
            found[split] = Offset(cursor.position)
        return found

    async def look(self) -> bool:
        """Whether files match now. LogError if there are more than `files_max`, or one is part of a table."""
        return bool(await self.files())

    async def files(self) -> Sequence[str]:
        """Those that match now, sorted. LogError as `look`."""
        return await self._executor.blocking(self._files.names)

    def know(self, origins: Mapping[SplitId, Mapping[str, str]]) -> None:
        """See `KnowsOrigins.know`."""
        self._origins.update(origins)

    def origins(self, split: SplitId, position: Offset) -> Mapping[str, str]:
        """See `KnowsOrigins.origins`."""
        if split not in self._splits:
            return self._origins.get(split, {})
        cursor = self._splits[split].cursor
        return cursor.origins.up_to(cursor.file_at(position))

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """See `Source.open`. SourceReplaced where files are no longer those that were begun."""
        for split, position in positions.items():
            if split not in self._splits:
                cursor = self._cursor(split, position)
                await self._executor.blocking(cursor.origins.check_all)
                self._splits[split] = CursorSplit(self._ordinal(split), cursor)

    def _cursor(self, split: SplitId, position: int) -> Cursor:
        follow, known = self._settings.follow, self._origins.get(split, {})
        if self._settings.ordered:
            by_place, now_ms = self._settings.format == "parquet", self._clock.monotonic_ms
            return SequenceCursor(self._files, self._reader, position, known, now_ms, follow=follow, by_place=by_place)
        return FileCursor(self._files, self._reader, split, position, known, follow=follow)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """See `Source.fetch`."""
        batches = await self._executor.blocking(self._read, max_bytes)
        if not batches and not self._splits.ended():
            await self._clock.sleep_ms(min(timeout_ms, self._settings.poll_ms))
        return batches

    def _read(self, max_bytes: int) -> list[RawBatch]:
        """Pieces of the splits."""
        batches: list[RawBatch] = []
        taken = 0
        with ended_by_outage(batches):
            for name in self._turns.of(list(self._splits)):
                split = self._splits[name]
                while not split.finished and taken < max_bytes:
                    found = split.cursor.read(max_bytes - taken)
                    if found is not None:
                        batch = self._batch(name, split, found)
                        batches += [batch] if len(batch.positions) else []
                        taken += sum(map(len, found.rows.values))
                    if split.cursor.at_end:
                        break
        return batches

    def _batch(self, name: SplitId, split: CursorSplit[Cursor], piece: Piece) -> RawBatch:
        rows, file = piece.rows, piece.file
        positions = np.array(rows.positions, dtype=np.int64)
        count = len(positions) if split.until is None else int(np.searchsorted(positions, split.until))
        changed = self._files.modified_ms(file)
        return RawBatch(
            split=name,
            partition=split.ordinal,
            positions=positions[:count],
            timestamps_ms=np.full(count, self._clock.now_ms() if changed is None else changed, dtype=np.int64),
            values=pa.array(rows.values[:count], pa.binary()),
            unread={row: why for row, why in rows.unread.items() if row < count},
            file=file,
            file_begin=piece.begin,
            orders=None if piece.orders is None else np.array(piece.orders[:count], dtype=np.int64),
        )

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        return self._splits.status()

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._splits.end_at(until)

    async def close(self) -> None:
        """Close the files that are read in part."""
        await self._executor.blocking(self._reader.close)
