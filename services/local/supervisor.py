"""The one-machine mode: a broker, and the processes of all services, each a real process of the operating system.

A process that ends is started again at its place; all of them end when the supervisor ends, however it ends (tether.py).
"""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from tidemark.services.local.broker import BrokerError, LocalBroker
from tidemark.services.local.broker_settings import FREE_PORT, BrokerSettings, Port
from tidemark.services.local.folder_lock import FolderLock
from tidemark.services.local.folders import ADDRESS_FILE, BROKER_VARIABLE
from tidemark.services.local.forking import ForkedProcess, Forking
from tidemark.services.local.limits import limited, limited_broker
from tidemark.services.local.logs import bound, last_words
from tidemark.services.local.vouching import Voucher, runs
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Place, WorkerIncarnation
from tidemark.shared.model.messages import WorkerUnwanted, WorkerWanted
from tidemark.shared.model.settings import knob
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log
from tidemark.shared.process.allowed import Allowed
from tidemark.shared.process.settings import read_runtime, read_table
from tidemark.shared.process.signing import FILE_VARIABLE, read_keys, sealed_log
from tidemark.shared.runtime.sealed_log import SealedLog
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.wishes import wishes

_log = structlog.get_logger()
SERVICES: Final = ("coordinator", "source", "operator", "spark", "sink")
WORKERS: Final = ("source", "operator", "spark", "sink")
_YIELDING: Final = ("operator", "spark", "sink")
CONTROL: Final = "control"
ALLOW: Final = "TIDEMARK_ALLOW"
KEYS_FILE: Final = "signing.keys"
"""Made with the first start; two lines in it are two keys (`shared/wire/seals.py`)."""
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file
BROKER: Final = "broker"
_OWN: Final = (
    "blobs", "kafka", "logs", "scratch", KEYS_FILE, TOKEN_FILE, ADDRESS_FILE, "environment.json", "processes.json",
    *(f"coordinator.db{more}" for more in ("", "-journal", "-shm", "-wal")),
)  # fmt: skip
"""Entries of the folder that the installation keeps, and that no document reaches: results may lie beside them."""
_DOUBLINGS_MAX: Final = 16
"""Doublings of `restart_wait_ms`: past them it is above any `restart_wait_ms_max`."""
_OWNERS: Final = 0o700
"""Mode of a folder that nobody else looks into."""
_LOGS_LOOK_S: Final = 5.0
"""Between two looks at the sizes of log files."""
_CLOCK_LOOK_MS: Final = 5_000
"""Between two looks at the wall clock."""
SET_BACK_MS: Final = 60_000
"""A broker waits out what the clock is set back by; for more it is started again, which takes some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Of one machine's installation. Started again on the same folder it goes on where it was."""

    data_dir: Path
    port: Port = FREE_PORT
    workers: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SERVICES, 1))
    """Processes of each service, at first: workers come and go as the coordinator wishes."""
    workers_max: int = knob(8)
    """Of each service; a wish for more is not followed."""
    retire_idle_ms: int = knob(10_000)
    """A worker that hosts nothing for so long goes, but for the last of its service."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to every process'."""
    variables: tuple[str, ...] = ()
    """Of the environment, that documents' connections may name as `${NAME}`, beside those of `environment` and of earlier runs."""
    plugins: tuple[str, ...] = ()
    """Names of plug-ins that documents may use, beside those of earlier runs."""
    niceness: int = knob(5)
    """Of operators, Spark and sinks, 0 to 19 as in nice(1): they yield to sources when all cores are busy, for a source works on one core
    while a step, a release and the broker come in bursts on several. Flow control keeps a source from running away from them."""
    restart_wait_ms: int = 200
    restart_wait_ms_max: int = 5_000
    early_ends_max: int = 3
    """A process that ended so often in a row when it had hardly begun is no more waited for when a worker is wished for."""
    stop_timeout_s: float = knob(10.0)
    log_bytes_max: int = 20 * 1024 * 1024
    """Of a process' log file; then it is kept as `….log.1`, and begun anew."""


@dataclass(slots=True)
class SupervisedProcess:
    """A place and the process that sits there now."""

    place: str
    service: str
    process: ForkedProcess | None = None
    incarnation: WorkerIncarnation | None = None
    """The incarnation that the process started last reports."""
    starts: int = 0
    crashed_at: float | None = None
    """When it last ended, in the event loop's seconds, if it had hardly begun."""
    early_ends: int = 0
    """How often in a row that was so."""


