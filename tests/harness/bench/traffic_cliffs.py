"""Cliffs of latency among traffic drawn at random: rates, bursts and silences, skewed partitions, codecs, transactions, large records.

`python -m tests.harness.bench.traffic_cliffs [SEED] [CASES]` runs each case on one installation, and once more without a pipeline: what the
clients and the broker take by themselves (of transactions and bursts this is most). A case's delay is what the pipeline adds; the case
stands on a cliff where that is many times what is added to the least delayed case of the same epoch. Some 40 s a case.
"""

import asyncio
import os
import random
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.harness.bench.ordinary import Case, Found, document, measure
from tests.harness.bench.traffic import EVEN, Traffic
from tidemark.services.cli.installation import installation, workers_of
from tidemark.shared.language.documents import parse
from tidemark.shared.planning import plan_processor

_SECONDS: Final = 10.0
_FIFTH: Final = 5
_BYTES_MAX: Final = 20_000_000
"""A second: Python's clients carry no more of them."""


@dataclass(frozen=True)
class Measured:
    """A case, with and without its pipeline."""

    found: Found
    floor: Found

    @property
    def p50_ms(self) -> float:
        """What the pipeline adds to the median."""
        return max(1.0, (self.found.p50_ms or 0) - (self.floor.p50_ms or 0))

    @property
    def p99_ms(self) -> float:
        """What the pipeline adds to the 99th percentile."""
        return max(1.0, (self.found.p99_ms or 0) - (self.floor.p99_ms or 0))


def drawn(chooser: random.Random) -> Case:
    """One case."""
    rate = chooser.choice([1, 10, 100, 1_000, 10_000])
    large = chooser.choice([0, 0, 0, 10, 100])
    if large and rate * 300_000 / large > _BYTES_MAX:
        large = 0
    traffic = Traffic(
        shape=chooser.choice(["steady", "steady", "bursts", "pauses", "ramp"]),
        skew=chooser.choice(["even", "even", "some", "zipf", "one"]),
        compression=chooser.choice([None, None, "gzip", "snappy", "lz4", "zstd"]),
        transaction_ms=chooser.choice([0, 0, 0, 20, 500]),
        large_every=large,
    )
    return Case(
        rate, _SECONDS, chooser.choice([0, 1, 5, 100]), chooser.choice([1, 4, 16, 64]), chooser.choice([100, None]),
        chooser.choice(["match", "map"]), fields=chooser.choice([0, 0, 20]), traffic=traffic,
    )  # fmt: skip


def _shown(case: Case) -> str:
    said = [
        f"{name} {value}" for name, value in vars(case.traffic).items() if value != getattr(EVEN, name)
    ]  # fmt: skip
    return (
        f"{case.stage} {case.rate:,}/s linger {case.linger_ms} partitions {case.partitions} epoch {case.epoch_ms or 'default'}"
        f" fields {case.fields} {', '.join(said)}"
    )


async def _main(seed: int, count: int, folder: Path) -> None:
    chooser = random.Random(seed)
    workers = workers_of(plan_processor(parse(document(Case(), "in", "out"))), {}, 1)
    measured = []
    async with installation(folder / "data", {"TIDEMARK_LOG": "json"}, workers) as installed:
        for _ in range(count):
            case = drawn(chooser)
            floor = await measure(installed, replace(case, stage="floor"), folder)
            each = Measured(await measure(installed, case, folder), floor)
            measured.append(each)
            cores = sum(each.found.cpu_cores.values())
            print(
                f"{each.found.p50_ms:6,.0f} {each.found.p99_ms:6,.0f} floor {floor.p50_ms:6,.0f} {floor.p99_ms:6,.0f} cores {cores:.2f}"
                f" load {os.getloadavg()[0]:4.1f}  {_shown(case)}",
                flush=True,
            )
    best = {
        epoch: min(each.p99_ms for each in measured if each.found.case.epoch_ms == epoch)
        for epoch in {each.found.case.epoch_ms for each in measured}
    }
    steep = [each for each in measured if each.p99_ms > _FIFTH * best[each.found.case.epoch_ms]]
    print(
        f"{len(steep)} of {count} cases add more than {_FIFTH} times what the least delayed one of their epoch has added"
    )
    for each in sorted(steep, key=lambda each: -each.p99_ms / best[each.found.case.epoch_ms]):
        print(f"{each.p50_ms:6,.0f} {each.p99_ms:6,.0f}  {_shown(each.found.case)}")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    seed, cases = [*numbers, *(1, 20)[len(numbers) :]]
    with tempfile.TemporaryDirectory() as where:
        asyncio.run(_main(seed, cases, Path(where)))
