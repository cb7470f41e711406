"""Expressions over rows one by one, through the interpreter, and columns made of documents: what columns must agree with."""

from collections.abc import Sequence

import pyarrow as pa

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.schema import Schema
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import ARROW_TYPES, column_of, documents_of, engine_columns, rest_of
from tidemark.shared.operators.dead_letters import RowFailure


def evaluate_rows(expr: Expr, environments: Sequence[Environment]) -> tuple[list[Value], list[RowFailure]]:
    """The value for each row, MISSING where it failed; and the failures."""
    values: list[Value] = []
    failures: list[RowFailure] = []
    for row, env in enumerate(environments):
        try:
            values.append(evaluate_bounded(expr, env))
        except ExpressionError as e:
            values.append(MISSING)
            failures.append(RowFailure(row, e.reason, e.code, e.path))
    return values, failures


def typed(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """An untyped batch with its declared fields in columns (B1); the documents must fit (`tidemark.shared.language.schema.fit`)."""
    documents = documents_of(batch)
    columns: dict[str, pa.Array] = {}
    for field in schema:
        if field.type not in ARROW_TYPES:
            continue
        cells = [d.get(field.name) for d in documents]
        columns[field.name] = column_of(cells, ARROW_TYPES[field.type])
    names = set(columns)
    rest = [{n: v for n, v in d.items() if n not in names or v is None} for d in documents]
    columns[REST] = rest_of(rest)
    columns.update(engine_columns(batch, (REST, RAW)))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
