"""The file source: JSON lines, CSV or Parquet files that match a glob, on any file system that fsspec knows.

- `ordered`: all files are one split, read in the order of their names. Else each file is a split; its ordinal (D11) is a hash of its
  name, which every task computes alike and no later file changes.
- `follow`: new files, and lines added to files, are read without end. Else a file ends where it ends, and with the last one the source.
- A record's timestamp is the time of its file's last change: it says the same after a restart.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from services.source.connectors.filecursors import Cursor, FileCursor, Files, Piece, SequenceCursor
from services.source.connectors.filereaders import reader_of
from shared.language.limits import DEFAULTS
from shared.language.stages.source import FileFormat
from shared.model.ids import Offset, SplitId
from shared.ports.clock import Clock, Executor
from shared.ports.source import RawBatch, SplitStatus

SEQUENCE: Final = SplitId("files")
"""The one split of files that are read in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSourceSettings:
    """What to read, and bounds."""

    glob: str
    format: FileFormat
    ordered: bool = True
    follow: bool = False
    types: Mapping[str, str]
    """Declared type by field: CSV fields are converted to it."""
    record_bytes_max: int = DEFAULTS.record_bytes_max
    """Of a line: the document's limit."""
    files_max: int = 100_000
    poll_ms: int = 500
    """How long to wait before looking for what is new, at most."""


@dataclass(slots=True)
class _Split:
    ordinal: int
    cursor: Cursor
    until: Offset | None = None

    @property
    def finished(self) -> bool:
        return self.cursor.finished or (self.until is not None and self.cursor.position >= self.until)

    @property
    def position(self) -> Offset:
        position = Offset(self.cursor.position)
        return position if self.until is None else min(position, self.until)


def ordinal_of(name: str) -> int:
    """The ordinal of a file that is a split of its own: 31 bits of its name's digest."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1


class FileSource:
    """`Source` over files. `filesystem` is fsspec's."""

    def __init__(self, settings: FileSourceSettings, filesystem: Any, executor: Executor, clock: Clock) -> None:
        self._settings = settings
        self._files = Files(filesystem, settings.glob, settings.files_max)
        self._reader = reader_of(settings.format, settings.types, settings.record_bytes_max)
        self._executor = executor
        self._clock = clock
        self._splits: dict[SplitId, _Split] = {}
        self._turn = 0

    async def splits(self) -> Mapping[SplitId, int]:
        """The files that match now; with `ordered`, one split for all of them."""
        if self._settings.ordered:
            return {SEQUENCE: 0}
        return {SplitId(name): ordinal_of(name) for name in await self.files()}

    async def files(self) -> Sequence[str]:
        """Those that match now, sorted. LogError if there are more than `files_max`."""
        return await self._executor.blocking(self._files.names)

    async def open(self, positions: Mapping[SplitId, Offset | None]) -> None:
        """Read these splits, besides those that are already being read; new ones from their beginning."""
        for split, position in positions.items():
            if split not in self._splits:
                ordinal = 0 if self._settings.ordered else ordinal_of(split)
                self._splits[split] = _Split(ordinal, self._cursor(split, position or 0))

    def _cursor(self, split: SplitId, position: int) -> Cursor:
        follow = self._settings.follow
        if self._settings.ordered:
            return SequenceCursor(
                self._files, self._reader, position, follow=follow, by_place=self._settings.format == "parquet"
            )
        return FileCursor(self._files, self._reader, split, position, follow=follow)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """See `Source.fetch`."""
        batches = await self._executor.blocking(self._read, max_bytes)
        if not batches and not all(split.finished for split in self._splits.values()):
            await self._clock.sleep_ms(min(timeout_ms, self._settings.poll_ms))
        return batches

    def _read(self, max_bytes: int) -> list[RawBatch]:
        """One piece of each split, beginning with another split each time so that none starves."""
        names = list(self._splits)
        self._turn = (self._turn + 1) % max(1, len(names))
        batches: list[RawBatch] = []
        taken = 0
        for name in names[self._turn :] + names[: self._turn]:
            split = self._splits[name]
            while not split.finished and taken < max_bytes:
                found = split.cursor.read(max_bytes - taken)
                if found is not None:
                    batch = self._batch(name, split, found)
                    batches += [batch] if len(batch.positions) else []
                    taken += sum(map(len, found.rows.values))
                if found is not None or split.cursor.at_end:
                    break
        return batches

    def _batch(self, name: SplitId, split: _Split, piece: Piece) -> RawBatch:
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
        return [
            SplitStatus(name, split.position, split.cursor.at_end or split.finished, split.finished, split.until)
            for name, split in self._splits.items()
        ]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        for name, split in self._splits.items():
            split.until = until.get(name, split.position)

    async def close(self) -> None:
        """Nothing to let go of: files are open only while they are read."""
