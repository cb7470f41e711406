"""A sink of another package (`tidemark.plugins.Sink`): parts of documents, each written with its marker in one step (protocol, S2, S3, S6).

- Documents are staged here, in the commit's handle or the blob store, so the plug-in sees committed ones alone, and nothing is taken back.
- A write names the marker in front of it. So a process that was taken for dead, and goes on, writes nothing but the next part of the same
  commit; and a write whose answer was lost is neither repeated nor left out, because markers are read back after every error.
- After any error the plug-in's object is thrown away; the next call begins with a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from tidemark.shared.plugins.interface import Away, Overtaken, PluginError, PluginFailed, Refused, Sink
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import Identity, Rejected, ReleaseGap, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.one_by_one import OneByOne

_report = structlog.get_logger()
T = TypeVar("T")
PART_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the documents of one write, as they are staged: so many are in memory, and may be written again by a target that is slow to say so."""
PART_ROWS_MAX: Final = 10_000
"""The same, in documents."""


@dataclass(slots=True)
class _OpenSink:
    """An open object of the plug-in, and the marker that it found or wrote last."""

    sink: Sink[Any, Any]
    calls: OneByOne
    data: bytes | None = None
    marker: Marker | None = None


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
        self._executor = executor
        self._part_rows_max = part_rows_max
        self._held = self._nothing_held()
        self._judge: Sink[Any, Any] | None = None
        """Never opened: it looks at documents, while another object writes."""
        self._writer: _OpenSink | None = None

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
        return await self._on_newest(lambda writer: self._taken_over(writer, identity, restored_from, joins=joins))

    async def _taken_over(self, writer: _OpenSink, identity: Identity, restored_from: Epoch, *, joins: bool) -> Epoch:
        first = first_marker(writer.marker, identity, restored_from, self._place, joins=joins)
        if first is not None:
            await self._write(writer, [], first)
        assert writer.marker is not None, "it was found, or written just now"
        return writer.marker.released

    async def _opened(self, identity: Identity) -> _OpenSink:
        """The object that writes, with the marker that is the last one there."""
        if self._writer is None:
            sink = await self._ask(self._executor, "loading", self._make)
            self._writer = writer = _OpenSink(sink, OneByOne(self._executor))
            await self._ask(writer.calls, "opening", sink.open)
            writer.data = await self._ask(writer.calls, "reading the marker", sink.marker, str(identity))
            if not isinstance(writer.data, bytes | None):
                raise PluginFailed(f"{self._place}: expected bytes or None from marker(), found {writer.data!r:.200}")
            writer.marker = None if writer.data is None else decode_marker(self._place, writer.data)
        return self._writer

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`."""
        await self._held.make_room()
        documents = documents_of(batch)
        judge, self._judge = self._judge, None
        if judge is None:
            judge = await self._ask(self._executor, "loading", self._make)
        refused = await self._ask(self._executor, "looking at documents", judge.refused, documents)
        self._judge = judge
        if strange := [row for row in refused if not 0 <= row < len(documents)]:
            raise PluginFailed(f"{self._place}: refuses document {strange[0]} of {len(documents)}, from 0")
        self._held.take([encode_doc(each) for row, each in enumerate(documents) if row not in refused])
        return [Rejected(row, f"{self._place}: {why}") for row, why in sorted(refused.items())]

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`. May be repeated after TargetUnavailable."""
        return await self._held.handle(epoch, committed)

    async def _release(self, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        """See `PartsSink._release`."""
        await self._on_newest(lambda writer: self._written(writer, row, staged, passed))

    async def _on_newest(self, work: Callable[[_OpenSink], Awaitable[T]]) -> T:
        """Work behind the last marker, wherever that stands: another holder of the identity may write the same commits.

        After any error, the object that writes is thrown away.
        """
        identity = self._identity
        if identity is None:
            raise ValueError(f"{self._place}: release before open")
        beaten: list[bytes | None] = []
        while True:
            try:
                writer = await self._opened(identity)
                if writer.data in beaten:
                    raise PluginFailed(f"{self._place}: raises Overtaken behind the marker that it names as the last")
                return await work(writer)
            except Overtaken:
                beaten = [] if self._writer is None else [self._writer.data]
                await self._throw_away()
                _report.info("sink.overtaken", place=self._place, identity=str(identity))
            except ReleaseGap:
                raise
            except asyncio.CancelledError:
                self._give_up()
                raise
            except BaseException:
                await self._throw_away()
                raise

    async def _written(self, writer: _OpenSink, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        identity = self._identity
        assert identity is not None
        if writer.marker is None:
            raise TargetRefused(f"{self._place}: the marker of {identity} is gone")
        if not is_due(identity, writer.marker.released, row, self._place):
            return
        for marker, part in self._left(writer.marker, row, staged, passed, self._place):
            rows = [] if part is None else staged_rows(await self._parts.load(part))
            await self._write(writer, [document_of(each) for each in rows], marker)

    async def _write(self, writer: _OpenSink, documents: Sequence[Document], marker: Marker) -> None:
        data = encode_marker(marker)
        await self._ask(writer.calls, "writing", writer.sink.write, marker.identity, documents, data, writer.data)
        writer.data, writer.marker = data, marker

    async def _ask(self, executor: Executor | OneByOne, doing: str, call: Callable[..., T], *args: Any) -> T:
        """The plug-in's answer, and its errors in the words of a sink."""
        where = f"{self._place}, {doing}"
        try:
            return await executor.blocking(call, *args)
        except (Overtaken, PluginError):
            raise
        except Away as error:
            raise TargetUnavailable(f"{where}: {error}") from error
        except Refused as error:
            raise TargetRefused(f"{where}: {error}") from error
        except Exception as error:
            raise PluginFailed(f"{where}: the plug-in raises {type(error).__name__}: {error}") from error

    async def _throw_away(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.calls.blocking(self._close, writer.sink)

    def _give_up(self) -> None:
        """A call that was cancelled goes on, and may never end: the object is closed behind it, and nobody waits for that."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.calls.hand_over(self._close, writer.sink)

    def _close(self, sink: Sink[Any, Any]) -> None:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - of another package; what counts was said before
            _report.warning("sink.close_failed", place=self._place, reason=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._throw_away()
