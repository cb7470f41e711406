"""`$lookup` on the rows of a batch, but for the question itself: the values that rows look for, and the rows with the documents found.

The I/O lies between `begin` and `finish`, and is the service's: one question for all rows of a batch (`services/operator/lookups.py`).

Where one field alone decides the result, it is worked out once for each value, and rows stay as they are.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.stages import Lookup
from tidemark.shared.language.stages.base import Failure, Passed
from tidemark.shared.language.stages.looking_up import Asking, Looker, Narrowing, Wanted, key_of, looked_up, together
from tidemark.shared.language.values import encode_docs, encode_value
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import Document, Found
from tidemark.shared.operators.base import RAW, REST, Out
from tidemark.shared.operators.batches import TAGGED_FIELD, documents_of, engine_columns, is_engine
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import RowFailure, dead_letters
from tidemark.shared.operators.frame import Frame, partial_documents
from tidemark.shared.operators.grouping import Groups, groups_of
from tidemark.shared.operators.pieces import COPIED_BYTES, ranges, row_bytes
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.staged import Staged, replaced

Buckets = Mapping[bytes, Sequence[Found]]
"""The documents found, by key (`narrowing.key_of`)."""


@dataclass(slots=True)
class Looking:
    """The rows of a batch, and the values that each looks for."""

    batch: pa.RecordBatch
    rows: list[tuple[int, Environment, list[bytes]]] = field(default_factory=list)
    """(row, environment, keys) of those that can be looked up."""
    wanted: dict[bytes, Wanted] = field(default_factory=dict)
    """The distinct ones of all rows, by key."""
    failures: list[RowFailure] = field(default_factory=list)
    by_value: Groups | None = None
    """The rows by the value of the field that decides; then `rows` has one row for each different value."""

    @property
    def count(self) -> int:
        """Rows that are looked up."""
        return len(self.rows) if self.by_value is None else len(self.by_value.codes)


class LookupRows:
    """One `$lookup`. Without state: between batches only the service's cache lasts, which no snapshot holds."""

    def __init__(self, stage: Lookup, context: TaskContext = NOWHERE) -> None:
        self._stage = stage
        self._context = context
        self.looker = Looker(stage)
        self.failed = 0

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """The columns by which the table is asked; none to ask for all of it."""
        return self.looker.narrowing.columns

    def begin(self, batch: pa.RecordBatch) -> Looking:
        """The values that the rows of a batch look for."""
        return self._begin(batch, self._decisive(batch))

    def _begin(self, batch: pa.RecordBatch, by_value: Groups | None) -> Looking:
        looking = Looking(batch)
        looking.by_value = by_value
        for row, env in enumerate(self._environments(looking)):
            try:
                wanted = {key_of(one): one for one in self.looker.narrowing.wanted(env.root, env)}
            except ExpressionError as error:
                if by_value is not None:
                    return self._begin(batch, None)  # a letter is a row's, not a value's
                looking.failures.append(RowFailure(row, error.reason, error.code, error.path or self._stage.path))
                continue
            looking.wanted.update(wanted)
            looking.rows.append((row, env, list(wanted)))
        return looking

    def finish(self, looking: Looking, buckets: Buckets, most: int = COPIED_BYTES) -> Asking[list[Out]]:
        """The rows with the documents found, in pieces of so many bytes, and dead letters of those that failed.

        Nested lookups of all rows ask together.
        """
        if looking.by_value is not None:
            beside = yield from self._by_value(looking, looking.by_value, buckets, most)
            if beside is not None:
                return beside
            looking = self._each(looking)
        failures = list(looking.failures)
        places: list[int] = []
        documents: list[Document] = []
        outcomes = yield from self._outcomes(looking, buckets)
        for (row, _, _), outcome in zip(looking.rows, outcomes, strict=True):
            if isinstance(outcome, Passed):
                places += [row] * len(outcome.documents)
                documents += outcome.documents
            else:
                failures.append(RowFailure(row, outcome.reason, outcome.code, outcome.path))
        self.failed += len(failures)
        outs: list[Out] = []
        encoded = encode_docs(documents)
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        for begin, end in ranges(sizes, most):
            rows = pa.array(places[begin:end], type=pa.int64())
            engine = {name: column.take(rows) for name, column in engine_columns(looking.batch, (RAW, REST)).items()}
            columns = {REST: pa.array(encoded[begin:end], pa.binary()), **engine}
            outs.append(Out(OUT, "rows", pa.RecordBatch.from_pydict(columns)))
        return outs + dead_letters(looking.batch, failures, self._stage.name, self._context)

    def _outcomes(self, looking: Looking, buckets: Buckets) -> Asking[list[Passed | Failure]]:
        tasks = [looked_up(self.looker, env.root, candidates(keys, buckets), env) for _, env, keys in looking.rows]
        return (yield from together(tasks))

    # --- by value -----------------------------------------------------------------------------------------------------

    def _environments(self, looking: Looking) -> Iterable[Environment]:
        """Of all rows; or, with no more than the field that decides, of the first of each value."""
        batch = looking.batch
        if looking.by_value is None:
            return environments(batch, documents_of(batch), self._context.topic)
        firsts = batch.take(pa.array(looking.by_value.firsts))
        documents = partial_documents(firsts, frozenset((self._stage.local_field or ())[:1]))
        return environments(firsts, documents, self._context.topic)

    def _decisive(self, batch: pa.RecordBatch) -> Groups | None:
        """The rows by the top-level field that alone decides the result; None where more fields may."""
        stage = self._stage
        if not stage.local_field or stage.let or stage.pipeline or len(stage.as_) != 1 or is_engine(stage.as_[0]):
            return None
        frame = Frame(batch, stage.local_field[:1], self._context.topic)
        cells = frame.field(stage.local_field[0]).array
        return None if pa.types.is_nested(cells.type) else groups_of([cells], batch.num_rows)

    def _by_value(self, looking: Looking, groups: Groups, buckets: Buckets, most: int) -> Asking[list[Out] | None]:
        """The found documents as a column, worked out once for each value; None if that fails for one."""
        name = self._stage.as_[0]
        found: list[bytes] = []
        for outcome in (yield from self._outcomes(looking, buckets)):
            if not isinstance(outcome, Passed):
                return None
            found.append(encode_value(outcome.documents[0][name]))
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        outs: list[Out] = []
        for begin, end in ranges(sizes[groups.codes] + row_bytes(looking.batch), most):
            codes, places = np.unique(groups.codes[begin:end], return_inverse=True)
            cells = pa.array([found[code] for code in codes.tolist()], pa.binary()).take(pa.array(places))
            piece = Staged(looking.batch.slice(begin, end - begin))
            replaced(piece, {name: (TAGGED_FIELD.with_name(name), cells)})
            outs.append(Out(OUT, "rows", piece.batch))
        return outs

    def _each(self, looking: Looking) -> Looking:
        """The same, row by row."""
        groups = looking.by_value
        assert groups is not None
        again = Looking(looking.batch, wanted=looking.wanted)
        keys = [keys for _, _, keys in looking.rows]
        envs = environments(looking.batch, documents_of(looking.batch), self._context.topic)
        again.rows = [
            (row, env, keys[code]) for row, (env, code) in enumerate(zip(envs, groups.codes.tolist(), strict=True))
        ]
        return again


def candidates(keys: Collection[bytes], buckets: Buckets) -> list[Document]:
    """The documents that any of the keys found, each once, in the table's order."""
    if len(keys) == 1:
        return [one.document for key in keys for one in buckets[key]]
    found = {one.place: one.document for key in keys for one in buckets[key]}
    return [found[place] for place in sorted(found)]


def sorted_out(narrowing: Narrowing, found: Iterable[Found], keys: Iterable[bytes]) -> dict[bytes, list[Found]]:
    """A table's answer, by the keys that were asked for."""
    buckets: dict[bytes, list[Found]] = {key: [] for key in keys}
    for one in found:
        for key in narrowing.found_by(one.document):
            if key in buckets:
                buckets[key].append(one)
    return buckets
