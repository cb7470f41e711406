"""Where a task's input comes from, as its driver sees it: frames of in edges here, splits of a source in `source_intake.py`."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from tidemark.shared.model.ids import EdgeId, Offset
from tidemark.shared.model.messages import Command, ReadPosition
from tidemark.shared.ports.log import LogRecord, LogUnavailable, Reader, TopicPartition
from tidemark.shared.protocol.errors import PeerError
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.runtime.body import Given
from tidemark.shared.runtime.reading import reading
from tidemark.shared.runtime.site import TaskSite
from tidemark.shared.wire.errors import WireError
from tidemark.shared.wire.frames import decode_frame


class Intake(ABC):
    """Reads ahead, and hands the main loop one piece after the other."""

    def __init__(self, site: TaskSite) -> None:
        self.site = site
        self.read_offsets: dict[EdgeId, Offset] = {}
        """Per in edge, all below has been taken from the log (F7)."""

    @abstractmethod
    def start(self) -> None:
        """Begin to read ahead."""

    @abstractmethod
    def has_input(self) -> bool:
        """Whether there is a piece that the task may take now."""

    @abstractmethod
    async def take(self) -> ev.FrameRead | ev.Produced:
        """The next piece, as the machine is told of it."""

    @abstractmethod
    def rest(self) -> None:
        """There is nothing to do now."""

    @abstractmethod
    def go_on(self) -> None:
        """The machine has taken an event."""

    @abstractmethod
    def seek(self, edge: EdgeId, offset: Offset) -> None:
        """C4: no frame of this edge comes any more that was read ahead; then those from this offset on."""

    @abstractmethod
    def restored(self) -> None:
        """The task stands where its snapshot says."""

    @abstractmethod
    def told(self, command: Command) -> None:
        """What the coordinator says of the input of sources."""

    @abstractmethod
    def heard(self, edge: EdgeId, position: ReadPosition) -> None:
        """A receiver has told where it is."""

    async def emissions(self, outs: Sequence[Given]) -> tuple[ev.Emission, ...]:
        """What goes out now."""
        return await self.site.wiring.exchange.emissions(outs, self.site.machine.sender.epoch)


class FrameIntake(Intake):
    """The task's partition of each in edge."""

    def __init__(self, site: TaskSite) -> None:
        super().__init__(site)
        self._frames: deque[tuple[EdgeId, LogRecord]] = deque()
        """One fetch: `fetch_records_max` frames, each of `frame_bytes_max` at the most; the next fetch waits."""
        self._room = asyncio.Event()
        self._seeks: dict[EdgeId, Offset] = {}
        self._edges = {b.topic: edge for edge, b in site.wiring.inputs.items()}

    def start(self) -> None:
        """See `Intake.start`."""
        if self._edges:
            self.site.spawn(self._read(), "read")

    def has_input(self) -> bool:
        """See `Intake.has_input`."""
        return bool(self._frames) and self.site.machine.may_read()

    def rest(self) -> None:
        """See `Intake.rest`."""
        if not self._frames:
            self._room.set()
            if not self.site.working:
                self.site.meter.oldest_ms = None

    async def take(self) -> ev.FrameRead:
        """The next frame. PeerError for what is none, by topic, partition and offset (F6)."""
        edge, record = self._frames.popleft()
        self.site.meter.oldest_ms = record.timestamp_ms
        if not self._frames:
            self._room.set()
        data = record.value or b""
        try:
            return ev.FrameRead(edge, record.offset, decode_frame(data, self.site.wiring.settings.wire), len(data))
        except WireError as error:
            message = f"{self.place_of(edge, record.offset)}: {error}"
            raise PeerError(message) from error

    def place_of(self, edge: EdgeId, offset: Offset) -> str:
        """Where a frame lies, for messages."""
        wiring = self.site.wiring
        return f"topic {wiring.inputs[edge].topic} partition {wiring.task.index} offset {offset}"

    def go_on(self) -> None:
        """Frames wait for the machine alone."""

    def restored(self) -> None:
        """Edges are known."""

    def told(self, command: Command) -> None:
        """What is a source's."""

    def heard(self, edge: EdgeId, position: ReadPosition) -> None:
        """What receivers have read holds the sender alone (F7)."""

    def seek(self, edge: EdgeId, offset: Offset) -> None:
        """See `Intake.seek`."""
        self._seeks[edge] = offset
        self._frames = deque(item for item in self._frames if item[0] != edge)
        """One fetch: `fetch_records_max` frames, each of `frame_bytes_max` at the most; the next fetch waits."""

    async def _read(self) -> None:
        """Read ahead, one fetch at most; what has been taken from the log counts as read (F7)."""
        wiring = self.site.wiring
        while True:
            try:
                async with reading(wiring.log) as reader:
                    await self._read_with(reader)
            except LogUnavailable as error:
                self.site.log.warning("task.log_away", reason=str(error))
                await wiring.clock.sleep_ms(wiring.settings.retry_ms)

    async def _read_with(self, reader: Reader) -> None:
        wiring, partitions = self.site.wiring, self.site.machine.receiver.partitions
        places = {edge: TopicPartition(b.topic, wiring.task.index) for edge, b in wiring.inputs.items()}
        ahead = {edge: record.offset + 1 for edge, record in self._frames}
        start = {edge: Offset(max(partitions[edge].next_offset, ahead.get(edge, 0))) for edge in places}
        start.update(self._seeks)
        self._seeks.clear()
        await reader.assign({places[edge]: offset for edge, offset in start.items()})
        while True:
            while self._seeks:
                edge, offset = self._seeks.popitem()
                await reader.seek(places[edge], offset)
            records = await reader.fetch(wiring.settings.fetch_records_max, wiring.settings.fetch_timeout_ms)
            for record in records:
                edge = self._edges[record.topic]
                if edge not in self._seeks:
                    self._frames.append((edge, record))
                    self.read_offsets[edge] = max(self.read_offsets.get(edge, Offset(0)), Offset(record.offset + 1))
            if records:
                self._room.clear()
                self.site.wake.set()
                if self._frames:
                    await self._room.wait()
