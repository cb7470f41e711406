"""`$group` behind another stage that gathers documents."""

import pyarrow as pa

from tidemark.shared.language.stages import Group
from tidemark.shared.operators import general_group
from tidemark.shared.operators.base import PART, POS, TS, Out
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.depth import without_deep
from tidemark.shared.operators.grouping import numbers_of
from tidemark.shared.operators.whole_windows import ORDER, Windows

_RUN = "__run"
"""Engine column inside this module: the number of the window."""


def group(stage: Group, found: Windows) -> tuple[pa.RecordBatch, list[Out]]:
    """A row a group and window, and the rows that are in none."""
    batch = found.batch
    orders = [numbers_of(batch.column(n)) for n in (ORDER if ORDER in batch.schema.names else TS, PART, POS)]
    rows = with_column(batch, _RUN, pa.array(found.runs))
    windows, columns, failures = general_group.regrouped(stage, rows, _RUN, orders, found.context.topic)
    letters = dead_letters(batch, failures, stage.name, found.context)
    made = general_group.batch_of_groups(stage, columns, found.made(windows))
    groups, deep = without_deep(made, stage.path, stage.name, found.context)
    return groups, letters + deep
