"""Runs a computation in a test, with records, watermarks, processing time and restarts as the test says.

    harness = Harness(SpikeAndDip, key="origin")
    harness.record({"origin": "LGA", "departures": 7}, at=1_000)
    harness.watermark(2_000)
    harness.restart()                      # through a snapshot: anything outside of state is lost
    harness.end()
    assert harness.documents == [...]

It runs a task's operator (`tidemark.shared.operators.computation`), without services. `Chain` joins several computations: each one's
output is the next one's input, watermarks included.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.loading import make_computation
from tidemark.shared.computation.records import Order, Record
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import CallbackFailure, CallResults, KeyedComputation, Row, Yielded, row_of

KeyOf = str | Callable[[Document], Any]
"""The key of a document: the name of a top-level field, or a function."""


class Harness:
    """One computation in one task."""

    def __init__(
        self,
        kind: type[Computation[Any, Any]],
        *,
        key: KeyOf,
        config: Mapping[str, object] | None = None,
        order: Order = "eventTime",
        groups: int = 16,
        attempts: int = 1,
        limits: Limits = DEFAULTS,
        raises: bool = True,
    ) -> None:
        """raises: an error of a callback is raised in the test; else it is among `failures`, as a task makes a dead letter of it."""
        self._kind = kind
        self._config = config
        self._order: Order = order
        self._groups_max = groups
        self._limits = replace(limits, attempts_max=attempts)
        self._key = key
        self._raises = raises
        self._task = self._make()
        self._parts: dict[StatePart, bytes] = {}
        self._watermark_ms = MIN_TIME
        self._count = 0
        self.records: list[Record] = []
        """The documents yielded so far, with keys and times."""
        self.late: list[Record] = []
        self.failures: list[CallbackFailure] = []

    @property
    def documents(self) -> list[Document]:
        """The documents yielded so far."""
        return [r.value for r in self.records]

    @property
    def task(self) -> KeyedComputation:
        """The operator itself, for calls that the harness does not have; another one after `restart`."""
        return self._task

    def record(self, document: Document, at: int, late_below: int = MIN_TIME) -> list[Yielded]:
        """A record comes: its event time, and with `lateness: split` its split's watermark before it; ms."""
        self._count += 1
        row = self._row(document, at, (0, self._count))._replace(late_below_ms=late_below)
        return self._done(self._task.on_records([row]))

    def record_all(self, documents: Iterable[tuple[Document, int]]) -> list[Yielded]:
        """Records come in one batch: each with its event time, ms. A batch costs far less than its records one by one."""
        rows = []
        for document, at in documents:
            self._count += 1
            rows.append(self._row(document, at, (0, self._count)))
        return self._done(self._task.on_records(rows))

    def feed(self, outputs: Iterable[Yielded]) -> list[Yielded]:
        """Take in the output of another computation."""
        rows = [self._row(o.value, o.timestamp_ms, (0, o.sequence)) for o in outputs]
        return self._done(self._task.on_records(rows)) if rows else []

    def watermark(self, at: int) -> list[Yielded]:
        """The input watermark rises to this, ms; a lower one changes nothing."""
        self._watermark_ms = max(self._watermark_ms, at)
        return self._done(self._task.on_watermark(self._watermark_ms))

    def processing_time(self, at: int) -> list[Yielded]:
        """The clock shows this, ms."""
        return self._done(self._task.on_processing_time(at))

    def end(self) -> list[Yielded]:
        """The input ends."""
        return self.watermark(MAX_TIME)

    def checkpoint(self) -> dict[StatePart, bytes]:
        """Take a snapshot of the changes; returns all parts as of now."""
        for part, data in self._task.snapshot().items():
            if data is None:
                self._parts.pop(part, None)
            else:
                self._parts[part] = data
        return dict(self._parts)

    def restart(self) -> None:
        """Lose the task and start it again from a snapshot taken now."""
        parts = self.checkpoint()
        self._task = self._make()
        self._task.restore(parts, self._watermark_ms)

    def _make(self) -> KeyedComputation:
        computation = make_computation(self._kind, self._config)
        return KeyedComputation(computation, order=self._order, groups=self._groups_max, limits=self._limits)

    def _row(self, document: Document, at: int, order: tuple[int, int]) -> Row:
        key = document.get(self._key) if isinstance(self._key, str) else self._key(document)
        return row_of(key, document, at, order)

    def _done(self, applied: CallResults) -> list[Yielded]:
        self.records += [Record(o.key, o.value, o.timestamp_ms) for o in applied.outputs]
        self.late += [Record(r.key_value, r.value, r.timestamp_ms) for r in applied.late]
        self.failures += applied.failures
        if self._raises and applied.failures:
            raise applied.failures[0].error
        return applied.outputs


class Chain:
    """Computations one behind the other: outputs and output watermark of each go to the next."""

    def __init__(self, harnesses: Sequence[Harness]) -> None:
        self._harnesses = harnesses

    @property
    def documents(self) -> list[Document]:
        """The documents that the last computation yielded so far."""
        return self._harnesses[-1].documents

    def record(self, document: Document, at: int) -> None:
        """A record for the first one."""
        self._pass_on(self._harnesses[0].record(document, at))

    def watermark(self, at: int) -> None:
        """The first one's input watermark; the others follow."""
        outputs = self._harnesses[0].watermark(at)
        for before, after in zip(self._harnesses, self._harnesses[1:], strict=False):
            after.feed(outputs)
            outputs = after.watermark(MAX_TIME if at == MAX_TIME else before.task.output_watermark())

    def restart(self) -> None:
        """All of them restart, each from its snapshot."""
        for harness in self._harnesses:
            harness.restart()

    def end(self) -> None:
        """The input ends."""
        self.watermark(MAX_TIME)

    def _pass_on(self, outputs: list[Yielded]) -> None:
        for harness in self._harnesses[1:]:
            outputs = harness.feed(outputs)
