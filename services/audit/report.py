"""The findings of an audit, for people and programs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from msgspec import Struct, structs

from tidemark.shared.model.ids import NO_EPOCH, Epoch, SplitId, VertexId


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedEpoch:
    """One committed checkpoint. Each of its records is counted, late, a duplicate or a dead letter for another reason."""

    epoch: Epoch
    generation: int
    positions: Mapping[SplitId, tuple[int, int]]
    """By split: the first position that it covers, and the first behind it."""
    records: int
    counted: int
    late: int
    duplicates: int
    dead_letters: int
    outputs: Mapping[VertexId, int]
    """Documents that are there."""
    released: bool
    """At every output; else it is committed and waits for its release, and its outputs were not compared."""
    gone: tuple[str, ...] = ()
    """The parts of its outputs that are no longer there and were not compared."""


_GONE_MAX: Final = 20
"""Missing parts that are kept by name."""


class Covered(Struct, frozen=True):
    """All epochs up to one, as an audit found them: sums of `AuditedEpoch`."""

    epoch: Epoch = NO_EPOCH
    """The last."""
    epochs: int = 0
    records: int = 0
    counted: int = 0
    late: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    outputs: dict[VertexId, int] = {}
    gone: list[str] = []

    def with_epochs(self, epochs: Iterable[AuditedEpoch]) -> "Covered":
        """These, and all of the epochs behind them that are released; an output that is vouched for no more counts no more."""
        found = self
        for e in epochs:
            outputs = {name: found.outputs.get(name, 0) + rows for name, rows in e.outputs.items()}
            found = Covered(
                e.epoch,
                found.epochs + 1,
                found.records + e.records,
                found.counted + e.counted,
                found.late + e.late,
                found.duplicates + e.duplicates,
                found.dead_letters + e.dead_letters,
                outputs,
                sorted({*found.gone, *e.gone})[:_GONE_MAX],
            )
        return found


NOTHING: Final = Covered()


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit without a discrepancy."""

    epochs: tuple[AuditedEpoch, ...]
    unchecked: tuple[str, ...] = ()
    """Outputs that are no function of the records, or rows of them, each with the reason: no statement about them."""
    notes: tuple[str, ...] = ()
    """Values left out because no record decides them: columns that a database fills by itself."""

    unread: tuple[str, ...] = ()
    """Records in the source's topics that the job has not read, by place."""
    before: Covered = NOTHING
    """What an earlier audit had found, behind which this one began."""

    @property
    def records(self) -> int:
        """Of the source, up to the last commit."""
        return self.before.records + sum(e.records for e in self.epochs)

    @property
    def accepted(self) -> int:
        """Neither late nor repeated nor dead."""
        return self.before.counted + sum(e.counted for e in self.epochs)

    @property
    def late(self) -> int:
        """How many records came behind the watermark."""
        return self.before.late + sum(e.late for e in self.epochs)

    @property
    def duplicates(self) -> int:
        """Known by their id."""
        return self.before.duplicates + sum(e.duplicates for e in self.epochs)

    @property
    def dead_letters(self) -> int:
        """Dead letters for other reasons."""
        return self.before.dead_letters + sum(e.dead_letters for e in self.epochs)

    @property
    def outputs(self) -> dict[VertexId, int]:
        """How many documents each output has."""
        before = self.before.outputs
        names = self.epochs[-1].outputs if self.epochs else before
        return {name: before.get(name, 0) + sum(e.outputs[name] for e in self.epochs) for name in names}

    @property
    def gone(self) -> tuple[str, ...]:
        """The parts of outputs that retention has taken: an audit with gaps is no success."""
        return tuple(sorted({*self.before.gone, *(what for e in self.epochs for what in e.gone)}))

    @property
    def waiting(self) -> tuple[Epoch, ...]:
        """Committed, and not yet released everywhere."""
        return tuple(e.epoch for e in self.epochs if not e.released)

    def as_json(self) -> dict[str, Any]:
        """Totals and the table."""
        return {
            "records": self.records,
            "accepted": self.accepted,
            "late": self.late,
            "duplicates": self.duplicates,
            "dead_letters": self.dead_letters,
            "outputs": self.outputs,
            "waiting": list(self.waiting),
            "gone": list(self.gone),
            "unchecked": list(self.unchecked),
            "notes": list(self.notes),
            "unread": list(self.unread),
            "before": structs.asdict(self.before),
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }

    def text(self, *, every_epoch: bool) -> Iterator[str]:
        """Totals, then the table: all epochs, or the first and the last."""
        yield f"{self.records:>10,} records read of the source, each of them once:"
        yield f"{self.accepted:>10,} counted"
        yield f"{self.late:>10,} late"
        yield f"{self.duplicates:>10,} repeated"
        yield f"{self.dead_letters:>10,} dead-lettered for other reasons"
        for output, rows in self.outputs.items():
            yield f"{rows:>10,} documents in {output}, each of them once, and none besides"
        yield ""
        yield from self._table(every_epoch=every_epoch)
        yield from self.earlier()
        if self.waiting:
            yield f"not released everywhere yet, and not compared: epochs {', '.join(map(str, self.waiting))}"
        for what in self.gone:
            yield f"not compared, for it is gone: {what}"
        yield from (f"not checked: {what}" for what in self.unchecked)
        yield from (f"not compared: {what}" for what in self.notes)
        yield from (f"not read: {what}" for what in self.unread)

    def earlier(self) -> Iterator[str]:
        """What is said of the epochs that this audit did not look at."""
        if self.before.epochs:
            yield f"up to epoch {self.before.epoch} as an earlier audit found it: this one began there"

    def _table(self, *, every_epoch: bool) -> Iterator[str]:
        outputs = list(self.outputs)
        heads = ["epoch", "generation", "records", "counted", "late", "repeated", "dead", *outputs]
        widths = [max(10, len(head) + 2) for head in heads]

        def line(cells: list[str]) -> str:
            return "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

        yield line(heads)
        before = self.before
        if before.epochs:
            earlier = (before.records, before.counted, before.late, before.duplicates, before.dead_letters)
            rows = [before.outputs.get(o, 0) for o in outputs]
            yield line([f"to {before.epoch}", "", *(f"{figure:,}" for figure in (*earlier, *rows))])
        few = 2
        shown = self.epochs if every_epoch or len(self.epochs) <= few else (self.epochs[0], self.epochs[-1])
        for number, e in enumerate(shown):
            if number and shown is not self.epochs:
                yield f"{'…':>10}  {len(self.epochs) - few} more (--epochs)"
            figures = (e.records, e.counted, e.late, e.duplicates, e.dead_letters, *(e.outputs[o] for o in outputs))
            yield line([str(e.epoch), str(e.generation), *(f"{figure:,}" for figure in figures)])
        totals = (self.records, self.accepted, self.late, self.duplicates, self.dead_letters, *self.outputs.values())
        yield line([f"{before.epochs + len(self.epochs)}", "", *(f"{total:,}" for total in totals)])
