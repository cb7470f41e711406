"""Three brokers with TLS, a password by SCRAM and a user of few rights; each has another host name, and a certificate of its own for it."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.harness.brokers.cluster import Brokers
from tests.harness.certificates import made_authority
from tests.harness.clusters.granting import USER, grant
from tests.harness.clusters.rights import AUDIT, SINK, SOURCE
from tidemark.services.local.broker_settings import BrokerSettings, java_arguments
from tidemark.services.local.jars import ensure_jars
from tidemark.services.local.java import find_java, java_environment

HOSTS: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
_PASSWORD: Final = "of-the-tests"
_MECHANISM: Final = "SCRAM-SHA-512"
_CERTIFICATE: Final = "broker.pem"
_LISTENER: Final = "listener.name.clients"
PROPERTIES: Final = {
    "clients.protocol": "SASL_SSL",
    f"{_LISTENER}.ssl.keystore.type": "PEM",
    f"{_LISTENER}.ssl.keystore.location": _CERTIFICATE,
    f"{_LISTENER}.sasl.enabled.mechanisms": _MECHANISM,
    f"{_LISTENER}.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Brokers among themselves, and tools, use the listener without a password."""


def certified(folder: Path) -> dict[str, Any]:
    """Put a certificate into each broker's folder; the configuration of a connection."""
    authority = made_authority(folder)
    for number, host in enumerate(HOSTS):
        place = folder / f"broker-{number + 1}"
        place.mkdir(parents=True)
        (place / _CERTIFICATE).write_text(authority.signed(host))
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": _MECHANISM,
        "sasl_username": USER,
        "sasl_password": _PASSWORD,
        "ssl_ca_file": str(authority.file),
    }


async def admit(brokers: Brokers) -> None:
    """The user has a password, and the rights that the manual names."""
    settings = BrokerSettings(data_dir=brokers.folder)
    tool = java_arguments(settings, find_java().executable, ensure_jars(), "kafka.admin.ConfigCommand")
    node = brokers.nodes[1]
    words = ("--alter", "--add-config", f"{_MECHANISM}=[password={_PASSWORD}]", "--entity-type", "users")
    process = await asyncio.create_subprocess_exec(
        *tool, "--bootstrap-server", node.bootstrap, *words, "--entity-name", USER,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=java_environment(), cwd=brokers.folder,
    )  # fmt: skip
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace")[-1000:])
    await grant(node.bootstrap, (*SOURCE, *SINK, *AUDIT))
