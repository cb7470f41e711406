"""What a task waits for: told with a reason, or when it has no end for long."""

import pytest

from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.held import Wait
from tidemark.shared.runtime.waiting import LONG_MS, Waits, waiting


@pytest.mark.parametrize("by_ms", [0, -3_600_000, 3_600_000])
def test_silence_is_told_when_it_has_been_long_whatever_the_wall_clock_says(by_ms: int) -> None:
    """Where it is set back meanwhile, too: a wait without a reason would not have been told for an hour."""
    waits, found = Waits(), list[list[str]]()

    async def play(world: VirtualWorld) -> None:
        def tell(doing: str, wait: Wait | None) -> None:
            waits.note(doing, wait, world.clock.monotonic_ms())

        def look() -> None:
            found.append([wait.reason for wait in waits.told(world.clock.monotonic_ms())])

        with waiting(tell, world.clock, "asking", "asking", "the table") as failed:
            world.clock.shift(by_ms)
            await world.clock.sleep_ms(LONG_MS - 1)
            look()
            await world.clock.sleep_ms(1)
            look()
            failed("it is away")
            look()
        look()

    run_virtual(play, start_ms=7_200_000)
    assert found == [[], ["the table: no answer, or a slow one, since 02:00:00 UTC"], ["it is away"], []]
