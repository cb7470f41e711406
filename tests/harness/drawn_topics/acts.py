"""What is done to topics, and what must come of it."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka.errors import TopicAlreadyExistsError

from tests.harness.drawn_topics.story import ENDED, SMALL_BYTES_MAX, Story

Act = Callable[[Story], Awaitable[None]]


def _source(story: Story) -> str:
    return story.rng.choice(story.sources)


async def _pause(story: Story) -> None:
    await asyncio.sleep(story.rng.random() * 2)


# --- topics of sources ----------------------------------------------------------------------------------------------------


async def grow(story: Story) -> None:
    """More partitions, with records in them at once."""
    topic = _source(story)
    await story.cluster.grow(topic, len(await story.cluster.partitions(topic)) + story.rng.randint(1, 3))
    await story.feed(story.rng.choice([1, 30]))


async def grow_and_lose(story: Story) -> None:
    """While it is stopped: more partitions, whose first records retention takes before the job has seen them."""
    await story.stop()
    topic = story.sources[0]
    count = len(await story.cluster.partitions(topic))
    await story.cluster.grow(topic, count + 1)
    numbers = [story.next + n for n in range(10)]
    story.next += 10
    await story.producers.send(topic, [(count, story.record(n)) for n in numbers])
    story.there_now.update(numbers)
    ends = await story.cluster.ends(topic)
    await story.cluster.clear({at: 5 for at in ends if at.partition == count})
    await story.start()
    story.told.append(f"{topic} partition {count}.*deleted before they were read")
    await fails(story)


async def behind(story: Story) -> None:
    """Records go that the job has read."""
    for topic in story.sources:
        noted = {at: n for at, n in (await story.cluster.noted(story.name)).items() if at.topic == topic and n > 0}
        if noted:
            await story.cluster.clear(noted)


async def ahead(story: Story) -> None:
    """While it is stopped: records go that it has not read."""
    await story.stop()
    topic = story.sources[0]
    await story.feed(60, topic=topic)
    ends = await story.cluster.ends(topic)
    await story.cluster.clear(ends)
    story.told.append(f"{topic} partition \\d+.*deleted before they were read")
    await story.start()
    await fails(story)


async def clear(story: Story) -> None:
    """While it runs: all records go, read or not."""
    topic = _source(story)
    sending = asyncio.create_task(story.feed(200, topic=topic))
    for _ in range(3):
        await story.cluster.clear(await story.cluster.ends(topic))
    await sending
    story.told.append(f"{topic} partition \\d+.*(deleted before they were read|is not in the log)")
    await _pause(story)
    await _pause(story)


async def _made_anew(story: Story, topic: str, parts: int, records: int) -> None:
    """Delete it, make it with so many partitions, and send so many records that are none of this life's."""
    story.did.append(f"{topic.rpartition('-')[2]} of {parts} with {records}")
    await story.producers.fence(topic)
    await story.cluster.drop(topic)
    await story.cluster.make(topic, parts)
    numbers = [story.next + n for n in range(records)]
    story.next += records
    await story.producers.send(topic, [(story.rng.randrange(parts), story.record(n)) for n in numbers])
    story.told.append(f"topic {topic}: this processor reads the topic with id .*made anew|{topic} not found")


def _again(story: Story, topic_parts: int, longest: int) -> tuple[int, int]:
    parts = max(1, topic_parts + story.rng.choice([-1, 0, 0, 1]))
    return parts, story.rng.choice([0, 3, longest * parts, 3 * longest * parts + 50])


async def anew_running(story: Story) -> None:
    """While it runs: a topic is deleted and made anew."""
    topic = _source(story)
    ends = await story.cluster.ends(topic)
    await _made_anew(story, topic, *_again(story, len(ends), max(ends.values())))
    await fails(story)


async def anew_stopped(story: Story) -> None:
    """The same while it is stopped."""
    await story.stop()
    topic = _source(story)
    ends = await story.cluster.ends(topic)
    await _made_anew(story, topic, *_again(story, len(ends), max(ends.values())))
    await story.start()
    await fails(story)


