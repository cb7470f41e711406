"""The input of a task with in edges: frames, read ahead and handed to the driver one by one. A source has `source_intake.py`."""

import asyncio
from collections import deque

from tidemark.shared.model.ids import EdgeId, Offset
from tidemark.shared.ports.log import LogRecord, TopicPartition
from tidemark.shared.protocol.errors import PeerError
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.runtime.reading import reading
from tidemark.shared.runtime.site import TaskSite
from tidemark.shared.wire.frames import decode_frame
from tidemark.shared.wire.limits import WireError


class FrameIntake:
    """The task's partition of each in edge."""

    def __init__(self, site: TaskSite) -> None:
        self.site = site
        self.read_offsets: dict[EdgeId, Offset] = {}
        """Per in edge, all below has been taken from the log (F7)."""
        self._frames: deque[tuple[EdgeId, LogRecord]] = deque()
        """One fetch: `fetch_records_max` frames, each of `frame_bytes_max` at the most; the next fetch waits."""
        self._room = asyncio.Event()
        self._seeks: dict[EdgeId, Offset] = {}
        self._edges = {b.topic: edge for edge, b in site.wiring.inputs.items()}

    def start(self) -> None:
        """Begin to read ahead."""
        if self._edges:
            self.site.spawn(self.site.answered(self._read), "read")

    def has_input(self) -> bool:
        """Whether there is a frame that the task may take now."""
        return bool(self._frames) and self.site.machine.may_read()

    def rest(self) -> None:
        """There is nothing to do now."""
        if not self._frames:
            self._room.set()
            if not self.site.working:
                self.site.meter.oldest_ms = None

    async def take(self) -> ev.FrameRead:
        """The next frame. PeerError for a record that is no frame, with topic, partition and offset (F6)."""
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

    def seek(self, edge: EdgeId, offset: Offset) -> None:
        """C4: no frame of this edge comes any more that was read ahead; then those from this offset on."""
        self._seeks[edge] = offset
        self._frames = deque(item for item in self._frames if item[0] != edge)
        """One fetch: `fetch_records_max` frames, each of `frame_bytes_max` at the most; the next fetch waits."""

    async def _read(self) -> None:
        """Read ahead, one fetch at most; a frame that has been taken from the log counts as read (F7)."""
        wiring, partitions = self.site.wiring, self.site.machine.receiver.partitions
        places = {edge: TopicPartition(b.topic, wiring.task.index) for edge, b in wiring.inputs.items()}
        async with reading(wiring.log) as reader:
            ahead = {edge: record.offset + 1 for edge, record in self._frames}
            start = {edge: Offset(max(partitions[edge].next_offset, ahead.get(edge, 0))) for edge in places}
            start.update(self._seeks)
            self._seeks.clear()
            for edge, offset in start.items():
                self.read_offsets[edge] = max(self.read_offsets.get(edge, offset), offset)
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
