"""The input of a source task: its splits, their watermarks, idleness and ends, and the receivers that it waits for.

| rule | where |
| --- | --- |
| I1 | `listed`, `looked`, `tell` |
| I2 | `compares`, `compared`, `away` |
| I3, E2 | `ask_ends`, `ends_found`, `end`, `may_take` |
| W2, W3, E1 | `watermark_ms`, `is_idle`, `has_ended` |
| W4 | `stood`, `held_back` |
| F7 | `heard`, `may_take` |

A method that takes something in is an event. The caller carries out the commands that it returns, in order. Time comes with events.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import NO_EPOCH, EdgeId, Epoch, Offset, SplitId
from tidemark.shared.model.splits import SplitStatus, Status
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.protocol.source.split import Split
from tidemark.shared.protocol.watermarks import all_idle, combined_watermark


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the coordinator which splits exist that the row does not list, and which listed splits are gone (I1)."""

    found: Mapping[SplitId, KnownSplit]
    gone: Sequence[SplitId]


@dataclass(frozen=True, slots=True)
class FindEnds:
    """Ask the source where the splits in `read` end now; answer with `ends_found` (I3)."""


@dataclass(frozen=True, slots=True)
class ReportEnds:
    """Tell the coordinator where the splits end (I3)."""

    splits: Mapping[SplitId, KnownSplit]


