"""Wiring of the control service's process."""

import asyncio
import json
import os
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path

import structlog
from aiohttp import web

from tidemark.services.control.agents import Agents
from tidemark.services.control.api import Api, answer
from tidemark.services.control.audit import Audit
from tidemark.services.control.commands import Commands
from tidemark.services.control.events import Events
from tidemark.services.control.issuer import IssuerKeys
from tidemark.services.control.login import login_of
from tidemark.services.control.oidc import Vouching
from tidemark.services.control.plan import Plans
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.scaling import Scaling
from tidemark.services.control.server import application
from tidemark.services.control.settings import ControlSettings, control_settings
from tidemark.services.control.works import WorkRoutes, Works
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.http import AioHttpClient
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import Log
from tidemark.shared.process.listening import ServerConnections, address_of, tls_of
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, kafka_settings
from tidemark.shared.process.signing import own_log
from tidemark.shared.process.users import Users, read_token
from tidemark.shared.process.web import UNPACKS
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.measures import Measure
from tidemark.shared.runtime.reading import Unreadable, unreadable_measure
from tidemark.shared.runtime.sealed_log import SealedLog
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics

_log = structlog.get_logger()


class ControlService:
    """Serves from its start on, whether or not Kafka answers."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        clock: Clock,
        executor: Executor,
        settings: ControlSettings,
        token: str,
        kafka: KafkaSettings | None = None,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        """`kafka`: where agents find the brokers; without it, or with the setting `agents` off, there are none."""
        self._log = log
        self._executor = executor
        self._settings = settings
        self.events = Events(log, topics, clock, settings)
        runtime = runtime or RuntimeSettings()
        unreadable = log.unreadable if isinstance(log, SealedLog) else Unreadable()
        self.model = ReadModel(log, topics, clock, settings, runtime, unreadable=unreadable)
        self.client = Client(log, topics, clock, lambda: uuid.uuid4().hex, runtime)
        self.commands = Commands(self.client, self.model, settings, executor)
        self.audit = Audit(clock)
        self.api = Api(
            self.model, self.commands, settings, clock, executor, self.audit, Plans(settings.engine, executor)
        )
        self.works = Works(log, topics, clock, executor, settings, self.model)
        self.scaling = Scaling(self.model, self.client, clock, executor, settings, self.audit)
        self.agents: Agents | None = None
        if settings.commands_valid_ms_max > runtime.topics_kept_ms:
            message = (
                f"TIDEMARK_EXTRA: commands_valid_ms_max={settings.commands_valid_ms_max} must not be above topics_kept_ms="
                f"{runtime.topics_kept_ms} of TIDEMARK_RUNTIME: a copy of a command would be told by nothing"
            )
            raise ProcessSettingsError(message)
        if kafka is not None and settings.agents:
            agents = Agents(log, kafka, topics, clock, executor, self.commands, self.events, self.audit, token)
            self.agents, self.api.agents_state = agents, lambda: agents.state
            self.model.on_status = self.events.status
            self.audit.tell = self.works.tell = self.events.tell
        self._connections = ServerConnections(clock, settings.connections_max, settings.request_wait_ms)
        self.api.works = WorkRoutes(self.works, self.api.status_of, answer)
        self._issuer: IssuerKeys | None = None
        self._http = AioHttpClient()
        vouched, login = None, None
        if settings.oidc.issuer:
            self._issuer = IssuerKeys(settings.oidc, self._http, clock)
            vouching = Vouching(settings.oidc, self._issuer, clock)
            vouched = vouching.user_of
            if settings.oidc.client_id:
                login = login_of(vouching, self._http, self.audit, token)
            self.api.issuer_state = self._issuer.state
        users = Users(token, settings.users_file)
        self._application = application(self.api, users, self._connections.asked, vouched=vouched, login=login)
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None
        self.serving = asyncio.Event()
        self.tls: ssl.SSLContext | None = None
        self.url = ""

    async def run(self) -> None:
        """Serve until `stop`. ProcessSettingsError where the address is taken."""
        stop_s = self._settings.stop_timeout_ms / 1000
        runner = web.AppRunner(
            self._application,
            access_log=None,
            shutdown_timeout=stop_s,
            auto_decompress=UNPACKS,
            # A token as the password of a browser's prompt takes a third more.
            max_field_size=2 * self._settings.oidc.token_bytes_max,
        )
        await runner.setup()
        handles = self.model.start(self._executor, self._broken)
        handles.append(self._executor.spawn(self.scaling.run(), "scale", self._broken))
        handles += self.works.start(self._broken)
        handles.append(self._executor.spawn(self._connections.watch(), "watch connections", self._broken))
        if self._issuer is not None:
            handles.append(self._executor.spawn(self._issuer.run(), "fetch the issuer's keys", self._broken))
        if self.agents is not None:
            handles += [*self.events.start(self._executor, self.model, self._broken), self.agents.start(self._broken)]
        try:
            await self._listen(runner)
            await self._stopped.wait()
        finally:
            self.api.ending = True
            self.works.stop()
            self.api.programs.stop()
            await runner.cleanup()
            if self.agents is not None:
                await self.agents.stop()
            for handle in handles:
                handle.cancel()
            for handle in handles:
                await handle.join()
            await self._http.close()
            await self._log.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End `run`: requests under way are answered first."""
        self._stopped.set()

    def unready(self) -> str:
        """Ready: all is known, and Kafka answers."""
        return self.model.away() or ("" if self.model.ready() else "the registry is still being read")

    def measures(self) -> Iterator[Measure]:
        """The service's measures of processors; tasks serve their own."""
        yield Measure("commands_waiting", self.commands.waiting)
        for topic, count in self.model.unreadable.counts.items():
            yield unreadable_measure(topic, count)
        yield from self.works.measures()
        yield Measure("processors_known", len(self.model.statuses))

    def _broken(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stopped.set()
        _log.error("control.broken", error=repr(error), exc_info=error)

    async def _listen(self, runner: web.AppRunner) -> None:
        settings = self._settings
        site = self._connections.site(runner, settings.host, settings.port, self.tls)
        try:
            await site.start()
        except OSError as error:
            message = f"{settings.host}:{settings.port}: cannot listen there ({error}); choose another port"
            raise ProcessSettingsError(message) from error
        self.url = address_of(runner, self.tls)
        if settings.address_file:
            self._write_address(Path(settings.address_file))
        _log.info("control.serves", url=self.url)
        self.serving.set()

    def _write_address(self, path: Path) -> None:
        """For the command line: where the service is, and where its token lies."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"url": self.url, "token_file": self._settings.token_file}))
        temporary.replace(path)


async def build(settings: ProcessSettings) -> ControlService:
    """A control service on the cluster that the settings name."""
    control = control_settings(settings)
    token = read_token(control.token_file)
    kafka, runtime = kafka_settings(settings), settings.runtime
    executor = AsyncExecutor(runtime.threads, runtime.calls_waiting_max)
    topics = Topics(settings.prefix)
    service = ControlService(own_log(settings), topics, SystemClock(), executor, control, token, kafka, runtime)
    service.works.place = settings.place
    service.tls = tls_of(settings)
    return service
