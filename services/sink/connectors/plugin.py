"""A sink of another package (`tidemark.plugins.Sink`): parts of documents, each written with its marker in one step (protocol, S2, S3, S6).

- Documents are staged here, in the commit's handle or the blob store, so the plug-in sees committed ones alone, and nothing is taken back.
- A write names the marker in front of it. So a process that was taken for dead, and goes on, writes nothing but the next part of the same
  commit; and a write whose answer was lost is neither repeated nor left out, because markers are read back after every error.
- After any error the plug-in's object is thrown away; the next call begins with a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import structlog

from tidemark.services.sink.connectors.kafkamarkers import Marker, decode_marker, encode_marker
from tidemark.services.sink.connectors.markers import is_due
from tidemark.services.sink.connectors.mergechanges import HeldRows, document_of, staged_rows
from tidemark.services.sink.connectors.parts import PartsSink, first_marker
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.shared.language.values import encode_doc
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.plugins.interface import Overtaken, PluginFailed, Sink
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import Identity, Rejected, ReleaseGap, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.plugged import Plugged

_report = structlog.get_logger()
T = TypeVar("T")
PART_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the documents of one write, as they are staged: so many are in memory, and may be written again by a target that is slow to say so."""
PART_ROWS_MAX: Final = 10_000
"""The same, in documents."""


@dataclass(frozen=True, slots=True)
class _Newest:
    """The marker that the open object has found or written last."""

    data: bytes | None
    marker: Marker | None


class PluginSink(PartsSink):
    """`SinkPort` by a plug-in. `make` gives a new object of it, and blocks."""

    def __init__(
        self,
        make: Callable[[], Sink[Any, Any]],
        place: str,
        parts: PartStore,
        executor: Executor,
        part_rows_max: int = PART_ROWS_MAX,
    ) -> None:
        super().__init__(parts)
        self._make = make
        self._place = place
        self._plugged = Plugged(make, place, executor, TargetUnavailable, TargetRefused)
        self._part_rows_max = part_rows_max
        self._held = self._nothing_held()
        self._judge: Sink[Any, Any] | None = None
        """Never opened: it looks at documents, while another object writes."""
        self._newest: _Newest | None = None
        """None: it is to be read, by an object that is new."""

    def _nothing_held(self, restored_from: Epoch = NO_EPOCH) -> HeldRows:
        return HeldRows(self._parts, PART_BYTES_MAX, restored_from, self._part_rows_max)

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return self._place

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `Sink.open`. May be repeated after TargetUnavailable."""
        self._identity = identity
        self._held = self._nothing_held(restored_from)
        await self._throw_away()
        return await self._on_newest(lambda newest: self._taken_over(newest, identity, restored_from, joins=joins))

    async def _taken_over(self, newest: _Newest, identity: Identity, restored_from: Epoch, *, joins: bool) -> Epoch:
        first = first_marker(newest.marker, identity, restored_from, self._place, joins=joins)
        if first is not None:
            newest = await self._write(newest, [], first)
        assert newest.marker is not None, "it was found, or written just now"
        return newest.marker.released

    async def _read(self, identity: Identity) -> _Newest:
        data = await self._plugged.ask("reading the marker", lambda sink: sink.marker(str(identity)))
        if not isinstance(data, bytes | None):
            raise PluginFailed(f"{self._place}: expected bytes or None from marker(), found {data!r:.200}")
        self._newest = _Newest(data, None if data is None else decode_marker(self._place, data))
        return self._newest

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`."""
        await self._held.make_room()
        documents = documents_of(batch)
        judge, self._judge = self._judge, None
        if judge is None:
            judge = await self._plugged.ask_apart("loading", self._make)
        refused = await self._plugged.ask_apart("looking at documents", judge.refused, documents)
        self._judge = judge
        if not isinstance(refused, Mapping):
            raise PluginFailed(
                f"{self._place}: expected reasons by places of documents from refused(), found {refused!r:.200}"
            )
        if strange := [row for row in refused if row not in range(len(documents))]:
            raise PluginFailed(f"{self._place}: refuses document {strange[0]} of {len(documents)}, from 0")
        self._held.take([encode_doc(each) for row, each in enumerate(documents) if row not in refused])
        return [Rejected(row, f"{self._place}: {why}") for row, why in sorted(refused.items())]

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`. May be repeated after TargetUnavailable."""
        return await self._held.handle(epoch, committed)

    async def _release(self, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        """See `PartsSink._release`."""
        await self._on_newest(lambda newest: self._written(newest, row, staged, passed))

    async def _on_newest(self, work: Callable[[_Newest], Awaitable[T]]) -> T:
        """Work behind the last marker, wherever that stands: another holder of the identity may write the same commits.

        After any error, the object that writes is thrown away.
        """
        identity = self._identity
        if identity is None:
            raise ValueError(f"{self._place}: release before open")
        beaten: list[bytes | None] = []
        while True:
            try:
                newest = self._newest or await self._read(identity)
                if newest.data in beaten:
                    raise PluginFailed(f"{self._place}: raises Overtaken behind the marker that it names as the last")
                return await work(newest)
            except Overtaken:
                beaten = [] if self._newest is None else [self._newest.data]
                await self._throw_away()
                _report.info("sink.overtaken", place=self._place, identity=str(identity))
            except ReleaseGap:
                raise
            except asyncio.CancelledError:
                self._newest = None
                self._plugged.let_go()
                raise
            except BaseException:
                await self._throw_away()
                raise

    async def _written(self, newest: _Newest, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        identity = self._identity
        assert identity is not None
        if newest.marker is None:
            raise TargetRefused(f"{self._place}: the marker of {identity} is gone")
        if not is_due(identity, newest.marker.released, row, self._place):
            return
        for marker, part in self._left(newest.marker, row, staged, passed, self._place):
            rows = [] if part is None else staged_rows(await self._parts.load(part))
            newest = await self._write(newest, [document_of(each) for each in rows], marker)

    async def _write(self, newest: _Newest, documents: Sequence[Document], marker: Marker) -> _Newest:
        data = encode_marker(marker)
        await self._plugged.ask("writing", lambda sink: sink.write(marker.identity, documents, data, newest.data))
        self._newest = _Newest(data, marker)
        return self._newest

    async def _throw_away(self) -> None:
        self._newest = None
        await self._plugged.close()

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._throw_away()
