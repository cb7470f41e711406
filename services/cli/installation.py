"""A local installation for the time of a command: broker, processes, a client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from rich.console import Console

from tidemark.services.cli.remote import RemoteFailed, here
from tidemark.services.cli.settings import cli_settings
from tidemark.services.control.stats import counts_are_final
from tidemark.services.coordinator.planning import tasks_of
from tidemark.services.local.broker import BrokerError
from tidemark.services.local.broker_settings import FREE_PORT, Port
from tidemark.services.local.folders import ADDRESS_FILE
from tidemark.services.local.jars import JarsError, default_cache, ensure_jars
from tidemark.services.local.supervisor import (
    CONTROL,
    TOKEN_FILE,
    WORKERS,
    LocalCluster,
    LocalSettings,
    is_running,
    open_log,
    read_environment,
    read_state,
)
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.compiled.keeping import is_kept
from tidemark.shared.language.documents.load import load
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateRunning, ModifyProcessor, ProcessorStatus, StartProcessor, TaskBeat
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.ports.log import Log
from tidemark.shared.process.settings import read_runtime
from tidemark.shared.runtime.client import Client, RequestRefused
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import KEPT, Topics, refusal

Begun: TypeAlias = Literal["created", "resumed", "changed", "finished"]
"""How a run found the processor: not there, to be resumed with the same document, or with another, or already finished."""
STAYS_FILE: Final = "stays"
"""Written by `tidemark up`, while it runs: its process id."""
_ADDRESS_POLL_S: Final = 0.2
"""How often a file that tells an address is looked for."""
_LAST_WORDS_S: Final = 0.05
"""How often final counts are looked for."""
_LAST_WORDS_LOOKS: Final = 100
"""And how often at the most: tasks of a worker that is gone tell no more."""
_ENDED: Final = ("CREATED", "STOPPED", "FAILED")
"""States from which a processor is started."""


class ChangeRefused(RequestRefused):
    """The existing processor cannot go on with the new document, or the new numbers of tasks."""


async def make_topics(log: Log, topics: Mapping[str, int]) -> None:
    """Make topics, by name with their partitions, none of whose records expires; nothing where they are there.

    RequestRefused for a name that users may not have; LogError for no partitions, and where a topic is there with another number.
    """
    for topic, partitions in topics.items():
        if refused := refusal(topic, Topics().prefix):
            raise RequestRefused(refused)
        await log.create_topic(topic, partitions, KEPT)


@dataclass(frozen=True, slots=True)
class Installation:
    """A running installation, for commands."""

    cluster: LocalCluster
    log: Log
    client: Client

    async def ensure_started(self, name: ProcessorName, document: str, parallelism: Mapping[str, int]) -> Begun:
        """Create the processor if it is not there, and start it if it does not run: a second run goes on with the first.

        A changed document or changed numbers of tasks hold from here on. ChangeRefused if the processor cannot go on with them.
        """
        known = (await self.client.statuses()).get(name)
        if known is None:
            await self.client.request(CreateRunning(self.client.unique(), name, document, dict(parallelism)))
            return "created"
        tasks = {**known.parallelism, **parallelism}
        changed = load(document)[0] != load(known.document)[0] or tasks != known.parallelism
        if changed:
            # Without a checkpoint there is no state that a change could lose: a topic that was misspelt is corrected, and that is all.
            keeps = known.commits > 0 or known.state not in _ENDED
            try:
                await self.client.request(ModifyProcessor(self.client.unique(), name, document, tasks, keeps))
            except RequestRefused as error:
                raise ChangeRefused(str(error)) from error
        if known.state == "FINISHED":
            return "finished"
        if known.state in _ENDED:
            await self.client.request(StartProcessor(self.client.unique(), name))
        return "changed" if changed else "resumed"

    async def until_there(self, workers: Mapping[str, int]) -> None:
        """Wait for the workers of services that have several: the coordinator spreads tasks over those that are there."""
        waited = {f"{service}-{number}" for service, count in workers.items() if count > 1 for number in range(count)}
        if waited:
            async for beat in self.client.heartbeats():
                waited.discard(beat.place)
                if not waited:
                    return

    async def until_running(self, name: ProcessorName) -> None:
        """Wait until all tasks have restored and sources may read; returns, too, when the processor has failed."""
        async for status in self.client.watch(name):
            if status.state in ("RUNNING", "FAILED"):
                return

    async def until_counted(self, status: ProcessorStatus, beats: Callable[[], Iterable[TaskBeat]]) -> None:
        """Of a processor that has ended: wait for the final counts, which come with heartbeats, some time. beats: those heard so far."""
        for _ in range(_LAST_WORDS_LOOKS):
            if counts_are_final(status, beats()):
                return
            await asyncio.sleep(_LAST_WORDS_S)

    async def until_ended(self, name: ProcessorName) -> ProcessorStatus:
        """Wait until the processor has finished, stopped or failed."""
        async for status in self.client.watch(name):
            if status.state in ("FINISHED", "STOPPED", "FAILED"):
                return status
        message = "the registry ended"
        raise RuntimeError(message)


def workers_of(plan: PhysicalPlan, parallelism: Mapping[str, int], cores: int) -> dict[str, int]:
    """Processes of each service that hosts tasks: none where the plan needs none, else one a task, up to the cores.

    Processes for other processors start when the coordinator wishes for them.
    """
    found = dict.fromkeys(WORKERS, 0)
    for vertex in plan.vertices:
        found[vertex.service] = max(found[vertex.service], min(cores, tasks_of(vertex, parallelism)))
    return found


@asynccontextmanager
async def installation(
    data_dir: Path,
    environment: Mapping[str, str],
    workers: Mapping[str, int] | None = None,
    port: int = FREE_PORT,
    variables: Iterable[str] = (),
    plugins: Iterable[str] = (),
) -> AsyncIterator[Installation]:
    """Start everything on this folder; stop it at the end. BrokerError names the obstacle.

    variables: of the environment, that documents may name; those given by `environment` are open anyway. plugins: that documents may use.
    """
    opened, usable = tuple(variables), tuple(plugins)
    settings = LocalSettings(
        data_dir=data_dir, environment=dict(environment), port=Port(port), variables=opened, plugins=usable
    )
    if workers:
        settings = replace(settings, workers={**settings.workers, **workers})
    cluster = LocalCluster(settings)
    cluster.make_folder()  # before a minute goes into what a first start needs
    await make_ready(Console(stderr=True, soft_wrap=True).print)
    try:
        await cluster.start()
        async with while_kept(cluster), _asking(cluster, cluster.open_log("cli"), cluster.runtime()) as installed:
            yield installed
    finally:
        await cluster.stop()


@asynccontextmanager
async def attached(data_dir: Path) -> AsyncIterator[Installation]:
    """The installation that `tidemark up` keeps on this folder. It goes on after the block, and so do its processors."""
    state = read_state(data_dir)
    cluster = LocalCluster(LocalSettings(data_dir=data_dir))
    cluster.bootstrap = str(state["kafka"])  # never started here, so it watches nothing and stops nothing
    environment = {**os.environ, **read_environment(data_dir)}
    log = open_log(data_dir, cluster.bootstrap, "cli", environment)
    async with _asking(cluster, log, read_runtime(environment)) as installed:
        yield installed


@asynccontextmanager
async def _asking(cluster: LocalCluster, log: Log, runtime: RuntimeSettings) -> AsyncIterator[Installation]:
    """A client that the coordinator answers; the log is closed at the end."""
    wait_ms = cli_settings().ready_ms_max
    client = Client(log, Topics(), SystemClock(), lambda: uuid.uuid4().hex, runtime, waits_out_ms=wait_ms)
    try:
        await client.ready(wait_ms)
        yield Installation(cluster, log, client)
    finally:
        await log.close()


def stays(data_dir: Path) -> bool:
    """Whether `tidemark up` keeps an installation on this folder now."""
    try:
        state = read_state(data_dir)
        return is_running(state) and (data_dir / STAYS_FILE).read_text() == str(state["supervisor"])
    except (FileNotFoundError, NotADirectoryError):
        return False


async def up(data_dir: Path, port: int, variables: Iterable[str], plugins: Iterable[str] = ()) -> None:
    """An installation without a processor, until Ctrl-C or SIGTERM; workers come as processors need them. BrokerError.

    variables: of the environment, that documents may name. plugins: that they may use.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    said = Console(stderr=True, soft_wrap=True)
    workers = {**dict.fromkeys(WORKERS, 0), CONTROL: 1}
    async with installation(data_dir, {}, workers, port=port, variables=variables, plugins=plugins) as installed:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        marker = data_dir / STAYS_FILE
        try:
            said.print(await console_address(data_dir), highlight=False)
            await until_control_answers(data_dir)
            marker.write_text(str(os.getpid()))
            said.print(f"broker: {installed.cluster.bootstrap} (${{LOCAL_KAFKA}} in documents)", highlight=False)
            said.print(
                f"it stays until Ctrl-C; `tidemark run FILE --data {data_dir}` and `tidemark create` use it",
                highlight=False,
            )
            await ended.wait()
        finally:
            marker.unlink(missing_ok=True)


