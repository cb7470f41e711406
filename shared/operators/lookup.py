"""`$lookup` on the rows of a batch, but for the asking: what the rows look for, and the rows with what was found.

The I/O lies between `begin` and `finish`, and is the service's: one question for all rows of a batch (`services/operator/lookups.py`).

Where only a declared field decides what is found, equal values find the same: it is worked out once for each, and rows keep their columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemark.shared.language.apply import Passed
from tidemark.shared.language.apply.lookup import apply_lookup
from tidemark.shared.language.apply.narrowing import Narrowing, Wanted, key_of
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.stages.relational import Lookup
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.tables import Found
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import (
    TAGGED_FIELD,
    batch_of,
    documents_of,
    engine_columns,
    is_engine,
    user_columns,
)
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import Failure, dead_letters
from tidemark.shared.operators.frame import Frame
from tidemark.shared.operators.rows import environments

Buckets = Mapping[bytes, Sequence[Found]]
"""What was found, by key (`narrowing.key_of`)."""


@dataclass(slots=True)
class Looking:
    """The rows of a batch, and what each looks for."""

    batch: pa.RecordBatch
    rows: list[tuple[int, Environment, list[bytes]]] = field(default_factory=list)
    """(row, environment, keys) of those that can be looked up."""
    wanted: dict[bytes, Wanted] = field(default_factory=dict)
    """The distinct ones of all rows, by key."""
    failures: list[Failure] = field(default_factory=list)
    by_value: pa.DictionaryArray | None = None
    """The values of the declared field that decides, shape (n,); then `rows` has one row for each different value."""

    @property
    def count(self) -> int:
        """Rows that are looked up."""
        return len(self.rows) if self.by_value is None else len(self.by_value)


class LookupRows:
    """One `$lookup`. Without state: what is kept between batches is the service's cache, which no snapshot holds."""

    def __init__(self, stage: Lookup, context: TaskContext = NOWHERE) -> None:
        self._stage = stage
        self._context = context
        self._narrowing = Narrowing(stage)
        self.failed = 0

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """By what the table is asked; nothing for all of it."""
        return self._narrowing.columns

    def begin(self, batch: pa.RecordBatch) -> Looking:
        """What the rows of a batch look for."""
        looking = Looking(batch)
        coded = self._decisive(batch)
        if coded is not None:
            looking.by_value = coded
            firsts = np.unique(coded.indices.to_numpy(), return_index=True)[1]
            batch = batch.take(pa.array(firsts))
        for row, env in enumerate(environments(batch, documents_of(batch), self._context.topic)):
            try:
                wanted = {key_of(one): one for one in self._narrowing.wanted(env.root, env)}
            except ExpressionError as error:
                looking.failures.append(Failure(row, error.reason, error.code, error.path or self._stage.path))
                continue
            looking.wanted.update(wanted)
            looking.rows.append((row, env, list(wanted)))
        return looking

    def sorted_out(self, found: Iterable[Found], keys: Iterable[bytes]) -> dict[bytes, list[Found]]:
        """What a table gave, by the keys that were asked for."""
        buckets: dict[bytes, list[Found]] = {key: [] for key in keys}
        for one in found:
            for key in self._narrowing.found_by(one.document):
                if key in buckets:
                    buckets[key].append(one)
        return buckets

    def finish(self, looking: Looking, buckets: Buckets) -> list[Out]:
        """The rows with what was found, and dead letters of those that failed."""
        if looking.by_value is not None:
            beside = self._by_value(looking, looking.by_value, buckets)
            if beside is not None:
                return beside
            looking = self._each(looking)
        failures = list(looking.failures)
        places: list[int] = []
        documents: list[Document] = []
        for row, env, keys in looking.rows:
            outcome = apply_lookup(self._stage, env.root, _candidates(keys, buckets), env)
            if isinstance(outcome, Passed):
                places += [row] * len(outcome.documents)
                documents += outcome.documents
            else:
                failures.append(Failure(row, outcome.reason, outcome.code, outcome.path))
        self.failed += len(failures)
        outs: list[Out] = []
        if documents:
            rows = pa.array(places, type=pa.int64())
            engine = {name: column.take(rows) for name, column in engine_columns(looking.batch).items()}
            outs.append(Out(OUT, "rows", batch_of(documents, engine)))
        return outs + dead_letters(looking.batch, failures, self._stage.name, self._context)

    # --- by value -----------------------------------------------------------------------------------------------------

    def _decisive(self, batch: pa.RecordBatch) -> pa.DictionaryArray | None:
        """The column that alone decides what is found, if there is one and the field for it is new; else None."""
        stage, name = self._stage, (self._stage.local_field or ("",))[0]
        if len(stage.local_field or ()) != 1 or stage.let or stage.pipeline or len(stage.as_) != 1:
            return None
        if (
            name not in user_columns(batch)
            or stage.as_[0] in user_columns(batch)
            or is_engine(stage.as_[0])
            or not Frame(batch).absent(stage.as_[0])
        ):
            return None
        column = batch.column(name)
        exact = pa.types.is_string(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        return column.dictionary_encode() if exact and not column.null_count else None

    def _by_value(self, looking: Looking, coded: pa.DictionaryArray, buckets: Buckets) -> list[Out] | None:
        """What was found beside the columns, worked out once for each value; None if that fails for one."""
        name = self._stage.as_[0]
        found: list[bytes] = []
        for _, env, keys in looking.rows:
            outcome = apply_lookup(self._stage, env.root, _candidates(keys, buckets), env)
            if not isinstance(outcome, Passed):
                return None
            found.append(encode_value(outcome.documents[0][name]))
        cells = pa.array(found, pa.binary()).take(coded.indices)
        return [Out(OUT, "rows", looking.batch.append_column(TAGGED_FIELD.with_name(name), cells))]

    def _each(self, looking: Looking) -> Looking:
        """The same, row by row."""
        coded = looking.by_value
        assert coded is not None
        again = Looking(looking.batch, wanted=looking.wanted)
        keys = [keys for _, _, keys in looking.rows]
        envs = environments(looking.batch, documents_of(looking.batch), self._context.topic)
        again.rows = [
            (row, env, keys[code]) for row, (env, code) in enumerate(zip(envs, coded.indices.to_pylist(), strict=True))
        ]
        return again


def _candidates(keys: Sequence[bytes], buckets: Buckets) -> list[Document]:
    """What any of the keys found, each once, in the table's order."""
    if len(keys) == 1:
        return [one.document for one in buckets[keys[0]]]
    found = {one.place: one.document for key in keys for one in buckets[key]}
    return [found[place] for place in sorted(found)]
