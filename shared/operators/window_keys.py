"""Keys of windows' partials, by which a stage's work is divided (`WindowSpec.whole`): that of the session, else that of the group.

Routes durable state (R4): the hash of a key may never change (keygroups.py).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.operators.aggregation import partials_of
from tidemark.shared.operators.base import KEY, WEND, WSTART
from tidemark.shared.operators.batches import column_field, with_column
from tidemark.shared.operators.cells import canonical_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.grouping import one_array
from tidemark.shared.operators.keygroups import Words, groups_of, murmur2_column
from tidemark.shared.operators.window_plan import SESSION, WindowPlan

Groups = npt.NDArray[np.uint16]
_BETWEEN = b"\0"


def hashes(plan: WindowPlan, table: pa.Table | pa.RecordBatch) -> Words:
    """The hashes of n partials' keys, or of n rows' sessions, shape (n,), uint32."""
    if plan.sessions or plan.typed is None:
        return murmur2_column(one_array(table.column(SESSION if plan.sessions else KEY)))
    parts = []
    for key in plan.typed.keys:
        column = one_array(table.column(key.column))
        parts.append(canonical_column(column, column_field(column.type)))
    whole = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _BETWEEN)
    return murmur2_column(whole)


def key_groups(plan: WindowPlan, table: pa.Table | pa.RecordBatch, groups: int) -> Groups:
    """The key groups of n partials, or of n rows in sessions, of `groups`; shape (n,)."""
    return groups_of(hashes(plan, table), groups)


def counted(plan: WindowPlan, table: pa.Table, owned: tuple[int, int], groups: int) -> pa.Table:
    """The rows whose key group, of `groups`, is in [first, end)."""
    found = key_groups(plan, table, groups)
    return table.filter(pa.array((found >= owned[0]) & (found < owned[1])))


def homes(plan: WindowPlan, rows: pa.RecordBatch, groups: int, context: TaskContext) -> Groups:
    """The key group, of `groups`, that each of n rows without a window will be of; shape (n,).

    A row that a stage before the `$group` drops, or fails on, is of group 0: any one task may tell of it.
    """
    count = rows.num_rows
    if plan.sessions:
        return key_groups(plan, rows, groups)
    numbers = np.arange(count, dtype=np.int64)
    alone = with_column(with_column(rows, WSTART, pa.array(numbers)), WEND, pa.array(numbers + 1))
    for name in plan.extras:
        alone = with_column(alone, name, pa.array(numbers))
    partials, _, _ = partials_of(
        plan, alone, context
    )  # each row has a window of its own, so there is no more than one of each
    found = np.zeros(count, dtype=np.uint16)
    found[partials.column(WSTART).to_numpy()] = key_groups(plan, partials, groups)
    return found
