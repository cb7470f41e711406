"""Cliffs of cost among accumulators: each one, over values of each type, in few groups, many, and as many as there are rows.

An accumulator should cost what reading its values costs, and a little more. One that costs many times as much adds or merges its values
one by one.

`python -m tests.harness.bench.accumulator_cliffs [SEED] [NUMBER]` prints the steepest of so many drawn.
"""

import gc
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from tests.harness.bench.costs import timed
from tidemark.shared.language.accumulators.parse import ACCUMULATOR_NAMES
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import TumblingWindow
from tidemark.shared.operators import general_group
from tidemark.shared.operators.base import ARRIVAL, PART, POS, RAW, TS, WEND, WSTART
from tidemark.shared.operators.batches import one_batch
from tidemark.shared.operators.specs import WindowSpec
from tidemark.shared.operators.window_plan import WindowPlan

ROWS: Final = 10_000
PARTS: Final = 4
"""Batches, of whose partials those of a key merge."""
GROUPS: Final = (10, 1_000, ROWS)
_ITEMS: Final = {"$concatArrays": "array", "$setUnion": "array", "$mergeObjects": "object"}
"""Accumulators that take values of one type."""
_PLAIN: Final = ("$first", "$last", "$push")
_NOTHING: Final = "$count"
"""The accumulator that looks at no value."""


def _date(chooser: random.Random) -> Any:
    return {"$date": {"$numberLong": str(chooser.randrange(10**12, 2 * 10**12))}}


_TYPES: Final[Mapping[str, Callable[[random.Random], Any]]] = {
    "int": lambda chooser: chooser.randrange(100_000),
    "few ints": lambda chooser: chooser.randrange(20),
    "double": lambda chooser: round(chooser.gauss(18, 6), 3),
    "string": lambda chooser: f"line {chooser.randrange(100_000)}",
    "date": _date,
    "bool": lambda chooser: chooser.random() < 0.5,
    "decimal": lambda chooser: {"$numberDecimal": str(chooser.randrange(100_000) / 100)},
    "object": lambda chooser: {"room": chooser.randrange(100), "floor": chooser.randrange(9)},
    "array": lambda chooser: [chooser.randrange(100), "a"],
    "null": lambda _: None,
}  # fmt: skip
TYPES: Final = (*_TYPES, "mixed", "missing")


@dataclass(frozen=True)
class Cliff:
    """An accumulator over values of a type in so many groups, ns of processor time a record."""

    name: str
    type: str
    groups: int
    adding_ns: float
    closing_ns: float
    """To merge and to finish."""
    plain_ns: float
    """The cheapest accumulator that keeps values, over the same ones."""

    @property
    def steepness(self) -> float:
        """How many times that it costs."""
        return (self.adding_ns + self.closing_ns) / self.plain_ns


def argument(name: str) -> Any:
    """What an accumulator is written with, to take `v`; `$top` and its kin sort by it."""
    if name in ("$percentile", "$median"):
        return {"input": "$v", "method": "approximate", **({"p": [0.5, 0.95]} if name == "$percentile" else {})}
    more = {"n": 3} if name.endswith("N") else {}
    if name.startswith(("$top", "$bottom")):
        return {"output": "$i", "sortBy": {"v": 1}, **more}
    return {} if name == _NOTHING else {"input": "$v", **more} if more else "$v"


def rows_of(chooser: random.Random, kind: str, groups: int, rows: int) -> list[pa.RecordBatch]:
    """Records in one window, a part each, as a source has them."""
    documents = []
    for i in range(rows):
        of = chooser.choice(list(_TYPES)) if kind == "mixed" else kind
        value = {} if of == "missing" else {"v": _TYPES[of](chooser)}
        documents.append(json.dumps({"k": f"k{i if groups >= rows else chooser.randrange(groups)}", "i": i, **value}))
    whole = pa.array(range(rows), pa.int64())
    zeros = pa.array([0] * rows, pa.int64())
    columns = {
        RAW: pa.array(map(str.encode, documents), pa.binary()),
        TS: whole,
        PART: zeros.cast(pa.int32()),
        POS: whole,
    }
    columns |= {ARRIVAL: whole, WSTART: zeros, WEND: pa.array([rows] * rows, pa.int64())}
    batch, size = pa.RecordBatch.from_pydict(columns), -(-rows // PARTS)
    return [batch.slice(at, size) for at in range(0, rows, size)]


def plan_of(name: str) -> WindowPlan:
    """A window with a `$group` of one accumulator."""
    group = {"$group": {"_id": "$k", "a": {name: argument(name)}}}
    window = {"$tumblingWindow": {"interval": {"size": 10, "unit": "second"}, "pipeline": [group]}}
    connections = {"c": {"type": "kafka", "bootstrapServers": "b"}}
    stage = parse(
        {"connections": connections, "pipeline": [{"$source": {"connectionName": "c", "topic": "t"}}, window]}
    ).pipeline[1]
    assert isinstance(stage, TumblingWindow)
    return WindowPlan(WindowSpec(stage))


def cost(name: str, parts: Sequence[pa.RecordBatch], rounds: int = 2) -> tuple[float, float]:
    """(ns a record to add, and to merge and finish)."""
    plan, rows = plan_of(name), sum(part.num_rows for part in parts)

    def closed(tables: Sequence[pa.Table]) -> None:
        general_group.finish(plan, one_batch(general_group.merge(plan, pa.concat_tables(tables))))

    adding_ns, tables = timed(lambda: [general_group.partials(plan, part)[0] for part in parts], rows, rounds)
    return adding_ns, timed(lambda: closed(tables), rows, rounds)[0]


def cliffs(seed: int, count: int, rows: int = ROWS) -> list[Cliff]:
    """The steepest first, of so many accumulators drawn; each beside those that keep plain values."""
    chooser, found = random.Random(seed), list[Cliff]()
    every = [
        (kind, groups, name)
        for kind in TYPES
        for groups in GROUPS
        for name in ACCUMULATOR_NAMES
        if _ITEMS.get(name, kind) == kind
    ]
    drawn = sorted(chooser.sample(every, min(count, len(every))))
    for (kind, groups), some in groupby(drawn, lambda each: each[:2]):
        parts = rows_of(chooser, kind, groups, rows)
        plain = min(sum(cost(name, parts)) for name in _PLAIN)
        found += [Cliff(name, kind, groups, *cost(name, parts), plain) for _, _, name in some]
    return sorted(found, key=lambda cliff: cliff.steepness, reverse=True)


def table(found: Sequence[Cliff], most: int) -> str:
    """The steepest for people."""
    lines = [f"{'times':>6} {'add ns':>8} {'close ns':>8} {'groups':>7}"]
    lines += [
        f"{c.steepness:>6.1f} {c.adding_ns:>8,.0f} {c.closing_ns:>8,.0f} {c.groups:>7,}  {c.name} of {c.type}"
        for c in found[:most]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    seed, count = [*numbers, *(1, 100)[len(numbers) :]]
    gc.freeze()  # as a service does when it has loaded its modules
    sys.stdout.write(table(cliffs(seed, count), 25) + "\n")
