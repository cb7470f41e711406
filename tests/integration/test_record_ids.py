"""A record counts once, wherever in its source it is sent again: one process, virtual time, the whole system around it."""

import logging
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.harness.id_story import EMIT, PARTITIONS, WINDOW, Sent, Story, document, record
from tests.harness.installation import NAME, installed
from tidemark.services.audit.check import Audited
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import VertexId


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(4))
def test_each_id_counts_once_over_partitions_restarts_and_numbers_of_tasks(seed: int) -> None:
    """Producers send a tenth of what they sent again, elsewhere, soon or late; windows have each id once, and the audit finds the same."""
    chooser = random.Random(seed)

    async def main(world: VirtualWorld) -> tuple[list[int], int, Audited]:
        async with installed(world.clock, world.executor) as it:
            story, made = Story(it), document(WINDOW, EMIT)
            await it.create(made, source=2, operator=chooser.choice((1, 2, 3)), sink=1)
            await it.start()
            sent: list[Sent] = []
            repeats = 0
            for part in range(6):
                for n in range(40):
                    sent.append(
                        (chooser.randrange(PARTITIONS), record(40 * part + n, 1_000_000 + 1_000 * part + 10 * n))
                    )
                    await story.send(sent[-1])
                    if chooser.random() < 0.1:
                        partition, again = chooser.choice(sent[-1:] if chooser.random() < 0.5 else sent)
                        await story.send(((partition + chooser.choice((0, 1, 2))) % PARTITIONS, again))
                        repeats += 1
                await it.committed(chooser.choice((1, 2)))
                if chooser.random() < 0.5:
                    await story.tasks(made, operator=chooser.choice((1, 2, 3)), source=chooser.choice((1, 2)))
            await it.stop(drain=True)
            letters = [letter["doc"]["v"] for letter in story.rows("letters")]
            return [v for row in story.rows() for v in row["vs"]] + letters, repeats, await story.audited()

    found, repeats, told = run_virtual(main)
    assert Counter(found) == Counter(range(240))
    assert told.duplicates == repeats
    assert told.records == 240 + repeats


def test_a_repeat_of_what_was_released_is_not_late_and_a_late_id_is_late_once() -> None:
    """Repeats are dropped in front of lateness; an id whose first record comes late is a dead letter, and its repeat is none."""

    async def main(world: VirtualWorld) -> tuple[list[Any], list[Any], Audited]:
        async with installed(world.clock, world.executor) as it:
            story = Story(it)
            await it.create(document(WINDOW, EMIT), source=2, operator=2, sink=1)
            await it.start()
            await story.send((0, record(1, 1_000_000)), (1, record(2, 1_000_500)))
            await story.send(*((p, record(10 + p, 1_050_000)) for p in range(PARTITIONS)))
            await it.committed()
            await it.when(lambda _: len(story.rows()) == 1)
            await story.send((1, record(1, 1_000_000)), (2, record(2, 1_000_500)), (2, record(3, 1_000_600)))
            await it.committed()
            await story.send((0, record(3, 1_000_600)))
            await it.committed()
            await it.stop(drain=True)
            return (
                [row["vs"] for row in story.rows()],
                [letter["doc"]["v"] for letter in story.rows("letters")],
                await story.audited(),
            )

    rows, letters, told = run_virtual(main)
    assert rows == [[1, 2], [10, 11, 12]]
    assert letters == [3]
    assert (told.duplicates, told.late) == (3, 1)


def test_what_an_output_writes_for_one_key_keeps_the_order_of_its_split() -> None:
    """Ids part the rows of a key over tasks; in front of what has an order by key they are put in order again."""

    async def main(world: VirtualWorld) -> list[dict[str, Any]]:
        async with installed(world.clock, world.executor) as it:
            story = Story(it)
            emit = {"$emit": {"connectionName": "k", "topic": "out", "config": {"key": "$k", "keyFormat": "string"}}}
            await it.create(document(emit), source=2, operator=3, sink=2)
            await it.start()
            for begin in range(0, 120, 30):
                await story.send(
                    *(
                        (n % PARTITIONS, record(n, 1_000_000 + n, k=f"k{n % PARTITIONS}"))
                        for n in range(begin, begin + 30)
                    )
                )
                await it.committed(1)
            await it.stop(drain=True)
            return story.rows()

    by_key = defaultdict(list)
    for row in run_virtual(main):
        by_key[row["k"]].append(row["v"])
    assert dict(by_key) == {f"k{p}": list(range(p, 120, PARTITIONS)) for p in range(PARTITIONS)}


def test_a_promise_that_repeats_stay_in_their_split_saves_the_shuffle() -> None:
    """No vertex stands between the source and what follows; a repeat in its split is dropped, one elsewhere was promised not to come."""

    async def main(world: VirtualWorld) -> tuple[list[int], set[str]]:
        async with installed(world.clock, world.executor) as it:
            story = Story(it)
            await it.create(document(EMIT, recordIdScope="split"))
            await it.start()
            await story.send((0, record(1, 1_000_000)), (0, record(1, 1_000_000)), (1, record(2, 1_000_000)))
            await it.committed()
            status = (await it.client.statuses())[NAME]
            await it.stop(drain=True)
            return sorted(row["v"] for row in story.rows()), {vertex for vertex, *_ in status.tasks}

    rows, vertices = run_virtual(main)
    assert rows == [1, 2]
    assert not any(vertex.startswith("distinct") for vertex in vertices)


def test_two_sources_may_stand_at_two_places_of_one_topic() -> None:
    """An audit takes no such commit for a damaged one: it finds each record twice, also one that is no record."""

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as it:
            story = Story(it)
            made = document(EMIT)
            union = {"$union": {"pipelines": [[made["pipeline"][0]]]}}
            await it.create({**made, "pipeline": [made["pipeline"][0], union, EMIT]}, source=2, operator=1, sink=1)
            await it.start()
            await story.send((0, record(1, 1_000_000)), (0, record(2, 1_000_000, v="none")))
            await it.committed()
            await it.stop(drain=True)
            found = await story.audited()
            assert (found.records, found.accepted, found.dead_letters) == (4, 2, 2)
            assert (found.outputs[VertexId("emit-1")], found.unchecked) == (2, ())

    run_virtual(main)
