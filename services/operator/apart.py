"""A computation in a process of its own, as an operator of a task: the worker survives any fault of users' code.

- Rules of `shared/operators/computation.py` hold there as here: the child runs the same operator.
- A callback that is watched (deaths.py) is reported to this process before it runs. So the note that outlives a death names it.
- A child that has ended, or took too long, is not replaced: its task fails, and the next generation's has the state of the last commit.
"""

import pickle
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from msgspec import msgpack

from tidemark.services.operator.asking import (
    SAID,
    CallAllowed,
    CallAnswer,
    ChildCall,
    Entering,
    Left,
    Said,
    batch_from,
    send,
)
from tidemark.services.operator.child import ToBuild
from tidemark.services.operator.deaths import Deaths
from tidemark.services.operator.rockskeys import Scratch
from tidemark.services.operator.settings import OperatorSettings
from tidemark.shared.computation import problems
from tidemark.shared.computation.problems import ComputationError
from tidemark.shared.model.formats import FormatError
from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Why
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import Operator, OperatorError, Out, ScratchUnavailable
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import ComputeSpec
from tidemark.shared.ports.children import Child, ChildEnded, Children
from tidemark.shared.runtime.settings import RuntimeSettings

_KINDS: Final[Mapping[str, type[Exception]]] = {
    "FormatError": FormatError,
    "OperatorError": OperatorError,
    "ScratchUnavailable": ScratchUnavailable,
    **{name: kind for name, kind in vars(problems).items() if isinstance(kind, type)},
}
"""The errors that a computation's process tells and that are more than their text, by name."""


_KEPT_BYTES: Final = 16 << 20
"""Freed memory that a child keeps for its next allocations."""


class ComputationEnded(ComputationError):
    """The process of a computation has ended: names the stage, the exit and the callback."""


class ComputeApart(Operator):
    """One task's share of a `$compute`, in a child. Calls come one at a time, and block."""

    kind = "ComputeOperator"

    def __init__(self, spec: ComputeSpec, child: Child, deaths: Deaths, settings: OperatorSettings) -> None:
        self._spec = spec
        self._child = child
        self._deaths = deaths
        self._settings = settings
        self._standing = CallAnswer()

    def build(self, told: ToBuild) -> None:
        """Load the class there. ComputationError, also of one that ends its process or does not come to an end."""
        question = ChildCall("build", self._deaths.watching, payload=True)
        self._ask(question, [pickle.dumps(told)], self._settings.build_ms_max)

    # --- events -----------------------------------------------------------------------------------------------------------

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """See `ComputeOperator.on_batch`."""
        question = ChildCall("batch", self._deaths.watching, content=content, tag=tag, payload=True)
        return self._ask(question, [batch])[0]

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """See `ComputeOperator.on_watermark`."""
        return self.on_watermark_piece(watermark_ms, MAX_TIME)[0]

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        """See `ComputeOperator.on_watermark_piece`."""
        question = ChildCall("watermark", self._deaths.watching, watermark_ms, items_max)
        return self._ask(question)[0], self._standing.unfinished

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """See `ComputeOperator.on_processing_time`; asked only when something is due."""
        if now_ms < self._standing.processing_ms:
            return ()
        return self._ask(ChildCall("time", self._deaths.watching, now_ms))[0]

    def output_watermark(self) -> int:
        """The watermark that the child told with its last answer, ms."""
        return self._standing.watermark_ms

    def full(self) -> bool:
        """Whether the child was full at its last answer."""
        return self._standing.full

    def held_by(self) -> tuple[str, Why]:
        """See `ComputeOperator.held_by`."""
        return self._spec.stage.name, "timer"

    def next_processing_time(self) -> int:
        """The time that the child told with its last answer, ms."""
        return self._standing.processing_ms

    def counters(self) -> Mapping[str, int]:
        """The counters that the child told with its last answer."""
        return self._standing.counters

    # --- state ------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """See `ComputeOperator.snapshot`."""
        return self._ask(ChildCall("snapshot", self._deaths.watching))[1]

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """See `ComputeOperator.restore`; part by part, so that one at a time is here and there."""
        for part in list(parts):
            self._ask(ChildCall("part", part=part, payload=True), [parts.pop(part)])
        self._ask(ChildCall("restore"))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def close(self) -> None:
        """End the child, even if it is busy."""
        self._child.end()

    # --- asking -----------------------------------------------------------------------------------------------------------

    def _ask(
        self, question: ChildCall, payloads: Sequence[pa.RecordBatch | bytes] = (), wait_ms: int | None = None
    ) -> tuple[list[Out], dict[StatePart, bytes | None]]:
        wait_ms = wait_ms or self._settings.call_ms_max
        try:
            send(self._child.send, question, payloads)
            answer = self._answer(wait_ms)
            outs = [Out(port, content, batch_from(self._child.receive(wait_ms))) for port, content in answer.outs]  # type: ignore[arg-type]
            parts = {StatePart(name): self._child.receive(wait_ms) if there else None for name, there in answer.parts}
        except ChildEnded as ended:
            self._deaths.died()
            doing = "its class was loaded" if question.call == "build" else "it worked"
            message = f"{self._spec.stage.path}: the process of {self._spec.stage.class_} {ended} while {doing}"
            raise ComputationEnded(message) from ended
        if answer.error is not None:
            raise self._error(*answer.error)
        self._standing = answer
        return outs, parts

    def _answer(self, wait_ms: int) -> CallAnswer:
        while True:
            said: Said = SAID.decode(self._child.receive(wait_ms))
            match said:
                case Entering(call):
                    self._child.send(msgpack.encode(CallAllowed(self._deaths.enter(call))))
                case Left():
                    self._deaths.leave()
                case CallAnswer():
                    return said

    def _error(self, kind: str, text: str) -> Exception:
        if kind == "MemoryError":
            most = self._settings.memory_bytes_max
            text = f"{self._spec.stage.path}: its process may take {most} bytes (memory_bytes_max), and needs more"
            return ComputationError(text)
        known = _KINDS.get(kind)
        return known(text) if known is not None else ComputationError(f"{self._spec.stage.path}: {kind}: {text}")


class Computations:
    """Makes the computations of one task, each in a child."""

    def __init__(
        self, children: Children, deaths: Deaths, scratch: Scratch, settings: OperatorSettings, runtime: RuntimeSettings
    ) -> None:
        self._children = children
        self._deaths = deaths
        self._scratch = scratch
        self._settings = settings
        self._runtime = runtime
        self._made: list[ComputeApart] = []

    def make(self, spec: ComputeSpec, context: TaskContext) -> ComputeApart:
        """One more; blocks while its class is loaded."""
        made = ComputeApart(spec, self._children.start(), self._deaths, self._settings)
        self._made.append(made)
        made.build(
            ToBuild(
                spec=spec,
                context=replace(context, guard=None, cooling=None, computing=None),
                scratch=self._scratch.root,
                prefix=self._scratch.prefix,
                keys_buffer_bytes=self._runtime.keys_buffer_bytes,
                keys_in_memory=self._runtime.keys_in_memory,
                patterns_kept_max=self._runtime.patterns_kept_max,
                kept_bytes=_KEPT_BYTES,
            )
        )
        return made

    def pids(self) -> list[int]:
        """The processes that it has started and not ended yet."""
        return [made.pid for made in self._made]

    def close(self) -> None:
        """End all of them, and remove their files on the disk."""
        while self._made:
            self._made.pop().close()
        self._scratch.sweep_deserted()
