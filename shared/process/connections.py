"""The targets of a document's connections, for the process that uses them."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidemark.shared.adapters.filesystems import opened
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings, settings_from
from tidemark.shared.adapters.tablelibraries import iceberg_name, no_catalog
from tidemark.shared.language.documents import Processor, resolve
from tidemark.shared.language.forms import PluginFormat, PluginUse
from tidemark.shared.language.redaction import redacted_line
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages import Connection, FileSource, PluginEmit, PluginSource, PluginTable
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.plugins.csvline import CsvLine
from tidemark.shared.plugins.installed import make_of, make_plugin
from tidemark.shared.plugins.interface import Format
from tidemark.shared.plugins.messagepack import MessagePack
from tidemark.shared.ports.http import HttpClient
from tidemark.shared.process.allowed import Allowed, below, read_allowed
from tidemark.shared.process.values import SecretValues
from tidemark.shared.runtime.plugged import PluggedFormat
from tidemark.shared.runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from tidemark.shared.adapters.registry import RegistrySettings, RestRegistry


_OWN: Final[Mapping[str, type[Format[Any]]]] = {"csv": CsvLine, "messagePack": MessagePack}
"""Tidemark's own formats of records."""


class ConnectionMissing(WrongSetup):
    """The document names a connection that it does not have."""


class TooManyConnections(Exception):
    """The process holds as many clients as it may."""


def check_room(clients: int, clients_max: int, what: str) -> None:
    """TooManyConnections if there is none for another client."""
    if clients >= clients_max:
        message = (
            f"{what}: this process holds {clients} different ones already (connections_max={clients_max});"
            " raise connections_max in TIDEMARK_RUNTIME, or start the process again: it lets go of those that nobody uses any more"
        )
        raise TooManyConnections(message)


class NoFileSystem(WrongSetup):
    """A path or URL leads to no file system that is installed here."""


def filesystem_at(place: str, where: str, config: Mapping[str, object]) -> tuple[Any, str]:
    """Fsspec's file system of a path or URL, and the path in it; `where` names the stage. NoFileSystem."""
    try:
        return opened(place, config)
    except (ValueError, ImportError, TypeError) as error:
        shown = redacted_line(place)
        raise NoFileSystem(
            f"{where}: {shown}: expected a path, or a URL of a file system that is installed (s3://…, file://…), with the connection's"
            f" config as it takes it; found: {redacted_line(str(error))}"
        ) from None


