"""`python -m tests.harness.clusters [VERSION…]`: three processors on each version, both ways; settings drawn from seeds, on the newest."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.clusters.jobs import Cluster, run, say
from tests.harness.clusters.properties import drawn
from tests.harness.clusters.rights import AUDIT, SINK, SOURCE, guarded
from tests.harness.clusters.versions import versions


async def told(cluster: Cluster, seed: int) -> bool:
    """Run it and say what came of it; whether it holds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        wrong = await run(cluster, Path(folder), seed)
    shown = f"{cluster.version} {cluster.where} {dict(cluster.properties) or ''}".strip()
    say(
        "\n  ".join([f"{shown}: {'holds' if not wrong else 'does not hold'}, {time.monotonic() - began:.0f} s", *wrong])
    )
    return not wrong


async def main(asked: list[str], seeds: range) -> int:
    """How many did not hold."""
    bad = 0
    for version in asked or versions():
        for where in ("theirs", "whole"):
            bad += not await told(Cluster(version=version, where=where, broken=where == "theirs"), 1)
    for seed in seeds:
        bad += not await told(drawn(random.Random(seed), (asked or versions())[-1]), seed)
    return bad + (not await told(guarded((*SOURCE, *SINK, *AUDIT)), 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.harness.clusters", description=__doc__)
    parser.add_argument("versions", nargs="*", help=f"of {', '.join(versions())}; all of them by default")
    parser.add_argument("--seeds", default="1-3", help="of drawn settings: 3, or 1-9")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    sys.exit(asyncio.run(main(options.versions, range(int(first), int(last or first) + 1))))
