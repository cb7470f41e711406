"""A source of another package (`tidemark.plugins.Source`): its reads as batches, its splits with their origins, its ends.

After any error the plug-in's object is thrown away; the next call begins with a new one, from the positions that are kept here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import UnionType
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa

from tidemark.services.source.connectors.cursorsplits import Turns, ended_by_outage
from tidemark.shared.language.values import render_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.failures import Lasting
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.plugins.interface import Batch, PluginFailed, Record, Source, Split, Then
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced
from tidemark.shared.runtime.plugged import Plugged

POLL_MS: Final = 100
"""Between two rounds of reads that have found nothing: a read does not wait, so this is what a new record waits for at the most."""
ORDINAL_MAX: Final = 2**31 - 1
"""Ordinals are 32 bits wide in every row."""
POSITION_MAX: Final = 2**52
"""The order of rows has no room for more (D11)."""


class SourceRefused(LogError, Lasting):
    """The plug-in says that time does not mend it."""


@dataclass(slots=True)
class _OpenSplit:
    """A split that is read."""

    ordinal: int
    position: Offset
    until: Offset | None = None
    at_end: bool = False
    ended: bool = False

    @property
    def finished(self) -> bool:
        return self.ended or (self.until is not None and self.position >= self.until)


class PluginConnector:
    """`SourcePort` by a plug-in. `make` gives a new object of it, and blocks."""

    def __init__(
        self,
        make: Callable[[], Source[Any, Any]],
        place: str,
        executor: Executor,
        clock: Clock,
        *,
        ends_now: bool = False,
    ) -> None:
        """ends_now: splits end where they end when they are opened, and no more come."""
        self._place = place
        self._clock = clock
        self._ends_now = ends_now
        self._plugged = Plugged(make, place, executor, LogUnavailable, SourceRefused)
        self._splits: dict[str, Split] = {}
        self._open: dict[SplitId, _OpenSplit] = {}
        self._turns = Turns()
        self._committed: dict[str, int] = {}

    async def bounded(self) -> bool:
        """Whether all splits end by themselves. LogUnavailable, LogError, PluginError."""
        return self._ends_now or await self._ends_itself()

    async def _ends_itself(self) -> bool:
        return await self._plugged.ask("opening", lambda source: source.bounded)

    async def splits(self) -> Mapping[SplitId, int]:
        """See `Source.splits`. PluginFailed where ordinals do not serve."""
        answer = await self._plugged.ask("listing splits", lambda source: list(source.splits()))
        for each in answer:
            self._expect(each, Split, "in splits()")
            self._expect(each.name, str, "as the name of a split")
            self._expect(each.origin, str, f"as the origin of split {each.name}")
            for what in ("ordinal", "begin", "earliest"):
                self._expect(getattr(each, what), Integral, f"as {what} of split {each.name}")
        found = {each.name: each for each in answer}
        ordinals = {each.ordinal for each in answer}
        if not len(found) == len(ordinals) == len(answer) or not all(0 <= each <= ORDINAL_MAX for each in ordinals):
            raise PluginFailed(
                f"{self._place}: expected a name and an ordinal of its own for each split, 0 to {ORDINAL_MAX}; found"
                f" {', '.join(f'{each.name}: {each.ordinal}' for each in answer)[:200]}"
            )
        self._splits = found
        return {SplitId(name): each.ordinal for name, each in found.items()}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """See `Source.check`. PluginFailed for a split whose ordinal has changed: it is another one in every row that was read."""
        await self.splits()
        for name, was in known.items():
            now = self._splits.get(name)
            if now is not None and now.origin != was.origin:
                raise SourceReplaced(
                    f"{self._place}: split {name}: expected the one of origin {was.origin!r}, which the job has read, found"
                    f" {now.origin!r}: positions mean something else there. Start without state, to read it from its beginning"
                )
            if now is not None and now.ordinal != was.ordinal:
                raise PluginFailed(
                    f"{self._place}: split {name}: expected the ordinal {was.ordinal}, which it had when the job first read it, found"
                    f" {now.ordinal}: an ordinal stays when splits come and go"
                )

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """See `Source.found`."""
        if not self._splits.keys() >= set(splits):
            await self.splits()
        there = [(name, self._splits[name]) for name in splits if name in self._splits]
        return {
            name: KnownSplit(each.ordinal, each.origin, Offset(each.begin if first else each.earliest))
            for name, each in there
        }

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """See `Source.ends`."""
        if await self._ends_itself():
            return dict.fromkeys(positions)
        ends = await self._plugged.ask("asking for ends", lambda source: {name: source.end(name) for name in positions})
        for end in ends.values():
            self._expect(end, Integral, "from end()")
        return {name: Offset(max(position, ends[name])) for name, position in positions.items()}

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """See `Source.open`."""
        for name, position in positions.items():
            self._open.setdefault(name, _OpenSplit(self._splits[name].ordinal, position))
        if self._ends_now:
            self.end_at({name: end for name, end in (await self.ends(positions)).items() if end is not None})

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """One read of each split."""
        if self._committed:
            committed, self._committed = self._committed, {}
            await self._plugged.ask("telling what is committed", lambda source: source.committed(committed))
        names = [name for name, each in self._open.items() if not each.finished]
        batches: list[RawBatch] = []
        left = max_bytes
        with ended_by_outage(batches):
            for name in self._turns.of(names):
                if left <= 0:
                    break
                batch = await self._read(name, left)
                if batch is not None:
                    batches.append(batch)
                    left -= batch.values.nbytes
        if names and not batches:
            await self._clock.sleep_ms(min(timeout_ms, POLL_MS))
        return batches

    async def _read(self, name: SplitId, max_bytes: int) -> RawBatch | None:
        split = self._open[name]
        position = split.position
        found = await self._plugged.ask(f"reading {name}", lambda source: source.read(name, position, max_bytes))
        self._check(name, position, found)
        records = [each for each in found.records if split.until is None or each.position < split.until]
        split.position = Offset(found.next if split.until is None else min(found.next, split.until))
        split.at_end = found.then != "more"
        split.ended = found.then == "nothing"
        if not records:
            return None
        values = [self._bytes(name, each) for each in records]
        return RawBatch(
            split=name,
            partition=split.ordinal,
            positions=np.array([each.position for each in records], dtype=np.int64),
            timestamps_ms=np.array([each.timestamp_ms for each in records], dtype=np.int64),
            values=pa.array(values, pa.binary()),
        )

    def _check(self, name: str, position: int, found: Batch) -> None:
        """PluginFailed for positions that do not grow: a restore would repeat records, or leave some out; and for what is no batch."""
        self._expect(found, Batch, "from read()")
        self._expect(found.records, Sequence, "as the records of the batch of read()")
        self._expect_each(found.records, Record, "in the batch of read()")
        self._expect_each((record.position for record in found.records), Integral, "as a record's position")
        self._expect_each((record.timestamp_ms for record in found.records), Integral, "as a record's timestamp_ms")
        self._expect_each((record.value for record in found.records), bytes | dict | None, "as a record's value")
        if found.then not in get_args(Then):
            raise PluginFailed(
                f"{self._place}: expected more, nothing yet or nothing as Batch.then, found {found.then!r:.200}"
            )
        last = position - 1
        for each in (*(record.position for record in found.records), found.next):
            if each <= last:
                raise PluginFailed(
                    f"{self._place}: split {name}, read from {position}: expected positions that grow, and `next` behind the last;"
                    f" found {each} behind {last}"
                )
            last = each
        if last > POSITION_MAX:
            raise PluginFailed(f"{self._place}: split {name}: expected positions up to {POSITION_MAX}, found {last}")

    def _expect_each(self, found: Iterable[object], kind: type | UnionType, where: str) -> None:
        """The same of many, one of each type: a check of each record takes as long as its reading."""
        for each in {type(each): each for each in found}.values():
            self._expect(each, kind, where)

    def _expect(self, found: object, kind: type | UnionType, where: str) -> None:
        """PluginFailed for what is of another type."""
        if not isinstance(found, kind):
            what = kind.__name__ if isinstance(kind, type) else str(kind)
            raise PluginFailed(f"{self._place}: expected {what} {where}, found {found!r:.200}")

    def _bytes(self, name: str, record: Record) -> bytes | None:
        value = record.value
        try:
            return value if value is None or isinstance(value, bytes) else render_json(value, canonical=True)
        except (TypeError, ValueError) as error:
            raise PluginFailed(
                f"{self._place}: split {name}, record {record.position}: {error}; a document has values of JSON, and Date for instants"
            ) from error

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        return [
            SplitStatus(name, each.position, each.at_end or each.finished, each.finished)
            for name, each in self._open.items()
        ]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        for name, end in until.items():
            self._open[name].until = end

    async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
        """See `NotesOffsets.note`: the plug-in is told before its next read."""
        del group
        self._committed |= {str(name): int(position) for name, position in positions.items()}

    async def close(self) -> None:
        """Close the plug-in's object."""
        await self._plugged.close()
