"""Commands from a topic, taken by a Faust agent: the same as by REST, for systems that speak Kafka rather than HTTP.

The library alone does not make this sound; these rules do:
- values are taken raw and decoded inside the `try`: an exception in an agent would lose the message;
- a command that fails goes to the dead letter topic with its reason, and is answered on the events topic; then the agent goes on.
  Secrets do not lie there: a message without secrets is kept as it came, one that is no JSON is hidden whole, and the letter says where
  in the topic the command lies;
- at least once, and every command has an id: a repeated one is carried out once;
- a command is signed with the token of control, has an id, and says until when it counts: within that time a copy is told by its id. The
  signature is in a header, so that any client of Kafka can make it;
- nothing is kept in tables; topics are made before the app starts; the app runs in this process' loop, and its crash or the brokers'
  absence is waited out and told by /readyz, while REST goes on;
- stopping is bounded: it would hang while the brokers are away.
"""

import asyncio
import hashlib
import hmac
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

from tidemark.services.control.audit import Audit
from tidemark.services.control.commands import Command, Commands
from tidemark.services.control.events import Events
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.redaction import HIDDEN, redacted_command
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log, LogError, NewRecord, TopicPartition
from tidemark.shared.process.web import NO_ANSWER, TOO_MANY, UNAVAILABLE, Problem
from tidemark.shared.runtime.topics import KEPT, STAMPED, Topics

HEADER: Final = "tidemark-signature"
_UNSIGNED: Final = 401


def signature(token: str, topic: str, value: bytes) -> str:
    """The value of the header."""
    return hmac.new(token.encode(), topic.encode() + b"\n" + value, hashlib.sha256).hexdigest()


def check_signature(token: str, topic: str, value: bytes, found: bytes | None) -> None:
    """Problem for a command that was not signed with the token."""
    if found is None or not hmac.compare_digest(found, signature(token, topic, value).encode()):
        expected = f"HMAC-SHA256 under the token of control, in hexadecimal, over {topic!r}, a line feed, and the value"
        raise Problem(_UNSIGNED, f"header {HEADER}", expected, "nothing" if found is None else "another")


def check_expires(expires: str, request: str, now_ms: int, valid_ms_max: int) -> None:
    """Problem for a command without id or end, or whose end has passed or is too far away to recognise copies by its id."""
    if not request:
        raise Problem(_UNSIGNED, "request", "the id of the request, by which a copy of the command is told", "nothing")
    expected = f"a time with a zone, as 2030-01-31T12:00:00Z, within the next {valid_ms_max / 1000:g} s"
    try:
        time = datetime.fromisoformat(expires)
    except ValueError:
        raise Problem(_UNSIGNED, "expires", expected, repr(expires[:100]) if expires else "nothing") from None
    if time.tzinfo is None or not 0 <= time.timestamp() * 1000 - now_ms <= valid_ms_max:
        raise Problem(_UNSIGNED, "expires", expected, repr(expires[:100]))


_log = structlog.get_logger()
_AGAIN: Final = frozenset({TOO_MANY, UNAVAILABLE, NO_ANSWER})
_decoder: Final = msgspec.json.Decoder(Command)


_TOLD_MAX: Final = 1_000
"""Characters of a name, an id or a reason that a dead letter and its event repeat: they need not fit a record, as the command did."""
_BESIDE_BYTES_MAX: Final = 16 * 1_024
"""Of a dead letter's key and headers."""
BY_TOPIC: Final = "commands topic"
"""The signer of a command on this topic has the token of control."""


