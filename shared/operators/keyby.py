"""Adds KEY and GROUP to rows, for an edge that is partitioned by key."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidemark.shared.model.frames import Content
from tidemark.shared.model.plan import OUT
from tidemark.shared.operators.base import GROUP, KEY, Out
from tidemark.shared.operators.batches import select, with_column
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.event_time import rows_of
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.operators.keys import canonical_column
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.specs import KeyBySpec


class KeyBy(Passing):
    """An `Operator` without state. A row on which the key fails becomes a dead letter; a missing key is null's."""

    def __init__(self, spec: KeyBySpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        self._failed = 0

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows with KEY and GROUP."""
        del tag
        outs: list[Out] = []
        expr = self._spec.key
        found = evaluated(expr, batch, self._context.topic)
        array, failures = found.array, found.failures("")
        if failures:
            self._failed += len(failures)
            outs += dead_letters(batch, failures, self._spec.path.rpartition(".")[2], self._context)
            good = ~rows_of(failures, batch.num_rows)
            batch, array = select(batch, good), array.filter(pa.array(good))
        keys = canonical_column(array, found.field)
        if batch.num_rows:
            batch = with_column(batch, KEY, keys)
            batch = with_column(batch, GROUP, pa.array(key_groups(keys, self._spec.key_groups)))
            outs.insert(0, Out(OUT, content, batch))
        return outs

    def counters(self) -> Mapping[str, int]:
        """Rows on which the key failed."""
        return {"failed": self._failed}
