"""Virtual time: an asyncio loop whose clock moves to the next timer instead of waiting for it.

For deterministic simulation.

Rules:
- the loop does no I/O and has one thread: the same program with the same seed gives the same interleaving
  (as long as the program iterates over no set of strings or objects, whose order Python draws anew per
  process);
- time advances only when nothing is ready to run, and then exactly to the next timer;
- nothing ready and no timer left is a deadlock and raises at once, naming the object of every wait; steps
  without end at one instant, and time beyond a limit, raise too: a simulation always ends.
"""

import asyncio
import math
import random
from asyncio.base_events import BaseEventLoop
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidemark.shared.adapters.executor import Spawner

T = TypeVar("T")

START_MS: Final = 1_700_000_000_000
"""Wall time at the start of a simulation, by default: 2023-11-14 22:13:20 UTC."""
LIMIT_MS: Final = 7 * 24 * 3_600_000
"""Virtual time that a simulation may take, by default: a week."""
STILL_STEPS_MAX: Final = 1_000_000
"""Turns of the loop at one instant, by default, before it counts as running in circles."""


class SimulationStuck(Exception):
    """The program can make no progress (deadlock), makes none (circles), or takes longer than its limit."""


class VirtualLoop(BaseEventLoop):
    """An event loop on virtual time: `select` never blocks, it moves the clock.

    shuffle: step tasks that are ready together in an order drawn from the chooser, instead of first come,
    first served. It shows silent assumptions of a program on asyncio's order; a task's own steps stay in
    order.
    """

    def __init__(
        self,
        chooser: random.Random,
        *,
        shuffle: bool = False,
        limit_ms: int = LIMIT_MS,
        still_steps_max: int = STILL_STEPS_MAX,
    ) -> None:
        super().__init__()
        self._virtual_s = 0.0
        # The base class runs timers that are due before time + resolution: no timer may run before its time.
        self._clock_resolution = math.ulp(0.0)
        # The base class polls through this attribute; the loop is its own selector.
        self._selector = self
        self._chooser = chooser
        self._shuffle = shuffle
        self._limit_s = limit_ms / 1000
        self._still_steps = 0
        self._still_steps_max = still_steps_max

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def select(self, timeout: float | None) -> list[Any]:
        """The base class calls this between turns: no I/O is ever ready; time moves to the next timer.

        Raises:
            SimulationStuck: nothing is ready and no timer is set; or a limit is passed.
        """
        if timeout is None:
            raise SimulationStuck(
                f"deadlock at {self._virtual_s:.3f} s: nothing is ready, no timer is set. {self._waiting()}"
            )
        if timeout > 0:
            timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
            self._virtual_s = max(self._virtual_s, timers[0].when())
            self._clock_resolution = math.ulp(self._virtual_s)
            self._still_steps = 0
            if self._virtual_s > self._limit_s:
                raise SimulationStuck(
                    f"the run passed its limit of {self._limit_s:.0f} s of virtual time. {self._waiting()}"
                )
            return []
        self._still_steps += 1
        if self._still_steps > self._still_steps_max:
            raise SimulationStuck(
                f"{self._still_steps_max} turns at {self._virtual_s:.3f} s: something runs in circles."
                f" {self._waiting()}"
            )
        if self._shuffle:
            self._shuffle_ready()
        return []

    def _shuffle_ready(self) -> None:
        """Draw a new order for the ready steps of tasks; futures' callbacks keep their places."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        places = [i for i, handle in enumerate(ready) if _is_task_step(handle)]
        if len(places) > 1:
            steps = [ready[i] for i in places]
            self._chooser.shuffle(steps)
            for place, step in zip(places, steps, strict=True):
                ready[place] = step

    def _waiting(self) -> str:
        """Every task and the line at which it waits, by name, for messages."""
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "its start"
            lines.append(f"{task.get_name()} at {where}")
        return "Waiting: " + ("; ".join(lines) if lines else "no task")

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing: there is no I/O."""

    def _write_to_self(self) -> None:
        """Nothing: no thread wakes this loop."""

    def run_in_executor(self, executor: Any, func: Callable[..., object], *args: Any) -> Any:  # type: ignore[override]
        """Refused: a thread would bring real time in. Use the Executor port."""
        raise RuntimeError(
            f"virtual loop: {func!r} was handed to a thread; use Executor.blocking, which runs inline here"
        )


def _is_task_step(handle: asyncio.Handle) -> bool:
    callback: Any = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


class VirtualClock:
    """`Clock` on the running loop's time, which may be virtual: wall time = start + loop time + shifts."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Wall clock, UTC, ms since 1970."""
        return self._start_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """The loop's time, ms."""
        return round(asyncio.get_running_loop().time() * 1000)

    async def sleep_ms(self, duration_ms: int) -> None:
        """Return when the loop's time has advanced by this much."""
        await asyncio.sleep(max(0, duration_ms) / 1000)

    def shift(self, by_ms: int) -> None:
        """Let the wall clock jump, as setting a machine's clock does; monotonic time does not."""
        self._start_ms += by_ms


class InlineExecutor(Spawner):
    """`Executor` of a simulation: blocking work runs at the call; its result arrives at a later turn."""

    def blocking(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """Run the function now; the awaitable yields to other tasks before it gives the result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        try:
            result = work(*args)
        except Exception as error:  # noqa: BLE001 - handed on: the awaitable raises it
            loop.call_soon(_fail, future, error)
        else:
            loop.call_soon(_succeed, future, result)
        return future


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


@dataclass(frozen=True, slots=True)
class VirtualWorld:
    """The parts that a simulated program gets: its time, its concurrency, and the one source of choices."""

    clock: VirtualClock
    executor: InlineExecutor
    chooser: random.Random


def run_virtual(
    main: Callable[[VirtualWorld], Coroutine[Any, Any, T]],
    *,
    seed: int = 0,
    start_ms: int = START_MS,
    shuffle: bool = False,
    limit_ms: int = LIMIT_MS,
) -> T:
    """Run `main` on virtual time until it returns; cancel the tasks that it left running; give back its result.

    Raises:
        SimulationStuck: see VirtualLoop; the tasks left are cancelled first.
    """
    chooser = random.Random(seed)  # noqa: S311 - choices of a simulation, which a seed repeats
    world = VirtualWorld(VirtualClock(start_ms), InlineExecutor(), chooser)

    def loop() -> VirtualLoop:
        return VirtualLoop(chooser, shuffle=shuffle, limit_ms=limit_ms)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main(world))
