"""Stories, one after the other: three brokers and an installation fill a machine."""

import asyncio
import contextlib
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.harness.brokers.acts import ACTS
from tests.harness.brokers.cluster import OPEN, brokers
from tests.harness.brokers.guarding import HOSTS, PROPERTIES, admit, certified
from tests.harness.brokers.story import Story, drawn, standing
from tests.harness.clusters.jobs import say

RECORDS: Final = 2_000


async def told(story: Story, act: str, acts: int | None) -> None:
    """All of it."""
    await story.begin()
    feeding = asyncio.create_task(story.keep_feeding())
    try:
        for number in range(acts or story.rng.randint(2, 4)):
            name = act if act and number == 0 else story.rng.choices(list(ACTS), [w for w, _ in ACTS.values()])[0]
            story.did.append(name)
            say(f"  {story.seed}: {story.shape}: {name}")
            await ACTS[name][1](story)
            if not await story.goes_on():
                return
        story.slow = False
        await feeding
        await story.end()
        say(f"  {story.seed}: {story.did}")
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding


async def stories(
    seeds: Iterable[int], folder: Path, act: str = "", acts: int | None = None, records: int = RECORDS
) -> dict[int, list[str]]:
    """What is wrong, by seed. act: what each story begins with. acts: how many each has; None: two to four."""
    wrong = {}
    for seed in seeds:
        place = folder / f"{seed}"
        story = drawn(seed, place, records)
        if story.guarded:
            story.config = certified(place)
        properties, hosts = (PROPERTIES, HOSTS) if story.guarded else ({}, OPEN)
        async with brokers(place, properties, hosts) as cluster:
            story.brokers = cluster
            if story.guarded:
                await admit(cluster)
            try:
                async with standing(story):
                    await told(story, act, acts)
            except Exception as error:  # noqa: BLE001 - the other seeds go on
                story.fault(f"broke off: {error!r} {traceback.format_exc()[-1500:]}")
            if story.wrong:
                wrong[seed] = [f"{story.shape}: {story.did}", *story.wrong]
    return wrong
