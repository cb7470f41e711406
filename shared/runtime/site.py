"""State that a task's driver and its intake share: the worker's parts, the machine, and the activities that run beside."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from tidemark.shared.model.checkpoint import KnownSplit, TaskHandle
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import EdgeId, Epoch, SplitId, TaskId
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.machine import TaskMachine
from tidemark.shared.runtime.body import Given
from tidemark.shared.runtime.context import Phase
from tidemark.shared.runtime.exchange import Exchange
from tidemark.shared.runtime.meter import Meter
from tidemark.shared.runtime.reading import patiently
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.state import StateStore
from tidemark.shared.runtime.waiting import waiting

Splits = Mapping[SplitId, KnownSplit]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ways:
    """The reports of a task to its worker."""

    on_ack: Callable[[Epoch, TaskHandle], None]
    on_ask: Callable[[], None]
    on_found: Callable[[Splits, Sequence[SplitId]], None]
    on_ends: Callable[[Splits], None]
    on_released: Callable[[int, Epoch], None]
    on_failed: Callable[[BaseException], None]
    on_waits: Callable[[str, Wait | None], None]
    on_taken: Callable[[], None]
    """Rows have come from an edge; the meter has counted them."""


@dataclass(frozen=True, slots=True)
class TaskWiring:
    """The parts that the worker hands to a driver."""

    task: TaskId
    log: Log
    clock: Clock
    executor: Executor
    settings: RuntimeSettings
    exchange: Exchange
    state: StateStore
    inputs: Mapping[EdgeId, EdgeBinding]
    tags: Mapping[EdgeId, str]
    outputs: Mapping[EdgeId, EdgeBinding]
    ways: Ways
    passing: Callable[[Phase, Epoch], None]
    gathers: bool = False
    """A source's: all that it sends goes to sinks (`Gathered`)."""


class TaskSite:
    """One task of one generation. An error that escapes one of its activities fails the task, once."""

    def __init__(self, wiring: TaskWiring, machine: TaskMachine) -> None:
        self.wiring = wiring
        self.machine = machine
        self.meter = Meter()
        self.log = structlog.get_logger().bind(
            task=str(wiring.task), job=machine.sender.job, generation=machine.sender.generation
        )
        self.wake = asyncio.Event()
        """Something has come that the main loop is to look at."""
        self.working = False
        """The body has work to do."""
        self._handles: list[Handle] = []
        self._failed = False

    def spawn(self, activity: Coroutine[Any, Any, None], name: str) -> Handle:
        """Run it beside the main loop until it ends or the task is stopped."""
        handle = self.wiring.executor.spawn(activity, f"{self.wiring.task} {name}", self.fail)
        self._handles = [*(known for known in self._handles if not known.done()), handle]
        return handle

    def fail(self, error: BaseException) -> None:
        """The task fails with this."""
        if not self._failed:
            self._failed = True
            self.wiring.ways.on_failed(error)

    async def answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of the installation's brokers; outages are waited out."""
        return await patiently(self.wiring.clock, ask, self.wiring.settings, task=str(self.wiring.task))

    async def answered_by(self, place: str, doing: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of what the document names; outages are waited out, and told of."""
        wiring = self.wiring
        with waiting(wiring.ways.on_waits, wiring.clock, doing, doing, place) as away:
            return await patiently(wiring.clock, ask, wiring.settings, on_away=away, task=str(wiring.task))

    async def emissions(self, outs: Sequence[Given]) -> tuple[ev.Emission, ...]:
        """Rows for each partition of each out edge."""
        return await self.wiring.exchange.emissions(outs, self.machine.sender.epoch)

    async def stop(self) -> None:
        """End all activities that run beside; an error in that fails nobody."""
        self._failed = True
        for handle in self._handles:
            handle.cancel()
        for handle in self._handles:
            await handle.join()
