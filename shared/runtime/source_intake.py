"""The input of a source's task: fetched ahead, and taken when the machine lets it."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from tidemark.shared.model.ids import EdgeId, Epoch, Offset
from tidemark.shared.model.messages import Command, Drain, ReadPosition, ReadSplits, StartSources, TellEnds, TellSplits
from tidemark.shared.ports.clock import Handle
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.runtime.ahead import Ahead, Returns
from tidemark.shared.runtime.body import Fetched, Given, ReadingBody
from tidemark.shared.runtime.intake import Intake
from tidemark.shared.runtime.meter import first_arrival, oldest_work
from tidemark.shared.runtime.outbox import Gathered
from tidemark.shared.runtime.site import TaskSite


class SourceIntake(Intake):
    """The splits of one source task."""

    def __init__(self, site: TaskSite, body: ReadingBody) -> None:
        super().__init__(site)
        self._source = body
        self._started = asyncio.Event()
        self._fetched: deque[Fetched] = deque()
        """One fetch of a source, and the next where it need not wait: `fetch_records_max`, `fetch_bytes_max`."""
        self._room = asyncio.Event()
        self._taking = False
        self._taken = asyncio.Event()
        self._ending: Handle | None = None
        """A drain was asked for: nothing is taken until it is told where splits end (I3)."""
        self._ends_told = False
        self._covered_by: Epoch | None = None
        """Nothing more is fetched until this checkpoint, or a later one, is committed (`ReadingBody.settle_ms`)."""
        outputs = site.wiring.outputs
        self._returns = Returns(frozenset((edge, n) for edge, b in outputs.items() for n in range(b.receivers)))
        self._ahead = Ahead()
        self._gathered = Gathered(site.machine.sender.watermark_ms)
        self._noted = site.machine.committed
        self._noting: Handle | None = None
        self._noted_ms = -site.wiring.settings.note_interval_ms

    def start(self) -> None:
        """Input is taken only when all tasks of the generation have restored (R1)."""
        self.site.spawn(self._fetch(), "fetch")

    def restored(self) -> None:
        """I1: what there is to read that the row does not list."""
        if (found := self._source.found()) is not None:
            self.site.wiring.on_found(*found)

    def told(self, command: Command) -> None:
        """See `Intake.told`."""
        mine = self.site.wiring.task
        match command:
            case StartSources():
                self._started.set()
            case TellSplits():
                self._source.tell_again()
                self.restored()
            case ReadSplits(_, _, vertex, index, splits) if (vertex, index) == (mine.vertex, mine.index):
                self._source.read(splits)
            case TellEnds(_, _, until):
                self._tell_ends(until)
            case Drain(_, _, vertex, index, splits) if (vertex, index) == (mine.vertex, mine.index):
                self._ends_told = True
                self._source.drain(splits)
                self.site.wake.set()
            case _:
                pass  # another task's

    def _tell_ends(self, until: Mapping[str, int]) -> None:
        """I3: say where the input ends, and take none until it is told."""
        if not self._ends_told and (self._ending is None or self._ending.done()):
            self._ending = self.site.spawn(self._end(until), "ends")

    async def _end(self, until: Mapping[str, int]) -> None:
        wiring = self.site.wiring
        while True:
            while self._taking:
                self._taken.clear()
                await self._taken.wait()
            try:
                wiring.on_ends(await self._source.ends(until))
            except LogUnavailable as error:
                self.site.log.warning("source.log_away", reason=str(error))
                await wiring.clock.sleep_ms(wiring.settings.retry_ms)
            else:
                return

    async def _fetch(self) -> None:
        wiring = self.site.wiring
        await self._started.wait()
        while not self.site.machine.ended:
            try:
                fetched = await self._source.fetch()
                self.restored()
            except LogUnavailable as error:
                self.site.log.warning("source.log_away", reason=str(error))
                await wiring.clock.sleep_ms(wiring.settings.retry_ms)
                continue
            self._fetched.append(fetched)
            self._room.clear()
            self.site.wake.set()
            await self._room.wait()

    def has_input(self) -> bool:
        """See `Intake.has_input`."""
        if not self._fetched or not self.site.machine.may_read():
            return False
        waits = self._ending is not None and not self._ends_told
        return not waits and not self._ahead.waits(self._source.output_watermark())

    def rest(self) -> None:
        """See `Intake.rest`."""
        if self._fetched:
            now_ms = self.site.wiring.clock.monotonic_ms()
            self._source.held_back(now_ms)
            self.site.meter.held(now_ms, first_arrival(self._fetched[0]))

    def seek(self, edge: EdgeId, offset: Offset) -> None:
        """There are no in edges."""

    def heard(self, edge: EdgeId, position: ReadPosition) -> None:
        """See `Intake.heard`."""
        self._returns.heard(edge, position.partition, position.snapshot, position.watermark_ms)
        if self._ahead.heard(edge, position.partition, position.watermark_ms, full=position.full):
            place = {"edge": edge, "partition": position.partition, "time": position.watermark_ms}
            self.site.log.warning("source.receiver_full", **place)

    async def take(self) -> ev.Produced:
        """See `Intake.take`."""
        self._taking = True
        produced = await self._take()
        self._taking = False
        self._taken.set()
        return produced

    async def _take(self) -> ev.Produced:
        clock, machine, meter = self.site.wiring.clock, self.site.machine, self.site.meter
        fetched, rest = self._fetched.popleft().divided(machine.pace.room_rows())
        if rest is not None:
            self._fetched.appendleft(rest)
        elif not fetched.paced:
            self._room.set()
        now_ms = max(clock.now_ms(), machine.processing_time_ms)
        began_ms = clock.monotonic_ms()
        meter.released(began_ms)
        meter.read(fetched.batches)
        outs = await self._source.take(fetched, now_ms, began_ms)
        meter.gave(outs)
        meter.busy_ms += clock.monotonic_ms() - began_ms
        meter.oldest_ms = oldest_work(fetched)
        self._returns.note(self._source.returned(), machine.sender.epoch)
        produced = await self._produced(outs, fetched)
        settle_ms = self._source.settle_ms() if fetched.paced else None
        if settle_ms is not None:
            if settle_ms:
                self.site.spawn(self._ask_later(settle_ms), "ask")
            else:
                self._ask()
        elif produced.ended:
            self.site.wiring.on_ask()  # what the end let out is released without waiting for the interval
        elif fetched.paced:
            self._room.set()
        return produced

    async def _produced(self, outs: Sequence[Given], fetched: Fetched) -> ev.Produced:
        """What goes out now. Rows for sinks may wait, but not behind what others are told: idleness, the end, a script's step."""
        source, gathered = self._source, self._gathered
        idle, ended = source.idle(), source.ended()
        waits = self.site.wiring.gathers and not (idle or ended or fetched.paced)
        gathered.add(outs)
        emissions: tuple[ev.Emission, ...] = ()
        if not waits or gathered.full() or not gathered.rows:
            emissions = await self.emissions(())
        held_rows = gathered.rows + source.held_rows(self.site.machine.pace.window_rows)
        return ev.Produced(emissions, gathered.watermark_ms, idle, ended, fetched.rows, held_rows)

    async def emissions(self, outs: Sequence[Given]) -> tuple[ev.Emission, ...]:
        """With what was gathered before, and then behind everything."""
        gathered = self._gathered
        made = await super().emissions([*gathered.taken(), *outs])
        gathered.watermark_ms = max(gathered.watermark_ms, self._source.output_watermark())
        return made

    async def _ask_later(self, settle_ms: int) -> None:
        """A checkpoint that began before what was set is seen everywhere covers nothing of it."""
        await self.site.wiring.clock.sleep_ms(settle_ms)
        self._ask()

    async def _room_later(self, settle_ms: int) -> None:
        """What came with the epoch is told the time that it came at, before the next step sets another one."""
        if settle_ms:
            await self.site.wiring.clock.sleep_ms(settle_ms)
        self._room.set()

    def _ask(self) -> None:
        self._covered_by = self.site.machine.sender.epoch
        self.site.wiring.on_ask()

    def go_on(self) -> None:
        """See `Intake.go_on`."""
        self._note_commit()
        for split, highest_ms in self._returns.reported():
            self._source.on_receivers(split, highest_ms)
        if self._covered_by is not None and self.site.machine.committed >= self._covered_by:
            self._covered_by = None
            self.site.spawn(self._room_later(self._source.settle_ms() or 0), "go on")

    def _note_commit(self) -> None:
        """For lag tools, beside the work: what fails is tried with the next commit."""
        wiring, committed = self.site.wiring, self.site.machine.committed
        busy, now_ms = self._noting is not None and not self._noting.done(), wiring.clock.monotonic_ms()
        if committed == self._noted or busy or now_ms - self._noted_ms < wiring.settings.note_interval_ms:
            return
        self._noted, self._noted_ms = committed, now_ms
        self._noting = self.site.spawn(self._note(committed), "note")

    async def _note(self, epoch: Epoch) -> None:
        try:
            await self._source.note_committed(epoch)
        except LogError as error:
            self.site.log.warning("source.not_noted", epoch=epoch, reason=str(error))
