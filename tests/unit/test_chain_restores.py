"""A chain hands each operator its state, and passes over none of it."""

import pytest

from tidemark.shared.computation import StateError
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import Operator, OperatorError
from tidemark.shared.operators.build import OperatorChain, build_chain
from tidemark.shared.planning import plan_processor

SOURCE = {"$source": {"connectionName": "c", "topic": "t", "timeField": {"$toDate": "$ts"}, "recordId": "$id"}}
OTHER = {"$source": {"connectionName": "c", "topic": "u", "timeField": {"$toDate": "$ts"}}}
SECOND = {"size": 1, "unit": "second"}
PIPELINE = [
    SOURCE,
    {"$union": {"pipelines": [[OTHER]]}},
    {"$addFields": {"x": 1}},
    {"$join": {"from": [OTHER], "leftKey": "$k", "rightKey": "$k", "within": {"before": SECOND}, "as": "r"}},
    {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}},
    {"$tumblingWindow": {"interval": SECOND, "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}]}},
]


def chains() -> list[OperatorChain]:
    """Those of a pipeline with operators of many kinds, each new."""
    plan = plan_processor(parse({"pipeline": PIPELINE}), engine="local", collects=True)
    found = [build_chain(vertex.chain) for vertex in plan.vertices]
    assert len({operator.kind for chain in found for operator in chain.operators}) >= 5
    return found


@pytest.mark.parametrize("vertex", range(len(chains())))
def test_state_that_an_operator_does_not_take_is_refused(vertex: int) -> None:
    """Whichever operator it is, with state of its own or without: a later version may give it some, which counts."""
    for kind in {operator.kind for operator in chains()[vertex].operators}:
        with pytest.raises((OperatorError, StateError), match="later"):
            chains()[vertex].restore({StatePart(f"{kind}-0|later"): b""})


def test_the_state_of_each_operator_is_taken() -> None:
    """What a chain has written it takes, all of it."""
    for written, read in zip(chains(), chains(), strict=True):
        written.on_watermark(MAX_TIME)
        parts = {part: data for part, data in written.snapshot().items() if data is not None}
        read.restore(parts)
        assert not parts


def test_state_is_found_under_the_names_that_snapshots_have() -> None:
    """Names of classes are part of the format: under another one an operator would find nothing, and begin anew."""
    operators = [operator for chain in chains() for operator in chain.operators]
    stateful = [operator.kind for operator in operators if type(operator).snapshot is not Operator.snapshot]
    assert stateful == ["Distinct", "JoinOperator", "ComputeOperator", "StepOperator"]
