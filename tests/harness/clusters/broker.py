"""A broker of any version, with any server properties: the local broker's life with other jars."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.harness.clusters.versions import has_zookeeper, jars_of, numbers
from tidemark.services.local.broker import BrokerError, LocalBroker, new_id, write_properties
from tidemark.services.local.broker_settings import LOOPBACK, NODE_ID, BrokerSettings, Port, java_arguments
from tidemark.services.local.jars import KAFKA_VERSION
from tidemark.services.local.java import find_java, java_environment
from tidemark.services.local.tether import tethered

_STORAGE_TOOL: Final = "kafka.tools.StorageTool"
_ZOOKEEPER: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_KRAFT_ALONE: Final = (
    "process.roles",
    "node.id",
    "controller.quorum.voters",
    "controller.listener.names",
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
)
_STILL_THERE: Final = "NodeExistsException"
"""What a broker with ZooKeeper says whose killed predecessor's session has not run out."""
_PLAIN_OPTIONS: Final = ("-Xshare:auto",)
"""No archive of classes: it is of other jars."""


VERSION: Final = "TIDEMARK_TEST_KAFKA"
"""Variable: the version that tests' brokers have."""
PROPERTIES: Final = "TIDEMARK_TEST_KAFKA_PROPERTIES"
"""Variable: JSON, server properties that they have besides."""


def broker_for_tests(settings: BrokerSettings) -> LocalBroker:
    """The local broker, or one of the version and with the properties that the environment asks for."""
    settings = replace(settings, overrides={**settings.overrides, **json.loads(os.environ.get(PROPERTIES, "{}"))})
    version = os.environ.get(VERSION, KAFKA_VERSION)
    return LocalBroker(settings) if version == KAFKA_VERSION else AnyBroker(version, settings)


def time_limit() -> str:
    """The topics' setting by which the tests' broker refuses records of long ago."""
    old = numbers(os.environ.get(VERSION, KAFKA_VERSION)) < (3, 6)
    return "message.timestamp.difference.max.ms" if old else "message.timestamp.before.max.ms"


class AnyBroker(LocalBroker):
    """One broker of a version of Kafka; before 3.0 with a ZooKeeper, which lives as long as the object."""

    def __init__(self, version: str, settings: BrokerSettings) -> None:
        super().__init__(settings)
        self.version = version
        self._plain = BrokerSettings(data_dir=settings.data_dir.resolve(), jvm_options=_PLAIN_OPTIONS)
        self._zookeeper: subprocess.Popen[bytes] | None = None
        self._zookeeper_port = 0

    async def start(self, on_address: Callable[[str], None] | None = None) -> str:
        """Once more, as long as ZooKeeper takes a broker that was killed for a living one: a start is faster than its session runs out."""
        while True:
            try:
                return await super().start(on_address)
            except BrokerError as error:
                if not has_zookeeper(self.version) or _STILL_THERE not in str(error):
                    raise

    def jars(self) -> tuple[Path, ...]:
        """Of the version."""
        return jars_of(self.version)

    def properties(self, port: Port, controller_port: Port) -> dict[str, str]:
        """Of one node, as the local broker's; with ZooKeeper's address where it has one."""
        properties = super().properties(port, controller_port)
        if not has_zookeeper(self.version):
            return properties
        kept = {name: value for name, value in properties.items() if name not in _KRAFT_ALONE}
        asked = [listener for listener in kept["listeners"].split(",") if not listener.startswith("CONTROLLER")]
        zookeeper = f"{LOOPBACK}:{self._zookeeper_port or controller_port}"
        self._zookeeper_port = self._zookeeper_port or controller_port
        return {
            **kept,
            "broker.id": str(NODE_ID),
            "listeners": ",".join(asked),
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": "3000",
        }

    async def format(self, java: Path, jars: Sequence[Path]) -> None:
        """With Kafka's own tool; or ZooKeeper is started."""
        if has_zookeeper(self.version):
            await self._start_zookeeper(java, jars)
            return
        mark = self._plain.data_dir / "formatted"
        if mark.exists():
            return
        command = java_arguments(self._plain, java, jars, _STORAGE_TOOL)
        await self._ran([*command, "format", "-t", new_id(), "-c", str(self._plain.properties_path)])
        mark.touch()

    async def tool(self, main_class: str, *words: str) -> None:
        """Run a tool of Kafka's."""
        await self._ran([*java_arguments(self._plain, find_java().executable, self.jars(), main_class), *words])

    async def _ran(self, command: Sequence[str]) -> None:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._plain.data_dir,
            env=java_environment(),
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"Kafka {self.version}: {command[-3:]}: {said.decode(errors='replace')[-2000:]}")

    async def _start_zookeeper(self, java: Path, jars: Sequence[Path]) -> None:
        if self._zookeeper is not None:
            return
        folder = self._plain.data_dir / "zookeeper"
        folder.mkdir(exist_ok=True)
        write_properties(
            folder / "zoo.cfg",
            {
                "dataDir": str(folder),
                "clientPort": str(self._zookeeper_port),
                "clientPortAddress": LOOPBACK,
                "admin.enableServer": "false",
                "tickTime": "500",
            },
        )
        command = java_arguments(self._plain, java, jars, _ZOOKEEPER)
        with (folder / "said").open("ab") as said:
            self._zookeeper = subprocess.Popen(  # noqa: ASYNC220 - begun in a moment, and not waited for
                tethered([*command, str(folder / "zoo.cfg")]),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=folder,
                env=java_environment(),
                process_group=0,
            )

    def end(self) -> None:
        """Broker and ZooKeeper are gone."""
        self.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()
            self._zookeeper = None
