"""Wiring of the gateway's process: one route, behind a token, that answers when the broker has acknowledged."""

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from aiohttp import web

from tidemark.services.gateway.batch import Shape, records_of
from tidemark.services.gateway.settings import GatewaySettings, gateway_settings
from tidemark.services.gateway.writing import BatchWriter, NotKnown, NotWritten, TopicRefused
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import Log, LogError, NewRecord
from tidemark.shared.process.listening import address_of, tls_of
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, kafka_settings
from tidemark.shared.process.users import Users, read_token
from tidemark.shared.process.web import (
    BAD_REQUEST,
    NOT_FOUND,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    UNPACKS,
    UNPROCESSABLE,
    Problem,
    answering,
    crowded,
    expected,
    guard,
    read_body,
)
from tidemark.shared.runtime.measures import Measure
from tidemark.shared.runtime.topics import is_internal

_log = structlog.get_logger()
_RETRY: Final = {"Retry-After": "1"}


class GatewayService:
    """HTTP in, topics out. Holds nothing that must last."""

    def __init__(
        self, log: Log, clock: Clock, executor: Executor, place: str, prefix: str, settings: GatewaySettings, token: str
    ) -> None:
        self._log = log
        self._clock = clock
        self._executor = executor
        self._prefix = prefix
        self._settings = settings
        self._writer = BatchWriter(log, clock, place, settings.writers, settings.topics_age_ms_max)
        self._app = web.Application(
            client_max_size=settings.batch_bytes_max,
            middlewares=[answering, guard(Users(token), {"/healthz"}), crowded(settings.requests_max, {"/healthz"})],
        )
        self._app.router.add_get("/healthz", self._alive, expect_handler=expected)
        self._app.router.add_post("/v1/topics/{topic}/records", self._ingest, expect_handler=expected)
        self._in_flight_bytes = 0
        self._written = 0
        self._refused = 0
        self._away = "the brokers have not answered yet"
        self._error: BaseException | None = None
        self._stopped = asyncio.Event()
        self.serving = asyncio.Event()
        self.tls: ssl.SSLContext | None = None
        self.url = ""

    async def run(self) -> None:
        """Serve until `stop`; batches under way are answered first. ProcessSettingsError where the address is taken."""
        stop_s = self._settings.stop_timeout_ms / 1000
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=stop_s, auto_decompress=UNPACKS)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._settings.host, self._settings.port, ssl_context=self.tls).start()
            except OSError as error:
                message = (
                    f"{self._settings.host}:{self._settings.port}: cannot listen there ({error}); choose another port"
                )
                raise ProcessSettingsError(message) from error
            self.url = address_of(runner, self.tls)
            _log.info("gateway.serves", url=self.url)
            self.serving.set()
            looking = self._executor.spawn(self._look(), "look for brokers", self._broken)
            try:
                await self._stopped.wait()
            finally:
                looking.cancel()
                await looking.join()
        finally:
            await runner.cleanup()
            await self._writer.close()
            await self._log.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped.set()

    def unready(self) -> str:
        """Ready unless the brokers did not answer when they were last asked, or the last batch found none."""
        return self._away

    def _broken(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stopped.set()
        _log.error("gateway.broken", error=repr(error), exc_info=error)

    async def _look(self) -> None:
        """Ask the brokers whether they are back: a gateway that is not ready gets no batches and would never learn it from one."""
        while True:
            try:
                await self._log.list_topics()
            except LogError as error:
                self._away = str(error)
            else:
                self._away = ""
            await self._clock.sleep_ms(self._settings.look_ms)

    def measures(self) -> Iterator[Measure]:
        """Acknowledged records, refused batches, bytes in flight."""
        yield Measure("gateway_records_total", self._written)
        yield Measure("gateway_refused_total", self._refused)
        yield Measure("gateway_in_flight_bytes", self._in_flight_bytes)

    # --- the route --------------------------------------------------------------------------------------------------------

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _ingest(self, request: web.Request) -> web.Response:
        shape = _shape(request, self._settings.batch_id_characters_max)
        with self._room(request.content_length) as room:
            topic, partitions = await self._topic(request.match_info["topic"])
            records = await self._records(request, shape, room)
            if records:
                await self._write(topic, partitions, records, shape)
        self._written += len(records)
        body = msgspec.json.encode({"topic": topic, "written": len(records)})
        return web.Response(body=body, content_type="application/json")

    async def _records(self, request: web.Request, shape: Shape, room: "_Room") -> list[NewRecord]:
        body = await self._body(request)
        room.change(len(body))  # the body is larger unpacked than it declared
        return records_of(body, shape, self._settings.record_bytes_max, self._settings.records_max)

    async def _body(self, request: web.Request) -> bytes:
        """The whole of it, within `body_timeout_ms`. Problem."""
        settings = self._settings
        try:
            return await read_body(request, settings.body_timeout_ms, self._clock, self._executor, self._broken)
        except web.HTTPRequestEntityTooLarge as error:
            raise Problem(TOO_LARGE, "body", f"at most {settings.batch_bytes_max} bytes", "more") from error

    @contextmanager
    def _room(self, content_length: int | None) -> Iterator["_Room"]:
        """Room for a batch until it is acknowledged, or 429: a body of unknown length counts as the largest until it is there."""
        most = self._settings.batch_bytes_max
        if content_length is not None and content_length > most:
            raise Problem(TOO_LARGE, "body", f"at most {most} bytes", f"{content_length} bytes")
        room = _Room(self)
        room.change(most if content_length is None else content_length)
        try:
            yield room
        finally:
            room.change(0)

    def take(self, size: int) -> None:
        """So many bytes more are under way, or fewer; Problem (429) where there is no room for more."""
        if size > 0 and self._in_flight_bytes + size > self._settings.in_flight_bytes_max:
            self._refused += 1
            finding = f"{self._in_flight_bytes} bytes are under way"
            raise Problem(TOO_MANY, "gateway", "fewer bytes at a time", finding, "send it again", headers=_RETRY)
        self._in_flight_bytes += size

    async def _topic(self, topic: str) -> tuple[str, int]:
        allowed = self._settings.topics
        if (allowed and topic not in allowed) or is_internal(topic, self._prefix):
            raise Problem(NOT_FOUND, "topic", "one that the gateway may write to", repr(topic))
        try:
            partitions = await self._writer.partitions(topic)
        except NotWritten as error:
            self._away = str(error)
            raise _unavailable(str(error), "nothing was written: send it again") from error
        if not partitions:
            raise Problem(NOT_FOUND, "topic", "one that exists", repr(topic), "create it first")
        return topic, partitions

    async def _write(self, topic: str, partitions: int, records: Sequence[NewRecord], shape: Shape) -> None:
        try:
            await self._writer.write(topic, partitions, records, shape.placed_by)
        except NotWritten as error:
            self._away = str(error)
            raise _unavailable(str(error), "nothing was written: send it again") from error
        except TopicRefused as error:
            raise Problem(UNPROCESSABLE, "topic", "records that it takes", str(error), "nothing was written") from error
        except NotKnown as error:
            self._away = str(error)
            remedy = "whether the batch was written is not known: send it again with the same ids, and let $source.recordId drop repeats"
            raise _unavailable(str(error), remedy) from error
        self._away = ""


@dataclass(slots=True)
class _Room:
    """One request's share of the bytes in flight: first its packed body, then the unpacked one."""

    service: GatewayService
    size: int = 0

    def change(self, size: int) -> None:
        """It takes so many bytes now."""
        self.service.take(size - self.size)
        self.size = size


def _unavailable(reason: str, remedy: str) -> Problem:
    return Problem(UNAVAILABLE, "Kafka", "the brokers' acknowledgement", reason, remedy, headers=_RETRY)


def _shape(request: web.Request, id_characters_max: int) -> Shape:
    unknown = set(request.query) - {"key", "id"}
    if unknown:
        raise Problem(BAD_REQUEST, f"query {min(unknown)}", "key or id, each the path of a field", "another name")
    batch_id = request.headers.get("Idempotency-Key", "")
    if len(batch_id) > id_characters_max:
        expected = f"at most {id_characters_max} characters"
        raise Problem(BAD_REQUEST, "header Idempotency-Key", expected, f"{len(batch_id)} characters")
    if not batch_id.isascii():
        raise Problem(BAD_REQUEST, "header Idempotency-Key", "ASCII characters", ascii(batch_id))
    return Shape(request.content_type, request.query.get("key", ""), request.query.get("id", ""), batch_id)


async def build(settings: ProcessSettings) -> GatewayService:
    """A gateway to the cluster that the settings name."""
    gateway = gateway_settings(settings)
    token = read_token(gateway.token_file)
    # The identities are the place's: a gateway that comes back ends its predecessor's open transactions, which would hold readers up.
    log = KafkaLog(kafka_settings(settings))
    executor = AsyncExecutor(settings.runtime.threads, settings.runtime.calls_waiting_max)
    service = GatewayService(log, SystemClock(), executor, settings.place, settings.prefix, gateway, token)
    service.tls = tls_of(settings)
    return service
