"""What happens to brokers, each undone at its end: behind it the cluster can."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tests.harness.brokers.asking import Part
from tests.harness.brokers.node import Node
from tests.harness.brokers.story import Story
from tests.harness.chaos.lanes import Cut

Act = Callable[[Story], Awaitable[None]]


async def _leader(story: Story, prefixes: Sequence[str]) -> Node:
    """Of some partition of such a topic."""
    parts = [part for part in await story.brokers.asking.parts() if part.topic.startswith(tuple(prefixes))]
    led = sorted({part.leader for part in parts if part.leader > 0} - story.away)
    return story.brokers.nodes[story.rng.choice(led)] if led else _any(story)


def _any(story: Story) -> Node:
    return story.brokers.nodes[story.rng.choice(sorted(set(story.brokers.nodes) - story.away))]


async def _of_topics(story: Story) -> Node:
    return await _leader(story, [*story.topics, "tidemark."])


async def _of_transactions(story: Story) -> Node:
    return await _leader(story, ["__transaction_state"])


async def _of_groups(story: Story) -> Node:
    return await _leader(story, ["__consumer_offsets"])


async def _controller(story: Story) -> Node:
    return story.brokers.controller()


async def _pause(story: Story, most_s: float = 8.0) -> None:
    seconds = story.rng.choice([0.0, 1.0, most_s])
    story.did.append(f"{seconds:.0f} s")
    await asyncio.sleep(seconds)


async def _back(story: Story, nodes: Sequence[Node]) -> None:
    await asyncio.gather(*(node.start() for node in nodes if not node.running))
    await story.brokers.healed(but=sorted(story.away))


def killed(which: Callable[[Story], Awaitable[Node]]) -> Act:
    """SIGKILL of one."""

    async def act(story: Story) -> None:
        node = await which(story)
        story.did.append(f"broker {node.number}")
        node.kill()
        await _pause(story)
        await story.meanwhile(can=not story.away)
        await _back(story, [node])

    return act


async def rolling(story: Story) -> None:
    """Each is stopped and started, one after the other."""
    for number, node in sorted(story.brokers.nodes.items()):
        if number not in story.away:
            await node.stop()
            await _back(story, [node])


async def two_away(story: Story) -> None:
    """Two of three are away: there is no quorum, and where two have to be in sync no record is taken."""
    nodes = story.rng.sample(sorted(story.brokers.nodes), 2)
    story.did.append(f"brokers {nodes}")
    for number in nodes:
        story.brokers.nodes[number].kill()
    await _pause(story, 15.0)
    await _back(story, list(story.brokers.nodes.values()))


async def all_away(story: Story) -> None:
    """All at once, as in a power cut."""
    for node in story.brokers.nodes.values():
        node.kill()
    await _pause(story)
    await _back(story, list(story.brokers.nodes.values()))


async def frozen(story: Story) -> None:
    """A leader stays there and answers nothing more."""
    node = await _of_topics(story)
    story.did.append(f"broker {node.number}")
    node.pause()
    await _pause(story, 20.0)
    await story.meanwhile(can=not story.away)
    node.go_on()
    await story.brokers.healed(but=sorted(story.away))


async def cut(story: Story) -> None:
    """Clients do not reach one, which leads on; other brokers do."""
    node = await _of_topics(story)
    how: Cut = story.rng.choice(["both", "up", "down", "refused"])
    story.did.append(f"broker {node.number} {how}")
    node.lane.cut(how)
    await story.meanwhile(can=False)
    await _pause(story, 20.0)
    node.lane.heal(how)


async def moved(story: Story) -> None:
    """One comes back with another address."""
    node = _any(story)
    story.did.append(f"broker {node.number}")
    await node.stop()
    await story.meanwhile(can=not story.away)
    await node.move()
    await _back(story, [node])


async def elected(story: Story) -> None:
    """Others lead, some times."""
    for _ in range(3):
        await _reassigned(story, lambda replicas: story.rng.sample(replicas, len(replicas)))
        await story.brokers.asking.elect([part for part in await _own(story) if len(part.replicas) > 1])
        await _pause(story, 2.0)


async def _own(story: Story) -> list[Part]:
    return [part for part in await story.brokers.asking.parts() if not part.topic.startswith("__cluster")]


async def _reassigned(story: Story, drawn: Callable[[Sequence[int]], Sequence[int]]) -> None:
    wanted = {(part.topic, part.number): drawn(part.replicas) for part in await _own(story)}
    await story.brokers.asking.reassign(wanted)
    await story.brokers.healed(but=sorted(story.away))


async def reassigned(story: Story) -> None:
    """Replicas move to other brokers."""
    there = sorted(set(story.brokers.nodes) - story.away)
    await _reassigned(story, lambda replicas: story.rng.sample(there, min(len(replicas), len(there))))


async def decommissioned(story: Story) -> None:
    """The first of the bootstrap addresses goes for good, its replicas elsewhere before."""
    if story.away:
        return
    story.away.add(1)
    there = [2, 3]
    await _reassigned(story, lambda replicas: story.rng.sample(there, min(len(replicas), len(there))))
    await story.brokers.nodes[1].stop()
    await story.brokers.healed(but=[1])


async def wiped(story: Story) -> None:
    """A broker's disk is emptied while others have its records, and it rejoins."""
    node = _any(story)
    if story.replicas < 2 or story.away:
        return
    story.did.append(f"broker {node.number}")
    node.kill()
    await story.brokers.gone(node.number)
    node.wipe()
    await _pause(story)
    await _back(story, [node])


async def few(story: Story) -> None:
    """The target wants all three replicas in sync, and one is away: the job says so, and goes on when that is mended."""
    if story.replicas < 3 or story.away:
        return
    topic = f"{story.name}-out"
    await story.brokers.asking.configure(topic, {**story.settings, "min.insync.replicas": "3"})
    node = _any(story)
    story.did.append(f"broker {node.number}")
    node.kill()
    await story.says(rf"topic {topic} partition \d+: NotEnoughReplicas.*min\.insync\.replicas")
    if story.rng.random() < 0.5:
        await story.brokers.asking.configure(topic, story.settings)
        await story.goes_on()
    await _back(story, [node])
    await story.brokers.asking.configure(topic, story.settings)


async def none(story: Story) -> None:
    """Nothing."""
    await _pause(story)


ACTS: Final[dict[str, tuple[int, Act]]] = {
    "none": (1, none), "leader": (4, killed(_of_topics)), "controller": (3, killed(_controller)),
    "transactions": (4, killed(_of_transactions)), "groups": (1, killed(_of_groups)), "rolling": (3, rolling),
    "twoAway": (3, two_away), "allAway": (1, all_away), "frozen": (4, frozen), "cut": (4, cut), "moved": (3, moved),
    "elected": (3, elected), "reassigned": (3, reassigned), "decommissioned": (2, decommissioned), "wiped": (3, wiped),
    "few": (2, few),
}  # fmt: skip
"""By name: how often, and what."""