class Connections:
    """Kafka clients by address: tasks of one process share them."""

    def __init__(
        self,
        place: str,
        clients_max: int = RuntimeSettings().connections_max,
        allowed: Allowed | None = None,
        values: Mapping[str, str] | None = None,
    ) -> None:
        """`clients_max`: Kafka clusters, or identities at one. `allowed`, `values`: the process' own, else. ProcessSettingsError."""
        self._place = place
        self._allowed = read_allowed(os.environ) if allowed is None else allowed
        self.values = SecretValues.of(os.environ, self._allowed) if values is None else values
        """The values that `${NAME}` stands for."""
        self._clients_max = clients_max
        # By all settings, secrets too: another password makes another client, even under the same name.
        self._logs: dict[KafkaSettings, KafkaLog] = {}
        self._registries: dict[RegistrySettings, RestRegistry] = {}
        self._http: HttpClient | None = None

    def get(self, processor: Processor, name: str) -> Connection:
        """The connection, with its values put in. ConnectionMissing, NotAllowed; InvalidDocument for a name that stands for nothing."""
        if name not in processor.connections:
            message = f"connection {name!r} is not among {sorted(processor.connections)}"
            raise ConnectionMissing(message)
        return self.resolved(processor.connections[name])

    def resolved(self, connection: Connection) -> Connection:
        """With its values put in. NotAllowed; InvalidDocument for a name that stands for nothing."""
        found = resolve(connection, self.values)
        self._allowed.check_connection(found)
        return found

    def plugin_settings(
        self, processor: Processor, stage: PluginSource | PluginEmit | PluginTable | PluginUse
    ) -> Mapping[str, Any]:
        """The config of the connection that a plug-in's stage names; {} without one. Raises as `get`; NotAllowed for the plug-in itself."""
        self._allowed.check_plugin(stage.plugin, stage.config, stage.path)
        if stage.connection_name is None:
            return {}
        found: Mapping[str, Any] = self.get(processor, stage.connection_name).settings.get("config", {})
        return found

    def format_of(self, form: PluginFormat | None, schema: Schema = NO_SCHEMA) -> PluggedFormat | None:
        """The format, if one is named. schema: the declared fields that are read. NotAllowed for a plug-in's."""
        if form is None:
            return None
        if form.own:
            config = {**form.config, "types": {f.name: f.type for f in schema}} if form.plugin == "csv" else {}
            return PluggedFormat(lambda: make_of(form.path, _OWN[form.plugin], config, {}), form)
        self._allowed.check_plugin(form.plugin, form.config, form.path)
        return PluggedFormat(lambda: make_plugin("format", form.plugin, form.config, {}), form)

    def place_of(self, processor: Processor, name: str | None, path: str, where: str) -> tuple[str, Mapping[str, Any]]:
        """A path, below that of a connection if one is named, and the config of its file system. Raises as `get`."""
        root, config = "", dict[str, Any]()
        if name is not None:
            settings = self.get(processor, name).settings
            root, config = str(settings["path"]), settings.get("config", {})
        place = below(root, path, where)
        self._allowed.check_place(place, where)
        return place, config

    def files_of(self, processor: Processor, stage: FileSource) -> tuple[Any, str]:
        """The file system (fsspec's) of a source of files, and the glob in it. Raises as `get`."""
        place, config = self.place_of(processor, stage.connection_name, stage.path_glob, stage.path)
        return filesystem_at(place, stage.path, config)

    def catalog_of(
        self, processor: Processor, stage: FileSource
    ) -> tuple[tuple[str, ...], Mapping[str, Any], Callable[[str], None]]:
        """A table of Iceberg: its name, its catalog's settings, and what raises where a file may not be read. WrongSetup; as `get`."""
        settings = {} if stage.connection_name is None else self.get(processor, stage.connection_name).settings
        if "catalog" not in settings:
            raise WrongSetup(
                no_catalog(stage.path if stage.connection_name is None else f"connections.{stage.connection_name}")
            )
        name = iceberg_name(stage.path_glob)
        return name, settings["catalog"], self.check_at(stage.path)

    def check_at(self, where: str) -> Callable[[str], None]:
        """What raises NotAllowed for a path or URL that documents may not reach; `where` names the stage."""
        return lambda place: self._allowed.check_place(place, where)

    def check_file_at(self, where: str) -> Callable[[str], None]:
        """As `check_at`, for the path of a file that a pattern or a link has led to."""
        return lambda path: self._allowed.check_file(path, where)

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
        """The client of a Kafka connection. TooManyConnections."""
        settings = self.kafka_settings(connection)
        if settings not in self._logs:
            check_room(len(self._logs), self._clients_max, f"Kafka connection {connection.name!r}")
            self._logs[settings] = KafkaLog(settings)
        return self._logs[settings]

    def registry(self, connection: Connection) -> "RestRegistry":
        """The client of a schema registry. TooManyConnections."""
        from tidemark.shared.adapters.registry import RestRegistry, registry_settings  # noqa: PLC0415 - as for `http`

        settings = registry_settings(connection.settings)
        if settings not in self._registries:
            check_room(len(self._registries), self._clients_max, f"schema registry {connection.name!r}")
            self._registries[settings] = RestRegistry(settings, self._allowed.check_address)
        return self._registries[settings]

    def http(self) -> HttpClient:
        """The client of all servers that are asked by HTTP."""
        from tidemark.shared.adapters.http import AioHttpClient  # noqa: PLC0415 - a web client is loaded where it is wanted

        if self._http is None:
            self._http = AioHttpClient(self._allowed.check_address)
        return self._http

    async def close(self) -> None:
        """Let go of all clients."""
        for log in self._logs.values():
            await log.close()
        for registry in self._registries.values():
            await registry.close()
        if self._http is not None:
            await self._http.close()
