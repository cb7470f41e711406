"""Cliffs among traffic drawn at random (`traffic.py`), through stages with state and without.

`python -m tests.harness.bench.traffic_cliffs [SEED] [CASES] [STAGE…]` runs each case on one installation, and once more without a
pipeline: what the clients and the broker take by themselves (of transactions and bursts this is most). A case's delay is what the
pipeline adds. The case stands on a cliff where that is many times what is added to plain traffic through the same stage at the same
epoch and rate, which is measured before it; and where a record takes many times the processor time (from 1,000/s on; of windows that
alone). Of one case in four the records are there before the pipeline: of those, too, it is the processor time that counts. A case with
other results than it must have is told, and the status is 1. Some 40 s a case.
"""

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

from tests.harness.bench.ordinary import WINDOWS, Case, Found, document, measure
from tests.harness.bench.traffic import EVEN, Times, Traffic
from tidemark.services.cli.installation import installation, workers_of
from tidemark.shared.language.documents import parse
from tidemark.shared.planning import plan_processor

_SECONDS: Final = 10.0
_FIFTH: Final = 5
_PLAIN: Final = Case(1_000, _SECONDS, 1, 4)
"""Even traffic, beside which the others are judged."""
_STAGES: Final = ("match", "map", "distinct", "computation", "join", *WINDOWS)
_EPOCHS: Final = (100, None)
_IN_TIME: Final[tuple[Times, ...]] = ("now", "disorder", "gaps")
_WAITING: Final = 300_000
"""Records of a case that are there before its pipeline."""
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

    @property
    def us_a_record(self) -> float:
        """Processor time of all processes but the clients."""
        return sum(self.found.cpu_cores.values()) / self.found.events_per_s * 1e6

    def steepness(self, plain: "Measured") -> float:
        """How many times the delay, or the processor time, of plain traffic."""
        # What idles costs the same with few records, and large ones cost their bytes.
        costs = self.found.case.rate >= _PLAIN.rate and not self.found.case.traffic.large_every
        delay = 0.0 if self.found.p99_ms is None else self.p99_ms / plain.p99_ms
        return max(delay, self.us_a_record / plain.us_a_record if costs else 0.0)


def drawn(chooser: random.Random, stages: Sequence[str]) -> Case:
    """One case."""
    stage = chooser.choice(stages)
    rate = chooser.choice([1_000, 10_000] if stage in (*WINDOWS, "join") else [1, 10, 100, 1_000, 10_000])
    large = chooser.choice([0, 0, 0, 10, 100])
    if large and rate * 300_000 / large > _BYTES_MAX:
        large = 0
    transaction_ms = chooser.choice([0, 0, 0, 20, 500])
    # A late record of some of its hopping windows alone would be no whole one.
    times = chooser.choice(_IN_TIME if stage == "hopping" else get_args(Times))
    # Ids of years ago are beyond any horizon.
    repeats_every = chooser.choice([0, 2, 50]) if stage == "distinct" and times != "past" else 0
    traffic = Traffic(
        shape=chooser.choice(["steady", "steady", "bursts", "pauses", "ramp"]),
        skew=chooser.choice(["even", "even", "some", "zipf", "one"]),
        compression=chooser.choice([None, None, "gzip", "snappy", "lz4", "zstd"]),
        transaction_ms=transaction_ms,
        large_every=large,
        keys=chooser.choice(["none", "few", "many", "odd"]),
        times=times,
        groups=chooser.choice(["even", "one", "hot", "each"]) if stage in ("computation", *WINDOWS) else "even",
        repeats_every=repeats_every,
        tombstones_every=chooser.choice([0, 0, 3, 50]),
        aborted_every=chooser.choice([0, 2, 10]) if transaction_ms else 0,
    )
    if chooser.choice([False, False, False, True]):
        return Case(
            _PLAIN.rate, _SECONDS, 1, chooser.choice([1, 4, 16, 64]), chooser.choice(_EPOCHS), stage, preload=_WAITING,
            fields=chooser.choice([0, 0, 20]), traffic=replace(traffic, shape="steady", large_every=0),
        )  # fmt: skip
    return Case(
        rate, _SECONDS, chooser.choice([0, 1, 5, 100]), chooser.choice([1, 4, 16, 64]), chooser.choice(_EPOCHS),
        stage, fields=chooser.choice([0, 0, 20]), traffic=traffic,
    )  # fmt: skip


def _shown(case: Case) -> str:
    pace = f"{case.preload:,} waiting" if case.preload else f"{case.rate:,}/s"
    said = [
        f"{name} {value}" for name, value in vars(case.traffic).items() if value != getattr(EVEN, name)
    ]  # fmt: skip
    return (
        f"{case.stage} {pace} linger {case.linger_ms} partitions {case.partitions} epoch {case.epoch_ms or 'default'}"
        f" fields {case.fields} {', '.join(said)}"
    )


async def _main(seed: int, count: int, stages: Sequence[str], folder: Path) -> int:
    chooser = random.Random(seed)
    workers = workers_of(plan_processor(parse(document(Case(), "in", "out"))), {}, 1)
    async with installation(folder / "data", {"TIDEMARK_LOG": "json"}, workers) as installed:

        async def measured(case: Case) -> Measured:
            floor = await measure(installed, replace(case, stage="floor"), folder)
            each = Measured(await measure(installed, case, folder), floor)
            print(
                f"{each.found.p50_ms or 0:6,.0f} {each.found.p99_ms or 0:6,.0f} floor {floor.p50_ms or 0:6,.0f} {floor.p99_ms or 0:6,.0f}"
                f" {each.us_a_record:8,.0f} us load {os.getloadavg()[0]:4.1f}  {_shown(case)}",
                flush=True,
            )
            return each

        plain: dict[Case, Measured] = {}
        found: list[tuple[float, Measured]] = []
        wrong: list[Case] = []
        for case in [drawn(chooser, stages) for _ in range(count)]:
            even = replace(_PLAIN, stage=case.stage, epoch_ms=case.epoch_ms, rate=max(case.rate, _PLAIN.rate))
            if case.preload:
                even = replace(even, preload=case.preload, fields=case.fields)
            if even not in plain:
                plain[even] = await measured(even)
            try:
                each = await measured(case)
            except AssertionError as error:
                print(f"wrong: {error}: {case}", flush=True)
                wrong.append(case)
                continue
            found.append((each.steepness(plain[even]), each))
    by_steepness = sorted(found, key=lambda x: -x[0])
    steep = [(times, each) for times, each in by_steepness if times > _FIFTH]
    print(f"{len(steep)} of {count} cases add, or cost, more than {_FIFTH} times what plain traffic does")
    for times, each in steep:
        print(
            f"{times:6.1f} times: {each.p50_ms:6,.0f} {each.p99_ms:6,.0f} {each.us_a_record:8,.0f} us  {_shown(each.found.case)}"
        )
    for case in wrong:
        print(f"other results than it must have: {_shown(case)}")
    return len(wrong)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    seed, cases = [*numbers, *(1, 20)[len(numbers) :]]
    with tempfile.TemporaryDirectory() as where:
        sys.exit(1 if asyncio.run(_main(seed, cases, sys.argv[3:] or _STAGES, Path(where))) else 0)
