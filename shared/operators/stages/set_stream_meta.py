"""`$setStreamMeta`."""

from tidemark.shared.language.stages import SetStreamMeta
from tidemark.shared.operators.base import META
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.staged import Staged, frame_of, without_errors


def set_stream_meta(stage: SetStreamMeta, staged: Staged, context: TaskContext) -> None:
    """The metadata of rows is a column of the engine's: it stays with its row, whatever becomes of the document (B5)."""
    frame = frame_of(stage, staged, context, stage.paths())
    cells = frame.computed(stage.metadata)
    staged.interpreted += cells.interpreted_rows
    staged.batch = with_column(staged.batch, META, encoded_cells(cells.array, cells.field))
    without_errors(stage, staged, context, frame, cells.errors)