@dataclass(slots=True)
class Agents:
    """One Faust app, started anew when it has crashed."""

    log: Log
    kafka: KafkaSettings
    topics: Topics
    clock: Clock
    executor: Executor
    commands: Commands
    events: Events
    audit: Audit
    token: str = field(repr=False)
    state: str = "starting"
    """For readiness: `running`, or why not."""
    _app: Any = None
    _folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="tidemark-agents-"))

    @property
    def _settings(self) -> ControlSettings:
        return self.commands.settings

    def start(self, on_error: Callable[[BaseException], None]) -> Handle:
        """Take commands from now on."""
        return self.executor.spawn(self._run(), "agents", on_error)

    async def stop(self) -> None:
        """Stop the app, within a bound."""
        app, self._app = self._app, None
        if app is not None:
            await self._within(self._settings.stop_timeout_ms, app.stop())
        self._folder.cleanup()

    async def _run(self) -> None:
        while True:
            try:
                for topic in (self.topics.control_commands, self.topics.control_dead_letters):
                    await self.log.create_topic(topic, 1, KEPT | STAMPED)
                await self._live()
            except LogError as error:
                self.state = f"waits for the brokers: {error}"
            except Exception as error:  # noqa: BLE001 - a library's crash; REST goes on and the app is started anew
                self.state = f"crashed: {error!r}"
                _log.warning("agents.crashed", error=repr(error))
            app, self._app = self._app, None
            if app is not None:
                await self._within(self._settings.stop_timeout_ms, app.stop())
            await self.clock.sleep_ms(self._settings.retry_ms)

    async def _live(self) -> None:
        """Until the app ends, by itself or by a crash."""
        app = self._app = self._make()
        app.finalize()
        await app.start()
        self.state = "running"
        _log.info("agents.running", topic=self.topics.control_commands)
        await app.wait_until_stopped()
        if app.crash_reason is not None:
            raise app.crash_reason

    def _make(self) -> Any:
        import faust  # noqa: PLC0415 - a second of start-up, for agents alone

        app: Any = faust.App(
            f"{self.topics.prefix}-control",
            broker=[f"kafka://{host.strip()}" for host in self.kafka.bootstrap.split(",")],
            broker_credentials=self._credentials(faust),
            store="memory://",
            processing_guarantee="at_least_once",
            consumer_auto_offset_reset="earliest",
            topic_disable_leader=True,
            reply_create_topic=False,
            web_enabled=False,
            broker_session_timeout=self._settings.agents_session_timeout_s,
            stream_buffer_maxsize=self._settings.agents_waiting_max,
            datadir=self._folder.name,
        )
        source = app.topic(
            self.topics.control_commands, value_type=bytes, value_serializer="raw", key_serializer="raw", internal=False
        )

        async def take(stream: Any) -> None:
            async for event in stream.events():
                message = event.message
                signed = dict(message.headers or ()).get(HEADER)
                place = f"{message.topic}-{message.partition}-{message.offset}"
                await self._take(bytes(event.value or b""), place, None if signed is None else bytes(signed))

        app.agent(source, name="commands")(take)
        return app

    def _credentials(self, faust: Any) -> Any:
        kafka = self.kafka
        if kafka.security_protocol == "SSL":
            return faust.SSLCredentials(context=kafka.ssl_context())
        if kafka.security_protocol.startswith("SASL"):
            return faust.SASLCredentials(
                username=kafka.sasl_username,
                password=kafka.sasl_password,
                mechanism=kafka.sasl_mechanism,
                ssl_context=kafka.ssl_context(),
            )
        return None

    # --- a command --------------------------------------------------------------------------------------------------------

    async def _take(self, data: bytes, place: str, signed: bytes | None) -> None:
        """Carry it out, or put it aside with the reason; never raises."""
        request, name = place, ""
        try:
            check_signature(self.token, self.topics.control_commands, data, signed)
            command = _decoder.decode(data)
            request, name = command.request or place, command.name
            check_expires(command.expires, command.request, self.clock.now_ms(), self._settings.commands_valid_ms_max)
            await self._carry_out(command)
            self.audit.note(BY_TOPIC, "admin", type(command).__name__, name, place=place, request=request)
        except Problem as problem:
            reason = f"{problem.place}: expected {problem.expectation}; {problem.finding}"
            await self._put_aside(data, place, request, name, reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next command must be taken
            await self._put_aside(data, place, request, name, f"{type(error).__name__}: {error}")
        else:
            self.events.tell("answer", request, name, done=True)

    async def _carry_out(self, command: Command) -> None:
        """A command that fails for want of brokers or coordinator is tried again: its id makes that harmless."""
        for tries in range(1, self._settings.agents_tries_max + 1):
            try:
                await self.commands.model.up_to_now()
                await self.commands.carry_out(command)
            except Problem as problem:
                if problem.status not in _AGAIN or tries == self._settings.agents_tries_max:
                    raise
            else:
                return
            await self.clock.sleep_ms(self._settings.retry_ms)

    async def _put_aside(self, data: bytes, place: str, request: str, name: str, reason: str) -> None:
        """Into the dead letter topic, without its secrets, however long it takes: only then is the command done with."""
        request, name, reason = (text[:_TOLD_MAX] for text in (request, name, reason))
        shown = redacted_command(data)
        if len(shown) + _BESIDE_BYTES_MAX > self.kafka.message_bytes_max:
            shown = HIDDEN.encode()  # It would fit no record; the letter says where the command lies.
        self.audit.note(BY_TOPIC, "", "put aside", name, place=place, request=request, finding=reason)
        _log.warning("agents.put_aside", command=place, processor=name, reason=reason)
        headers = (("reason", reason.encode()), ("place", place.encode()))
        partition = TopicPartition(self.topics.control_dead_letters, 0)
        while True:
            try:
                writer = await self.log.writer("agents")
                try:
                    await (await writer.send(partition, NewRecord(shown, name.encode(), headers)))
                finally:
                    await writer.close()
            except LogError as error:
                _log.warning("agents.log_away", reason=str(error))
                await self.clock.sleep_ms(self._settings.retry_ms)
            else:
                break
        self.events.tell("answer", request, name, done=False, reason=reason)

    async def _within(self, limit_ms: int, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for the work, but no longer than this."""
        over = asyncio.Event()

        async def worked() -> None:
            try:
                await work
            finally:
                over.set()

        async def waited() -> None:
            await self.clock.sleep_ms(limit_ms)
            over.set()

        def failed(error: BaseException) -> None:
            _log.warning("agents.stop_failed", error=repr(error))

        handles = [self.executor.spawn(activity, "stop agents", failed) for activity in (worked(), waited())]
        await over.wait()
        for handle in handles:
            handle.cancel()
