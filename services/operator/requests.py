"""`$https`: a request for each row, many at a time; outages are waited out.

A server's answers differ from one day to the next, and a request may change something there. So:

- An answer is seen outside with the checkpoint that covers its row, and not before; a replay asks again only for rows of which nothing was
  committed. So no row comes out with two answers, as with a `$lookup`.
- The server may see a request more than once: after a crash, or when an answer was lost. Each attempt has the same `Idempotency-Key`: a
  digest of job, stage, row and request.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode

import pyarrow as pa
import structlog

from tidemark.shared.language.apply.stages import Passed, apply_stages, set_path
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import Connection, Https
from tidemark.shared.language.values import ExtendedJsonError, parse_json, render_json, type_name
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import Document, Long, Value
from tidemark.shared.operators.base import PART, POS, TS, Out
from tidemark.shared.operators.batches import batch_of, documents_of, engine_columns
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Failure, dead_letters
from tidemark.shared.operators.rows import environments
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.http import AnswerTooLong, HttpAnswer, HttpClient, HttpRequest, ServerAway, ServerRefused
from tidemark.shared.runtime.settings import LookupSettings

_log = structlog.get_logger()
REFUSED: Final = "RequestRefused"
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
_JSON_DEPTH_MAX: Final = 100
"""Of texts within texts, as documents have it."""


class _NotSent(Exception):
    """Why a row makes no request."""


@dataclass(slots=True)
class _Row:
    number: int
    document: Document
    request: HttpRequest
    answer: Value | None = None
    refused: str = ""


class Requests:
    """One stage in one task."""

    def __init__(
        self,
        stage: Https,
        connection: Connection,
        client: HttpClient,
        clock: Clock,
        executor: Executor,
        settings: LookupSettings,
        context: TaskContext,
        job: str,
    ) -> None:
        self._stage = stage
        self._url = str(connection.settings["url"]).rstrip("/")
        self._headers = {str(name): str(value) for name, value in connection.settings.get("headers", {}).items()}
        self._client = client
        self._clock = clock
        self._executor = executor
        self._settings = settings
        self._context = context
        self._job = job
        self._counts = {"requests": 0, "requestsFailed": 0, "requestsRepeated": 0}

    async def enrich(self, batch: pa.RecordBatch) -> Sequence[Out]:
        """The rows with their answers. ServerAway when the server was away for too long; ServerRefused."""
        rows: list[_Row] = []
        failures: list[Failure] = []
        orders = _orders(batch)
        for number, env in enumerate(environments(batch, documents_of(batch), self._context.topic)):
            try:
                rows.append(_Row(number, env.root, self._request(env, orders[number])))
            except ExpressionError as error:
                failures.append(Failure(number, error.reason, error.code, error.path or self._stage.path))
            except _NotSent as why:
                failures.append(Failure(number, str(why), VALUE, self._stage.path))
        await self._ask_all(rows)
        kept: list[_Row] = []
        for row in rows:
            if row.refused and self._stage.on_error == "dlq":
                failures.append(Failure(row.number, row.refused, REFUSED, self._stage.path))
            else:
                kept.append(row)
        self._counts["requestsFailed"] += len(failures)
        outs: list[Out] = []
        if kept:
            places = pa.array([row.number for row in kept], type=pa.int64())
            engine = {name: column.take(places) for name, column in engine_columns(batch).items()}
            outs.append(Out(OUT, "rows", batch_of([self._answered(row) for row in kept], engine)))
        return outs + dead_letters(batch, failures, self._stage.name, self._context)

    def _answered(self, row: _Row) -> Document:
        return row.document if row.answer is None else set_path(row.document, self._stage.as_, row.answer)

    # --- the request ------------------------------------------------------------------------------------------------------

    def _request(self, env: Environment, order: bytes) -> HttpRequest:
        """ExpressionError, _NotSent."""
        stage = self._stage
        url, body = self._address(env), self._body(env)
        headers = {**self._headers, **dict(self._own_headers(env))}
        if body is not None and "content-type" not in {name.lower() for name in headers}:
            headers["Content-Type"] = "application/json"
        parts = (self._job.encode(), stage.path.encode(), order, stage.method.encode(), url.encode(), body or b"")
        digest = sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
        headers["Idempotency-Key"] = b64encode(digest.digest()[:24]).decode()
        return HttpRequest(
            stage.method,
            url,
            tuple(headers.items()),
            body,
            stage.connection_timeout_s,
            stage.request_timeout_s,
            _ANSWER_BYTES_MAX,
        )

    def _address(self, env: Environment) -> str:
        stage, url = self._stage, self._url
        if stage.subpath is not None:
            path = evaluate(stage.subpath, env)
            if type(path) is not str or ".." in path.split("/"):
                found = "a path with .." if type(path) is str else f"a value of type {type_name(path)}"
                raise _NotSent(f"path: expected a string, a path below the connection's URL, found {found}")
            url = f"{url}/{quote(path.lstrip('/'), safe='/!$&()*+,;=:@~')}"
        query = []
        for name, expr in stage.parameters:
            value = evaluate(expr, env)
            if type(value) not in (str, bool, int, Long, float):
                raise _NotSent(f"parameters.{name}: expected a number, a string or a boolean, found {type_name(value)}")
            query.append((name, str(value).lower() if type(value) is bool else str(_plain(value))))
        return f"{url}?{urlencode(query)}" if query else url

    def _own_headers(self, env: Environment) -> Iterator[tuple[str, str]]:
        """Those of the stage; names and values that HTTP does not have are left out, as Atlas does."""
        for name, expr in self._stage.headers:
            value = evaluate(expr, env)
            if type(value) is not str:
                raise _NotSent(f"headers.{name}: expected a string, found a value of type {type_name(value)}")
            if set(name) <= _TOKEN and name.lower() not in _OWN and value.isprintable() and value.isascii():
                yield name, value

    def _body(self, env: Environment) -> bytes | None:
        payload = self._stage.payload
        if payload is None:
            return render_json(env.root) if self._stage.method in _WITH_BODY else None
        (outcome,) = tuple(apply_stages(payload, env.root, env)) or (Passed(()),)
        if not isinstance(outcome, Passed):
            raise _NotSent(f"payload: {getattr(outcome, 'reason', 'it makes no document')}")
        return render_json(outcome.documents[0]) if outcome.documents else None

    # --- the answers ------------------------------------------------------------------------------------------------------

    async def _ask_all(self, rows: Sequence[_Row]) -> None:
        """Ask for all rows, so many at a time. The first error ends all."""
        left = iter(rows)
        errors: list[BaseException] = []

        async def one_after_another() -> None:
            for row in left:
                if errors:
                    return
                await self._ask(row)

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

    async def _ask(self, row: _Row) -> None:
        began_ms, wait_ms, attempt = self._clock.monotonic_ms(), self._settings.retry_ms, 0
        while True:
            self._counts["requests"] += 1
            try:
                answer = await self._client.ask(row.request)
                attempt += answer.status not in _LATER
                why = f"the server answers with status {answer.status}"
                if answer.status not in _LATER and (answer.status < 500 or attempt >= _ATTEMPTS):  # noqa: PLR2004
                    self._take(row, answer)
                    return
            except ServerAway as error:
                why = str(error)
            except (AnswerTooLong, ValueError) as error:
                self._refuse(row, str(error))
                return
            away_ms = self._clock.monotonic_ms() - began_ms
            if away_ms + wait_ms > self._settings.wait_ms_max:
                raise ServerAway(
                    f"{self._stage.path}: connection {self._stage.connection_name}: the server was away for {away_ms} ms, and"
                    f" lookup.wait_ms_max is {self._settings.wait_ms_max}: {why}"
                )
            self._counts["requestsRepeated"] += 1
            _log.warning("https.server_away", stage=self._stage.path, reason=why, away_ms=away_ms)
            await self._clock.sleep_ms(wait_ms)
            wait_ms = min(2 * wait_ms, self._settings.retry_ms_max)

    def _take(self, row: _Row, answer: HttpAnswer) -> None:
        if answer.status in _BY_DOCUMENT:
            self._refuse(row, f"the server answers with status {answer.status}: {_shown(answer.body)}")
            return
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - success
            raise ServerRefused(
                f"{self._stage.path}: connection {self._stage.connection_name} answers with status {answer.status} to"
                f" {self._stage.method}: {_shown(answer.body)}; look at the connection's url and headers, and at the server"
            )
        if not answer.body:
            return
        if answer.content_type == "text/plain":
            row.answer = answer.body.decode(errors="replace")
        elif answer.content_type in ("", "application/json") or answer.content_type.endswith("+json"):
            try:
                found = parse_json(answer.body)
            except ExtendedJsonError as error:
                self._refuse(row, f"the answer is no JSON: {error}")
                return
            row.answer = _unfolded(found) if self._stage.parse_json_strings else found
        else:
            self._refuse(row, f"the answer is {answer.content_type[:80]}; expected application/json or text/plain")

    def _refuse(self, row: _Row, why: str) -> None:
        if self._stage.on_error == "fail":
            raise ServerRefused(f"{self._stage.path}: connection {self._stage.connection_name}: {why} (onError: fail)")
        row.refused = why

    def counters(self) -> Mapping[str, int]:
        """Requests, rows that failed, requests that were sent again."""
        return dict(self._counts)

    async def close(self) -> None:
        """The client is the process's."""


def _orders(batch: pa.RecordBatch) -> list[bytes]:
    """What tells a row apart from others, the same at a replay: its time, and its place in the source where it has one."""
    columns = [batch.column(name).to_pylist() for name in (TS, PART, POS) if name in batch.schema.names]
    return [json.dumps(row).encode() for row in zip(*columns, strict=True)] if columns else [b""] * batch.num_rows


def _plain(value: Any) -> Any:
    return int(value) if type(value) is Long else value


def _shown(body: bytes) -> str:
    return " ".join(body[:200].decode(errors="replace").split())


def _unfolded(value: Value, depth: int = 0) -> Value:
    """The value with texts that are JSON of an object or array in place of them."""
    if depth > _JSON_DEPTH_MAX:
        return value
    if type(value) is str and value[:1] in ("{", "["):
        try:
            return _unfolded(parse_json(value), depth + 1)
        except ExtendedJsonError:
            return value
    if type(value) is dict:
        return {name: _unfolded(item, depth + 1) for name, item in value.items()}
    return [_unfolded(item, depth + 1) for item in value] if type(value) is list else value
