"""Sources from the document itself, for tests: `documents`, and `script` with its own watermarks and time.

A script runs in the order of its steps. A split's position is the number of the step behind the split's last rows. The furthest position
is that of the script, so a restart goes on with exactly the next step. The number of a step is also its position (D11).
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidemark.shared.language.stages.sources.script import DataStep, ProcessingTimeStep, ScriptStep
from tidemark.shared.language.values import render_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import FIRST_OFFSET, Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Clock


def split_of(partition: int) -> SplitId:
    """The name of a script's partition as a split, such as `script-0`."""
    return SplitId(f"script-{partition}")


class ScriptConnector:
    """`SourcePort` over the steps of a script. Each batch has rows of one partition, and the control steps behind them.

    With `one_by_one` each batch has one step: for callers that need a step to take effect everywhere before the next.
    """

    def __init__(self, script: Sequence[ScriptStep], clock: Clock, *, one_by_one: bool = False) -> None:
        self._script = tuple(script)
        self._one_by_one = one_by_one
        self._clock = clock
        self._ordinals = {split_of(partition): partition for partition in sorted(_partitions(self._script))}
        self._positions: dict[SplitId, Offset] = {}
        self._until: dict[SplitId, Offset] = {}
        self._next = 0

    async def splits(self) -> Mapping[SplitId, int]:
        """The partitions that steps name, or 0 (D3)."""
        return dict(self._ordinals)

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """The document that has the steps cannot change under a job."""

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """From the first step; the script ends by itself."""
        del first
        return {split: KnownSplit(self._ordinals[split], "", FIRST_OFFSET) for split in splits}

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """A script ends by itself, behind its last step."""
        return dict.fromkeys(positions)

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read these splits; steps of others are passed over. ValueError for a split that the script does not have."""
        unknown = positions.keys() - self._ordinals.keys()
        if unknown:
            raise ValueError(f"script: no partition {', '.join(sorted(unknown))}; it has {', '.join(self._ordinals)}")
        self._positions |= positions
        self._next = max(self._positions.values(), default=0)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """The next rows of one partition with the control steps behind them; [] at the end."""
        while self._next < len(self._script):
            batch = self._take(max_bytes)
            if batch is not None:
                return [batch]
        return []

    def _take(self, max_bytes: int) -> RawBatch | None:
        split: SplitId | None = None
        positions: list[int] = []
        values: list[bytes] = []
        size = 0
        at = self._next
        while at < len(self._script):
            step = self._script[at]
            if not isinstance(step, DataStep):
                break
            owner = split_of(step.partition)
            if not self._is_read(owner, at):
                if split is not None:
                    break
            elif split not in (None, owner) or size >= max_bytes or (positions and self._one_by_one):
                break
            else:
                split = owner
                positions.append(at)
                values.append(render_json(step.data, canonical=True))
                size += len(values[-1])
            at += 1
        steps: list[ScriptStep] = []
        while at < len(self._script) and not isinstance(self._script[at], DataStep):
            if self._one_by_one and (positions or steps):
                break
            step = self._script[at]
            if self._concerns(step):
                steps.append(step)
            at += 1
        self._next = at
        if not self._positions or (split is None and not steps):
            return None
        owner = split or next(iter(self._positions))
        self._positions[owner] = Offset(at)
        return RawBatch(
            split=owner,
            partition=self._ordinals[owner],
            positions=np.array(positions, dtype=np.int64),
            timestamps_ms=np.full(len(positions), self._clock.now_ms(), dtype=np.int64),
            values=pa.array(values, pa.binary()),
            steps=tuple(steps),
        )

    def _is_read(self, split: SplitId, at: int) -> bool:
        return split in self._positions and at < self._until.get(split, len(self._script))

    def _concerns(self, step: ScriptStep) -> bool:
        """Whether a control step is for this task: of all partitions, or of one that it reads."""
        assert not isinstance(step, DataStep)
        if isinstance(step, ProcessingTimeStep) or step.partition is None:
            return True
        return split_of(step.partition) in self._positions

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        done = self._next >= len(self._script)
        found = []
        for split, position in self._positions.items():
            ended = done or position >= self._until.get(split, len(self._script))
            found.append(SplitStatus(split, position, ended, ended))
        return found

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._until |= until

    async def close(self) -> None:
        """Nothing to let go of."""


class DocumentsConnector(ScriptConnector):
    """`SourcePort` over documents: one split, bounded."""

    def __init__(self, documents: Sequence[Document], clock: Clock, *, one_by_one: bool = False) -> None:
        super().__init__([DataStep(document, 0) for document in documents], clock, one_by_one=one_by_one)


def _partitions(script: Sequence[ScriptStep]) -> set[int]:
    named = {step.partition for step in script if not isinstance(step, ProcessingTimeStep)}
    return {partition for partition in named if partition is not None} or {0}
