"""`$lookup` on the rows of a batch, but for the asking: what the rows look for, and the rows with what was found.

The I/O lies between `begin` and `finish`, and is the service's: one question for all rows of a batch (`services/operator/lookups.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from shared.language.apply import Passed
from shared.language.apply.lookup import apply_lookup
from shared.language.apply.narrowing import Narrowing, Wanted, key_of
from shared.language.expressions.environment import Environment
from shared.language.expressions.errors import ExpressionError
from shared.language.stages.relational import Lookup
from shared.model.plan import OUT
from shared.model.tables import Found
from shared.model.values import Document
from shared.operators.base import Out
from shared.operators.batches import batch_of, documents_of, engine_columns
from shared.operators.context import NOWHERE, TaskContext
from shared.operators.dead_letters import Failure, dead_letters
from shared.operators.rows import environments

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


def _candidates(keys: Sequence[bytes], buckets: Buckets) -> list[Document]:
    """What any of the keys found, each once, in the table's order."""
    if len(keys) == 1:
        return [one.document for one in buckets[keys[0]]]
    found = {one.place: one.document for key in keys for one in buckets[key]}
    return [found[place] for place in sorted(found)]
