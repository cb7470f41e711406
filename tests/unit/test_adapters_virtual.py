"""The virtual loop: time moves only when nothing is ready, a seed repeats its run, and every run ends."""

import asyncio
import time

import pytest

from tidemark.shared.adapters.virtual import START_MS, SimulationStuck, VirtualWorld, run_virtual


def test_time_moves_to_the_next_timer_without_waiting() -> None:
    """A day of sleeping takes exactly a day of virtual time, and the wall clock shows it."""

    async def main(world: VirtualWorld) -> tuple[int, int]:
        await world.clock.sleep_ms(86_400_000)
        return world.clock.monotonic_ms(), world.clock.now_ms()

    before = time.monotonic()
    assert run_virtual(main) == (86_400_000, START_MS + 86_400_000)
    assert time.monotonic() - before < 60


def _race(seed: int, *, shuffle: bool) -> list[str]:
    async def main(world: VirtualWorld) -> list[str]:
        trace: list[str] = []

        async def walk(name: str) -> None:
            for step in range(5):
                trace.append(f"{name}{step}")
                if world.chooser.random() < 0.3:
                    await world.clock.sleep_ms(world.chooser.randrange(20))
                else:
                    await asyncio.sleep(0)

        handles = [world.executor.spawn(walk(name), name, trace.append) for name in "abcd"]  # type: ignore[arg-type]
        for handle in handles:
            await handle.join()
        return trace

    return run_virtual(main, seed=seed, shuffle=shuffle)


def test_no_timer_runs_before_its_time() -> None:
    """Timers that differ by rounding alone see no earlier time than their own: a wait for a deadline ends at it."""
    ran: list[tuple[float, float]] = []

    async def main(world: VirtualWorld) -> None:
        loop = asyncio.get_running_loop()

        def note(when: float) -> None:
            ran.append((when, loop.time()))

        for n in range(4):
            when = 4.375 + n * 3e-10
            loop.call_at(when, note, when)
        await world.clock.sleep_ms(5_000)

    run_virtual(main)
    assert len(ran) == 4
    assert all(when == at for when, at in ran)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_seed_repeats_its_interleaving(shuffle: bool) -> None:
    """The same seed gives the same interleaving; other seeds give others."""
    runs = {seed: _race(seed, shuffle=shuffle) for seed in range(8)}
    assert all(_race(seed, shuffle=shuffle) == trace for seed, trace in runs.items())
    assert len({tuple(trace) for trace in runs.values()}) > 4
    for trace in runs.values():
        for name in "abcd":
            assert [t for t in trace if t[0] == name] == [f"{name}{i}" for i in range(5)]


def test_deadlock_is_named() -> None:
    """When nothing is ready and no timer is set the run fails at once and says who waits where."""

    async def main(world: VirtualWorld) -> None:
        async def stuck() -> None:
            await asyncio.Event().wait()

        handle = world.executor.spawn(stuck(), "the-stuck-one", lambda _: None)
        await handle.join()

    with pytest.raises(SimulationStuck, match=r"deadlock.*the-stuck-one at .*\.py"):
        run_virtual(main)


def test_circles_and_overlong_runs_end() -> None:
    """A program that never lets time move, and one that never ends, are stopped."""

    async def circles(world: VirtualWorld) -> None:
        while True:
            await world.clock.sleep_ms(0)

    async def endless(world: VirtualWorld) -> None:
        while True:
            await world.clock.sleep_ms(60_000)

    with pytest.raises(SimulationStuck, match="circles"):
        run_virtual(circles)
    with pytest.raises(SimulationStuck, match="limit"):
        run_virtual(endless, limit_ms=3_600_000)


def test_threads_are_refused() -> None:
    """Handing work to a thread fails: real time would come in."""

    async def main(world: VirtualWorld) -> None:
        await asyncio.to_thread(time.time)

    with pytest.raises(RuntimeError, match=r"Executor\.blocking"):
        run_virtual(main)


def test_wall_clock_jumps_apart_from_monotonic() -> None:
    """A jump of the wall clock does not touch monotonic time."""

    async def main(world: VirtualWorld) -> tuple[int, int]:
        await world.clock.sleep_ms(5)
        world.clock.shift(-1_000)
        return world.clock.now_ms() - START_MS, world.clock.monotonic_ms()

    assert run_virtual(main) == (-995, 5)


def test_time_limits_of_asyncio_are_virtual() -> None:
    """The time limits of asyncio obey virtual time."""

    async def main(world: VirtualWorld) -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return world.clock.monotonic_ms()

    assert run_virtual(main) == 30_000
