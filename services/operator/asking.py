"""Messages between a worker and the process of a computation: a head in MessagePack, then Arrow batches or state parts.

Everything that comes from the child is treated as data alone: its code is the user's.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from msgspec import Struct, msgpack


class ChildCall(Struct, frozen=True, array_like=True):
    """A call of the operator's; at most one message follows: a batch, a state part, or the operator's parts to build."""

    call: str
    watching: bool = False
    """Callbacks are to be told of before they run (`CallGuard.watching`)."""
    number: int = 0
    """A time, ms."""
    items_max: int = 0
    """Of a watermark: rows and timers of a piece."""
    content: str = ""
    tag: str = ""
    part: str = ""
    payload: bool = False


class Entering(Struct, frozen=True, array_like=True, tag=True):
    """A callback would run; `CallAllowed` answers it."""

    call: bytes


class Left(Struct, frozen=True, array_like=True, tag=True):
    """No callback runs; nothing answers it."""


class CallAllowed(Struct, frozen=True, array_like=True):
    """Whether it may: a reason where not."""

    reason: str | None = None


class CallAnswer(Struct, frozen=True, array_like=True, tag=True):
    """The result of the call: batches first, then the state parts that are there, one message each."""

    outs: tuple[tuple[str, str], ...] = ()
    """Port and content of each batch."""
    parts: tuple[tuple[str, bool], ...] = ()
    """State parts, and whether there is one."""
    watermark_ms: int = 0
    processing_ms: int = 0
    full: bool = False
    unfinished: bool = False
    """Of a watermark: a piece of it is done."""
    counters: dict[str, int] = {}
    error: tuple[str, str] | None = None
    """Kind and text of the error raised."""


Said = Entering | Left | CallAnswer
SAID = msgpack.Decoder(Said)
QUESTION = msgpack.Decoder(ChildCall)
ALLOWED = msgpack.Decoder(CallAllowed)


class Sends(Protocol):
    """What either end of the connection sends by."""

    def __call__(self, message: bytes | memoryview) -> None:
        """Send a message."""
        ...


def send(send_one: Sends, head: Struct, payloads: Sequence[pa.RecordBatch | bytes] = ()) -> None:
    """A head and the payloads that follow it."""
    send_one(msgpack.encode(head))
    for payload in payloads:
        send_one(payload if isinstance(payload, bytes) else _encoded(payload))


def _encoded(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def batch_from(data: bytes) -> pa.RecordBatch:
    """The batch of a message; ValueError for bytes that are none."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, StopIteration, OSError) as error:
        message = f"expected an Arrow IPC stream of one batch, found {len(data)} bytes that do not decode: {error!r}"
        raise ValueError(message) from error
    return batch
