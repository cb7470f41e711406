"""The commands, by REST or on the commands topic: checked here, decided by the coordinator.

Each command carries the id of its request: the coordinator answers a repeated one as before and does not carry it out again.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from tidemark.services.control.outside import Briefly, refused_outside
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.language.documents import InvalidDocument, Processor, parse
from tidemark.shared.language.documents.connections import read_connections
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.stages import Connection
from tidemark.shared.model.ids import EdgeId, Epoch, Offset, ProcessorName, VertexId
from tidemark.shared.model.messages import (
    CreateProcessor,
    CreateRunning,
    DropProcessor,
    ForgetCheckpoint,
    KeepCheckpoint,
    ModifyProcessor,
    PutConnection,
    Request,
    SkipRelease,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.planning import PlanError, plan_processor
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.log import LogError
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.foreseen import never_runs
from tidemark.shared.process.users import ADMIN, User
from tidemark.shared.process.web import (
    BAD_REQUEST,
    CONFLICT,
    NO_ANSWER,
    NOT_FOUND,
    TOO_MANY,
    UNPROCESSABLE,
    Problem,
    broker_away,
)
from tidemark.shared.runtime.client import Client, EdgeSample, RequestRefused, RequestTimeout
from tidemark.shared.runtime.topics import check_topics

T = TypeVar("T")

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Document: TypeAlias = str | dict[str, Any]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Offsets, checkpoints, counts: the whole numbers that messages can hold."""


class _Command(Struct, frozen=True, tag_field="command", forbid_unknown_fields=True, kw_only=True):
    name: str
    request: str = ""
    """Id of the request; one is made where there is none, but for a command by topic, which brings its own."""
    expires: str = ""
    """Until when a command by topic counts (`signature.py`)."""


class _OfKnown(_Command, frozen=True, kw_only=True):
    job: str = ""
    """The job that who commands has seen: refused where the processor of this name has another one by now."""


class Create(_Command, frozen=True, tag="create"):
    """Register a processor; with `start` it is started, too. The document is YAML or JSON text, or an object."""

    document: Document
    parallelism: dict[str, Whole] = {}
    start: bool = False


class Start(_OfKnown, frozen=True, tag="start"):
    """Start from the last checkpoint, from one that is kept under a name, or without state."""

    resume: bool = True
    checkpoint: str = ""


class Stop(_OfKnown, frozen=True, tag="stop"):
    """Stop at a checkpoint; with `drain` end the input (at `until` by split, else at the present end), close all windows and finish."""

    drain: bool = False
    until: dict[str, Whole] = {}


class Modify(_OfKnown, frozen=True, tag="modify", rename={"resume": "resumeFromCheckpoint"}):
    """Another document or parallelism; a running processor goes on with it at its next checkpoint."""

    document: Document | None = None
    parallelism: dict[str, Whole] | None = None
    resume: bool = True
    replaces: str = ""


class DropStopped(_OfKnown, frozen=True, tag="drop"):
    """Forget a stopped processor and delete the data that it stored."""


class SkipCommit(_OfKnown, frozen=True, tag="skip"):
    """Pass over the rows of a commit that a target refuses, when the processor starts next."""

    epoch: Whole
    vertex: str | None = None


class Keep(_OfKnown, frozen=True, tag="keep"):
    """Keep the last checkpoint under a name, for starts from it."""

    checkpoint: str


class Forget(_OfKnown, frozen=True, tag="forget"):
    """Forget a kept checkpoint."""

    checkpoint: str


class Connect(_Command, frozen=True, tag="connect"):
    """Write a connection into the registry; null deletes it."""

    connection: dict[str, Any] | None
    replaces: str = ""
    """The digest of the one that is changed, or `none`: refused where another is there. Empty: whatever is there."""


Command: TypeAlias = Create | Start | Stop | Modify | DropStopped | SkipCommit | Keep | Forget | Connect


def text_of(document: Document) -> str:
    """A document as text, which the coordinator takes."""
    return document if isinstance(document, str) else msgspec.json.encode(document).decode()


