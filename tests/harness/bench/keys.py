"""What a checkpoint of a computation writes where few of its keys change: `python -m tests.harness.bench.keys`.

Each key counts its records; each round some of them get one more, and a snapshot is taken. At the end all is restored.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.bench.machine import described
from tidemark.shared.computation import Computation, NoConfig, Record, Timers, make_computation
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import KeyedComputation, row_of


@dataclass
class Count:
    n: int = 0


class Counting(Computation[Count, NoConfig]):
    """Counts, and yields nothing."""

    State = Count

    def process(self, record: Record, state: Count, timers: Timers) -> Iterator[Document]:
        del record, timers
        state.n += 1
        yield from ()


def _made() -> KeyedComputation:
    return KeyedComputation(make_computation(Counting), order="arrival")


def measured(keys: int, changed: int, rounds: int) -> dict[str, float]:
    """Bytes of a snapshot, KiB: of all keys, and of rounds on the average and at the most; processor time of one, ms; of the restore, s."""
    chooser = random.Random(1)
    task, stored = _made(), dict[StatePart, bytes]()
    written: list[int] = []
    spent_s = 0.0
    for number in range(rounds + 1):
        some = range(keys) if not number else chooser.sample(range(keys), changed)
        task.on_records([row_of(key, {}, number) for key in some])
        began = time.process_time()
        parts = task.snapshot()
        spent_s += time.process_time() - began if number else 0.0
        written.append(sum(map(len, filter(None, parts.values()))))
        stored = {part: data for part, data in {**stored, **parts}.items() if data is not None}
    kept, count = sum(map(len, stored.values())), len(stored)
    began = time.process_time()
    _made().restore(stored)
    return {
        "all_kib": written[0] >> 10, "round_kib": sum(written[1:]) / rounds / 1024, "round_kib_max": max(written[1:]) >> 10,
        "snapshot_ms": spent_s / rounds * 1e3, "parts": count, "kept_kib": kept >> 10, "restore_s": time.process_time() - began,
    }  # fmt: skip


def main() -> None:
    """Print one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=300_000)
    parser.add_argument("--changed", type=int, default=1_000, help="of them, each round")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    print(json.dumps({**vars(given), **measured(given.keys, given.changed, given.rounds), **described()}))


if __name__ == "__main__":
    main()
