"""Outputs that records alone do not decide: the order of arrival, the clock, or the pace of other splits had a part, which nobody notes.

An audit makes no statement about them; a computation again would give another of the possible results. The output of stages in front of
such a stage is compared as ever, and so are the dead letters of those stages.
"""

from collections.abc import Collection, Mapping
from typing import Final

from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import SessionWindow, Window
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.operators.build import OperatorChain
from tidemark.shared.operators.compute import ComputeOperator
from tidemark.shared.operators.specs import ComputeSpec, DistinctSpec, InOrderSpec, JoinSpec, StepSpec
from tidemark.shared.planning import DeadLetterHead

_NOT_NOTED: Final = "which is not noted"


def by_chance(
    plan: PhysicalPlan,
    processor: Processor,
    splits: int,
    chains: Mapping[VertexId, OperatorChain],
    late: Collection[VertexId],
    known: Mapping[VertexId, str],
    highest_ms: int,
) -> dict[VertexId, str]:
    """The vertices with output that the records alone do not decide, each with the reason.

    chains: as they are behind all records. late: vertices that records may have reached too late, by the pace of other splits.
    known: those that earlier records have shown. highest_ms: the highest watermark of a split.
    """
    found = dict(known)
    source, letters = plan.vertices[0].id, _letters(plan)
    aligned = processor.options.alignment_timeout_ms is None
    for vertex in plan.vertices:
        senders = [edge.sender for edge in plan.inputs_of(vertex.id)]
        before = [found[sender] for sender in senders if sender in found]
        if before and (vertex.id not in letters or len(before) == len(senders)):
            found.setdefault(vertex.id, before[0])
            continue
        one_channel = splits == 1 and senders == [source]
        for place, spec in enumerate(vertex.chain):
            in_order = aligned and any(isinstance(other, InOrderSpec) for other in vertex.chain[:place])
            why = _why(spec, in_order=in_order or one_channel)
            if why is None and isinstance(spec, ComputeSpec):
                why = _of_timers(spec, chains[vertex.id], highest_ms)
            if (
                isinstance(spec, DistinctSpec)
                and not (aligned or one_channel)
                and chains[vertex.id].counters()["duplicates"]
            ):
                why = f"{spec.path}.recordId: which of a record's copies came first decided which one counts, {_NOT_NOTED}"
            if why is None and vertex.id in late and isinstance(spec, ComputeSpec | JoinSpec | StepSpec):
                why = f"{_path(spec)}: how far other splits were when a record came decided whether it was late, {_NOT_NOTED}"
            if why is not None:
                found.setdefault(vertex.id, why)
    return found


def _path(spec: ComputeSpec | JoinSpec | StepSpec) -> str:
    match spec:
        case ComputeSpec():
            return spec.stage.path
        case JoinSpec():
            return spec.path
        case StepSpec():
            return spec.window.stage.path


def _letters(plan: PhysicalPlan) -> set[VertexId]:
    return {vertex.id for vertex in plan.vertices if isinstance(vertex.head, DeadLetterHead)}


def _why(spec: object, *, in_order: bool) -> str | None:
    """in_order: rows come in an order that positions decide."""
    match spec:
        case ComputeSpec() if spec.stage.order == "arrival" and not in_order:
            return f"{spec.stage.path}: records of several splits or tasks are applied in the order of their arrival, {_NOT_NOTED}"
        case StepSpec():
            return _of_window(spec.window.stage)
    return None


def _of_window(stage: Window) -> str | None:
    if stage.boundary == "processingTime":
        return f"{stage.path}: its windows go by processing time: which record fell into which is not noted"
    if not isinstance(stage, SessionWindow) and stage.idle_timeout_ms is not None:
        return f"{stage.path}.idleTimeout: when nothing came decided when windows closed, {_NOT_NOTED}"
    return None


def _of_timers(spec: ComputeSpec, chain: OperatorChain, highest_ms: int) -> str | None:
    computations = [operator for operator in chain.operators if isinstance(operator, ComputeOperator)]
    if any(operator.keyed.clocked for operator in computations):
        return f"{spec.stage.path}: its timers of processing time fired when the clock said so, {_NOT_NOTED}"
    if spec.stage.order == "arrival" and any(operator.keyed.timed for operator in computations):
        return f"{spec.stage.path}: with order arrival its timers fire between records as these arrive, {_NOT_NOTED}"
    if any(operator.keyed.cut_ms < highest_ms for operator in computations):
        return f"{spec.stage.path}: how far the watermark came before the end decided which timers that timers set fired, {_NOT_NOTED}"
    return None
