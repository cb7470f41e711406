"""Expressions over the rows of a batch: one by one, through the interpreter.

Vectorised forms stand beside the operators that use them; this is what they must agree with.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from shared.language.expressions.ast import Expr
from shared.language.expressions.environment import Environment
from shared.language.expressions.errors import ExpressionError
from shared.language.expressions.interpreter import evaluate
from shared.language.values import decode_value
from shared.model.values import MISSING, Binary, Date, Document, Value, long
from shared.operators.base import ARRIVAL, PART, PLACE, POS, SRCKEY, TS, WEND, WSTART
from shared.operators.context import Topics, source_place
from shared.operators.dead_letters import Failure
from shared.operators.window_plan import SESSION_KEY

_NOTHING: Final[dict[str, Any]] = {}
_META: Final = (WSTART, WEND, SESSION_KEY, PART, POS, SRCKEY, TS)


def environments(batch: pa.RecordBatch, documents: Sequence[Document], topic: Topics = None) -> list[Environment]:
    """One environment a row: `$$NOW` is the record's arrival, `$meta` what the engine's columns say."""
    names = batch.schema.names
    arrivals = batch.column(ARRIVAL).to_pylist() if ARRIVAL in names else [None] * len(documents)
    metas = _metas(batch, topic)
    return [
        Environment(document, now=None if arrival is None else Date(arrival), meta=meta)
        for document, arrival, meta in zip(documents, arrivals, metas, strict=True)
    ]


def _metas(batch: pa.RecordBatch, topic: Topics) -> list[dict[str, Value]]:
    names = batch.schema.names
    columns = {name: batch.column(name).to_pylist() for name in _META if name in names}
    found: list[dict[str, Value]] = []
    for row in range(batch.num_rows):
        meta: dict[str, Any] = {}
        if WSTART in columns and columns[WSTART][row] is not None:
            window: dict[str, Any] = {"start": Date(columns[WSTART][row]), "end": Date(columns[WEND][row])}
            if SESSION_KEY in columns and columns[SESSION_KEY][row] is not None:
                window["partition"] = decode_value(columns[SESSION_KEY][row])
            meta["window"] = window
        if PART in columns and columns[PART][row] is not None:
            meta["source"] = _source({name: column[row] for name, column in columns.items()}, topic)
        found.append(meta or _NOTHING)
    return found


def _source(row: dict[str, Any], topics: Topics) -> dict[str, Value]:
    """Where a record came from, with its key, and its event time."""
    topic, partition = source_place(topics, row[PART])
    source: dict[str, Value] = {} if topic is None else {"topic": topic}
    source["partition"], source["offset"] = partition, long(row[POS] & PLACE)
    if row.get(SRCKEY) is not None:
        source["key"] = Binary(row[SRCKEY])
    if row.get(TS) is not None:
        source["ts"] = Date(row[TS])
    return source


def evaluate_rows(expr: Expr, environments: Sequence[Environment]) -> tuple[list[Value], list[Failure]]:
    """The value for each row, MISSING where it failed; and the failures."""
    values: list[Value] = []
    failures: list[Failure] = []
    for row, env in enumerate(environments):
        try:
            values.append(evaluate(expr, env))
        except ExpressionError as e:
            values.append(MISSING)
            failures.append(Failure(row, e.reason, e.code, e.path))
    return values, failures
