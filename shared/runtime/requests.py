"""Requests to a server, one for each document, as `$https` makes them: many at a time; outages are waited out.

The server may see a request more than once: after a crash, or when an answer was lost. Each attempt has the same `Idempotency-Key`, which
the caller gives.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import pyarrow as pa
import structlog

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import Connection, RequestStage
from tidemark.shared.language.stages.base import Passed, apply_stages
from tidemark.shared.language.values import render_json, type_name
from tidemark.shared.model.values import Long
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.rows import environments
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.http import (
    AnswerTooLong,
    HttpAnswer,
    HttpClient,
    HttpRequest,
    ServerAway,
    ServerDenied,
    ServerRefused,
)
from tidemark.shared.runtime.settings import LookupSettings
from tidemark.shared.runtime.waiting import Tell, unheard, waiting

_log = structlog.get_logger()
_BY_DOCUMENT: Final = frozenset({400, 404, 410, 413, 414, 431})
"""Statuses that are about the document: `onError` decides."""
_LATER: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a server that is away for now."""
_ATTEMPTS: Final = 3
"""Of a request that is answered with another error of the server (500, …), before the stage fails."""
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one answer; the same for all, because it decides results."""
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
"""Of a header's name (RFC 9110, 5.6.2)."""
_OWN: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "idempotency-key"})
"""Headers that the client sets."""


class NotSent(Exception):
    """Why a document makes no request."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of a request that a document decides; the connection's address and headers are added when it is sent."""

    path: str
    """Below the connection's URL, with the query; "" or beginning with / or ?."""
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


@dataclass(slots=True)
class Asked:
    """A request on its way; one of `answer` (of success) and `refused` is set behind it, unless an error ends it."""

    number: int
    """Of the row, as errors name it."""
    wanted: Wanted
    key: str
    """The same for each attempt."""
    answer: HttpAnswer | None = None
    refused: str = ""


