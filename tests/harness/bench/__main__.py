"""One measurement at a desk: `python -m tests.harness.bench --events 4000000 --keys 1000 --epoch 100 --profile 8`."""

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.harness.bench.events import Load
from tests.harness.bench.machine import described
from tests.harness.bench.rig import Case, rig, table


async def _main(asked: argparse.Namespace, folder: Path) -> None:
    async with rig(folder) as bench:
        found = []
        for keys in asked.keys:
            for pinned in asked.pinned:
                for epoch in asked.epoch:
                    load = Load(f"events-{keys}", asked.events, keys)
                    case = Case(load, epoch, pinned=bool(pinned), ids=asked.ids, profile_s=asked.profile)
                    figures = await bench.windows(case)
                    found.append(figures)
                    print(table([figures]), flush=True)
                    for place, lines in figures.profile.items():
                        print(f"--- {place}", *lines, sep="\n")
        print(table(found))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000])
    parser.add_argument("--epoch", type=int, nargs="+", default=[100])
    parser.add_argument("--pinned", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--ids", choices=("none", "split", "source"), default="none", help="where repeats are looked for"
    )
    parser.add_argument("--profile", type=int, default=0, help="seconds")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    for name, value in described().items():
        print(f"{name}: {value}")
    if asked.folder is not None:
        asyncio.run(_main(asked, asked.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_main(asked, Path(folder)))


if __name__ == "__main__":
    main()
