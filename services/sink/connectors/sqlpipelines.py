"""`$merge` with a pipeline as whenMatched: it computes the new row from each existing row, in the transaction of the release."""

from dataclasses import replace

import sqlalchemy as sa

from tidemark.services.sink.connectors.mergechanges import StagedChange
from tidemark.services.sink.connectors.sqlrows import RowMaker, documents_array
from tidemark.services.sink.connectors.sqlvalues import Misfit, is_computed
from tidemark.services.sink.connectors.sqlwrites import MergeWriter, Unwanted
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import decode_doc, encode_doc, encode_value, equal
from tidemark.shared.language.values.cells import cell_reader
from tidemark.shared.model.values import Document


class PipelineWriter:
    """Writes documents one by one, each inside the caller's transaction; the row is locked from the look at it."""

    def __init__(self, connection: sa.Connection, table: sa.Table, stage: Merge, maker: RowMaker) -> None:
        self._table = table
        self._stage = stage
        self._maker = maker
        self._changes = RowMaker(table, stage.on, connection.dialect, inserts=False)
        self._absent = MergeWriter(connection, table, replace(stage, when_matched="fail"))
        """For documents without a row. If a row comes in between, the document is not lost, but refused."""
        self._readers = {
            "".join(column.name): cell_reader(wide=isinstance(column.type, sa.BigInteger)) for column in table.columns
        }

    def write(self, connection: sa.Connection, change: StagedChange) -> None:
        """Write the columns that the pipeline changes.

        Raises:
            Unwanted: the pipeline fails on the row, or gives no row that the table takes; or whenNotMatched is fail.
        """
        document = decode_doc(change.document)
        keys = {name: document[name] for name in self._stage.on}
        try:
            row = self._maker.parameters(document if self._stage.when_not_matched == "insert" else keys)
        except Misfit as misfit:
            raise Unwanted(f"{misfit}; has the table changed since it was staged?") from misfit
        found = sa.and_(*(self._table.c[name] == row[name] for name in self._stage.on))
        cells = connection.execute(sa.select(self._table).where(found).with_for_update()).first()
        if cells is None:
            named = document if self._stage.when_not_matched == "insert" else keys
            rows, _ = self._maker.rows(documents_array([encode_doc(named)]))
            self._absent.write(connection, rows)
            return
        before = {name: read(cell) for (name, read), cell in zip(self._readers.items(), cells, strict=True)}
        values = self._values(before, self._made(before, change.environment()))
        if values:
            connection.execute(sa.update(self._table).where(found).values(values))

    def _made(self, row: Document, env: Environment) -> Document:
        pipeline = self._stage.when_matched
        assert isinstance(pipeline, tuple)
        for outcome in apply_stages(pipeline, row, env):
            match outcome:
                case Passed((document,)):
                    return document
                case Failure(reason=reason, path=path):
                    raise Unwanted(f"{path}: {reason}")
        raise Unwanted("the pipeline makes nothing of the row")

    def _values(self, before: Document, after: Document) -> dict[str, object]:
        """The columns to set: those that differ; null for those that the pipeline takes away."""
        on = self._stage.on
        moved = [name for name in on if name not in after or not equal(before[name], after[name])]
        if moved:
            raise Unwanted(f"the pipeline changes {', '.join(moved)}, which finds the row")
        changed = {
            name: value
            for name, value in after.items()
            if name not in on and (name not in before or encode_value(before[name]) != encode_value(value))
        }
        others = [c.name for c in self._table.columns if c.name not in on and not is_computed(c)]
        gone = {name: None for name in others if name not in after and before[name] is not None}
        try:
            made = self._changes.parameters({**{name: before[name] for name in on}, **changed})
        except Misfit as misfit:
            raise Unwanted(f"what the pipeline makes of the row: {misfit}") from misfit
        return {**gone, **{name: made[name] for name in changed}}
