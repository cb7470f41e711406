"""Specs to operators."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tidemark.shared.model.formats import unknown_part
from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Hold
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import Operator, OperatorError, Out
from tidemark.shared.operators.compute import ComputeOperator
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dedupe import Distinct
from tidemark.shared.operators.in_order import InOrder
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.partial import PartialAggregate
from tidemark.shared.operators.passing import BranchOrdinals, ComputationRows, KeyBy, StatelessStages, Tap
from tidemark.shared.operators.read_ahead import without_read
from tidemark.shared.operators.specs import (
    BranchSpec,
    ComputeSpec,
    DistinctSpec,
    FrontSpec,
    InOrderSpec,
    JoinSpec,
    KeyBySpec,
    OperatorSpec,
    PartialSpec,
    StatelessSpec,
    StepSpec,
    TapSpec,
)
from tidemark.shared.operators.step_operator import StepOperator


@dataclass(slots=True)
class OperatorChain:
    """Operators in order; with none, everything passes through."""

    operators: tuple[Operator, ...]
    _seen: list[int] = field(default_factory=list)
    """The watermark that each operator has been given last, and, at the end, the chain's own."""
    _names: list[str] = field(default_factory=list)
    """Prefixes of the names of the operators' state parts."""
    _unfinished: set[int] = field(default_factory=set)
    """Operators that have done a piece of what their watermark lets come due."""

    def __post_init__(self) -> None:
        self._seen = [MIN_TIME] * (len(self.operators) + 1)
        kinds = [operator.kind for operator in self.operators]
        self._names = [f"{kind}-{kinds[:i].count(kind)}|" for i, kind in enumerate(kinds)]

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Rows for the first operator; `tag` is the input's."""
        outs = self._push(0, [Out(OUT, content, batch)], tag)
        return [replace(out, batch=without_read(out.batch)) for out in outs + self._settle(0)]

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """The chain's input watermark."""
        outs, unfinished = self.on_watermark_piece(watermark_ms, MAX_TIME)
        assert not unfinished
        return outs

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        """A piece of it, of some `items_max` rows and timers of each operator; and whether it is to be called again with the same."""
        if not self.operators:
            self._seen[0] = max(self._seen[0], watermark_ms)
        outs: list[Out] = []
        told_ms = watermark_ms
        for i, operator in enumerate(self.operators):
            if told_ms > self._seen[i] or i in self._unfinished:
                self._seen[i] = max(self._seen[i], told_ms)
                found, unfinished = operator.on_watermark_piece(self._seen[i], items_max)
                (self._unfinished.add if unfinished else self._unfinished.discard)(i)
                outs += self._push(i + 1, found)
            told_ms = operator.output_watermark()
        if self.operators:
            self._seen[-1] = max(self._seen[-1], told_ms)
        return outs, bool(self._unfinished)

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """To every operator, first to last."""
        return self._each(lambda operator: operator.on_processing_time(now_ms))

    def before_barrier(self) -> Sequence[Out]:
        """Each operator gives out the rows that it holds, first to last, so that none is held behind."""
        return self._each(lambda operator: operator.before_barrier())

    def output_watermark(self) -> int:
        """The last operator's output watermark."""
        return self._seen[-1] if self.operators else self._seen[0]

    def next_processing_time(self) -> int:
        """The earliest of all."""
        return min((operator.next_processing_time() for operator in self.operators), default=2**63 - 1)

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """All parts that changed, under the operators' names."""
        return {
            StatePart(self._names[i] + part): data
            for i, operator in enumerate(self.operators)
            for part, data in operator.snapshot().items()
        }

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Each operator gets its parts; they are taken out of the mapping, so that no more than they hold stays in memory.

        OperatorError for a part that an operator does not take: state that would be passed over without a word.
        """
        for i, operator in enumerate(self.operators):
            prefix = self._names[i]
            own = {StatePart(part[len(prefix) :]): parts.pop(part) for part in [*parts] if part.startswith(prefix)}
            operator.restore(own)
            if own:
                raise OperatorError(
                    str(unknown_part(f"the state of {prefix[:-1]}", min(own), "what this version writes"))
                )

    def counters(self) -> Mapping[str, int]:
        """Sums by name over the operators."""
        totals: dict[str, int] = {}
        for operator in self.operators:
            for name, count in operator.counters().items():
                totals[name] = totals.get(name, 0) + count
        return totals

    def holds(self) -> list[Hold]:
        """The operators that hold the watermark back now, first to last."""
        found = []
        for operator, given_ms in zip(self.operators, self._seen, strict=False):
            reached_ms = operator.output_watermark()
            if reached_ms < given_ms:
                found.append(Hold(*operator.held_by(), given_ms, reached_ms))
        return found

    def held_rows(self, merge_above: int) -> int:
        """Number of rows that operators hold for the next barrier."""
        return sum(operator.held_rows(merge_above) for operator in self.operators)

    def between(self) -> bool:
        """Whether an operator has; to be asked in front of `snapshot`."""
        return any(operator.between() for operator in self.operators)

    def full(self) -> bool:
        """Whether an operator is."""
        return any(operator.full() for operator in self.operators)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _push(self, first: int, outs: Sequence[Out], tag: str = "") -> list[Out]:
        """Rows through the operators from `first` on."""
        for i in range(first, len(self.operators)):
            following: list[Out] = []
            for out in outs:
                if out.port == OUT:
                    following += self.operators[i].on_batch(out.batch, out.content, tag if i == first else "")
                else:
                    following.append(out)
            outs = following
        return list(outs)

    def _advance(self, index: int, watermark_ms: int) -> list[Out]:
        """Give operator `index` a watermark, if it is above the last; pass its output on."""
        if watermark_ms <= self._seen[index]:
            return []
        self._seen[index] = watermark_ms
        return self._push(index + 1, self.operators[index].on_watermark(watermark_ms))

    def _settle(self, first: int) -> list[Out]:
        """Carry watermarks on, each behind the rows that were let fire before it."""
        outs: list[Out] = []
        for i in range(first, len(self.operators)):
            reached = self.operators[i].output_watermark()
            if i + 1 < len(self.operators):
                outs += self._advance(i + 1, reached)
            else:
                self._seen[-1] = max(self._seen[-1], reached)
        return outs

    def _each(self, call: Callable[[Operator], Sequence[Out]]) -> list[Out]:
        outs: list[Out] = []
        for i, operator in enumerate(self.operators):
            outs += self._push(i + 1, call(operator))
            outs += self._settle(i)
        return outs


def build_operator(spec: OperatorSpec, context: TaskContext = NOWHERE) -> Operator:
    """The operator of a spec; a `FrontSpec` has no place here."""
    match spec:
        case InOrderSpec():
            return InOrder(spec, context)
        case DistinctSpec():
            return Distinct(spec, context)
        case StatelessSpec():
            return StatelessStages(spec, context)
        case KeyBySpec():
            return KeyBy(spec, context)
        case PartialSpec():
            return PartialAggregate(spec, context)
        case StepSpec():
            return StepOperator(spec, context)
        case ComputeSpec():
            return (context.computing or ComputeOperator)(spec, context)
        case JoinSpec():
            return JoinOperator(spec, context)
        case TapSpec():
            return Tap(spec, context)
        case BranchSpec():
            return BranchOrdinals(spec)
        case FrontSpec():
            raise OperatorError("a source's front takes records, not batches")


def build_operators(specs: Sequence[OperatorSpec], context: TaskContext = NOWHERE) -> list[Operator]:
    """The operators of a chain, in order: in front of a computation one that makes its rows."""
    operators: list[Operator] = []
    for spec in specs:
        operators += [ComputationRows(spec, context)] if isinstance(spec, ComputeSpec) else []
        operators.append(build_operator(spec, context))
    return operators


def build_chain(specs: Sequence[OperatorSpec], context: TaskContext = NOWHERE) -> OperatorChain:
    """A vertex's chain; for a source without its front."""
    return OperatorChain(tuple(build_operators([spec for spec in specs if not isinstance(spec, FrontSpec)], context)))
