"""A pipeline run on this machine from Python: broker and processes of its own, as `tidemark run` starts them.

A thread has the loop that looks after them; it ends them when the `with` block ends, or when this process dies.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tidemark.services.cli.installation import Begun, Installation, make_topics
from tidemark.services.cli.process import keep_quiet
from tidemark.services.cli.run import installed_for
from tidemark.services.control.stats import stats_of
from tidemark.services.library.documents import AnyDocument, text_of
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import ProcessorName, TaskId
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor, TaskBeat

_NAME: Final = ProcessorName("pipeline")
_ENDED: Final = ("FINISHED", "STOPPED", "FAILED")
_LOOK_S: Final = 0.5
"""How often a caller that waits looks whether the installation still lives."""
T = TypeVar("T")


class RunEnded(Exception):
    """The processor has failed, or its installation could not be started or kept: the reason."""


class Run:
    """A processor that runs. Use it in a `with` block: at its end the processor stops behind a checkpoint, and all processes with it."""

    def __init__(self, text: str, folder: Path, parallelism: Mapping[str, int], topics: Mapping[str, int]) -> None:
        self._text = text
        self._folder = folder
        self._parallelism = dict(parallelism)
        self._topics = dict(topics)
        self._loop = asyncio.SelectorEventLoop()  # Python's own: a program's policy may make another kind, or none
        self._thread = threading.Thread(target=self._live, name="tidemark-run", daemon=True)
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._installed: Installation | None = None
        self._starting: asyncio.Task[None] | None = None
        """What is broken off where nobody waits for the start any more."""
        self._failure: BaseException | None = None
        self._beats: dict[TaskId, TaskBeat] = {}
        self._begun: Begun = "created"
        self.name: ProcessorName = _NAME
        """The document's name, or `pipeline`."""

    def __enter__(self) -> Self:
        if self._thread.ident is not None:
            raise RunEnded(
                "a run is for one `with` block: `tidemark.run` makes another, which goes on on the same folder"
            )
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C while it starts: no block follows that would end its processes
            self._end()
            raise
        if self._failure is not None:
            self._thread.join()
            raise RunEnded(str(self._failure)) from self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(RunEnded):  # it has ended before, which `status` and `wait` tell
                self.stop()
        finally:  # also where Ctrl-C comes while it stops
            self._end()

    def _end(self) -> None:
        """Let the installation go, and wait until its processes have ended. One that is still starting is broken off."""
        end = self._over.set if self._ready.is_set() else self._break_off
        with contextlib.suppress(RuntimeError):  # the loop is closed: the installation has ended by itself
            self._loop.call_soon_threadsafe(end)
        self._thread.join()

    def _break_off(self) -> None:
        self._over.set()
        if self._starting is not None:
            self._starting.cancel()

    @property
    def folder(self) -> Path:
        """Broker, state and logs; run again on it, the pipeline goes on."""
        return self._folder

    @property
    def bootstrap(self) -> str:
        """`host:port` of its own broker, `${LOCAL_KAFKA}` in the document."""
        return self._running().cluster.bootstrap

    def status(self) -> ProcessorStatus:
        """State, reason, checkpoints so far and more. RunEnded where the installation is gone."""
        return self._ask(self._status())

    def stats(self) -> dict[str, Any]:
        """Counts, watermark, lag and each operator's, as `GET /v1/processors/{name}/stats?verbose` has them. RunEnded."""
        status = self.status()
        tasks = {
            task: beat
            for task, beat in list(self._beats.items())
            if (beat.job, beat.generation) == (status.job, status.generation)
        }
        return stats_of(status, tasks, time.time_ns() // 1_000_000, verbose=True)

    def wait(self, timeout_s: float | None = None) -> ProcessorStatus:
        """Until it has finished or was stopped. RunEnded, with the reason, if it fails; TimeoutError."""
        try:
            status = self._ask(asyncio.wait_for(self._running().until_ended(self.name), timeout_s))
        except TimeoutError:
            now = self.status()
            raise TimeoutError(f"{self.name}: {now.state} after {timeout_s:g} s {now.reason}".rstrip()) from None
        if status.state == "FAILED":
            raise RunEnded(f"{self.name}: {status.reason}")
        if self._begun != "finished":
            self._ask(self._running().until_counted(status, lambda: list(self._beats.values())))
        return status

    def stop(self, *, drain: bool = False) -> ProcessorStatus:
        """Stop behind a checkpoint; drain: read to the present end first, and close all windows. RunEnded if it fails meanwhile."""
        if self.status().state not in _ENDED:
            self._ask(self._stop(drain=drain))
        return self.wait()

    async def _stop(self, *, drain: bool) -> None:
        client = self._running().client
        await client.request(StopProcessor(client.unique(), self.name, drain=drain))

    async def _status(self) -> ProcessorStatus:
        return (await self._running().client.statuses())[self.name]

    def _running(self) -> Installation:
        if self._installed is None:
            raise RunEnded("nothing runs: use the run in a `with` block, and before it ends")
        return self._installed

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        if self._installed is None:
            question.close()
            self._running()
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        while True:
            done, _ = futures.wait([answer], timeout=_LOOK_S)
            if done:
                return answer.result()
            if not self._thread.is_alive():
                raise RunEnded(f"the installation on {self._folder} has ended: {self._failure}") from self._failure

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is raised in the caller's thread
            self._failure = error
        finally:
            self._installed = None
            self._ready.set()
            self._loop.close()

    async def _run(self) -> None:
        self._starting = asyncio.current_task()
        processor = parse(self._text)
        self.name = processor.name or _NAME
        async with installed_for(processor, self._folder, self._parallelism) as installed:
            hearing = asyncio.create_task(self._hear(installed))
            await make_topics(installed.log, self._topics)
            self._begun = await installed.ensure_started(self.name, self._text, self._parallelism)
            self._starting = None
            self._installed = installed
            self._ready.set()
            await self._over.wait()
            self._installed = None
            hearing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hearing

    async def _hear(self, installed: Installation) -> None:
        async for beat in installed.client.heartbeats():
            self._beats |= {TaskId(task.vertex, task.index): task for task in beat.tasks if task.name == self.name}


def run(
    document: AnyDocument,
    folder: str | Path = "out/run",
    *,
    tasks: Mapping[str, int] | None = None,
    topics: Mapping[str, int] | None = None,
) -> Run:
    """Run a pipeline on this machine, for the time of a `with` block.

    folder: where broker, state and logs lie; on the same folder a second run goes on where the first has stopped. tasks: of a
    vertex or a service, as `tidemark run --tasks`. topics: made on its own broker (`${LOCAL_KAFKA}`) before the pipeline starts, by name
    with their partitions; nothing where they are there.

    Raises, when the block is entered:
        RunEnded: the document is refused, or the installation does not start: says why.
    """
    keep_quiet()
    return Run(text_of(document), Path(folder), tasks or {}, topics or {})
