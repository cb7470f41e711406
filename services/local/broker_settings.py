"""The settings of a local broker, and the server properties and command line they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NewType

from tidemark.services.local.jars import default_cache
from tidemark.shared.model.settings import knob

Port = NewType("Port", int)

FREE_PORT: Final = Port(0)
LOOPBACK: Final = "127.0.0.1"
NODE_ID: Final = 1

_FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "broker"
_LOG4J_CONFIGURATION: Final = _FOLDER / "log4j2.properties"
FEATURES_PATH: Final = _FOLDER / "bootstrap.checkpoint"
"""The features, and their versions, with which a new broker begins: a snapshot of Kafka's, the same for each cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One Kafka node on the loopback address.

    ``data_dir`` holds all that it keeps: the log, its identity, the ports it was given, its log files. Started again on
    the same folder it is the same broker.
    """

    data_dir: Path
    # FREE_PORT: the one it had before if that is still free, else any.
    port: Port = FREE_PORT
    controller_port: Port = FREE_PORT
    heap_mib_max: int = knob(512)
    message_bytes_max: int = 8 * 2**20
    # Below this the broker is not started: it would stop in the middle of a write.
    free_disk_mib_min: int = knob(512)
    start_timeout_s: float = knob(300.0)
    """For the first answer of a broker with a living process: on a machine that is busy, minutes. If it ends, that is noticed at once."""
    stop_timeout_s: float = 15.0
    predecessor_timeout_s: float = 5.0
    """How long to wait for the end of a broker after its supervisor was killed, s."""
    ask_timeout_ms: int = 10_000
    """For an answer, when it is asked whether it is ready."""
    said_lines_max: int = 200
    """Read from the end of each of the broker's logs, to say why it did not start."""
    port_tries_max: int = 100
    """Ports that are tried for one that is free."""
    # Of the JVM. Empty: to use the archive of its classes, where there is one (archive.py).
    jvm_options: tuple[str, ...] = ()
    # Server properties that overrule the ones made here.
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_dir(self) -> Path:
        """The folder with Kafka's own data."""
        return self.data_dir / "log"

    @property
    def diagnostics_dir(self) -> Path:
        """The folder of the broker's own logs, bounded by the rolling policy of its log4j configuration."""
        return self.data_dir / "diagnostics"

    @property
    def properties_path(self) -> Path:
        """The server properties, written at each start."""
        return self.data_dir / "server.properties"


def server_properties(settings: BrokerSettings, port: Port, controller_port: Port) -> dict[str, str]:
    """The server properties of one node that keeps everything: no time and no size removes a record.

    They hold no absolute path: Kafka reads them as Latin-1, and divides ``log.dirs`` at commas. It runs in its data folder.
    """
    listener = f"PLAINTEXT://{LOOPBACK}:{port}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "controller.quorum.voters": f"{NODE_ID}@{LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listener},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": listener,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(settings.log_dir.relative_to(settings.data_dir)),
        # One node: each replica there is, is in it.
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # Few partitions of the inner topics: each costs files and time at the start.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "8",
        "group.initial.rebalance.delay.ms": "0",
        # A topic exists because somebody planned it; a mistyped name is an error.
        "auto.create.topics.enable": "false",
        "log.message.timestamp.type": "CreateTime",
        "log.retention.ms": "-1",
        "log.retention.bytes": "-1",
        "message.max.bytes": str(settings.message_bytes_max),
        "replica.fetch.max.bytes": str(settings.message_bytes_max),
        # Transactions of a killed writer hold readers back until they are aborted.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # After a kill the node is let in again when its former session has run out, so this is a part of the time that a
        # restart takes; shorter, and a machine under load would take the broker for dead.
        "broker.session.timeout.ms": "2500",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(16 * 2**20),
    }
    return properties | dict(settings.overrides)


def archive_path() -> Path:
    """Where the archive of the broker's classes lies, or would."""
    return default_cache().parent / "classes" / "broker.jsa"


def _archive_options() -> tuple[str, ...]:
    path = archive_path()
    return (f"-XX:SharedArchiveFile={path}",) if path.exists() else ()


def java_arguments(settings: BrokerSettings, java: Path, jars: Sequence[Path], main_class: str) -> list[str]:
    """A JVM of bounded size that runs ``main_class`` of the broker; its own arguments follow."""
    return [
        str(java),
        "-Xms128m",
        f"-Xmx{settings.heap_mib_max}m",
        # It shares a machine's few cores with all else: the second compiler took a third of the broker's time in the first minutes.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *(settings.jvm_options or _archive_options()),
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={settings.diagnostics_dir}/crash-%p.log",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={_LOG4J_CONFIGURATION}",
        f"-Dtidemark.diagnostics={settings.diagnostics_dir}",
        "-cp",
        ":".join(map(str, jars)),
        main_class,
    ]
