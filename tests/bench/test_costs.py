"""What a record costs in each stage, and in the commonest expressions. Results are compared; no time is asserted."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.harness.bench import accumulator_cliffs, pipeline_cliffs
from tests.harness.bench.cliffs import cliffs
from tests.harness.bench.cliffs import table as cliff_table
from tests.harness.bench.costs import Cost, table
from tests.harness.bench.expression_costs import EXPRESSIONS, expression_costs
from tests.harness.bench.growth import STEEP, Growth, grown
from tests.harness.bench.growth_shapes import SHAPES, expanded
from tests.harness.bench.machine import described
from tests.harness.bench.stage_costs import STAGES, Differs, same, stage_costs

RECORDS = 10_000
OUT = Path(__file__).resolve().parents[2] / "out" / "bench"


def _told(name: str, costs: Sequence[Cost]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps({**described(), "costs": [asdict(c) for c in costs]}, indent=2))
    print(*(f"{key}: {value}" for key, value in described().items()), table(costs), sep="\n")


@pytest.mark.bench
def test_stages() -> None:
    """A record through each stage, in process: over declared fields and without a schema, with the same result."""
    _told("stages", stage_costs(RECORDS, rounds=2))


@pytest.mark.bench
def test_expressions() -> None:
    """The commonest expressions on a record: by their kernels and interpreted, with the same values."""
    _told("expressions", expression_costs(RECORDS, rounds=2))


def test_a_short_measurement_covers_every_stage_and_expression() -> None:
    """The measurement itself works: a few records through all of them, and every result compared."""
    stages, expressions = stage_costs(150, rounds=1), expression_costs(150, rounds=1)
    assert [c.name for c in stages[1:]] == [name for kind in STAGES.values() for name in kind]
    assert [c.name for c in expressions] == [name for kind in EXPRESSIONS.values() for name in kind]
    assert "$match equality" in table(stages)


def test_cliffs_are_found_by_the_seed() -> None:
    """One seed draws the same expressions each time, and each is computed on columns; what is not is said to be interpreted."""
    found = cliffs(3, 25, rows=200, rounds=1)
    assert sorted(str(c.tree) for c in found) == sorted(str(c.tree) for c in cliffs(3, 25, rows=200, rounds=1))
    assert not any(c.interpreted for c in found)
    assert "interpreted" in cliff_table([replace(found[0], interpreted=True), *found[1:]], 25)
    assert "interpreted" not in cliff_table(found, 25)


def test_pipelines_are_found_by_the_seed() -> None:
    """One seed draws the same pipelines each time, each runs, and the stage that limits it is named."""
    found = pipeline_cliffs.cliffs(3, 6, rows=100, rounds=1)
    again = pipeline_cliffs.cliffs(3, 6, rows=100, rounds=1)
    assert sorted(str(c.stages) for c in found) == sorted(str(c.stages) for c in again)
    assert all(c.ns > 0 and any(c.limits.split()[0].rstrip(",") in stage for stage in c.stages) for c in found)
    assert "of 6 pipelines below a fifth" in pipeline_cliffs.table(found, 6)


def test_forms_that_differ_are_not_measured() -> None:
    """A figure of something wrong is none."""
    with pytest.raises(Differs, match=r"\$match: over declared fields"):
        same("$match", [{"a": 1}, {"a": 1}], [{"a": 1}, {"a": 2}])


def test_cliffs_of_accumulators_are_found_by_the_seed() -> None:
    """The same seed draws the same accumulators, types and numbers of groups."""
    drawn = [sorted((c.name, c.type, c.groups) for c in accumulator_cliffs.cliffs(3, 6, rows=50)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 6


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_measured(name: str) -> None:
    """At its least size: the language takes it, and its operators go through all of it."""
    assert grown(name, SHAPES[name], enough_s=0, rounds=1).sizes == [SHAPES[name].size]


def test_shapes_grow_as_they_say() -> None:
    """Their templates, by size."""
    shapes = {
        name: SHAPES[name].pipeline(3)
        for name in ("stages, $unset", "fields, $set to constants", "names, a path that is set")
    }
    assert list(shapes.values()) == [
        [{"$unset": "f0"}, {"$unset": "f1"}, {"$unset": "f2"}],
        [{"$set": {"s0": 0, "s1": 1, "s2": 2}}],
        [{"$set": {"o.a.a.a": "$n"}}],
    ]
    assert expanded(SHAPES["nested, $add"].template[0], 2) == {"$set": {"r": {"$add": [{"$add": ["$n", 1]}, 1]}}}


def test_a_square_is_steep_and_proportion_is_not() -> None:
    """By the steepest step; what takes too little time to tell is neither."""
    assert Growth("square", [10, 40, 160], [0.1, 1.6, 25.6]).exponent == pytest.approx(2)
    assert Growth("one step", [10, 40, 160], [0.1, 1.6, 6.4]).exponent > STEEP
    assert Growth("proportion", [10, 40], [0.5, 2.0]).exponent == pytest.approx(1)
    assert Growth("noise", [10, 40], [0.001, 0.02]).exponent == 0
