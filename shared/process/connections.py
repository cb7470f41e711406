"""What a document's connections lead to, for the process that uses them."""

import os

from shared.adapters.kafka_log import KafkaLog
from shared.adapters.kafka_settings import KafkaSettings, settings_from
from shared.language.documents import Processor, resolve
from shared.language.stages import Connection


class ConnectionMissing(Exception):
    """The document names a connection that it does not have."""


class Connections:
    """Kafka clients by address: tasks of one process share them."""

    def __init__(self, place: str) -> None:
        self._place = place
        # By all settings, secrets too: who has another password is another client, even under the same name.
        self._logs: dict[KafkaSettings, KafkaLog] = {}

    def get(self, processor: Processor, name: str) -> Connection:
        """The connection, with the environment's values put in. ConnectionMissing; InvalidDocument for a variable that is not set."""
        if name not in processor.connections:
            message = f"connection {name!r} is not among {sorted(processor.connections)}"
            raise ConnectionMissing(message)
        return resolve(processor.connections[name], os.environ)

    def kafka_settings(self, connection: Connection) -> KafkaSettings:
        """Client settings of a Kafka connection."""
        settings = connection.settings
        config = dict(settings.get("config", {}))
        return settings_from(
            config,
            f"connections.{connection.name}.config",
            bootstrap=settings["bootstrapServers"],
            client=f"{self._place}.{connection.name}",
        )

    def log(self, connection: Connection) -> KafkaLog:
        """The client of a Kafka connection."""
        settings = self.kafka_settings(connection)
        if settings not in self._logs:
            self._logs[settings] = KafkaLog(settings)
        return self._logs[settings]

    async def close(self) -> None:
        """Let go of all clients."""
        for log in self._logs.values():
            await log.close()
