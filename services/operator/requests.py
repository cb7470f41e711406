"""`$https` inside a pipeline: a request for each row, whose answer becomes a field.

A server's answers differ from one day to the next, and a request may change something there. So:

- An answer is seen outside with the checkpoint that covers its row, and not before; a replay asks again only for rows of which nothing was
  committed. So no row comes out with two answers, as with a `$lookup`.
- The server may see a request more than once. Each attempt has the same `Idempotency-Key`: a digest of job, stage, row and request.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

import pyarrow as pa

from tidemark.services.operator.body import Way, at_once
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.paths import set_path
from tidemark.shared.language.stages import Https
from tidemark.shared.language.stages.base import within_depth
from tidemark.shared.language.values import ExtendedJsonError, parse_json
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import Document, Value
from tidemark.shared.operators.base import PART, POS, TS, Out
from tidemark.shared.operators.batches import batch_of, engine_columns
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import RowFailure, dead_letters
from tidemark.shared.ports.http import HttpAnswer
from tidemark.shared.runtime.requests import Asked, Asking, Wanted

REFUSED: Final = "RequestRefused"
_JSON_DEPTH_MAX: Final = 100
"""Of texts within texts, as documents have it."""


class Requests:
    """One stage in one task."""

    def __init__(self, stage: Https, asking: Asking, context: TaskContext, job: str) -> None:
        self._stage = stage
        self._asking = asking
        self._context = context
        self._job = job

    async def enrich(self, batch: pa.RecordBatch, way: Way = at_once) -> Sequence[Out]:
        """The rows with their answers. ServerAway when the server was away for too long; ServerRefused."""
        del way  # what is asked for is worked out beside the loop in any case
        rows: list[Asked] = []
        documents: dict[int, Document] = {}
        failures: list[RowFailure] = []
        orders = _orders(batch)
        for number, (env, wanted) in enumerate(await self._asking.all_wanted(batch, self._context.topic)):
            match wanted:
                case Wanted():
                    documents[number] = env.root
                    rows.append(Asked(number, wanted, self._key(wanted, orders[number])))
                case ExpressionError() as error:
                    failures.append(RowFailure(number, error.reason, error.code, error.path or self._stage.path))
                case why:
                    failures.append(RowFailure(number, str(why), VALUE, self._stage.path))
        await self._asking.ask_all(rows)
        kept: list[int] = []
        found: list[Document] = []
        for row in rows:
            document = self._answered(row, documents[row.number])
            if row.refused and self._stage.on_error == "dlq":
                failures.append(RowFailure(row.number, row.refused, REFUSED, self._stage.path))
            else:
                kept.append(row.number)
                found.append(document)
        self._asking.counts["requestsFailed"] += len(failures)
        outs: list[Out] = []
        if kept:
            places = pa.array(kept, type=pa.int64())
            engine = {name: column.take(places) for name, column in engine_columns(batch).items()}
            outs.append(Out(OUT, "rows", batch_of(found, engine)))
        return outs + dead_letters(batch, failures, self._stage.name, self._context)

    def _key(self, wanted: Wanted, order: bytes) -> str:
        stage, url = self._stage, self._asking.url + wanted.path
        parts = (
            self._job.encode(),
            stage.path.encode(),
            order,
            stage.method.encode(),
            url.encode(),
            wanted.body or b"",
        )
        digest = sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
        return b64encode(digest.digest()[:24]).decode()

    def _answered(self, row: Asked, document: Document) -> Document:
        """The document with its answer; as it was where there is none, or the answer is refused."""
        if row.answer is None or not row.answer.body:
            return document
        try:
            return within_depth(set_path(document, self._stage.as_, self._value(row.answer)))
        except (ValueError, ExpressionError) as error:
            self._asking.refuse(row, str(error))
            return document

    def _value(self, answer: HttpAnswer) -> Value:
        """ValueError for what is neither JSON nor text."""
        if answer.content_type == "text/plain":
            return answer.body.decode(errors="replace")
        if answer.content_type not in ("", "application/json") and not answer.content_type.endswith("+json"):
            raise ValueError(f"the answer is {answer.content_type[:80]}; expected application/json or text/plain")
        try:
            found = parse_json(answer.body)
        except ExtendedJsonError as error:
            raise ValueError(f"the answer is no JSON: {error}") from error
        return _unfolded(found) if self._stage.parse_json_strings else found

    def counters(self) -> Mapping[str, int]:
        """Requests, rows that failed, requests that were sent again."""
        return dict(self._asking.counts)

    async def close(self) -> None:
        """The client is the process's."""


def _orders(batch: pa.RecordBatch) -> list[bytes]:
    """A row's identity, the same at a replay: its time, and its place in the source where it has one."""
    columns = [batch.column(name).to_pylist() for name in (TS, PART, POS) if name in batch.schema.names]
    return [json.dumps(row).encode() for row in zip(*columns, strict=True)] if columns else [b""] * batch.num_rows


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