async def gone(story: Story) -> None:
    """A topic is deleted, and stays away."""
    topic = _source(story)
    story.told.append(f"{topic} not found")
    await story.producers.fence(topic)
    if story.rng.random() < 0.5:
        await story.stop()
        await story.cluster.drop(topic)
        await story.start()
    else:
        await story.cluster.drop(topic)
    await fails(story)


async def transactions(story: Story) -> None:
    """Some are committed, some aborted, in turn."""
    for _ in range(4):
        await story.feed(story.rng.choice([1, 20]), story.rng.choice(["committed", "aborted"]))


async def left_open(story: Story) -> None:
    """One stays open: what comes behind it waits; then its producer is fenced."""
    topic = story.sources[0]
    await story.feed(5, "open", topic)
    await story.feed(20, topic=topic)
    await _pause(story)
    if story.rng.random() < 0.7:
        await story.producers.fence(topic)


async def settings(story: Story) -> None:
    """A source's topic gets other settings."""
    wanted = story.rng.choice(
        [
            {"message.timestamp.type": "LogAppendTime"},
            {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "60000"},
            {"max.message.bytes": "200000", "segment.bytes": "1048576"},
        ]
    )
    await story.cluster.configure(_source(story), wanted)
    await story.feed(20)


# --- topics of outputs ----------------------------------------------------------------------------------------------------


async def out_grows(story: Story) -> None:
    """A target, or the queue of dead letters, gets partitions."""
    topic = story.rng.choice([story.out, story.out, story.dlq])
    await story.cluster.grow(topic, len(await story.cluster.partitions(topic)) + story.rng.randint(1, 3))
    await story.feed(20)


async def out_small(story: Story) -> None:
    """The target takes no large rows any more, for a while."""
    story.told.append(f"{story.out}|record")
    await story.cluster.configure(story.out, {"max.message.bytes": str(SMALL_BYTES_MAX)})
    await story.feed(40)
    await _pause(story)
    await _pause(story)
    await story.cluster.configure(story.out, {})
    if (await story.until("RUNNING", *ENDED)).state == "FAILED":
        await story.start()


def _lost_with_target(story: Story) -> None:
    """What lay in it went with it, or goes while it is away."""
    story.perhaps |= story.there_now
    story.accusable.append(f"topic {story.out}|{story.out}")


async def _there_again(story: Story, topic: str, partitions: int) -> None:
    with contextlib.suppress(TopicAlreadyExistsError):  # a task of the sink has made it
        await story.cluster.make(topic, partitions)


async def out_anew(story: Story) -> None:
    """The target is deleted and made anew."""
    await story.feed(20)
    await story.cluster.drop(story.out)
    await _there_again(story, story.out, story.rng.choice([1, 2, 4]))
    _lost_with_target(story)
    story.told.append(f"{story.out}")
    await _pause(story)
    if (await story.until("RUNNING", *ENDED)).state == "FAILED":
        await story.start()
        await story.until("RUNNING", *ENDED)


async def out_gone(story: Story) -> None:
    """The target is deleted; records come. It is made again, by the job, or when that has failed."""
    await story.cluster.drop(story.out)
    story.told.append(f"{story.out}")
    numbers = await story.feed(40)
    _lost_with_target(story)
    story.perhaps |= set(numbers)
    await _pause(story)
    await _pause(story)
    if (await story.until("RUNNING", *ENDED)).state == "FAILED":
        await _there_again(story, story.out, 2)
        await story.start()
        await story.until("RUNNING", *ENDED)


async def out_foreign(story: Story) -> None:
    """Somebody else writes into the target."""
    await story.producers.send(story.out, [(0, {"else": n}) for n in range(3)])
    story.accusable.append("is in no release of any job")


async def dlq_gone(story: Story) -> None:
    """The queue of dead letters is deleted, and made anew."""
    await story.cluster.drop(story.dlq)
    story.told.append(f"{story.dlq}")
    story.accusable.append(f"{story.dlq}")
    story.perhaps |= story.there_now
    await _pause(story)
    await _there_again(story, story.dlq, 2)
    await _pause(story)
    if (await story.until("RUNNING", *ENDED)).state == "FAILED":
        await story.start()


