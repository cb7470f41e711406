"""Findings of audits and redrives, in a form that is kept, sent and shown. A topic says which service runs them, and when."""

from typing import Literal

from msgspec import Struct

from tidemark.shared.model.formats import WORK
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, ProcessorName

Kind = Literal["audit", "redrive"]
Outcome = Literal["held", "unchecked", "differs", "cannot", "done", "away"]
"""held: each record counted once. unchecked: so far, and there is no statement about the rest. differs: a discrepancy. cannot: there is no
statement at all. done: of a redrive. away: a part of the installation did not answer; a repetition may."""


class ProgramVerdict(Struct, frozen=True, omit_defaults=True):
    """How one program's run has ended."""

    outcome: Outcome
    why: str = ""
    """Of `differs`, `cannot` and `away`: place, expectation, finding."""
    epoch: Epoch = NO_EPOCH
    """The last checkpoint that was compared at all outputs."""
    records: int = 0
    counted: int = 0
    late: int = 0
    repeated: int = 0
    dead: int = 0
    """Dead letters for other reasons."""
    outputs: dict[str, int] = {}
    """Documents by sink."""
    waiting: int = 0
    """Checkpoints that are committed, and not released everywhere: not compared."""
    unchecked: list[str] = []
    """About what there is no statement, and why; also outputs that are gone."""
    notes: list[str] = []
    """Values that were left out, and records that were not read."""
    letters: int = 0
    """Of a redrive: late records that it took."""
    corrections: int = 0
    topic: str = ""
    """Where they went."""


class AuditWork(Struct, frozen=True):
    """An audit or a redrive of a processor: the one that runs, or the last one that did. The last record of its key counts."""

    kind: Kind
    name: ProcessorName
    job: JobId
    released: Epoch
    """Up to which all sinks had released when it began: an audit at an interval waits for a later one."""
    running: bool
    by: str
    """The control service that runs it."""
    began_ms: int
    told_ms: int
    """When that service last said so: of one that runs, again and again."""
    verdict: ProgramVerdict | None = None
    """Of the last one that has ended."""
    version: int = WORK.version
    request: str = ""
    """The id under which it was asked for; "": none."""
