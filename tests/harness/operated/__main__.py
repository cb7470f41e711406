"""`python -m tests.harness.operated SEED COUNT [ACTS]`; `SPARK=1` beside it: windows on Spark."""

import asyncio
import logging
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.harness.operated.story import say, told


def main() -> int:
    """How many seeds had faults."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what is killed is away
    first, count = int(sys.argv[1]), int(sys.argv[2])
    acts = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    total: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    bad = 0
    for seed in range(first, first + count):
        say(f"seed {seed}")
        with tempfile.TemporaryDirectory(prefix="operated-") as folder:
            asker = asyncio.run(told(seed, Path(folder), acts, spark=bool(os.environ.get("SPARK"))))
        total += asker.acts
        outcomes += asker.outcomes
        bad += bool(asker.faults)
        say("\n    ".join([f"seed {seed}: {sum(asker.acts.values())} acts, {len(asker.faults)} faults", *asker.faults]))
    say(
        f"{sum(total.values())} acts: {dict(total.most_common())}; {dict(outcomes)}; {bad} of {count} seeds have faults"
    )
    return bad


if __name__ == "__main__":
    sys.exit(min(1, main()))
