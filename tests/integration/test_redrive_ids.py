"""Late records are redriven where an id counts once over the whole source: repeats correct nothing, in whatever split they come."""

import logging
import random
from collections import Counter

import pytest

from tests.harness.id_story import EMIT, PARTITIONS, WINDOW, Story, document, record
from tests.harness.installation import NAME, installed
from tidemark.services.audit.redrive import Redriven, redrive
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual

SIZE_MS = 10_000
START = {"$addFields": {"start": {"$toLong": {"$meta": "stream.window.start"}}}}
DOCUMENT = document(WINDOW, START, EMIT, recordIdScope="source")


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


class Corrected(Story):
    """A story with redrives."""

    async def give(self, *sent: tuple[int, int, int]) -> None:
        """(partition, number, time in ms)."""
        await self.send(*((partition, record(number, at_ms)) for partition, number, at_ms in sent))

    async def redrive(self) -> Redriven:
        return await redrive(NAME, self.installation)

    def windows(self) -> dict[int, Counter[int]]:
        """Numbers by the start of their window: what was released, with what redrives have corrected."""
        found = {row["start"]: Counter(row["vs"]) for row in self.rows("out")}
        for correction in self.rows("letters.corrections"):
            old, new = correction["old"], correction["new"]
            assert found.get(new["start"]) == (None if old is None else Counter(old["vs"])), (
                "its old value is the last one"
            )
            found[new["start"]] = Counter(new["vs"])
        return found


def test_a_late_id_is_corrected_once_wherever_it_is_sent_again() -> None:
    """Before a redrive, after one, in its own split and in others; and a repeat of what was on time corrects nothing."""

    async def main(world: VirtualWorld) -> tuple[list[int], dict[int, Counter[int]]]:
        async with installed(world.clock, world.executor) as it:
            story = Corrected(it)
            await it.create(DOCUMENT, source=2, operator=2, sink=1)
            await it.start()
            await story.give((0, 1, 1_000), (1, 2, 2_000), (2, 3, 3_000))
            await story.give((0, 10, 50_000), (1, 11, 50_000), (2, 12, 50_000))
            await it.committed()
            await story.give((1, 4, 4_000), (2, 1, 1_000), (0, 4, 4_000))
            await it.committed()
            counts = [(await story.redrive()).corrections]
            await story.give((2, 4, 4_000), (0, 5, 5_000), (1, 2, 2_000))
            await it.committed()
            counts.append((await story.redrive()).corrections)
            await story.give((1, 5, 5_000), (0, 4, 4_000))
            await it.committed()
            counts.append((await story.redrive()).corrections)
            await it.stop(drain=True)
            await story.audited()
            counts.append((await story.redrive()).corrections)
            return counts, story.windows()

    counts, windows = run_virtual(main)
    assert counts == [1, 1, 0, 0]
    assert windows == {0: Counter([1, 2, 3, 4, 5]), 50_000: Counter([10, 11, 12])}


@pytest.mark.parametrize("seed", [0, 100, 106, 112])
def test_with_its_corrections_every_window_has_each_of_its_ids_once(seed: int) -> None:
    """Late by some splits and not by others, sent again soon or late, anywhere; redrives at any moment; the audit agrees."""
    chooser = random.Random(seed)

    async def main(world: VirtualWorld) -> tuple[dict[int, Counter[int]], dict[int, Counter[int]]]:
        async with installed(world.clock, world.executor) as it:
            story, made = Corrected(it), DOCUMENT
            await it.create(made, source=chooser.choice((1, 2)), operator=chooser.choice((1, 2, 3)), sink=1)
            await it.start()
            sent: list[tuple[int, int, int]] = []
            expected: dict[int, Counter[int]] = {}
            for part in range(6):
                for n in range(30):
                    number = 30 * part + n
                    split = chooser.randrange(PARTITIONS)
                    # The last split is behind: what is late elsewhere is on time there.
                    behind_ms = chooser.choice((0, 0, 0, chooser.randrange(20_000))) + 8_000 * (split == PARTITIONS - 1)
                    at_ms = 100_000 + 4_000 * part + 100 * n - behind_ms
                    sent.append((split, number, at_ms))
                    expected.setdefault(at_ms // SIZE_MS * SIZE_MS, Counter())[number] = 1
                    await story.give(sent[-1])
                    if chooser.random() < 0.2:
                        partition, *again = chooser.choice(sent[-3:] if chooser.random() < 0.5 else sent)
                        await story.give(((partition + chooser.randrange(PARTITIONS)) % PARTITIONS, again[0], again[1]))
                await it.committed(chooser.choice((1, 2)))
                if chooser.random() < 0.4:
                    await story.redrive()
            await it.stop(drain=True)
            await story.audited()
            await story.redrive()
            assert (await story.redrive()).corrections == 0
            return expected, story.windows()

    expected, windows = run_virtual(main)
    assert windows == expected