@dataclass(slots=True)
class Commands:
    """Carries commands to the coordinator and waits for its answer."""

    client: Client
    model: ReadModel
    settings: ControlSettings
    executor: Executor
    waiting: int = 0
    connect_briefly: Callable[[], Connections] = lambda: Briefly("control")

    async def carry_out(self, command: Command, user: User = ADMIN) -> str:
        """Done: the request's id. Problem: not done, or not known whether it was (504: ask again with the same id).

        The user may do it; documents name the connections that the user sees.
        """
        request = command.request or self.client.unique()
        check_id(request, "request", self.settings.request_characters_max)
        if not NAME.fullmatch(command.name):
            raise Problem(
                BAD_REQUEST,
                "name",
                "letters, digits, '.', '_' and '-', at most 128, the first no sign",
                repr(command.name),
            )
        if isinstance(command, Create | Modify) and command.document is not None:
            await self.foresee(await self.check(command.document, user))
        if isinstance(command, Connect) and command.connection is not None:
            check_connection(command.name, command.connection)
        await self._ask(_request_of(command, request))
        return request

    async def foresee(self, processor: Processor) -> None:
        """Problem if a run would refuse the document for a reason that this process sees as tasks do: unset variables, missing topics."""
        if not self.settings.logs:
            return
        connections = self.connect_briefly()
        try:
            errors = list(never_runs(processor, connections.values))
            errors = errors or await refused_outside(processor, connections)
        finally:
            await connections.close()
        if errors:
            raise invalid_document(InvalidDocument(errors))

    async def check(self, document: Document, user: User = ADMIN) -> Processor:
        """The document, with the registry's connections that it does not bring and the user sees; Problem with every error of it.

        On a thread: a large document takes seconds, and others are answered meanwhile.
        """
        known = {name: each for name, each in self.registered().items() if user.sees_connection(name)}
        return await self.executor.blocking(self._checked, document, known)

    def _checked(self, document: Document, known: dict[str, Connection]) -> Processor:
        try:
            processor = parse(document, known_connections=known)
            check_topics(processor, self.model.topics.prefix)
            plan_processor(processor, engine=self.settings.engine)
        except InvalidDocument as error:
            raise invalid_document(error) from error
        except PlanError as error:
            raise Problem(422, "document", "a pipeline that can be planned", str(error)) from error
        return replace(processor, connections={**known, **processor.connections})

    def registered(self) -> dict[str, Connection]:
        """The registry's connections, as far as they are shown."""
        return read_connections(self.model.connections, "connections", Scope(Problems()))

    async def ask_sample(self, name: str, limit: int) -> list[Any]:
        """Some output documents of a running processor."""
        return await self._shown(
            name, self.client.sample(ProcessorName(name), limit, timeout_ms=self.settings.command_timeout_ms)
        )

    async def ask_edge(self, name: str, edge: str, limit: int) -> EdgeSample:
        """Some rows of an edge of a running processor."""
        return await self._shown(
            name,
            self.client.sample_edge(
                ProcessorName(name), EdgeId(edge), limit, timeout_ms=self.settings.command_timeout_ms
            ),
        )

    async def _shown(self, name: str, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except RequestRefused as error:
            raise Problem(CONFLICT, name, "a running processor, and an edge that it has", str(error)) from error
        except (RequestTimeout, LogError) as error:
            raise self._unanswered(error) from error

    async def _ask(self, request: Request) -> None:
        if reason := self.model.away():
            raise broker_away(reason)
        if self.waiting >= self.settings.commands_max:
            finding = f"{self.waiting} commands wait for the coordinator"
            raise Problem(TOO_MANY, "commands", "fewer at a time", finding, headers={"Retry-After": "1"})
        self.waiting += 1
        try:
            await self.client.request(request, self.settings.command_timeout_ms)
        except RequestRefused as error:
            status = NOT_FOUND if str(error).startswith("there is no processor") else CONFLICT
            raise Problem(status, request.name, "a request that can be carried out", str(error)) from error
        except (RequestTimeout, LogError) as error:
            raise self._unanswered(error) from error
        finally:
            self.waiting -= 1

    def _unanswered(self, error: Exception) -> Problem:
        if isinstance(error, RequestTimeout):
            return Problem(NO_ANSWER, "coordinator", "an answer", str(error), "ask again with the same request id")
        return broker_away(str(error))


def check_id(given: str, place: str, most: int) -> None:
    """Problem if the id is longer than so many characters, or has some that cannot be printed: bytes that are no text among them."""
    if len(given) > most or not given.isprintable():
        finding = f"{len(given)} characters" if len(given) > most else ascii(given)
        raise Problem(BAD_REQUEST, place, f"an id of at most {most} characters that can be printed", finding)


def check_connection(name: str, value: Mapping[str, object]) -> None:
    """Problem if the value is no connection."""
    problems = Problems()
    read_connections({name: dict(value)}, "connections", Scope(problems))
    try:
        problems.check()
    except InvalidDocument as error:
        raise invalid_document(error) from error


def _request_of(command: Command, request: str) -> Request:
    name = ProcessorName(command.name)
    match command:
        case Create(document=document, parallelism=parallelism, start=start):
            return (CreateRunning if start else CreateProcessor)(request, name, text_of(document), parallelism)
        case Start(resume=resume, checkpoint=checkpoint, job=job):
            return StartProcessor(request, name, resume, checkpoint, job=job)
        case Stop(drain=drain, until=until, job=job):
            if until and not drain:
                raise Problem(
                    BAD_REQUEST, "until", "drain: true beside it: a stop alone ends at a checkpoint", "no drain"
                )
            return StopProcessor(request, name, drain, {split: Offset(at) for split, at in until.items()}, job=job)
        case Modify(document=document, parallelism=parallelism, resume=resume, replaces=replaces, job=job):
            text = None if document is None else text_of(document)
            return ModifyProcessor(request, name, text, parallelism, resume, replaces, job=job)
        case DropStopped(job=job):
            return DropProcessor(request, name, job=job)
        case SkipCommit(epoch=epoch, vertex=vertex, job=job):
            return SkipRelease(request, name, Epoch(epoch), None if vertex is None else VertexId(vertex), job=job)
        case Keep(checkpoint=checkpoint, job=job):
            return KeepCheckpoint(request, name, checkpoint, job=job)
        case Forget(checkpoint=checkpoint, job=job):
            return ForgetCheckpoint(request, name, checkpoint, job=job)
        case Connect(connection=connection, replaces=replaces):
            value = None if connection is None else msgspec.json.encode(connection).decode()
            return PutConnection(request, name, value, replaces)


def invalid_document(error: InvalidDocument) -> Problem:
    """Every error of a document, with its place."""
    errors = [
        {
            "place": e.path,
            "line": e.line,
            "message": e.message,
            "accepted": list(e.accepted),
            "nearest": e.nearest,
        }
        for e in error.errors
    ]
    count = len(errors)
    finding = f"{count} error{'s' if count > 1 else ''}; the first: {error.errors[0]}"
    return Problem(UNPROCESSABLE, "document", "a processor's document without errors", finding, errors=errors)
