"""Stories on an installation of real processes."""

import asyncio
import contextlib
import json
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.harness.drawn_topics.acts import ACTS, draw, while_it_drains
from tests.harness.drawn_topics.cluster import Cluster, cluster
from tests.harness.drawn_topics.story import ENDED, Story, say
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.messages import DropProcessor, StopProcessor
from tidemark.shared.runtime.client import RequestRefused

WORKERS: Final = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "control": 1}
SETTINGS: Final = {"TIDEMARK_RUNTIME": json.dumps({"engine": "local"})}


async def told(story: Story, act: str, acts: int | None) -> None:
    """All of it."""
    await story.begin()
    for number in range(acts or story.rng.randint(2, 5)):
        await story.feed(story.rng.choice([1, 20, 100]))
        await asyncio.sleep(story.rng.random())
        beside = story.rng.choice(["", "", "kill", "rescale", "restart", "broker" if story.alone else "kill"])
        name, does = (act, ACTS[act][1]) if act and number == 0 else draw(story.rng)
        story.did += [beside] if beside else []
        story.did.append(name)
        say(f"  {story.name}: {story.shape}: {beside} {name}")
        match beside:
            case "kill":
                await story.kill()
            case "broker":
                await story.kill("broker")
                await story.cluster.answers()
            case "rescale":
                await story.rescale()
            case "restart":
                await story.stop()
                await story.start()
        await does(story)
        status = await story.until("RUNNING", *ENDED)
        if status.state == "FAILED":
            await story.failed(status)
        if status.state == "STOPPED":
            await story.start()
    for topic in story.sources:
        await story.producers.fence(topic)
    await _drain(story)


async def _drain(story: Story) -> None:
    for number in range(4):
        await story.until("RUNNING", "FAILED")
        await story.feed(10)
        with contextlib.suppress(RequestRefused):  # it is FAILED: what is told below
            await story.there.client.request(StopProcessor(story.there.client.unique(), story.id, drain=True))
        if story.rng.random() < 0.5:
            await story.kill()
        if number == 0:
            await while_it_drains(story)
        status = await story.until(*ENDED)
        if status.state == "FINISHED":
            await story.compare(complete=True)
            await story.audit()
            return
        await story.failed(status)
    story.fault("it does not end")


async def stories(
    seeds: Iterable[int], folder: Path, at_once: int, act: str = "", acts: int | None = None
) -> dict[int, list[str]]:
    """What is wrong, by seed. act: what each story begins with. acts: how many each has; None: two to five."""
    turn, wrong = asyncio.Semaphore(at_once), {}

    async def one(there: Installation, tool: Cluster, seed: int) -> None:
        async with turn:
            story = Story(seed, there, tool, folder, alone=at_once == 1)
            try:
                await told(story, act, acts)
            except Exception as error:  # noqa: BLE001 - the other seeds go on
                story.fault(f"broke off: {error!r} {traceback.format_exc()[-1500:]}")
                status = (await there.client.statuses()).get(story.id)
                say(f"  {story.name}: {status and (status.state, status.reason)}")
            if story.wrong:
                wrong[seed] = [f"{story.shape}: {story.did}", *story.wrong]
            status = (await there.client.statuses()).get(story.id)
            if status is not None:
                await story.stop() if status.state not in ENDED else None
                await there.client.request(DropProcessor(there.client.unique(), story.id))

    async with installation(folder, SETTINGS, WORKERS) as there, cluster(there.cluster.bootstrap) as tool:
        await asyncio.gather(*(one(there, tool, seed) for seed in seeds))
    return wrong