async def console_address(data_dir: Path) -> str:
    """Where the control service is, once it is there, and how one gets in."""
    address = data_dir / ADDRESS_FILE
    while not address.exists():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(_ADDRESS_POLL_S)
    url = json.loads(address.read_text())["url"]
    return f"control: {url} (any name, and as password what is in {data_dir / TOKEN_FILE})"


async def until_control_answers(data_dir: Path) -> None:
    """The control service has read all that there is: who asks it from now on is answered. Behind `ready_ms_max` its log tells why not."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + cli_settings().ready_ms_max / 1000
    while loop.time() < until_s:
        try:
            await asyncio.to_thread(here(data_dir).get, "/readyz")
        except RemoteFailed:
            await asyncio.sleep(_ADDRESS_POLL_S)
        else:
            return


@asynccontextmanager
async def while_kept(cluster: LocalCluster) -> AsyncIterator[None]:
    """A block that ends with BrokerError once the cluster has given a place up."""
    loop = asyncio.get_running_loop()

    async def watch(block: asyncio.Timeout) -> None:
        await cluster.until_given_up()
        block.reschedule(loop.time())

    try:
        async with asyncio.timeout(None) as block:
            watching = loop.create_task(watch(block))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not cluster.given_up:
            raise
        raise BrokerError(cluster.given_up) from None


_SAID_CHARACTERS_MAX = 2_000
"""The last characters of a failed compiler's output that are shown."""


async def make_ready(say: Callable[[str], None]) -> None:
    """Make the missing parts; `say` hears of those that take a while. BrokerError says why one cannot be made."""
    if not is_kept():
        say("First start: readers and writers are compiled (a minute or two, once)")
        command = [sys.executable, "-P", "-m", "tidemark.shared.compiled"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, said = await process.communicate()
        if process.returncode:
            last = said.decode(errors="replace").strip()[-_SAID_CHARACTERS_MAX:]
            raise BrokerError(f"the readers cannot be compiled (`{' '.join(command)}`): {last}")
    if not (default_cache() / "repository").exists():
        say("First start: the broker's jars are fetched (42 MiB, once)")
        try:
            await asyncio.to_thread(ensure_jars)
        except JarsError as error:
            raise BrokerError(str(error)) from error
