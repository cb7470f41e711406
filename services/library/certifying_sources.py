"""The tests that a plug-in's source has to pass: its author derives a class from `SourceContract`, and pytest runs them."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tidemark.services.library.release_world import Inline
from tidemark.services.source.connectors.plugin import PluginConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import API, Source

Given = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A stage's config, and the config of its connection."""
_EACH = 10
"""Records in a split."""
_LITTLE, _ALL = 30, 1 << 20
"""Bytes of a fetch."""
Read = dict[SplitId, list[tuple[int, int, int]]]
"""Position, number and time of each record, by split."""


class SourceContract:
    """Derive `class TestMine(SourceContract)`, set `plugin`, write `given` and `add`; once for each config in which it reads otherwise."""

    plugin: ClassVar[type[Source[Any, Any]]]
    splits: ClassVar[int] = 3
    """How many splits it is tried with; 1 for a source that has one alone."""

    def given(self, folder: Path) -> Given:
        """A source without records: config of the stage, and of its connection. `folder` is empty, and the source's own."""
        raise TypeError(f"{type(self).__name__}: write given(self, folder)")

    def add(self, folder: Path, split: int, numbers: Sequence[int]) -> None:
        """Append documents with the field `n`, one for each number, to a split; the next one is made where there is none yet."""
        raise TypeError(f"{type(self).__name__}: write add(self, folder, split, numbers)")

    # --- what it must keep ------------------------------------------------------------------------------------------------

    def test_it_is_written_for_this_version_of_the_interface(self) -> None:
        """The class says so."""
        assert self.plugin.api == API, f"set api = {API} in the class, once it keeps the contract of that version"

    def test_each_split_is_read_whole_and_in_order(self, tmp_path: Path) -> None:
        """All records of every split come once, in the split's order, with positions that grow."""
        asyncio.run(self._whole(tmp_path))

    async def _whole(self, folder: Path) -> None:
        lanes = self._fill(folder)
        for max_bytes in (_LITTLE, _ALL):
            assert _lanes(await _drained(await self._opened(folder), max_bytes)) == lanes

    def test_a_restart_resumes_exactly_from_any_record(self, tmp_path: Path) -> None:
        """From the positions behind any fetch, and behind any record, a fresh object gives the rest: the same records, nothing twice."""
        asyncio.run(self._resumed(tmp_path))

    async def _resumed(self, folder: Path) -> None:
        self._fill(folder)
        whole = await _drained(await self._opened(folder), _ALL)
        source = await self._opened(folder)
        given: Read = {}
        while not all(status.at_end for status in source.status()):
            _add(given, await source.fetch(_LITTLE, 1))
            positions = {status.split: status.next_position for status in source.status()}
            await self._rest(folder, positions, given, whole)
        for number in range(_EACH + 1):
            behind = {
                split: Offset(records[number - 1][0] + 1)
                for split, records in whole.items()
                if 0 < number <= len(records)
            }
            if behind:
                await self._rest(folder, behind, {split: whole[split][:number] for split in behind}, whole)

    async def _rest(self, folder: Path, positions: Mapping[SplitId, Offset], given: Read, whole: Read) -> None:
        rest = await _drained(await self._opened(folder, positions), _ALL)
        for split in positions:
            found = [*given.get(split, []), *rest.get(split, [])]
            assert found == whole.get(split, []), (
                f"split {split}, read again from {positions[split]}: {found} instead of {whole.get(split, [])}"
            )

    def test_tasks_see_the_same_splits_and_share_them(self, tmp_path: Path) -> None:
        """Two objects list the same splits with the same ordinals; divided among them, everything is read once."""
        asyncio.run(self._shared(tmp_path))

    async def _shared(self, folder: Path) -> None:
        lanes = self._fill(folder)
        one, two = self._source(folder), self._source(folder)
        splits = await one.splits()
        assert splits == await two.splits(), "two tasks see different splits"
        assert len(splits) == self.splits, f"{self.splits} splits were filled, and it lists {list(splits)}"
        names = sorted(splits)
        await _open(one, names[::2])
        await _open(two, names[1::2])
        assert _lanes({**await _drained(one, _ALL), **await _drained(two, _ALL)}) == lanes

    def test_it_ends_or_goes_on_as_it_says(self, tmp_path: Path) -> None:
        """A bounded source finishes all splits, and gives nothing behind them; another one reads on when more comes."""
        asyncio.run(self._ended(tmp_path))

    async def _ended(self, folder: Path) -> None:
        lanes = self._fill(folder)
        source = await self._opened(folder)
        await _drained(source, _ALL)
        if await source.bounded():
            assert all(status.finished for status in source.status()), "a bounded split does not say that it has ended"
            positions = {status.split: status.next_position for status in source.status()}
            again = await self._opened(folder, positions)
            assert await _drained(again, _ALL) == {}
            assert all(status.finished for status in again.status())
            return
        assert not any(status.finished for status in source.status()), "a split that goes on says that it has ended"
        self.add(folder, 0, [100, 101])
        found: Read = {}
        for _ in range(100):
            _add(found, await source.fetch(_ALL, 10))
            if sum(map(len, found.values())) == len((100, 101)):
                break
        assert _lanes(found) == [[100, 101]], f"two records were added behind {lanes}: {found}"

    def test_splits_that_come_keep_the_others_as_they_were(self, tmp_path: Path) -> None:
        """Ordinals and origins stay; one that comes is read from its first record."""
        asyncio.run(self._grown(tmp_path))

    async def _grown(self, folder: Path) -> None:
        self._fill(folder)
        source = await self._opened(folder)
        if self.splits == 1 or await source.bounded():
            return
        before = await source.splits()
        known = await source.found(list(before), first=True)
        self.add(folder, self.splits, [100, 101])
        self.add(folder, 0, [102])
        await self._source(folder).check(known)
        after = await source.splits()
        assert before.items() <= after.items(), f"ordinals have changed: {before}, {after}"
        new = [name for name in after if name not in before]
        assert len(new) == 1, f"a split was added to {list(before)}, and it lists {list(after)}"
        fresh = self._source(folder)
        await _open(fresh, new, first=False)
        assert _lanes(await _drained(fresh, _ALL)) == [[100, 101]]

    def test_a_drain_stops_behind_what_is_there(self, tmp_path: Path) -> None:
        """`end` is behind the last record that there is now, and what comes later is not read."""
        asyncio.run(self._stopped(tmp_path))

    async def _stopped(self, folder: Path) -> None:
        lanes = self._fill(folder)
        source = await self._opened(folder)
        given: Read = {}
        _add(given, await source.fetch(_LITTLE, 1))
        ends = await source.ends({status.split: status.next_position for status in source.status()})
        source.end_at({split: end for split, end in ends.items() if end is not None})
        if None not in ends.values():
            self.add(folder, 0, [100, 101])
        while not all(status.finished for status in source.status()):
            _add(given, await source.fetch(_ALL, 1))
        assert _lanes(given) == lanes

    def test_what_is_committed_takes_nothing_from_what_follows(self, tmp_path: Path) -> None:
        """Told of a checkpoint, the source still gives every record behind it, to this object and to a fresh one."""
        asyncio.run(self._committed(tmp_path))

    async def _committed(self, folder: Path) -> None:
        self._fill(folder)
        whole = await _drained(await self._opened(folder), _ALL)
        source = await self._opened(folder)
        given: Read = {}
        _add(given, await source.fetch(_LITTLE, 1))
        positions = {status.split: status.next_position for status in source.status()}
        await source.note("job", positions)
        _add(given, await source.fetch(_LITTLE, 1))
        before = {split: [each for each in whole[split] if each[0] < positions[split]] for split in positions}
        await self._rest(folder, positions, before, whole)

    # --- its world ----------------------------------------------------------------------------------------------------------

    def _fill(self, folder: Path) -> list[list[int]]:
        """Numbers 0, 1, 2, … dealt to splits in turn; by split, sorted."""
        lanes = [[self.splits * n + lane for n in range(_EACH)] for lane in range(self.splits)]
        for lane, numbers in enumerate(lanes):
            self.add(folder, lane, numbers)
        return lanes

    def _source(self, folder: Path) -> PluginConnector:
        config, settings = self.given(folder)
        return PluginConnector(
            lambda: make_of(self.plugin.__name__, self.plugin, config, settings), "the plug-in", Inline(), SystemClock()
        )

    async def _opened(self, folder: Path, positions: Mapping[SplitId, Offset] | None = None) -> PluginConnector:
        source = self._source(folder)
        await _open(source, list(await source.splits() if positions is None else positions), positions)
        return source


async def _open(
    source: PluginConnector,
    splits: Collection[SplitId],
    positions: Mapping[SplitId, Offset] | None = None,
    *,
    first: bool = True,
) -> Mapping[SplitId, KnownSplit]:
    known = await source.found(splits, first=first)
    await source.open({split: (positions or {}).get(split, each.begin) for split, each in known.items()})
    return known


async def _drained(source: PluginConnector, max_bytes: int) -> Read:
    """Everything up to where all splits are at their end."""
    found: Read = {}
    while not all(status.at_end for status in source.status()):
        _add(found, await source.fetch(max_bytes, 1))
    return found


def _add(found: Read, batches: Sequence[RawBatch]) -> None:
    for batch in batches:
        rows = zip(batch.positions.tolist(), batch.values.to_pylist(), batch.timestamps_ms.tolist(), strict=True)
        records = found.setdefault(batch.split, [])
        records += [(position, int(parse_json(value)["n"]), time_ms) for position, value, time_ms in rows]


def _lanes(found: Read) -> list[list[int]]:
    return sorted([number for _, number, _ in records] for records in found.values())
