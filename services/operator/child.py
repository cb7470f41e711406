"""The process of one computation of one task: `shared.operators.compute`, asked over a connection (`apart.py` has the other end)."""

import gc
import os
import pickle
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from msgspec import msgpack

from tidemark.services.operator.asking import (
    ALLOWED,
    QUESTION,
    CallAllowed,
    CallAnswer,
    ChildCall,
    Entering,
    Left,
    Said,
    batch_from,
    send,
)
from tidemark.services.operator.rockskeys import Stores
from tidemark.shared.language.patterns import keep_patterns
from tidemark.shared.model.ids import StatePart
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.computation_keys import Cooling
from tidemark.shared.operators.compute import ComputeOperator
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import ComputeSpec
from tidemark.shared.process.allocator import arrow_on_heaps, keep_freed

_YOUNG_OBJECTS: Final = 50_000
"""Made before the garbage collector looks at them: a batch makes thousands, which go with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToBuild:
    """The parts of the operator. From the worker to its child only, so that it may be pickled."""

    spec: ComputeSpec
    context: TaskContext
    scratch: Path
    prefix: str
    keys_buffer_bytes: int
    keys_in_memory: int
    patterns_kept_max: int
    kept_bytes: int


class AskingGuard:
    """`CallGuard` that asks the worker, which outlives this process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.watching = False

    def enter(self, call: bytes) -> str | None:
        """See `CallGuard.enter`."""
        self._say(Entering(call))
        allowed: CallAllowed = ALLOWED.decode(self._connection.recv_bytes())
        return allowed.reason

    def leave(self) -> None:
        """See `CallGuard.leave`."""
        self._say(Left())

    def _say(self, said: Said) -> None:
        self._connection.send_bytes(msgpack.encode(said))


class Answering:
    """Carries out the worker's questions, one after the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._guard = AskingGuard(connection)
        self._restored: dict[StatePart, bytes] = {}
        self._operator: ComputeOperator | None = None

    def answer(self, question: ChildCall, payload: bytes) -> tuple[CallAnswer, list[bytes | object]]:
        """The result of the call, and the messages that follow the answer."""
        self._guard.watching = question.watching
        outs: list[Out] = []
        parts: dict[StatePart, bytes | None] = {}
        unfinished = False
        match question.call:
            case "build":
                self._operator = self._built(pickle.loads(payload))  # noqa: S301 - from the worker that forked this process
            case "part":
                self._restored[StatePart(question.part)] = payload
            case "restore":
                self._opened().restore(self._restored)
            case "batch":
                batch = batch_from(payload)
                outs += self._opened().on_batch(batch, question.content, question.tag)
            case "watermark":
                found, unfinished = self._opened().on_watermark_piece(question.number, question.items_max)
                outs += found
            case "time":
                outs += self._opened().on_processing_time(question.number)
            case "snapshot":
                parts = dict(self._opened().snapshot())
            case _:
                message = f"no such call: {question.call}"
                raise ValueError(message)
        operator = self._opened()
        head = CallAnswer(
            tuple((out.port, out.content) for out in outs),
            tuple((part, data is not None) for part, data in parts.items()),
            operator.output_watermark(),
            operator.next_processing_time(),
            operator.full(),
            unfinished,
            dict(operator.counters()),
        )
        return head, [*(out.batch for out in outs), *(data for data in parts.values() if data is not None)]

    def _built(self, told: ToBuild) -> ComputeOperator:
        gc.set_threshold(_YOUNG_OBJECTS)
        keep_freed(told.kept_bytes)
        arrow_on_heaps()
        keep_patterns(told.patterns_kept_max)
        stores = Stores(told.scratch, told.prefix, told.keys_buffer_bytes)
        cooling = Cooling(told.keys_in_memory, stores.make)
        return ComputeOperator(told.spec, replace(told.context, guard=self._guard, cooling=cooling))

    def _opened(self) -> ComputeOperator:
        if self._operator is None:
            message = "asked before it was built"
            raise ValueError(message)
        return self._operator


def work(connection: Connection) -> None:
    """Answer until the worker closes the connection. An error ends this process; the worker sees that and reports it."""
    answering = Answering(connection)
    while True:
        try:
            question: ChildCall = QUESTION.decode(connection.recv_bytes())
            payload = connection.recv_bytes() if question.payload else b""
        except EOFError:
            os._exit(0)
        try:
            head, payloads = answering.answer(question, payload)
        except Exception as error:  # noqa: BLE001 - whatever users' code raises is told to the worker
            head, payloads = CallAnswer(error=(type(error).__name__, str(error))), []
        send(connection.send_bytes, head, payloads)  # type: ignore[arg-type]
