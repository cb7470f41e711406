"""How costs grow with a size: of a pipeline, of records, of their number. A cost should grow as its size does, and no faster.

Each shape (`growth_shapes`) is measured at its least size, at four times as much, and so on until it takes long enough to tell: reading and
planning the document, all of its operators, and its rows written as JSON. The exponent of a step is 1 where the cost is in proportion,
2 where it is the square.

`python -m tests.harness.bench.growth [WORDS]` prints all shapes with these words in their names, and the steep ones once more.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tests.harness.bench.growth_shapes import SHAPES, Shape
from tests.harness.bench.line import Line
from tests.harness.bench.readings import BEGIN_MS, SPLIT, document, source
from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.rendered import rendered

_STEP: Final = 4
_TOLD_S: Final = 0.08
"""Below so much processor time a growth is not told from noise."""
_ENOUGH_S: Final = 0.4
"""No larger size is measured than the first that takes so long."""
_BYTES_MAX: Final = 8 * 2**20
"""No larger size is measured than the first with records of so many bytes."""
STEEP: Final = 1.35
"""An exponent that is no longer proportion with its noise."""


@dataclass(frozen=True)
class Growth:
    """What a shape costs at its sizes, s of processor time."""

    name: str
    sizes: Sequence[int]
    costs: Sequence[float]

    @property
    def exponent(self) -> float:
        """The steepest of its steps that take long enough to tell; 0 where none does."""
        steps = zip(self.costs, self.costs[1:], self.sizes, self.sizes[1:], strict=False)
        told = (step for step in steps if step[1] > _TOLD_S and step[3] >= 2 * step[2])
        return max(
            (math.log(cost / before) / math.log(larger / smaller) for before, cost, smaller, larger in told),
            default=0.0,
        )

    def __str__(self) -> str:
        costs = ", ".join(f"{size:,}: {cost:.3f} s" for size, cost in zip(self.sizes, self.costs, strict=True))
        return f"{self.exponent:5.2f}  {self.name}: {costs}"


def _raw(shape: Shape, n: int) -> RawBatch:
    count, made = shape.rows(n), []
    for i in range(count):
        record = shape.record(i, n)
        record["at"] = BEGIN_MS + 1000 * record.pop("s", 0)
        made.append(b'{"at":' if record.get("bad") else json.dumps(record).encode())
    positions = np.arange(count, dtype=np.int64)
    return RawBatch(SPLIT, 0, positions, positions * 0 + BEGIN_MS, pa.array(made, type=pa.binary()))


def _cost(shape: Shape, n: int, rounds: int) -> float:
    """The least processor time of some rounds, s, from the document on."""
    raw, best = _raw(shape, n), math.inf
    whole = document([source(declared=False), *shape.pipeline(n)])
    for _ in range(rounds):
        began = time.process_time_ns()
        for batch in Line(whole).run(raw):
            rendered(batch)
        best = min(best, (time.process_time_ns() - began) / 1e9)
    return best


def _bytes(shape: Shape, n: int) -> int:
    return len(json.dumps(shape.record(0, n))) * shape.rows(n)


def grown(name: str, shape: Shape, enough_s: float = _ENOUGH_S, rounds: int = 2) -> Growth:
    """A shape at its sizes: until it takes long enough to tell, or has its largest."""
    if enough_s:
        _cost(shape, shape.size, 1)  # what is loaded once
    sizes, costs, most = [shape.size], [_cost(shape, shape.size, rounds)], shape.most or sys.maxsize
    while costs[-1] < enough_s and sizes[-1] < most and _bytes(shape, sizes[-1]) < _BYTES_MAX:
        size = min(sizes[-1] * _STEP, most)
        try:
            costs.append(_cost(shape, size, rounds))
        except InvalidDocument:  # a bound of the language
            break
        sizes.append(size)
    return Growth(name, sizes, costs)


def main(words: Sequence[str]) -> None:
    """Prints each, and the steep ones once more."""
    steep = []
    for name, shape in SHAPES.items():
        if all(word in name for word in words):
            growth = grown(name, shape)
            print(growth, flush=True)
            if growth.exponent > STEEP:
                steep.append(growth)
    print(f"\nSteeper than proportion (above {STEEP}):")
    print("\n".join(map(str, sorted(steep, key=lambda growth: growth.exponent, reverse=True))))


if __name__ == "__main__":
    main(sys.argv[1:])
