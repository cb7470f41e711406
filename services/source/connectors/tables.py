"""The source of a table: one version of it, and with `follow` the rows that later ones add.

- The version is decided once, by the first task for all of them: the names of splits have it. So it is durable before a row is read (I1),
  and every task of every generation reads the same rows, whatever becomes of the table.
- `ordered`: the table is one split, its files in the order in which they came. Else each file is a split.
- A position is the number of rows before it, over all versions that were read. A snapshot has the version beside it (`KnowsOrigins`).
- I2: the table is known by the id in its metadata.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.services.source.connectors.cursorsplits import CursorSplit, CursorSplits, Turns, ended_by_outage
from tidemark.services.source.connectors.files import ordinal_of
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.services.source.connectors.tableversions import (
    Batches,
    TableFile,
    TableVersions,
    VersionRefused,
    gone,
    reading,
)
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import FIRST_OFFSET, Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.source import SourceReplaced

TABLE: Final = "table"
_PIECE_BYTES: Final = 1 << 20
"""Of a table's rows that become documents together, in Arrow."""
_OPEN_MAX: Final = 16
"""Files that a task reads at once; others hold the watermark until it is their turn."""
_VERSION: Final = "version"
_BEGIN: Final = "begin"


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a position is: in the rows that a version added, or behind them if `begin` is None."""

    version: int
    begin: int | None

    def told(self) -> dict[str, str]:
        begin = {} if self.begin is None else {_BEGIN: str(self.begin)}
        return {_VERSION: str(self.version), **begin}


def _stand(told: Mapping[str, str], version: int) -> _Stand:
    if not told:
        return _Stand(version, 0)
    return _Stand(int(told[_VERSION]), int(told[_BEGIN]) if _BEGIN in told else None)


class _SplitReader:
    """One split: its files, one behind the other. Functions block."""

    def __init__(
        self, versions: TableVersions, first: int, file: str, stand: _Stand, position: int, *, follow: bool
    ) -> None:
        """`first`: the version that the job began with; `file`: the one that is the split, "" if it is all of the table."""
        self._versions = versions
        self._first = first
        self._name = file
        self._follow = follow
        self._stands = [(position if stand.begin is None else stand.begin, stand)]
        """With the positions from which on they hold."""
        self._left: list[TableFile] | None = None
        """Files of the version that are yet to be begun; None: they are not listed."""
        self._file: TableFile | None = None
        self._batches: Batches = iter(())
        self._rest: pa.RecordBatch | None = None
        """Read and not yet handed out."""
        self.file_begin = 0
        self.position = position
        self.at_end = False
        self.finished = False

    @property
    def _stand(self) -> _Stand:
        return self._stands[-1][1]

    def origins(self, position: int) -> Mapping[str, str]:
        """Of the position of a snapshot: reading may be ahead of it. Earlier ones are forgotten, so the loop alone asks."""
        while len(self._stands) > 1 and self._stands[1][0] <= position:
            del self._stands[0]
        return self._stands[0][1].told()

    def to_count(self) -> "_SplitReader":
        """One for `end`, of the earliest stand that is known: for another thread, which takes nothing from this one."""
        position, stand = self._stands[0]
        return _SplitReader(self._versions, self._first, self._name, stand, position, follow=self._follow)

    def read(self, max_bytes: int) -> tuple[TableFile, int, list[bytes]] | None:
        """The next rows of one file: where the file begins, and their documents. None if there are none now."""
        try:
            while not self.finished:
                if self._rest is not None or self._fill():
                    return self._taken(max_bytes)
                if not self._begin_file() and not self._go_on():
                    break
        except BaseException:
            # What was read in part is no more: the next read begins at the position again.
            self._left = self._file = self._rest = None
            raise
        return None

    def _go_on(self) -> bool:
        """To the next version, if there is one yet; else the end is reached."""
        version = self._versions.next(self._stand.version) if self._follow else None
        if version is None:
            self.at_end, self.finished = True, not self._follow
            return False
        self._left = list(self._versions.added(version))
        self._stands.append((self.position, _Stand(version, self.position)))
        return True

    def _begin_file(self) -> bool:
        """Open the next file of the version; False behind the last."""
        if self._left is None:
            self._seek()
        elif self._left:
            self._open(self._left.pop(0), 0)
        elif self._stand.begin is not None:
            self._stands.append((self.position, replace(self._stand, begin=None)))
        return self._file is not None

    def _seek(self) -> None:
        """List the files of the version, and begin with the one that has the position."""
        stand = self._stand
        if stand.begin is None:
            self._left = []
            return None
        self._left = self._listed(stand.version)
        skipped = self.position - stand.begin
        while self._left:
            file = self._left.pop(0)
            if not skipped:
                return self._open(file, 0)
            with reading(self._versions.place, stand.version, file.name):
                rows = file.count()
            if skipped < rows:
                return self._open(file, skipped)
            skipped -= rows
        return None

    def _listed(self, version: int) -> list[TableFile]:
        if version != self._first:
            return list(self._versions.added(version))
        files = self._versions.files(version)
        found = [file for file in files if not self._name or file.name == self._name]
        if self._name and not found:
            raise gone(self._versions.place, version, f"it has no file {self._name}")
        return found

    def _open(self, file: TableFile, skipped: int) -> None:
        self._file, self.file_begin, self.at_end = file, self.position - skipped, False
        with reading(self._versions.place, self._stand.version, file.name):
            self._batches = file.read()
            while skipped and self._fill():
                assert self._rest is not None
                passed = min(skipped, self._rest.num_rows)
                skipped -= passed
                self._rest = self._rest.slice(passed) if passed < self._rest.num_rows else None
        if skipped:
            raise gone(self._versions.place, self._stand.version, f"its file {file.name} has fewer rows than it had")

    def _fill(self) -> bool:
        """The next rows of the file that is open; False if there are none, or no file is."""
        if self._file is None:
            return False
        with reading(self._versions.place, self._stand.version, self._file.name):
            self._rest = next((batch for batch in self._batches if batch.num_rows), None)
        if self._rest is None:
            self._file = None
        return self._file is not None

    def _taken(self, max_bytes: int) -> tuple[TableFile, int, list[bytes]]:
        assert self._file is not None
        assert self._rest is not None
        batch = self._rest
        a_row = max(1, batch.nbytes // batch.num_rows)
        rows = min(batch.num_rows, max(1, min(max_bytes, _PIECE_BYTES) // a_row))
        texts = texts_of(batch.slice(0, rows))
        self._rest = batch.slice(rows) if rows < batch.num_rows else None
        self.position += rows
        return self._file, self.position - rows, texts

    def end(self) -> int:
        """Where the split ends now: the rows of files are counted, not read."""
        stand, at = self._stand, self._stand.begin if self._stand.begin is not None else self.position
        version: int | None = stand.version
        files = self._listed(stand.version) if stand.begin is not None else []
        while version is not None:
            for file in files:
                with reading(self._versions.place, version, file.name):
                    at += file.count()
            version = self._versions.next(version)
            files = [] if version is None else list(self._versions.added(version))
        return at


class TableConnector:
    """`SourcePort` over a table."""

    one_lists: Final = True
    """See `OneLists`."""

    def __init__(
        self,
        versions: TableVersions,
        executor: Executor,
        clock: Clock,
        *,
        ordered: bool = True,
        follow: bool = False,
        poll_ms: int = 500,
    ) -> None:
        self._versions = versions
        self._executor = executor
        self._clock = clock
        self._ordered = ordered
        self._follow = follow
        self._poll_ms = poll_ms
        self._splits: CursorSplits[_SplitReader] = CursorSplits()
        self._origins: dict[SplitId, Mapping[str, str]] = {}
        self._turns = Turns()
        self._checked = False

    async def splits(self) -> Mapping[SplitId, int]:
        """Those of the present version: all of it, or each file."""
        return await self._executor.blocking(self._present)

    def _present(self) -> Mapping[SplitId, int]:
        if self._follow and not self._ordered:
            raise VersionRefused(
                f"{self._versions.place}: a table that is followed is read version by version, as one split: leave ordered: false away"
            )
        version = self._versions.newest()
        if self._ordered:
            return {SplitId(f"{TABLE}@{version}"): 0}
        return {SplitId(f"{file.name}@{version}"): ordinal_of(file.name) for file in self._versions.files(version)}

    async def look(self) -> bool:
        """True: the present version can be read. LogUnavailable, LogError."""
        await self.splits()
        await self._executor.blocking(lambda: self._versions.files(self._versions.newest()))
        return True

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """The table is the same: the first time, and again where it is followed."""
        if known and (self._follow or not self._checked):
            identity = await self._executor.blocking(self._versions.identity)
            for split, was in known.items():
                self._compare(split, was, identity)
            self._checked = True

    def _compare(self, split: SplitId, was: KnownSplit, identity: str) -> None:
        if "@" not in split or (split.partition("@")[0] == TABLE) != self._ordered:
            raise SourceReplaced(
                f"{self._versions.place}: split {split}: the job has read the files that lay there, or one split where the document has"
                " another; now the table is read by its log, and positions mean something else. Start without state"
            )
        if was.origin != identity:
            raise SourceReplaced(
                f"{self._versions.place}: expected the table of id {was.origin}, which the job has read, found {identity}: another table"
                " has its name. Start without state, to read it"
            )

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """A version is read from its first row."""
        del first
        if not splits:
            return {}
        identity = await self._executor.blocking(self._versions.identity)
        return {split: KnownSplit(self._ordinal(split), identity, FIRST_OFFSET) for split in splits}

    def _ordinal(self, split: SplitId) -> int:
        return 0 if self._ordered else ordinal_of(split.rpartition("@")[0])

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """Behind the last row of the present version; a source that does not follow its table ends by itself."""
        if not self._follow:
            return dict.fromkeys(positions)
        # By cursors of their own: another thread may be reading.
        counting = {
            split: self._splits[split].cursor.to_count() if split in self._splits else self._cursor(split, position)
            for split, position in positions.items()
        }
        return await self._executor.blocking(
            lambda: {split: Offset(cursor.end()) for split, cursor in counting.items()}
        )

    def know(self, origins: Mapping[SplitId, Mapping[str, str]]) -> None:
        """See `KnowsOrigins.know`."""
        self._origins.update(origins)

    def origins(self, split: SplitId, position: Offset) -> Mapping[str, str]:
        """See `KnowsOrigins.origins`: the version, and where its rows begin; without that they are all read."""
        return self._splits[split].cursor.origins(position) if split in self._splits else self._origins.get(split, {})

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """See `Source.open`."""
        for split, position in positions.items():
            if split not in self._splits:
                self._splits[split] = CursorSplit(self._ordinal(split), self._cursor(split, position))

    def _cursor(self, split: SplitId, position: int) -> _SplitReader:
        name, _, version = split.rpartition("@")
        stand = _stand(self.origins(split, Offset(position)), int(version))
        file = "" if self._ordered else name
        return _SplitReader(self._versions, int(version), file, stand, position, follow=self._follow)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """See `Source.fetch`."""
        batches = await self._executor.blocking(self._read, max_bytes)
        if not batches and not self._splits.ended():
            await self._clock.sleep_ms(min(timeout_ms, self._poll_ms))
        return batches

    def _read(self, max_bytes: int) -> list[RawBatch]:
        """One piece of each of the first splits that have not ended."""
        names = [name for name, split in self._splits.items() if not split.finished][:_OPEN_MAX]
        batches: list[RawBatch] = []
        taken = 0
        with ended_by_outage(batches):
            for name in self._turns.of(names):
                split = self._splits[name]
                if taken >= max_bytes:
                    break
                found = split.cursor.read(max_bytes - taken)
                if found is not None:
                    batch = self._batch(name, split, *found)
                    batches += [batch] if len(batch.positions) else []
                    taken += sum(map(len, found[2]))
        return batches

    def _batch(
        self, name: SplitId, split: CursorSplit[_SplitReader], file: TableFile, begin: int, texts: Sequence[bytes]
    ) -> RawBatch:
        count = len(texts) if split.until is None else max(0, min(len(texts), split.until - begin))
        return RawBatch(
            split=name,
            partition=split.ordinal,
            positions=np.arange(begin, begin + count, dtype=np.int64),
            timestamps_ms=np.full(count, file.changed_ms, dtype=np.int64),
            values=pa.array(texts[:count], pa.binary()),
            file=file.name,
            file_begin=split.cursor.file_begin,
        )

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        return self._splits.status()

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._splits.end_at(until)

    async def close(self) -> None:
        """Let go of files and catalog."""
        self._splits.clear()
        await self._executor.blocking(self._versions.close)