# --- topics of the installation -------------------------------------------------------------------------------------------


async def _internal(story: Story, part: str) -> list[str]:
    job = (await story.there.client.statuses())[story.id].job
    return [name for name in await story.cluster.names() if job in name and part in name]


async def _taken(story: Story, topics: list[str], *, drops: bool) -> None:
    for topic in topics:
        if drops:
            await story.cluster.drop(topic)
        else:
            await story.cluster.clear(await story.cluster.ends(topic))


async def markers(story: Story) -> None:
    """Release markers go; a sink's process, too."""
    topics = await _internal(story, "tidemark.markers.")
    story.told.append("marker")
    story.perhaps |= story.there_now
    await _taken(story, topics, drops=story.rng.random() < 0.5)
    await story.kill("sink-0")
    await story.feed(20)
    await _pause(story)
    await _pause(story)


async def mirror(story: Story) -> None:
    """The mirror of commits goes."""
    topics = await _internal(story, ".commits")
    drops = story.rng.random() < 0.5
    story.did.append(f"{'deleted' if drops else 'emptied'} {len(topics)}")
    story.told.append("commits")
    story.accusable.append("commits")
    await _taken(story, topics, drops=drops)
    await story.feed(40)
    await story.kill()
    await _pause(story)


async def edges(story: Story) -> None:
    """Topics of edges go."""
    topics = [t for t in await story.cluster.names() if story.name in t and t.startswith("tidemark.")]
    topics += [t for t in await _internal(story, "") if "markers" not in t and not t.endswith(".commits")]
    drops = story.rng.random() < 0.5
    story.did.append(f"{'deleted' if drops else 'emptied'} {topics}")
    story.told.append("edge|frame|topic")
    await story.feed(100)
    await _taken(story, topics, drops=drops)
    await story.feed(40)


async def while_it_drains(story: Story) -> None:
    """Partitions come, records go, or a topic is made anew: it ends with all of its input, or tells what it could not read."""
    topic, what = story.sources[0], story.rng.choice(["nothing", "grow", "clear", "anew"])
    story.did.append(f"drains, {what}")
    match what:
        case "grow":
            await story.cluster.grow(topic, len(await story.cluster.partitions(topic)) + 1)
        case "clear":
            await story.cluster.clear(await story.cluster.ends(topic))
            story.told.append(f"{topic} partition \\d+.*(deleted before they were read|is not in the log)")
        case "anew":
            await _made_anew(story, topic, 2, 20)


async def fails(story: Story) -> None:
    """The job is told to have failed, and begins anew."""
    try:
        status = await story.until("FAILED")
    except TimeoutError:
        story.fault("it goes on, and nothing was told")
        await story.stop()
        await story.compare(complete=False)
        await story.anew()
    else:
        await story.failed(status)


async def none(story: Story) -> None:
    """Nothing but records."""
    await story.feed(story.rng.choice([1, 20, 100]))


ACTS: Final[dict[str, tuple[int, Act]]] = {
    "none": (2, none), "grow": (6, grow), "growAndLose": (2, grow_and_lose), "behind": (5, behind), "ahead": (2, ahead),
    "clear": (2, clear), "anewRunning": (3, anew_running), "anewStopped": (3, anew_stopped), "gone": (1, gone),
    "transactions": (4, transactions), "leftOpen": (3, left_open), "settings": (3, settings), "outGrows": (4, out_grows),
    "outSmall": (2, out_small), "outAnew": (2, out_anew), "outGone": (1, out_gone), "outForeign": (1, out_foreign),
    "dlqGone": (1, dlq_gone), "markers": (1, markers), "mirror": (2, mirror), "edges": (2, edges),
}  # fmt: skip


def draw(rng: random.Random) -> tuple[str, Act]:
    """One of them, by its weight."""
    name = rng.choices(list(ACTS), [weight for weight, _ in ACTS.values()])[0]
    return name, ACTS[name][1]