@dataclass(frozen=True, slots=True)
class EndAt:
    """These splits are read up to here, and no further."""

    until: Mapping[SplitId, Offset]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for a checkpoint after so long; `covers`: answer then with `asked`, for nothing more is read before it is committed."""

    after_ms: int = 0
    covers: bool = False


@dataclass(frozen=True, slots=True)
class ReadOn:
    """The rows that were read have been taken, and more may be read after so long."""

    after_ms: int = 0


Command = Tell | FindEnds | ReportEnds | EndAt | Ask | ReadOn


@dataclass(slots=True, kw_only=True)
class Input:
    """The input of one source task of one generation. A split belongs to the task whose index is the split's ordinal modulo `tasks`."""

    tasks: int = 1
    index: int = 0
    bounded: bool = False
    """The input ends by itself (E1)."""
    idle_timeout_ms: int | None = None
    look_interval_ms: int = 0
    compare_interval_ms: int = 0
    rows_covered: bool = False
    """For a script: a checkpoint covers every step with rows, not only steps that move time."""
    settle_ms: int = 0
    """For a script: how long it takes until a clock that a step sets is seen everywhere; 0 if no step sets one."""
    noted_checkpoints_max: int = 16
    places: frozenset[tuple[EdgeId, int]] = frozenset()
    """Every partition of its out edges."""
    watermark_ms: int = MIN_TIME
    """The least over the splits (W2); it never falls, over a restore neither (W1)."""
    listed_once: bool = True
    """The row lists the job's splits (I1)."""
    one_lists: bool = False
    """The first task lists the splits of all, once (I1)."""
    splits: dict[SplitId, Split] = field(default_factory=dict)
    """Those that the row lists and the task was told of."""
    gone: tuple[SplitId, ...] = ()
    """Of those that the row lists: not there any more."""
    found: Mapping[SplitId, KnownSplit] = field(default_factory=dict)
    """The splits that exist and are not in the row, as far as this task knows."""
    _to_tell: bool = False
    _looked_ms: int = 0
    _compared_ms: int = 0
    _taken_since: bool = False
    """Records were taken since their splits' origins were compared."""
    _taking: bool = False
    _until: Mapping[str, int] | None = None
    """The ends were asked for, with those that users named: nothing is taken until the row has them (I3)."""
    _finding: bool = False
    _ends: Mapping[SplitId, KnownSplit] | None = None
    """The ends that were reported. The same ends are reported again, for the input stands still from then on."""
    _draining: bool = False
    _held_since_ms: int | None = None
    _before: Sequence[tuple[int, Status, bool]] | None = None
    """The state of the splits before the step of a script that is being taken; None if the piece is no such step."""
    _covered_by: Epoch | None = None
    """Nothing more is read until this checkpoint, or a later one, is committed."""
    _heard: dict[tuple[EdgeId, int], tuple[Epoch, int]] = field(default_factory=dict)
    """By receiver: the last snapshot that it had taken, and its watermark then or later, ms."""
    _returning: bool = False
    """A split waits for the receivers to have read that it is back."""
    _full: dict[tuple[EdgeId, int], int] = field(default_factory=dict)
    """Input watermarks of the receivers that are full, ms."""
    _positions: dict[Epoch, Mapping[SplitId, Offset]] = field(default_factory=dict)
    """At checkpoints that may be committed yet, for lag tools."""

    # --- which splits there are (I1, I2) --------------------------------------------------------------------------------

    def listed(self, splits: Mapping[SplitId, KnownSplit]) -> None:
        """The row lists these: they hold the watermark from here on, and nothing ends without them. Later splits are away (W4)."""
        for name, known in splits.items():
            if name not in self.splits:
                self.splits[name] = Split(known, known.begin, away=self.listed_once)
        self.listed_once = True
        others = () if self.one_lists else self.found.items()
        self.found = {name: known for name, known in others if name not in self.splits}

    def known(self) -> Mapping[SplitId, KnownSplit]:
        """As the row lists them."""
        return {name: split.known for name, split in self.splits.items()}

    def looks(self, now_ms: int) -> bool:
        """Whether it is time to look for new splits. Splits that come to a bounded input, or after its ends are set, are not part of it."""
        settled = self._draining or self._are_listed()
        return not settled and now_ms - self._looked_ms >= self.look_interval_ms

    def unlisted(self, there: Mapping[SplitId, int]) -> list[SplitId]:
        """Of the existing splits, with their ordinals: those that this task has to list and that nobody reads."""
        if self._are_listed():
            return []
        mine = [n for n, ordinal in there.items() if (0 if self.one_lists else ordinal % self.tasks) == self.index]
        return [name for name in mine if name not in self.splits]

    def _are_listed(self) -> bool:
        return (self.bounded or self.one_lists) and self.listed_once

    def looked(self, found: Mapping[SplitId, KnownSplit], now_ms: int) -> None:
        """These are the splits that were `unlisted`."""
        self.found, self._looked_ms, self._to_tell = found, now_ms, True

    def tell(self, *, again: bool = False) -> list[Command]:
        """Report the splits that the last look found; `again`: also those reported before, for another coordinator leads."""
        told, self._to_tell = self._to_tell or again, False
        return [Tell(self.found, self.gone)] if told and (self.found or self.gone or not self.listed_once) else []

    def unopened(self) -> Mapping[SplitId, Offset]:
        """The splits that are to be opened, and at which positions."""
        return {name: split.position for name, split in self.splits.items() if not split.opened}

    def opened(self, names: Collection[SplitId]) -> Mapping[SplitId, Offset]:
        """They are read from here on: those that end, up to there."""
        for name in names:
            self.splits[name].opened = True
        return self._until_of(names)

    def compares(self, now_ms: int) -> bool:
        """Whether origins are to be compared before more is read (I2)."""
        return now_ms - self._compared_ms >= self.compare_interval_ms

    def compared(self, now_ms: int, *, reads: bool = True) -> None:
        """The splits have the same origins as before, as of then. After an outage only a look before reading counts."""
        self._compared_ms = now_ms if reads or self._compared_ms > MIN_TIME else MIN_TIME

    def away(self) -> None:
        """The source does not answer: the topic or file that is there afterwards may be another."""
        self._compared_ms = MIN_TIME

    def compares_taken(self) -> bool:
        """Whether records were taken behind the last look, of another topic maybe: no checkpoint has them before this is known (I2)."""
        taken, self._taken_since = self._taken_since, False
        return taken

    # --- how the input ends (I3, E2) ------------------------------------------------------------------------------------

    def ask_ends(self, until: Mapping[str, int]) -> list[Command]:
        """Say where the input ends, and take none until the row says so. Another leader asks again."""
        if self._draining:
            return []
        self._until = until
        return self._find_ends()

    def _find_ends(self) -> list[Command]:
        if self._ends is not None:
            return [ReportEnds(self._ends)]
        if self._until is None or self._taking or self._finding:
            return []
        self._finding = True
        return [FindEnds()]

    def read(self) -> Mapping[SplitId, Offset]:
        """How far each split was read, those included that nobody reads yet."""
        return {name: split.position for name, split in self._every().items()}

    def _every(self) -> Mapping[SplitId, Split]:
        return {**{name: Split(known, known.begin) for name, known in self.found.items()}, **self.splits}

    def ends_found(self, there: Mapping[SplitId, Offset | None]) -> list[Command]:
        """Where the splits in `read` end now; None for a split that ends by itself."""
        self._finding = False
        until = self._until or {}
        self._ends = {n: split.end(until.get(n), there[n]) for n, split in self._every().items() if n in there}
        return self._find_ends()

    def end(self, splits: Mapping[SplitId, KnownSplit]) -> list[Command]:
        """E2: the row says where they end."""
        self._draining, self._until = True, None
        self.listed(splits)
        for name, known in splits.items():
            self.splits[name].known = known
        return [EndAt(self._until_of([name for name, split in self.splits.items() if split.opened]))]

    def _until_of(self, names: Iterable[SplitId]) -> Mapping[SplitId, Offset]:
        return {name: end for name in names if (end := self.splits[name].known.end) is not None}

    # --- one piece of input -----------------------------------------------------------------------------------------------

    def may_take(self, output_ms: int) -> bool:
        """Whether a task that has promised this watermark may take a piece. It waits while it is ahead of a receiver that is full (F7)."""
        return self._until is None and not any(reached_ms < output_ms for reached_ms in self._full.values())

    def held_back(self, now_ms: int) -> None:
        """The clock of idleness stands still from here until something is taken (W4)."""
        if self._held_since_ms is None:
            self._held_since_ms = now_ms

    def taking(self, now_ms: int, *, one_by_one: bool = False) -> None:
        """A piece, or one step of a script, is being worked on from here until `taken`; now_ms: monotonic."""
        self._taking, self._before = True, self._said() if one_by_one else None
        if self._held_since_ms is None:
            return
        held_ms, self._held_since_ms = now_ms - self._held_since_ms, None
        for split in self.splits.values():
            if split.at_end_since_ms is not None:
                split.at_end_since_ms += held_ms

    def _said(self) -> Sequence[tuple[int, Status, bool]]:
        return [(s.progress.watermark_ms, s.status, s.away) for s in self.splits.values()]

    def rows(self, names: Collection[SplitId]) -> frozenset[SplitId]:
        """Rows of these are worked on: they are not idle. Those that are away: their rows say so."""
        for name in names:
            split = self.splits[name]
            split.at_end_since_ms = None
            split.become("active")
        self._taken_since = self._taken_since or bool(names)
        return frozenset(name for name in names if self.splits[name].away)

    def judged(self, watermarks_ms: Mapping[SplitId, int], now_ms: int) -> None:
        """The watermarks that the strategy, or a script, gives the splits after rows (D2); now_ms: UTC."""
        for name, watermark_ms in watermarks_ms.items():
            split = self.splits[name]
            split.raise_to(watermark_ms, now_ms)
            split.catch_up(self.watermark_ms)
        self._derive()

    def become(self, names: Iterable[SplitId], status: Status) -> None:
        """A script, or the record of a run, says so."""
        for name in names:
            self.splits[name].become(status)
        self._derive()

    def stood(self, statuses: Sequence[SplitStatus], with_rows: Collection[SplitId], now_ms: int) -> None:
        """W4, E1: idle after the time-out at the end of the split; ended when read to its bound. now_ms: monotonic."""
        for status in statuses:
            self._stood(self.splits[status.split], status, now_ms, rows=status.split in with_rows)
        self._derive()

    def _stood(self, split: Split, status: SplitStatus, now_ms: int, *, rows: bool) -> None:
        split.more = status.more
        split.advance(status.next_position)
        if status.finished or (split.known.end is not None and split.position >= split.known.end):
            split.become("finished")
            return
        if rows or not status.at_end:
            split.at_end_since_ms = None
            if status.more and not rows:
                # Something is coming that cannot be read yet, such as an open transaction: the split was idle, and is no longer.
                split.become("active")
            return
        if split.at_end_since_ms is None:
            split.at_end_since_ms = now_ms
        timeout_ms = self.idle_timeout_ms
        if timeout_ms is not None and now_ms - split.at_end_since_ms >= timeout_ms:
            split.become("idle")

    def _derive(self) -> None:
        if self.splits:
            found_ms = combined_watermark(split.progress for split in self.splits.values())
            self.watermark_ms = max(self.watermark_ms, found_ms)

    def is_idle(self) -> bool:
        """All splits are idle, or there is none (W3). A task that still waits for its splits to be listed is not without splits."""
        return self.listed_once and all_idle(split.progress for split in self.splits.values())

    def has_ended(self) -> bool:
        """All splits are read to their ends (E1); without one, at once where the source is bounded, else when it is drained."""
        if self.splits:
            return all(split.progress.ended for split in self.splits.values())
        return self.bounded or self._draining

    def taken(self, epoch: Epoch, *, rows: bool) -> list[Command]:
        """The piece is done, and frames of this epoch carry its rows.

        If a step has moved something, a checkpoint covers it before the next step. If a step moved no watermark and no clock, nobody sees
        its effect before that checkpoint.
        """
        self._taking = False
        for split in self.splits.values():
            if split.away and split.catch_up_ms is None and split.returned is None:
                split.returned, self._returning = epoch, True
        commands, one_by_one = self._find_ends(), self._before is not None
        if one_by_one and (self.settle_ms or (rows and self.rows_covered) or self._before != self._said()):
            commands.append(Ask(self.settle_ms, covers=True))
        elif self.has_ended():
            commands.append(Ask())  # output that the end has let out is released without waiting for the interval
        elif one_by_one:
            commands.append(ReadOn())
        return commands

    def asked(self, epoch: Epoch) -> None:
        """The checkpoint that ends this epoch covers the rows taken so far."""
        self._covered_by = epoch

    # --- reports of receivers -----------------------------------------------------------------------------------------------

    def heard(self, edge: EdgeId, partition: int, epoch: Epoch, watermark_ms: int, *, full: bool) -> bool:
        """Take a receiver's report; reports may repeat or come late. Returns whether the receiver is full, and was not before.

        A receiver that has taken the snapshot of an epoch has read all frames of it, returns of splits among them. The watermark that it
        reports from then on is at least the highest that it ever had without the split.
        """
        place = edge, partition
        known, new = self._heard.get(place), full and place not in self._full
        if known is None or (epoch, watermark_ms) > known:
            self._heard[place] = epoch, watermark_ms
        if full:
            self._full[place] = watermark_ms
        else:
            self._full.pop(place, None)
        self._return()
        return new

    def _return(self) -> None:
        """Bring back the splits whose return every receiver has read."""
        if not self._returning:
            return
        read = min((self._heard.get(place, (NO_EPOCH, 0))[0] for place in self.places), default=NO_EPOCH)
        for split in self.splits.values():
            if split.returned is not None and read >= split.returned:
                highest_ms = max(self._heard[place][1] for place in self.places)
                split.returned, split.catch_up_ms, split.changed = None, highest_ms, True
                split.catch_up(self.watermark_ms)
        self._returning = any(split.returned is not None for split in self.splits.values())

    def committed(self, epoch: Epoch) -> list[Command]:
        """This checkpoint is committed."""
        if self._covered_by is None or epoch < self._covered_by:
            return []
        self._covered_by = None
        return [ReadOn(self.settle_ms)]

    # --- snapshots ------------------------------------------------------------------------------------------------------------

    def copied(self, epoch: Epoch) -> Mapping[SplitId, Split]:
        """The splits that have changed since the last snapshot."""
        self._positions[epoch] = {name: split.position for name, split in self.splits.items()}
        while len(self._positions) > self.noted_checkpoints_max:
            del self._positions[min(self._positions)]
        changed = {name: split for name, split in self.splits.items() if split.changed}
        for split in changed.values():
            split.changed = False
        return changed

    def noted(self, epoch: Epoch) -> Mapping[SplitId, Offset]:
        """The positions of a checkpoint that is committed, for tools that show lag; none where it is not known any more."""
        positions = self._positions.get(epoch, {})
        self._positions = {later: noted for later, noted in self._positions.items() if later > epoch}
        for name, position in positions.items():
            self.splits[name].checkpoint = position
        return positions
