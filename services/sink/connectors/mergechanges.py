"""The documents of a `$merge` on their way to the handle, whatever database it writes into.

Expressions for the table or the actions are worked out for each document before staging, and staged with it: so a release needs no metadata
of records, and does the same each time (S5).
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, get_args

import msgspec
import pyarrow as pa

from tidemark.services.sink.connectors.staging import PartStore, Staging
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import Merge, WhenMatched, WhenNotMatched
from tidemark.shared.language.values import decode_doc, encode_doc, type_name
from tidemark.shared.model.formats import STAGED_ROWS, Codec, FormatError
from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.model.values import MISSING, Date, Document, Value
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.rows import environments
from tidemark.shared.ports.sink import TargetRefused

PIPELINE: Final = "pipeline"
"""Staged as whenMatched where the stage has a pipeline, which stands in the document and is not staged."""
_NOW: Final = "NOW"


class StagedChange(msgspec.Struct, frozen=True, array_like=True):
    """A staged document with its table and actions."""

    document: bytes
    table: str
    when_matched: str
    when_not_matched: str
    variables: bytes
    """Of the pipeline in whenMatched, and `$$NOW` as NOW, where there is one; as a document."""

    def resolved(self, stage: Merge) -> Merge:
        """The stage as it is for this document."""
        matched: Any = stage.when_matched if self.when_matched == PIPELINE else self.when_matched
        not_matched: Any = self.when_not_matched
        return replace(stage, table=self.table, when_matched=matched, when_not_matched=not_matched)

    def environment(self) -> Environment:
        """The values that the pipeline sees besides the row."""
        variables = decode_doc(self.variables)
        now = variables.pop(_NOW, None)
        return Environment({}, now=now if isinstance(now, Date) else None, variables=variables)


StagedRow = bytes | StagedChange
"""A document of a stage that does the same with all; or one with its own table and actions."""
ROWS: Final[Codec[list[StagedRow]]] = Codec(STAGED_ROWS, list[StagedRow])


class NoChange(Exception):
    """Why a document cannot be written: the value of an expression is no table, or no action."""


def changes(stage: Merge, batch: pa.RecordBatch, source_topics: Topics) -> list[StagedRow | NoChange]:
    """The staged form of each document; NoChange where an expression fails. source_topics: those that the rows came from, for `$meta`."""
    found: list[StagedRow | NoChange] = []
    for env in environments(batch, documents_of(batch), source_topics):
        try:
            found.append(_change(stage, env))
        except ExpressionError as error:
            found.append(NoChange(str(error)))
        except NoChange as why:
            found.append(why)
    return found


def _change(stage: Merge, env: Environment) -> StagedChange:
    table = _text(stage.table, env, "into", "the name of a table")
    variables: Document = {}
    if isinstance(stage.when_matched, tuple):
        matched = PIPELINE
        bound: dict[str, Value] = {name: evaluate(expr, env) for name, expr in stage.let}
        variables = {name: value for name, value in bound.items() if value is not MISSING}
        if env.now is not None:
            variables[_NOW] = env.now
    else:
        matched = _word(stage.when_matched, env, "whenMatched", get_args(WhenMatched))
    not_matched = _word(stage.when_not_matched, env, "whenNotMatched", get_args(WhenNotMatched))
    return StagedChange(encode_doc(env.root), table, matched, not_matched, encode_doc(variables))


def _text(what: str | Expr, env: Environment, place: str, expected: str) -> str:
    value = what if isinstance(what, str) else evaluate(what, env)
    if type(value) is str and value:
        return value
    raise NoChange(f"{place}: expected {expected}, found {_shown(value)}")


def _word(what: str | Expr, env: Environment, place: str, words: Sequence[str]) -> str:
    value = what if isinstance(what, str) else evaluate(what, env)
    if type(value) is str and value in words:
        return value
    raise NoChange(f"{place}: expected one of {', '.join(words)}, found {_shown(value)}")


def _shown(value: Value) -> str:
    return repr(value)[:80] if type(value) is str else f"a value of type {type_name(value)}"


class HeldRows:
    """Accepted rows in memory, up to a part of them, and behind those the staged parts."""

    def __init__(
        self,
        parts: PartStore,
        part_bytes_max: int,
        restored_from: Epoch = NO_EPOCH,
        part_rows_max: int = sys.maxsize,
    ) -> None:
        self._staging = Staging(parts, restored_from)
        self._part_bytes_max = part_bytes_max
        self._part_rows_max = part_rows_max
        self._rows: list[StagedRow] = []
        self._bytes = 0

    async def make_room(self) -> None:
        """Stage what is above a part. StagedUnavailable: it may be tried again."""
        while self._bytes >= self._part_bytes_max or len(self._rows) >= self._part_rows_max:
            await self._keep_part()

    def take(self, rows: Sequence[StagedRow]) -> None:
        """Rows that belong to the current epoch."""
        self._rows += rows
        self._bytes += sum(map(_size_of, rows))

    async def handle(self, epoch: Epoch, committed: Epoch) -> bytes:
        """The epoch's handle, see `Sink.stage`. StagedUnavailable: it may be tried again."""
        while self._rows:
            await self._keep_part()
        return self._staging.handle(epoch, committed)

    async def _keep_part(self) -> None:
        size = count = 0
        most = min(len(self._rows), self._part_rows_max)
        while count < most and size < self._part_bytes_max:
            size += _size_of(self._rows[count])
            count += 1
        await self._staging.keep(ROWS.encode(self._rows[:count]), count)
        self._rows = self._rows[count:]
        self._bytes -= size


def staged_rows(data: bytes) -> list[StagedRow]:
    """The rows of a part, in the order of their release; TargetRefused."""
    try:
        return ROWS.decode(data)
    except FormatError as error:
        raise TargetRefused(str(error)) from error


def document_of(row: StagedRow) -> Document:
    """The document of a staged row. CodecError."""
    return decode_doc(row.document if isinstance(row, StagedChange) else row)


def place_of(stage: Merge) -> str:
    """The target, as errors name it."""
    table = stage.table if isinstance(stage.table, str) else "the table that an expression gives"
    return f"{stage.path} into {table}"


def _size_of(row: StagedRow) -> int:
    return len(row) if isinstance(row, bytes) else len(row.document) + len(row.variables) + len(row.table)
