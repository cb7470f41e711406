"""The stages' programs over columns, by the types of the stages; each gives the result of `Stateless.apply` on each document (D1)."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from tidemark.shared.language.stages import (
    AddFields,
    Count,
    Gathering,
    Group,
    Limit,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    SetStreamMeta,
    Sort,
    Stateless,
    Unset,
    Unwind,
    Validate,
)
from tidemark.shared.language.stages.counting import Marked
from tidemark.shared.language.stages.skip import Skip
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.staged import Staged
from tidemark.shared.operators.stages.add_fields import add_fields
from tidemark.shared.operators.stages.counting import marked
from tidemark.shared.operators.stages.cutting import count, limit, skip
from tidemark.shared.operators.stages.group import group
from tidemark.shared.operators.stages.judging import match, validate
from tidemark.shared.operators.stages.project import project
from tidemark.shared.operators.stages.redact import redact
from tidemark.shared.operators.stages.replace_root import replace_root
from tidemark.shared.operators.stages.set_stream_meta import set_stream_meta
from tidemark.shared.operators.stages.sort import sort
from tidemark.shared.operators.stages.unset import left_out
from tidemark.shared.operators.stages.unwind import unwind
from tidemark.shared.operators.whole_windows import Windows

PROGRAMS: Final[dict[type[Stateless], Callable[[Any, Staged, TaskContext], None]]] = {
    Match: match,
    Validate: validate,
    AddFields: add_fields,
    Project: project,
    Unset: left_out,
    ReplaceRoot: replace_root,
    Redact: redact,
    Marked: marked,
    SetStreamMeta: set_stream_meta,
}
"""Without one, a stage takes documents (`staged.whole`)."""
IN_PIECES: Final[dict[type[Stateless], Callable[[Any, Staged, TaskContext, int | None], Iterator[pa.RecordBatch]]]] = {
    Unwind: unwind
}
"""Those that copy rows: they give batches of so many bytes."""
GATHERING: Final[dict[type[Gathering], Callable[[Any, Windows], tuple[pa.RecordBatch, list[Out]]]]] = {
    Group: group,
    Sort: sort,
    Limit: limit,
    Skip: skip,
    Count: count,
}
"""Those that work on all windows of a batch at once; each gives the result of `Gathering.gather` on each window, and dead letters."""
