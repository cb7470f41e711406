"""A Kafka broker for one machine: a real one, of one node, on the loopback address.

Rules kept here:

1. The data folder is the broker: same identity, ports and records at each start, even after a crash.
2. It ends when the process that started it ends (``tether``), and is told to stop before it is killed.
3. It is ready when it answers its own protocol, not after a time.
4. An obstacle (no Java, a taken port, a full disk, another broker on the data) is one sentence with
   the remedy, before the start where it can be known before.

``python -m tidemark.services.local.broker --data DIR [--port N]`` runs one in the foreground.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tidemark.services.local.broker_settings import (
    FEATURES_PATH,
    FREE_PORT,
    LOOPBACK,
    NODE_ID,
    BrokerSettings,
    Port,
    java_arguments,
    server_properties,
)
from tidemark.services.local.jars import JarsError, ensure_jars
from tidemark.services.local.java import JavaError, find_java, java_environment
from tidemark.services.local.tether import tethered

_MAIN_CLASS: Final = "kafka.Kafka"
_FORMATTED: Final = ("meta.properties", "bootstrap.checkpoint")
"""The files that formatting writes, also those with names that continue these."""
_POLL_S: Final = 0.05
"""Between two looks, within `start_timeout_s` and its kin."""
_SHOWN_LINES: Final = 5
# Below the range from which the kernel takes ports for outgoing connections, so that none is lost between test and use.
_PORT_RANGE: Final = range(20_000, 30_000)

# Texts in the broker's log, with their meaning and the remedy. The first that is found wins.
_REASONS: Final = (
    ("No space left on device", "the disk is full; free some space, or choose another data folder"),
    ("Address already in use", "the port was taken meanwhile; stop what holds it, or choose another port"),
    ("OutOfMemoryError", "its heap is too small; raise heap_mib_max"),
    ("insufficient memory", "the machine has too little free memory; end other programs, or lower heap_mib_max"),
    ("Failed to acquire lock", "another broker works on this data folder; stop it, or choose another folder"),
    ("UnsupportedClassVersionError", "the Java is too old; install Java 17 or newer"),
)

_LOUD: Final = (" ERROR ", " FATAL ", "Exception", "error:")


class BrokerError(Exception):
    """The broker did not start or stop as asked; the message says why, and names the remedy."""


class LocalBroker:
    """One broker process and its data folder. Started and stopped any number of times; not safe for several tasks."""

    def __init__(self, settings: BrokerSettings) -> None:
        # The broker runs in its own folder: its paths must not depend on the caller's working directory.
        self._settings = replace(settings, data_dir=settings.data_dir.resolve())
        self._process: subprocess.Popen[bytes] | None = None
        self._port = settings.port

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients; known after the first start, and the same after each later one."""
        if self._port == FREE_PORT:
            raise BrokerError("the broker has no port before its first start; start it first")
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id while it runs."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        """Whether the process is there, ready or not."""
        return self._process is not None and self._process.poll() is None

    async def start(self, on_address: Callable[[str], None] | None = None) -> str:
        """Start, wait until it answers, and return ``bootstrap``.

        Call it from a thread that lives as long as the broker shall (see ``tether``). on_address: told ``bootstrap`` as soon as it
        is known, for processes that may start beside the broker and wait for it.

        Raises:
            BrokerError: it cannot start; nothing of it is left running.
        """
        if self.running:
            raise BrokerError(f"the broker on {self._settings.data_dir} runs already; stop it before starting it")
        settings = self._settings
        try:
            java, jars = find_java(), self.jars()
        except (JavaError, JarsError) as error:
            raise BrokerError(str(error)) from error
        _prepare_folder(settings)
        await _await_predecessor(settings.data_dir, settings.predecessor_timeout_s)
        self._port, controller_port = _choose_ports(settings, self._port)
        if on_address is not None:
            on_address(self.bootstrap)
        write_properties(settings.properties_path, self.properties(self._port, controller_port))
        await self.format(java.executable, jars)
        command = java_arguments(settings, java.executable, jars, _MAIN_CLASS)
        self._process = _spawn(settings, [*command, str(settings.properties_path)])
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                await self._ready()
        except TimeoutError as error:
            self.kill()
            raise BrokerError(_failure(settings, f"it did not answer in {settings.start_timeout_s:g} s")) from error
        except BaseException:
            self.kill()
            raise
        return self.bootstrap

    def jars(self) -> tuple[Path, ...]:
        """Of the Kafka that runs; JarsError."""
        return ensure_jars()

    def properties(self, port: Port, controller_port: Port) -> dict[str, str]:
        """The server properties of this start."""
        return server_properties(self._settings, port, controller_port)

    async def format(self, java: Path, jars: Sequence[Path]) -> None:
        """Give the folder its identity, once; BrokerError."""
        _format_once(self._settings)

    async def _ready(self) -> None:
        while not await self._answers():
            if self._process is not None and self._process.poll() is not None:
                raise BrokerError(_failure(self._settings, f"it ended with status {self._process.returncode}"))
            await asyncio.sleep(_POLL_S)

    async def _answers(self) -> bool:
        host, _, port = self.bootstrap.partition(":")
        return await listens(host, int(port)) and await is_member(
            self.bootstrap, NODE_ID, self._settings.ask_timeout_ms
        )

    async def stop(self) -> None:
        """Ask it to stop, and kill it when it has not done so in ``stop_timeout_s``. Nothing if it does not run."""
        process = self._process
        if process is None:
            return
        process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self.exited()
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a power cut would do; returns when the process is gone. Nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def exited(self) -> int:
        """Wait until the process ends, for any reason; its exit status (negative: the signal)."""
        if (process := self._process) is None:
            raise BrokerError("the broker was not started; there is no process to wait for")
        while (status := process.poll()) is None:  # noqa: ASYNC110 - of a process nothing tells but the asking
            await asyncio.sleep(_POLL_S)
        return status


def _prepare_folder(settings: BrokerSettings) -> None:
    try:
        settings.diagnostics_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BrokerError(
            f"{settings.data_dir}: the broker's data folder cannot be made: {error.strerror}; choose another"
        ) from error
    free_mib = shutil.disk_usage(settings.data_dir).free // 2**20
    if free_mib < settings.free_disk_mib_min:
        raise BrokerError(
            f"{settings.data_dir}: expected {settings.free_disk_mib_min} MiB of free disk, found {free_mib}; "
            "free some space, or choose another data folder"
        )


async def _await_predecessor(data_dir: Path, timeout_s: float) -> None:
    """Wait for the end of a broker that lost its supervisor a moment ago; a broker that stays belongs to somebody."""
    pid = _living_broker(data_dir)
    try:
        async with asyncio.timeout(timeout_s):
            while pid is not None:
                await asyncio.sleep(_POLL_S)
                pid = _living_broker(data_dir)
    except TimeoutError as error:
        raise BrokerError(
            f"{data_dir}: a broker (pid {pid}) runs on this data folder already; stop it, or choose another folder"
        ) from error


def _living_broker(data_dir: Path) -> int | None:
    """The pid of the broker that was last started here, if that very process still lives."""
    try:
        pid, _, created = (data_dir / "broker.pid").read_text(encoding="ascii").partition(" ")
        process = psutil.Process(int(pid))
        lives = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return process.pid if lives and f"{process.create_time():.2f}" == created.strip() else None
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return None


def _choose_ports(settings: BrokerSettings, previous: Port) -> tuple[Port, Port]:
    """The listener's and the controller's port: as asked, else as before, else any that are free."""
    path = settings.data_dir / "ports.json"
    known: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    asked = settings.port if settings.port != FREE_PORT else previous
    if asked != FREE_PORT and not _is_free(asked):
        raise BrokerError(f"port {asked} on {LOOPBACK} is taken by {_holder(asked)}; stop it, or choose another port")
    port = asked if asked != FREE_PORT else free_port(known.get("port"), (), settings.port_tries_max)
    controller_port = settings.controller_port
    if controller_port == FREE_PORT:
        controller_port = free_port(known.get("controller_port"), (port,), settings.port_tries_max)
    elif not _is_free(controller_port):
        raise BrokerError(
            f"port {controller_port} on {LOOPBACK}, for the controller, is taken by {_holder(controller_port)}; "
            "stop it, or choose another port"
        )
    path.write_text(json.dumps({"port": port, "controller_port": controller_port}), encoding="utf-8")
    return port, controller_port


def free_port(preferred: int | None, others: Collection[Port], tries_max: int) -> Port:
    """A port on the loopback that nobody has, and is none of `others`; BrokerError.

    Below those that the system gives to connections, so that none of them has it when the broker comes to listen.
    """
    candidates = random.SystemRandom().sample(_PORT_RANGE, min(tries_max, len(_PORT_RANGE)))
    for number in [preferred, *candidates] if preferred else candidates:
        if number not in others and _is_free(Port(number)):
            return Port(number)
    raise BrokerError(f"no free port found on {LOOPBACK} in {tries_max} tries; choose one in the settings")


def _is_free(port: Port) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does: closed connections linger
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _holder(port: Port) -> str:
    """The process that listens on a port, as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,) and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error as error:
        return f"a process that cannot be looked at ({type(error).__name__})"
    return "another process"


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """As Kafka reads them."""
    lines = [f"{name}={value}" for name, value in sorted(properties.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def new_id() -> str:
    """A random id as Kafka writes it (16 bytes, base64 for URLs), which its tools do not take for an option."""
    drawn = uuid.uuid4().bytes
    plain = bytes([drawn[0] & 0x7F]) + drawn[1:]  # the first character is then a letter, never a hyphen
    return base64.urlsafe_b64encode(plain).rstrip(b"=").decode("ascii")


def _format_once(settings: BrokerSettings) -> None:
    """Give the folder its identity. A format that was cut off left no mark, and no record either: it is done again.

    It writes what Kafka's StorageTool writes, for which that takes a JVM.
    """
    mark = settings.data_dir / "formatted"
    try:
        mark.stat()
    except FileNotFoundError:
        _clear_cut_off_format(settings)
    except OSError as error:
        raise BrokerError(f"{mark}: {error.strerror}; whether the broker has data there is not known") from error
    else:
        return
    cluster_id = new_id()
    meta = {"version": "1", "cluster.id": cluster_id, "node.id": str(NODE_ID), "directory.id": new_id()}
    try:
        settings.log_dir.mkdir()
        shutil.copyfile(FEATURES_PATH, settings.log_dir / FEATURES_PATH.name)
        write_properties(settings.log_dir / "meta.properties", meta)
        mark.write_text(cluster_id, encoding="ascii")
    except OSError as error:
        raise BrokerError(
            f"{settings.log_dir}: the broker's data folder cannot be written: {error.strerror}"
        ) from error


def _clear_cut_off_format(settings: BrokerSettings) -> None:
    """Remove the files of an interrupted format, from a folder that holds nothing else. BrokerError for one that holds more."""
    try:
        more = [path.name for path in settings.log_dir.iterdir() if not path.name.startswith(_FORMATTED)]
    except FileNotFoundError:
        return
    except OSError as error:
        raise BrokerError(f"{settings.log_dir}: {error.strerror}; what is in it is not known") from error
    if more:
        raise BrokerError(
            f"{settings.log_dir} holds {min(more)}, but its mark {settings.data_dir / 'formatted'} is gone: expected the mark of the"
            " broker that wrote it, or nothing; bring the mark back, or move the folder away"
        )
    shutil.rmtree(settings.log_dir)


def _spawn(settings: BrokerSettings, command: list[str]) -> subprocess.Popen[bytes]:
    # Both are written anew at each start, and so are about this start.
    (settings.diagnostics_dir / "broker.log").unlink(missing_ok=True)
    with (settings.diagnostics_dir / "broker.err").open("wb") as errors:
        process = subprocess.Popen(
            tethered(command),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            cwd=settings.data_dir,
            env=java_environment(),
            umask=0o077,  # records are the owner's alone
            # Control-C in a terminal is the supervisor's: it stops the broker last. No session of its own: Linux may give each session the
            # same share of the cores (autogroup), and a broker would get as much as all services together.
            process_group=0,
        )
    created = psutil.Process(process.pid).create_time()
    (settings.data_dir / "broker.pid").write_text(f"{process.pid} {created:.2f}", encoding="ascii")
    return process


async def listens(host: str, port: int) -> bool:
    """Whether something takes connections there."""
    try:
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        await writer.wait_closed()
    except OSError:
        return False
    return True


async def is_member(bootstrap: str, node_id: int, timeout_ms: int) -> bool:
    """Whether the broker there tells its cluster's members, and this one among them. The client logs an error where nothing listens."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=timeout_ms)
    try:
        await admin.start()
        described = await admin.describe_cluster()
    except KafkaError:
        return False
    finally:
        await admin.close()
    return any(member["node_id"] == node_id for member in described["brokers"])


def _failure(settings: BrokerSettings, finding: str) -> str:
    """One sentence on a start that failed, from the broker's own last words."""
    paths = [settings.diagnostics_dir / name for name in ("broker.err", "broker.log")]
    said = [line for path in paths if path.exists() for line in _tail(path, settings.said_lines_max)]
    text = "\n".join(said)
    place = f"The broker on {settings.data_dir} did not start: {finding}"
    for words, remedy in _REASONS:
        if words in text:
            return f"{place}: {remedy}"
    loud = [line for line in said if any(words in line for words in _LOUD)] or said
    return f"{place}. Its last words: {' | '.join(loud[-_SHOWN_LINES:])}. All of them: {settings.diagnostics_dir}"


def _tail(path: Path, lines_max: int) -> deque[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return deque((line.rstrip() for line in file), maxlen=lines_max)


async def run_in_foreground(settings: BrokerSettings) -> int:
    """Run until SIGINT or SIGTERM comes or the broker ends by itself; the exit status."""
    broker = LocalBroker(settings)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    bootstrap = await broker.start()
    sys.stdout.write(f"{bootstrap}\n")
    sys.stdout.flush()
    ended, told = asyncio.ensure_future(broker.exited()), asyncio.ensure_future(asked.wait())
    await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    ended.cancel()
    if asked.is_set():
        await broker.stop()
        return 0
    sys.stderr.write(_failure(settings, "it ended while in use") + "\n")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tidemark.services.local.broker", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="data folder; made if it is not there")
    parser.add_argument("--port", type=int, default=FREE_PORT, help="0 (default): the one it had before, or a free one")
    options = parser.parse_args(arguments)
    try:
        return asyncio.run(run_in_foreground(BrokerSettings(data_dir=options.data.resolve(), port=Port(options.port))))
    except BrokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
