"""The input of a source's task: fetched ahead, and taken when its machine (`shared/protocol/source`) and the task's let it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tidemark.shared.model.ids import NO_EPOCH, EdgeId
from tidemark.shared.model.messages import (
    QUOTA_MS,
    SHARE,
    Command,
    Drain,
    ReadPosition,
    ReadSplits,
    ShareBytes,
    StartSources,
    TellEnds,
    TellSplits,
)
from tidemark.shared.ports.clock import Handle
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.protocol.source import machine as source
from tidemark.shared.protocol.source.allowance import Allowance
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.runtime.body import Fetched, Given, ReadingBody
from tidemark.shared.runtime.meter import first_arrival, oldest_work
from tidemark.shared.runtime.outbox import Gathered
from tidemark.shared.runtime.pieces import Pieces
from tidemark.shared.runtime.site import TaskSite

_REFILL_MS: Final = 1_000
"""At the latest a source that waits for its quota looks again: its share may have risen meanwhile."""

_PIECE_MS: Final = 500
"""That a piece of the fetched rows may take at least: each costs frames, and a barrier waits for it."""


class SourceIntake:
    """The splits of one source task."""

    def __init__(self, site: TaskSite, body: ReadingBody) -> None:
        self.site = site
        self._body = body
        self._input = body.input
        outputs = site.wiring.outputs
        self._input.places = frozenset((edge, n) for edge, b in outputs.items() for n in range(b.receivers))
        self._started = asyncio.Event()
        self._fetched: deque[Fetched] = deque()
        """One fetch of a source, and the next where it need not wait: `fetch_records_max`, `fetch_bytes_max`."""
        self._room = asyncio.Event()
        self._leaves = False
        """What comes lies at the source, or is being looked for there (C2)."""
        self._enough = asyncio.Event()
        """It has lain there for long enough."""
        self._start: Callable[[], None] | None = None
        """The checkpoint that begins behind it."""
        self._gathered = Gathered(site.machine.sender.watermark_ms)
        self._allowance = Allowance()
        self._pieces = Pieces(_PIECE_MS)
        self._epoch = NO_EPOCH
        """That rows were last taken in."""
        self._refilling = False
        self._noted = site.machine.committed
        self._noting: Handle | None = None
        self._noted_ms = -site.wiring.settings.note_interval_ms

    def start(self) -> None:
        """Input is taken only when all tasks of the generation have restored (R1)."""
        self.site.spawn(self._fetch(), "fetch")

    # --- messages of the coordinator and of receivers ---------------------------------------------------------------------

    def restored(self) -> None:
        """The task stands where its snapshot says: report the splits to read that the row does not list (I1)."""
        self._carry_out(self._input.tell())

    def told(self, command: Command) -> None:
        """Take a command of the coordinator on the input."""
        mine, given = self.site.wiring.task, self._input
        match command:
            case StartSources():
                self._started.set()
            case ShareBytes(_, _, shares):
                for vertex, index, bytes_per_s in shares:
                    if (vertex, index) == (mine.vertex, mine.index):
                        self._allowance.told(bytes_per_s, self.site.wiring.clock.monotonic_ms())
                        self.site.wake.set()
            case TellSplits():
                self._carry_out(given.tell(again=True))
            case ReadSplits(_, _, vertex, index, splits) if (vertex, index) == (mine.vertex, mine.index):
                given.listed(splits)
            case TellEnds(_, _, until):
                self._carry_out(given.ask_ends(until))
            case Drain(_, _, vertex, index, splits) if (vertex, index) == (mine.vertex, mine.index):
                self.site.log.info("source.drain", until={name: known.end for name, known in splits.items()})
                self._carry_out(given.end(splits))
                self._enough.set()
                self.site.wake.set()
            case _:
                pass  # another task's

    def heard(self, edge: EdgeId, position: ReadPosition) -> None:
        """A receiver has told where it is."""
        place, told = position.partition, (position.snapshot, position.watermark_ms)
        if self._input.heard(edge, place, *told, full=position.full):
            self.site.log.warning("source.receiver_full", edge=edge, partition=place, time=position.watermark_ms)

    def _carry_out(self, commands: Sequence[source.Command]) -> None:
        wiring = self.site.wiring
        for command in commands:
            match command:
                case source.Tell(found, gone):
                    wiring.ways.on_found(found, gone)
                case source.FindEnds():
                    self.site.spawn(self._find_ends(), "ends")
                case source.ReportEnds(splits):
                    wiring.ways.on_ends(splits)
                case source.EndAt(until):
                    self._body.end_at(until)
                case source.Ask(after_ms, covers):
                    self._later(after_ms, self._ask, covers)
                case source.ReadOn(after_ms):
                    self._later(after_ms, self._room.set)

    def _later(self, after_ms: int, call: Callable[..., None], *given: bool) -> None:
        """Call at once if there is no time to wait: otherwise a frame written in between would come before the call."""
        if not after_ms:
            call(*given)
            return

        async def later() -> None:
            await self.site.wiring.clock.sleep_ms(after_ms)
            call(*given)

        self.site.spawn(later(), "later")

    def _ask(self, covers: bool) -> None:  # noqa: FBT001 - as the command has it
        if covers:
            self._input.asked(self.site.machine.sender.epoch)
        self.site.wiring.ways.on_ask()

    async def _find_ends(self) -> None:
        self._carry_out(
            self._input.ends_found(await self.site.answered_by(self._body.place, "looking for ends", self._body.ends))
        )

    # --- reading ----------------------------------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        await self._started.wait()
        while not self.site.machine.ended:
            fetched = await self.site.answered_by(self._body.place, "reading", self._read)
            self._leaves = False
            self._fetched.append(fetched)
            self._carry_out(self._input.tell())
            self._room.clear()
            self.site.wake.set()
            await self._room.wait()
            if fetched.gathers_ms:
                await self._gather(fetched.gathers_ms)
        self._leaves = False
        self._begin()

    async def _read(self) -> Fetched:
        if not self._leaves:
            return await self._body.fetch()
        try:
            return await self._body.fetch(waits=False)
        except LogUnavailable:
            self._leaves = False
            self._begin()
            raise

    async def _gather(self, most_ms: int) -> None:
        self._leaves = True
        self._enough.clear()
        timer = self.site.spawn(self._end_gathering(most_ms), "gather")
        await self._enough.wait()
        timer.cancel()

    async def _end_gathering(self, after_ms: int) -> None:
        await self.site.wiring.clock.sleep_ms(after_ms)
        self._enough.set()

    def before_barrier(self, start: Callable[[], None]) -> None:
        """Start a checkpoint: behind the rows that lie at the source by now, where those that come are left there for a while (C2)."""
        if self._leaves:
            self._start = start
            self._enough.set()
        else:
            start()

    def _begin(self) -> None:
        """The checkpoint that waits for a look at the source begins."""
        start, self._start = self._start, None
        if start is not None:
            start()

    def has_input(self) -> bool:
        """Whether there is something that the task may take now."""
        if not self._fetched or not self.site.machine.may_read():
            return False
        return self._input.may_take(self._body.output_watermark()) and not self._quota_wait_ms()

    def _quota_wait_ms(self) -> int:
        """How long the quota of bytes keeps the next rows back (E4); what has none, such as the end of a split, does not wait."""
        if not self._fetched or not self._fetched[0].rows:
            return 0
        return self._allowance.wait_ms(self.site.wiring.clock.monotonic_ms())

    @property
    def held_by_quota(self) -> bool:
        """Whether the next rows wait for the namespace's quota of bytes."""
        return self._quota_wait_ms() > 0

    def counters(self) -> dict[str, int]:
        """Of a source under a quota of bytes: its share, and for how long it has waited."""
        share = self._allowance.bytes_per_s
        waited_ms = self.site.meter.short_ms(self.site.wiring.clock.monotonic_ms())
        return {SHARE: share, QUOTA_MS: waited_ms} if share or waited_ms else {}

    def rest(self) -> None:
        """There is nothing to do now: fetched rows wait."""
        if self._fetched:
            self._begin()
            now_ms = self.site.wiring.clock.monotonic_ms()
            self._input.held_back(now_ms)
            self.site.meter.held(now_ms, first_arrival(self._fetched[0]))
            if wait_ms := self._quota_wait_ms():
                self.site.meter.short(now_ms)
                if not self._refilling:
                    self._refilling = True
                    self._later(min(wait_ms, _REFILL_MS), self._refilled)

    def _refilled(self) -> None:
        self._refilling = False
        self.site.wake.set()

    async def take(self) -> ev.Produced:
        """Work on the fetched rows, as many as the epoch has room for (F9), and as a barrier may wait for: a row may take seconds."""
        clock, machine, meter = self.site.wiring.clock, self.site.machine, self.site.meter
        if machine.sender.epoch != self._epoch:
            self._epoch = machine.sender.epoch
            self._pieces.begin()
        there, room_bytes = self._fetched.popleft(), self._allowance.room_bytes
        room_rows = min(machine.pace.room_rows(), self._pieces.items)
        if room_bytes is not None:
            room_rows = min(room_rows, max(1, there.rows_within(room_bytes)))
        fetched, rest = there.divided(room_rows)
        if rest is not None:
            self._fetched.appendleft(rest)
        elif not fetched.one_by_one:
            self._room.set()
        now_ms = max(clock.now_ms(), machine.processing_time_ms)
        began_ms = clock.monotonic_ms()
        self._allowance.took(fetched.size_bytes, began_ms)
        meter.released(began_ms)
        meter.read(fetched.batches)
        self._input.taking(began_ms, one_by_one=fetched.one_by_one)
        outs = await self._body.take(fetched, now_ms, began_ms)
        meter.gave(outs)
        took_ms = clock.monotonic_ms() - began_ms
        if fetched.rows:
            self._pieces.took(fetched.rows, took_ms, more=fetched.rows >= self._pieces.items)
        meter.worked(took_ms)
        meter.oldest_ms = oldest_work(fetched)
        produced = await self._produced(outs, fetched)
        self._carry_out(self._input.taken(machine.sender.epoch, rows=fetched.rows > 0))
        self._begin()
        return produced

    async def _produced(self, outs: Sequence[Given], fetched: Fetched) -> ev.Produced:
        """The rows that go out now. Rows for sinks may wait, but not behind news for others: idleness, the end, a script's step."""
        gathered, idle, ended = self._gathered, self._input.is_idle(), self._input.has_ended()
        waits = self.site.wiring.gathers and not (idle or ended or fetched.one_by_one)
        gathered.add(outs)
        emissions: tuple[ev.Emission, ...] = ()
        if not waits or gathered.full() or not gathered.rows:
            emissions = await self.emissions(())
        held_rows = gathered.rows + self._body.held_rows(self.site.machine.pace.window_rows)
        return ev.Produced(emissions, gathered.watermark_ms, idle, ended, fetched.rows, held_rows)

    async def emissions(self, outs: Sequence[Given]) -> tuple[ev.Emission, ...]:
        """Emissions of the rows gathered before, then of these; the watermark then stands behind all of them."""
        gathered = self._gathered
        made = await self.site.emissions([*gathered.taken(), *outs])
        gathered.watermark_ms = max(gathered.watermark_ms, self._body.output_watermark())
        return made

    # --- commits ----------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The machine has taken an event. Commits are noted for lag tools beside the work: a note that fails is tried with the next."""
        wiring, committed = self.site.wiring, self.site.machine.committed
        self._carry_out(self._input.committed(committed))
        busy, now_ms = self._noting is not None and not self._noting.done(), wiring.clock.monotonic_ms()
        often = now_ms - self._noted_ms < wiring.settings.note_interval_ms and not self._input.has_ended()
        if committed == self._noted or busy or often:
            return
        self._noted, self._noted_ms = committed, now_ms
        self._noting = self.site.spawn(self._note(), "note")

    async def _note(self) -> None:
        epoch = None
        while epoch != self._noted:
            epoch = self._noted
            try:
                await self._body.note(self._input.noted(epoch))
            except LogError as error:
                self.site.log.warning("source.not_noted", epoch=epoch, reason=str(error))
            if self._input.has_ended():  # no event may come behind the last commit
                self._noted = self.site.machine.committed