class LocalCluster:
    """Starts everything, keeps it running, stops it."""

    def __init__(
        self,
        settings: LocalSettings,
        on_restart: Callable[[str, int], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._outer = {**os.environ, **settings.environment}
        self.settings = limited(replace(settings, data_dir=settings.data_dir.resolve()), self._outer)
        broker = BrokerSettings(data_dir=self.settings.data_dir / "kafka", port=self.settings.port)
        self._broker_settings = limited_broker(broker, self._outer)
        self._on_restart = on_restart or (lambda _place, _status: None)
        self._clock = clock or SystemClock()
        self._children: dict[str, SupervisedProcess] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._lock = FolderLock(self.settings.data_dir)
        asked = (service for service, count in self.settings.workers.items() if count)
        self._forking = Forking(sorted({*SERVICES, *asked}))
        self._broker: LocalBroker | None = None
        self._stop = asyncio.Event()
        self._shared: dict[str, str] = {}
        self._allow = "{}"
        self._log: Log | None = None
        self._voucher: Voucher | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self.bootstrap = ""
        self.failure: BaseException | None = None
        self.given_up = ""
        """The place that is not started again, and why: its process has said that this would be in vain."""
        self._gave_up = asyncio.Event()
        self._broker_trouble = ""
        self._disk_trouble = ""

    # --- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start the broker, then all processes; the broker's address. BrokerError names the remedy when it cannot start."""
        self.make_folder()
        self._lock.take()  # before anything is touched: the files here may belong to a running installation
        self._logs().mkdir(exist_ok=True)
        (self.settings.data_dir / ADDRESS_FILE).unlink(missing_ok=True)
        self._broker = LocalBroker(self._broker_settings)
        self._allow = self._allowed()
        if (
            self.settings.workers
        ):  # a caller that starts a broker alone, such as an audit, reads the file of the last run
            self._environment_file().touch(mode=0o600)  # its owner's alone: passwords may be among it
            self._environment_file().write_text(json.dumps({**self.settings.environment, ALLOW: self._allow}, indent=2))
        await self._broker.start(self._start_beside)
        self._watch(BROKER, self._keep_broker(self._broker))
        self._watch("logs", self._bound_logs())
        self._watch("clock", self._follow_clock())
        if "coordinator" in self.settings.workers:
            log = self._log = self.open_log("supervisor")
            self._watch("wishes", self._follow_wishes(log))
            self._voucher = Voucher(log, self._topics(), self.runtime(), self._living)
            self._watch("alive", self._voucher.run())
        return self.bootstrap

    def _start_beside(self, bootstrap: str) -> None:
        """All processes, while the broker is still starting: each waits for it, and Spark's session takes longest."""
        self.bootstrap = bootstrap
        self._shared.setdefault(BROKER_VARIABLE, bootstrap)
        for service, count in self.settings.workers.items():
            for number in range(count):
                self.add(service, f"{service}-{number}")

    def add(self, service: str, place: str) -> None:
        """Start one more process, and keep it running."""
        child = self._children[place] = SupervisedProcess(place, service)
        self._watch(place, self._keep(child))

    async def remove(self, place: str) -> None:
        """Stop one process for good."""
        self._watchers.pop(place).cancel()
        await self._end(self._children[place])
        del self._children[place]  # until now nobody else may have the place
        self._write_state()

    async def stop(self) -> None:
        """Stop the processes, then the broker."""
        self._stop.set()
        for watcher in (*self._watchers.values(), *self._beside):
            watcher.cancel()
        await asyncio.gather(*(self._end(child) for child in self._children.values()))
        await self._forking.stop()
        if self._log is not None:
            await self._log.close()
        if self._broker is not None:
            await self._broker.stop()
        if self._lock.held:
            self._state_file().unlink(missing_ok=True)
        self._lock.release()

    def kill(self, place: str, number: int) -> None:
        """Send a signal to the process at a place (or to the broker)."""
        pid = self.pids()[place]
        with suppress(ProcessLookupError):  # it has ended, and its end is not known here yet
            os.kill(pid, number)

    def pids(self) -> dict[str, int]:
        """The running processes: place to process id."""
        found = {c.place: c.process.pid for c in self._children.values() if c.process and c.process.returncode is None}
        if self._broker is not None and self._broker.pid is not None:
            found[BROKER] = self._broker.pid
        return found

    async def until_given_up(self) -> None:
        """Wait until `given_up` says something."""
        await self._gave_up.wait()

    def troubles(self) -> list[str]:
        """Troubles that keep the installation from working now, a sentence each; it goes on by itself when they are mended."""
        now = asyncio.get_running_loop().time()
        crashing = [
            f"{child.place} ends again and again; why is said in {self._logs() / child.place}.log"
            for child in self._children.values()
            if child.crashed_at is not None and now - child.crashed_at < self.settings.restart_wait_ms_max / 1000
        ]
        return [said for said in (self.given_up, self._broker_trouble, self._disk_trouble, *crashing) if said]

    # --- wishes -----------------------------------------------------------------------------------------------------------

    async def _follow_wishes(self, log: Log) -> None:
        """A worker is added when the coordinator finds no free slot, and removed when it hosts nothing."""
        topics, runtime, clock = self._topics(), self.runtime(), SystemClock()
        await log.create_topic(topics.commands, 1, topics.plain()[topics.commands])
        async for wish in wishes(log, clock, runtime, topics):
            match wish:
                case WorkerWanted(service=service, there=there):
                    self._follow_wish(service, frozenset(there))
                case WorkerUnwanted(place=place, worker=worker):
                    self._follow_unwish(place, worker)

    def open_log(self, client: str) -> SealedLog:
        """A log of this installation's broker, which seals as its processes do."""
        return open_log(self.settings.data_dir, self.bootstrap, client, self._outer)

    def _living(self) -> tuple[WorkerIncarnation, ...]:
        """Workers with running processes; a process that was stopped (SIGSTOP) does not count."""
        running = [c for c in self._children.values() if c.service in WORKERS and c.process is not None]
        return tuple(c.incarnation for c in running if c.incarnation is not None and c.process and runs(c.process))

    def _do_beside(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _topics(self) -> Topics:
        return Topics(self._environment_value("TIDEMARK_PREFIX", "tidemark"))

    def runtime(self) -> RuntimeSettings:
        """As every process has them."""
        return read_runtime(self._outer)

    def _follow_wish(self, service: str, there: frozenset[str]) -> None:
        """One more, unless one is on its way: Spark takes its time, and the wish comes again. One that cannot begin is on no way."""
        taken = {c.place for c in self._children.values() if c.service == service}
        if service not in WORKERS or len(taken) >= self.settings.workers_max:
            _log.warning("supervisor.wish_refused", service=service, there=len(taken), most=self.settings.workers_max)
            return
        failing = {c.place for c in self._children.values() if c.early_ends >= self.settings.early_ends_max}
        if coming := sorted(taken - there - failing):
            _log.info("supervisor.waits", service=service, places=coming)
            return
        number = next(n for n in range(self.settings.workers_max) if f"{service}-{n}" not in taken)
        _log.info("supervisor.adds", place=f"{service}-{number}")
        self.add(service, f"{service}-{number}")

    def _follow_unwish(self, place: Place, worker: WorkerIncarnation) -> None:
        """The process that is meant, and no other that has come to its place meanwhile: that one may host something."""
        child = self._children.get(place)
        if child is None or child.incarnation != worker or place not in self._watchers:
            return
        _log.info("supervisor.removes", place=place)
        self._do_beside(self.remove(place), f"remove {place}")

    # --- processes ------------------------------------------------------------------------------------------------------

    def _watch(self, place: str, watching: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(watching, name=f"watch {place}")
        task.add_done_callback(self._watcher_ended)
        self._watchers[place] = task

    def _watcher_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = task.exception()
            _log.error("supervisor.failed", watcher=task.get_name(), error=repr(self.failure))

    def make_folder(self) -> None:
        """The folder of data, its owner's alone: documents with passwords, and all records, lie in it. BrokerError."""
        folder = self.settings.data_dir
        try:
            folder.mkdir(mode=_OWNERS, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                folder.chmod(_OWNERS)
        except OSError as error:
            raise BrokerError(
                f"{folder}: expected a folder, or a place for one: {error.strerror}; --data, or `folder` in Python, names another"
            ) from error

    async def _keep(self, child: SupervisedProcess) -> None:
        while not self._stop.is_set():
            incarnation = child.incarnation = WorkerIncarnation(uuid.uuid4().hex)
            log = self._logs() / f"{child.place}.log"
            log.touch()
            child.process = await self._spawn(child, log, incarnation)
            child.starts += 1
            self._write_state()
            loop = asyncio.get_running_loop()
            began = loop.time()
            status = await child.process.wait()
            ended_early = (loop.time() - began) * 1000 <= self.settings.restart_wait_ms_max
            child.crashed_at = loop.time() if ended_early else None
            child.early_ends = child.early_ends + 1 if ended_early else 0
            if (said := last_words(log)) and status:
                _log.error("supervisor.gives_up", place=child.place, reason=said)
                self.given_up = self.given_up or f"{child.place}: {said}"
                self._gave_up.set()
                return
            _log.warning("supervisor.restart", place=child.place, status=status)
            self._on_restart(child.place, status)
            if child.service in WORKERS and self._voucher is not None:
                self._do_beside(self._voucher.ended(incarnation, status), f"tell the end of {child.place}")
            await asyncio.sleep(restart_wait_ms(self.settings, child.early_ends) / 1000)

    async def _keep_broker(self, broker: LocalBroker) -> None:
        while not self._stop.is_set():
            self._write_state()
            status = await broker.exited()
            if self._stop.is_set():
                return
            _log.warning("supervisor.restart", place=BROKER, status=status)
            self._broker_trouble = f"the broker has ended with status {status} and is started again"
            self._on_restart(BROKER, status)
            while not broker.running and not self._stop.is_set():
                try:
                    await broker.start()
                    self._broker_trouble = ""
                except (BrokerError, OSError) as error:  # it may end while it starts, or its disk be full
                    self._broker_trouble = str(error)
                    _log.error("supervisor.broker", reason=str(error))
                    await asyncio.sleep(self.settings.restart_wait_ms_max / 1000)

    async def _spawn(self, child: SupervisedProcess, log: Path, incarnation: WorkerIncarnation) -> ForkedProcess:
        environment = {**self._environment(child), "TIDEMARK_INCARNATION": incarnation}
        niceness = self.settings.niceness if child.service in _YIELDING else 0
        return await self._forking.fork(child.service, environment, log, niceness)

    def _environment(self, child: SupervisedProcess) -> dict[str, str]:
        data = self.settings.data_dir.resolve()
        return {
            **os.environ,
            "PYTHONSAFEPATH": "1",  # for Spark's Python, which is started with `-m`
            "TIDEMARK_KAFKA": self.bootstrap,
            "TIDEMARK_BLOBS": str(data / "blobs"),
            "TIDEMARK_STORE": f"sqlite:///{data / 'coordinator.db'}",
            "TIDEMARK_PLACE": child.place,
            FILE_VARIABLE: str(data / KEYS_FILE),
            **self._shared,
            **self.settings.environment,
            ALLOW: self._allow,
            **self._extra(child, data),
        }

    def _allowed(self) -> str:
        """The places that documents may reach: this machine too, but for the installation's folder; what its owner has named."""
        given = read_table(self._outer, ALLOW.removeprefix("TIDEMARK_"))
        before = read_table(read_environment(self.settings.data_dir), ALLOW.removeprefix("TIDEMARK_"))
        named = {name for name in self.settings.environment if not name.startswith("TIDEMARK_")}
        opened = {*Allowed().variables, *named, *self.settings.variables}
        opened |= {*given.get("variables", ()), *before.get("variables", ())}
        plugins = {*self.settings.plugins, *given.get("plugins", ()), *before.get("plugins", ())}
        closed = {*given.get("closed", ()), *(str(self.settings.data_dir / name) for name in _OWN)}
        lists = {"variables": sorted(opened), "plugins": sorted(plugins), "closed": sorted(closed)}
        return json.dumps({"loopback": True, **given, **lists})

    def _environment_value(self, name: str, default: str) -> str:
        return self.settings.environment.get(name, os.environ.get(name, default))

    def _extra(self, child: SupervisedProcess, data: Path) -> dict[str, str]:
        """Settings of the service itself, those that were given last."""
        made: dict[str, Any] = {}
        if child.service == "coordinator":
            # Those that were asked for stay, whether they host something or not.
            asked = max(self.settings.workers.get(service, 0) for service in WORKERS)
            made = {
                "retires_workers": True,
                "retire_idle_ms": self.settings.retire_idle_ms,
                "workers_min": max(1, asked),
            }
        elif child.service == CONTROL:
            made = {
                "port": 0,
                "token_file": str(data / TOKEN_FILE),
                "address_file": str(data / ADDRESS_FILE),
                "logs": str(data / "logs"),
            }
        elif child.service == "operator":
            made = {"scratch": str(data / "scratch")}
        if not made:
            return {}
        given = json.loads(self._environment_value("TIDEMARK_EXTRA", "{}"))
        return {"TIDEMARK_EXTRA": json.dumps({**made, **given})}

    async def _end(self, child: SupervisedProcess) -> None:
        process = child.process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.settings.stop_timeout_s)
        except TimeoutError:
            _log.warning("supervisor.kill", place=child.place)
            process.kill()
            await process.wait()

    async def _follow_clock(self) -> None:
        """Start the broker again where the wall clock is set back: it measures by it when to connect again, and would not until then."""
        stood_ms = self._wall_ahead_ms()
        while True:
            await self._clock.sleep_ms(_CLOCK_LOOK_MS)
            before_ms, stood_ms = stood_ms, self._wall_ahead_ms()
            if before_ms - stood_ms > SET_BACK_MS and BROKER in self.pids():
                _log.warning("supervisor.clock_set_back", place=BROKER, seconds=(before_ms - stood_ms) // 1000)
                self.kill(BROKER, signal.SIGKILL)

    def _wall_ahead_ms(self) -> int:
        """Of the monotonic clock. It falls where the wall clock is set back, and stays else, or grows in a machine's sleep."""
        return self._clock.now_ms() - self._clock.monotonic_ms()

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(_LOGS_LOOK_S)
            bound(service_logs(self.settings.data_dir), self.settings.log_bytes_max)

    # --- the view from outside --------------------------------------------------------------------------------------------

    def _logs(self) -> Path:
        return self.settings.data_dir / "logs"

    def _environment_file(self) -> Path:
        return self.settings.data_dir / "environment.json"

    def _state_file(self) -> Path:
        return self.settings.data_dir / "processes.json"

    def _write_state(self) -> None:
        """For `tidemark ps`: the running processes, and the broker's address."""
        state = {
            "supervisor": os.getpid(),
            "kafka": self.bootstrap,
            "processes": [
                {"place": place, "service": self._service_of(place), "pid": pid} for place, pid in self.pids().items()
            ],
        }
        temporary = self._state_file().with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(state, indent=2))
            temporary.replace(self._state_file())
            self._disk_trouble = ""
        except OSError as error:
            # Not a reason to stop keeping processes: `tidemark ps` shows the last state written.
            self._disk_trouble = f"{temporary}: {error.strerror}; free some space"
            _log.error("supervisor.state", reason=self._disk_trouble)

    def _service_of(self, place: str) -> str:
        return BROKER if place == BROKER else self._children[place].service


def restart_wait_ms(settings: LocalSettings, early_ends: int) -> int:
    """How long before a process is started again: at once if it had lived for long, else longer with each early end in a row."""
    if not early_ends:
        return 0
    return min(settings.restart_wait_ms << min(early_ends, _DOUBLINGS_MAX), settings.restart_wait_ms_max)


def open_log(data_dir: Path, bootstrap: str, client: str, environment: Mapping[str, str]) -> SealedLog:
    """A log of the installation on a folder. ProcessSettingsError."""
    keys = read_keys({**environment, FILE_VARIABLE: str(data_dir / KEYS_FILE)})
    kafka = KafkaSettings(bootstrap=bootstrap, client=f"tidemark-{client}")
    return sealed_log(kafka, keys, environment.get("TIDEMARK_PREFIX", "tidemark"))


def read_state(data_dir: Path) -> dict[str, Any]:
    """The content of `processes.json`; FileNotFoundError if nothing runs on this folder."""
    found: dict[str, Any] = json.loads((data_dir / "processes.json").read_text())
    return found


def read_environment(data_dir: Path) -> dict[str, str]:
    """The variables added to every process' environment when this folder was last used: the values of `${NAME}` in documents."""
    path = data_dir / "environment.json"
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def is_running(state: Mapping[str, Any]) -> bool:
    """Whether the supervisor that wrote a state is still there."""
    return psutil.pid_exists(int(state["supervisor"]))


def service_logs(data_dir: Path) -> Sequence[Path]:
    """The log files of all places."""
    return sorted((data_dir / "logs").glob("*.log"))