class Asking:
    """The requests of one stage in one task."""

    def __init__(
        self,
        stage: RequestStage,
        connection: Connection,
        client: HttpClient,
        clock: Clock,
        executor: Executor,
        settings: LookupSettings,
        tell: Tell = unheard,
    ) -> None:
        """tell: takes what the server is waited for."""
        self._stage = stage
        self._place = f"{stage.path}: connection {stage.connection_name}"
        self._tell = tell
        self.url = str(connection.settings["url"]).rstrip("/")
        self._headers = {str(name): str(value) for name, value in connection.settings.get("headers", {}).items()}
        self._client = client
        self._clock = clock
        self._executor = executor
        self._settings = settings
        self.counts = {"requests": 0, "requestsFailed": 0, "requestsRepeated": 0}

    @property
    def stage(self) -> RequestStage:
        """The stage that asks."""
        return self._stage

    # --- the request ------------------------------------------------------------------------------------------------------

    async def all_wanted(
        self, batch: pa.RecordBatch, topic: Topics
    ) -> list[tuple[Environment, Wanted | ExpressionError | NotSent]]:
        """The request of each row, or why it makes none; worked out beside the loop, because a row may use up its budget of work."""
        return await self._executor.blocking(self._all_wanted, batch, topic)

    def _all_wanted(
        self, batch: pa.RecordBatch, topic: Topics
    ) -> list[tuple[Environment, Wanted | ExpressionError | NotSent]]:
        found: list[tuple[Environment, Wanted | ExpressionError | NotSent]] = []
        for env in environments(batch, documents_of(batch), topic):
            try:
                found.append((env, self._wanted(env)))
            except (ExpressionError, NotSent) as why:
                found.append((env, why))
        return found

    def _wanted(self, env: Environment) -> Wanted:
        """The request of a document. ExpressionError, NotSent."""
        path, body = self._path(env), self._body(env)
        headers = tuple(self._own_headers(env))
        if body is not None and "content-type" not in {name.lower() for name in (*self._headers, *dict(headers))}:
            headers += (("Content-Type", "application/json"),)
        return Wanted(path, headers, body)

    def _request(self, asked: Asked) -> HttpRequest:
        stage, wanted = self._stage, asked.wanted
        headers = {**self._headers, **dict(wanted.headers), "Idempotency-Key": asked.key}
        times = stage.connection_timeout_s, stage.request_timeout_s
        url = self.url + wanted.path
        return HttpRequest(stage.method, url, tuple(headers.items()), wanted.body, *times, _ANSWER_BYTES_MAX)

    def _path(self, env: Environment) -> str:
        stage, below = self._stage, ""
        if stage.subpath is not None:
            path = evaluate(stage.subpath, env)
            if type(path) is not str or ".." in path.split("/"):
                found = "a path with .." if type(path) is str else f"a value of type {type_name(path)}"
                raise NotSent(f"path: expected a string, a path below the connection's URL, found {found}")
            below = f"/{quote(path.lstrip('/'), safe='/!$&()*+,;=:@~')}"
        query = []
        for name, expr in stage.parameters:
            value = evaluate(expr, env)
            if type(value) not in (str, bool, int, Long, float):
                raise NotSent(f"parameters.{name}: expected a number, a string or a boolean, found {type_name(value)}")
            query.append((name, str(value).lower() if type(value) is bool else str(_plain(value))))
        return f"{below}?{urlencode(query)}" if query else below

    def _own_headers(self, env: Environment) -> Iterator[tuple[str, str]]:
        """Those of the stage; names and values that HTTP does not have are left out, as Atlas does."""
        for name, expr in self._stage.headers:
            value = evaluate(expr, env)
            if type(value) is not str:
                raise NotSent(f"headers.{name}: expected a string, found a value of type {type_name(value)}")
            if set(name) <= _TOKEN and name.lower() not in _OWN and value.isprintable() and value.isascii():
                yield name, value

    def _body(self, env: Environment) -> bytes | None:
        payload = self._stage.payload
        if payload is None:
            return render_json(env.root) if self._stage.method in _WITH_BODY else None
        (outcome,) = tuple(apply_stages(payload, env.root, env)) or (Passed(()),)
        if not isinstance(outcome, Passed):
            raise NotSent(f"payload: {getattr(outcome, 'reason', 'it makes no document')}")
        return render_json(outcome.documents[0]) if outcome.documents else None

    # --- the answers ------------------------------------------------------------------------------------------------------

    async def ask_all(self, rows: Sequence[Asked], *, passing: bool = False) -> None:
        """Ask for all rows, so many at a time. The first error ends all.

        passing: a refusal of any kind is noted at its row, whatever the stage says.

        Raises:
            ServerAway: the server was away for too long.
            ServerRefused: a refusal that is about all rows, or that the stage fails by.
            ServerDenied: there is no TLS with the server.
        """
        with waiting(self._tell, self._clock, f"asking {self._stage.path}", "asking", self._place) as away:
            await self._all(rows, lambda why: away(f"{self._place}: {why}"), passing=passing)

    async def _all(self, rows: Sequence[Asked], away: Callable[[str], None], *, passing: bool) -> None:
        left = iter(rows)
        errors: list[BaseException] = []

        async def one_after_another() -> None:
            for row in left:
                if errors:
                    return
                await self._ask(row, away, passing=passing)

        count = min(self._stage.parallelism, len(rows))
        workers = [
            self._executor.spawn(one_after_another(), f"{self._stage.path} requests", errors.append)
            for _ in range(count)
        ]
        try:
            for worker in workers:
                await worker.join()
        finally:
            for worker in workers:
                worker.cancel()
        if errors:
            raise errors[0]

    async def _ask(self, row: Asked, away: Callable[[str], None], *, passing: bool) -> None:
        request = self._request(row)
        began_ms, wait_ms, attempt = self._clock.monotonic_ms(), self._settings.retry_ms, 0
        while True:
            self.counts["requests"] += 1
            try:
                answer = await self._client.ask(request)
                attempt += answer.status not in _LATER
                why = f"the server answers with status {answer.status}"
                if answer.status not in _LATER and (
                    answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or attempt >= _ATTEMPTS
                ):
                    self._judge(row, answer, passing=passing)
                    return
            except ServerAway as error:
                why = str(error)
            except ServerDenied as error:
                raise ServerDenied(f"{self._place}: {error}") from error
            except (AnswerTooLong, ValueError) as error:
                self.refuse(row, str(error), passing=passing)
                return
            away_ms = self._clock.monotonic_ms() - began_ms
            if away_ms + wait_ms > self._settings.wait_ms_max:
                raise ServerAway(
                    f"{self._place}: the server was away for {away_ms} ms, and"
                    f" lookup.wait_ms_max is {self._settings.wait_ms_max}: {why}"
                )
            self.counts["requestsRepeated"] += 1
            _log.warning("https.server_away", stage=self._stage.path, reason=why, away_ms=away_ms)
            away(why)
            await self._clock.sleep_ms(wait_ms)
            wait_ms = min(2 * wait_ms, self._settings.retry_ms_max)

    def _judge(self, row: Asked, answer: HttpAnswer, *, passing: bool) -> None:
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            row.answer = answer
        elif answer.status in _BY_DOCUMENT:
            self.refuse(row, f"the server answers with status {answer.status}: {_shown(answer.body)}", passing=passing)
        else:
            message = (
                f"{self._place} answers with status {answer.status} to"
                f" {self._stage.method}: {_shown(answer.body)}; look at the connection's url and headers, and at the server"
            )
            if not passing:
                raise ServerRefused(message)
            row.refused = message

    def refuse(self, row: Asked, why: str, *, passing: bool = False) -> None:
        """A row's request was refused: noted, or ServerRefused where the stage says so."""
        if self._stage.on_error == "fail" and not passing:
            raise ServerRefused(f"{self._place}: row {row.number}: {why} (onError: fail)")
        row.refused = why


def _plain(value: object) -> Any:
    return int(value) if type(value) is Long else value


def _shown(body: bytes) -> str:
    return " ".join(body[:200].decode(errors="replace").split())
