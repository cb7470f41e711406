"""Specs to operators."""

from collections.abc import Sequence

from tidemark.shared.operators.base import Operator
from tidemark.shared.operators.branch import Branch
from tidemark.shared.operators.chain import Chain
from tidemark.shared.operators.compute import ComputeOperator
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dedupe import Distinct
from tidemark.shared.operators.errors import OperatorError
from tidemark.shared.operators.in_order import InOrder
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.keyby import KeyBy
from tidemark.shared.operators.partial import PartialAggregate
from tidemark.shared.operators.source_front import SourceFront
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
from tidemark.shared.operators.stateless import StatelessStages
from tidemark.shared.operators.step_operator import StepOperator
from tidemark.shared.operators.tap import Tap


def build_operator(spec: OperatorSpec, context: TaskContext = NOWHERE) -> Operator:
    """The operator of a spec; a `FrontSpec` has no place here (`build_front`)."""
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
            return Branch(spec)
        case FrontSpec():
            raise OperatorError("a source's front takes records, not batches: build it with build_front")


def build_chain(specs: Sequence[OperatorSpec], context: TaskContext = NOWHERE) -> Chain:
    """A vertex's chain; for a source without its front."""
    return Chain(tuple(build_operator(spec, context) for spec in specs if not isinstance(spec, FrontSpec)))


def build_front(spec: FrontSpec, context: TaskContext = NOWHERE) -> SourceFront:
    """The front of a source's task."""
    return SourceFront(spec, context)
