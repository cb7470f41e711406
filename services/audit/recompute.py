"""A document computed again over records that are all there: one task a vertex, one thread, no broker, no state.

With `lateness: split` the result is a function of the records of each split alone (LANGUAGE.md, Time), so it must equal the output that the
running system released; and the output up to a barrier is a function of the splits' positions at it. With `lateness: merged` it is one
where it is known which rows came late: such a row comes behind its barrier here. Windows are stepped on Arrow, even if another engine
ran them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from tidemark.services.audit.chance import by_chance
from tidemark.services.audit.reach import Bools, Bounds, Int64s, Judge, Noted, Reach, SplitReach, judges_of, sources_of
from tidemark.services.operator.shelved import in_temporary_files
from tidemark.shared.language.documents import Processor
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import FIRST_OFFSET, NO_EPOCH, EdgeId, Epoch, SplitId, StatePart, VertexId
from tidemark.shared.model.plan import OUT, PhysicalPlan
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import Status
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import PART, POS, WM, Out
from tidemark.shared.operators.batches import documents_of, with_column
from tidemark.shared.operators.build import OperatorChain, build_chain
from tidemark.shared.operators.context import TaskContext, context_of
from tidemark.shared.operators.dead_letters import WOULD_REFUSE, RowFailure, dead_letters
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.planning import DeadLetterHead, plan_processor
from tidemark.shared.ports.sink import Rejected
from tidemark.shared.protocol.source.machine import Input
from tidemark.shared.protocol.source.split import Split
from tidemark.shared.protocol.watermarks import InputProgress, all_idle, combined_watermark

Accept = Callable[[pa.RecordBatch], Sequence[Rejected]]
"""Which rows a target would refuse."""
Refused = Callable[[Sequence[Rejected], pa.RecordBatch, str, TaskContext], Sequence[Rejected]]
"""Which of a batch's rows were refused, where a target would refuse these now; by the sink's name in letters, and its context."""
Texts = Callable[[pa.RecordBatch, Collection[int]], list[str]]
"""How a target has rows, but for those that are named by their places."""
Positions = frozenset[tuple[int, int]]
"""Of records: (ordinal of the split, position)."""
ROWS_AT_ONCE: Final = 20_000
"""Records that go through the operators at once: many batches of a source, little memory."""


Read = tuple[int, int, bytes | None, bytes | None]
"""A record: its position, the broker's time of it in ms, value, key."""


@dataclass(frozen=True, slots=True)
class SplitRecords:
    """All records of one split up to where the processor has read, in order."""

    source: VertexId
    split: SplitId
    """A name that no split of another source has."""
    ordinal: int
    batches: Sequence[RawBatch]

    @staticmethod
    def of(source: VertexId, split: SplitId, ordinal: int, records: Iterable[Read]) -> "SplitRecords":
        """Of these records, in columns."""
        left = iter(records)
        pieces = iter(lambda: list(islice(left, ROWS_AT_ONCE)), [])
        return SplitRecords(source, split, ordinal, [raw_batch(split, ordinal, piece) for piece in pieces])


def raw_batch(split: SplitId, ordinal: int, records: Sequence[Read]) -> RawBatch:
    """Records of one split, in columns."""
    positions, times, values, keys = zip(*records, strict=True)
    return RawBatch(
        split,
        ordinal,
        np.array(positions, dtype=np.int64),
        np.array(times, dtype=np.int64),
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()),
    )


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a split stood at a barrier."""

    next: int
    status: Status
    idled: bool = False
    """It was idle, or not there yet, at some time since the barrier before."""
    waits: bool = False
    """Receivers may have waited for a task of a source that had nothing to read."""


class KeptSplit(Struct, frozen=True, array_like=True):
    """A split of a source's one task."""

    ordinal: int
    watermark_ms: int
    status: Status
    away: bool


class KeptSource(Struct, frozen=True):
    """The one task of a source."""

    parts: dict[StatePart, bytes]
    splits: dict[SplitId, KeptSplit]
    watermark_ms: int


class KeptRun(Struct, frozen=True):
    """All that a run knows at a barrier: another one may go on there, with the records behind it."""

    parts: dict[VertexId, dict[StatePart, bytes]]
    """State of the operators by vertex, behind a source's front."""
    sources: dict[VertexId, KeptSource]
    channels: dict[EdgeId, tuple[int, bool]]
    """The watermark that was told last, ms, and whether the sender was idle."""
    reached_ms: dict[VertexId, int]
    bounds: list[Bounds]
    """In the order of `judges_of`."""
    chance: dict[VertexId, str]
    """See `Recomputed.chance`."""


@dataclass(slots=True)
class EpochDone:
    """The documents that must have come out with one checkpoint, by sink vertex, and how many records went in."""

    epoch: Epoch
    outputs: dict[VertexId, list[Document]] = field(default_factory=lambda: defaultdict(list))
    senders: dict[VertexId, list[VertexId]] = field(default_factory=lambda: defaultdict(list))
    """The vertex that each of these documents came from."""
    origins: dict[VertexId, list[VertexId]] = field(default_factory=lambda: defaultdict(list))
    """The same, but of a row that an operator made a dead letter when it came: the vertex that the row came from."""
    texts: dict[VertexId, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The documents as their target has them, where more than the document decides that."""
    records: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What a run over all records has given."""

    epochs: list[EpochDone]
    chance: Mapping[VertexId, str]
    """Vertices with output that depends on more than the records, each with the reason."""
    plan: PhysicalPlan
    paced: Sequence[Judge]
    """For these, how far other splits were may have decided which rows of this run were late."""
    kept: KeptRun | None = None
    """At the epoch that was asked for."""
    beyond: str = ""
    """What a commit says of a watermark that its records do not allow; "" where it says nothing of the kind."""

    def reasons(self, sink: VertexId) -> list[str]:
        """Why documents of a sink hang on more than the records; none where all are compared."""
        senders = {
            edge.sender for edge in self.plan.inputs_of(sink)
        }  # one that sent nothing here may have sent some there
        return sorted({self.chance[vertex] for vertex in (sink, *senders) if vertex in self.chance})

    def certain(self, epoch: EpochDone, sink: VertexId) -> list[Document]:
        """The documents that must have come out, at any moment."""
        return [document for document, _ in self.certain_of(epoch, sink)]

    def certain_texts(self, epoch: EpochDone, sink: VertexId, text: Callable[[Document], str]) -> list[str]:
        """The same as their target has them. text: of a document that decides it alone."""
        if sink not in epoch.texts:
            return [text(document) for document in self.certain(epoch, sink)]
        made = zip(epoch.texts[sink], epoch.senders[sink], strict=True)
        return [each for each, sender in made if sender not in self.chance]

    def certain_of(self, epoch: EpochDone, sink: VertexId) -> Iterator[tuple[Document, frozenset[VertexId]]]:
        """The same, each with the sources of which one had the record."""
        sources = {origin: sources_of(self.plan, origin) for origin in {*epoch.origins[sink]}}
        for document, sender, origin in zip(epoch.outputs[sink], epoch.senders[sink], epoch.origins[sink], strict=True):
            if sender not in self.chance:
                yield document, sources[origin]


@dataclass(slots=True)
class _SourceTask:
    """The one task of a source."""

    front: SourceFront
    input: Input = field(default_factory=lambda: Input(listed_once=False))

    def keep(self, before: KeptSource | None) -> KeptSource:
        splits = self.input.splits
        return KeptSource(
            _changed({} if before is None else before.parts, self.front.snapshot(splits)),
            {n: KeptSplit(s.known.ordinal, s.progress.watermark_ms, s.status, s.away) for n, s in splits.items()},
            self.input.watermark_ms,
        )

    def go_on(self, kept: KeptSource) -> None:
        self.front.restore(kept.parts)
        self.front.assign({split: each.ordinal for split, each in kept.splits.items()})
        self.input.splits = {split: _split(each) for split, each in kept.splits.items()}
        self.input.watermark_ms, self.input.listed_once = kept.watermark_ms, True


def _split(kept: KeptSplit) -> Split:
    progress = InputProgress(kept.watermark_ms, idle=kept.status == "idle", ended=kept.status == "finished")
    return Split(KnownSplit(kept.ordinal, "", FIRST_OFFSET), FIRST_OFFSET, progress, away=kept.away)


def _changed(before: Mapping[StatePart, bytes], parts: Mapping[StatePart, bytes | None]) -> dict[StatePart, bytes]:
    """All parts, from those that have changed."""
    return {part: data for part, data in {**before, **parts}.items() if data is not None}


@dataclass(slots=True)
class _World:
    plan: PhysicalPlan
    contexts: Mapping[VertexId, TaskContext]
    chains: dict[VertexId, OperatorChain] = field(default_factory=dict)
    sources: dict[VertexId, _SourceTask] = field(default_factory=dict)
    channels: dict[EdgeId, InputProgress] = field(default_factory=dict)
    """As they were at the last barrier."""
    reached_ms: dict[VertexId, int] = field(default_factory=dict)
    """The input watermarks there."""
    done: EpochDone = field(default_factory=lambda: EpochDone(NO_EPOCH))
    admitted: Mapping[int, Int64s] = field(default_factory=dict)
    """By split, as `recompute` has them; so is the next one."""
    late: Mapping[VertexId, Mapping[int, Int64s]] = field(default_factory=dict)
    """By source."""
    came_late: list[tuple[VertexId, Out]] = field(default_factory=list)
    """By source, rows of this epoch that come behind its barrier."""
    accepts: Mapping[VertexId, Accept] = field(default_factory=dict)
    texts: Mapping[VertexId, Texts] = field(default_factory=dict)
    refused: Refused | None = None
    reach: Sequence[Reach] = ()
    beyond: str = ""
    """See `Recomputed`."""
    noted: Noted = field(default_factory=Noted)
    """Where watermarks stand at the next barrier, as far as that is noted."""

    def begin(self, epoch: Epoch, noted: Noted) -> None:
        """What comes now is of this epoch, of which this is noted."""
        self.done, self.noted = EpochDone(epoch), noted
        for reach in self.reach:
            reach.next_ms = noted.reached_ms.get(reach.judge.vertex)
            reach.between = reach.judge.vertex in noted.between

    def keep(self, before: KeptRun | None, chance: Mapping[VertexId, str]) -> KeptRun:
        """Behind a barrier. before: the run that this one goes on from."""
        parts, sources = ({}, {}) if before is None else (before.parts, before.sources)
        return KeptRun(
            {vertex: _changed(parts.get(vertex, {}), chain.snapshot()) for vertex, chain in self.chains.items()},
            {vertex: reading.keep(sources.get(vertex)) for vertex, reading in self.sources.items()},
            {edge: (progress.watermark_ms, progress.idle) for edge, progress in self.channels.items()},
            dict(self.reached_ms),
            [structs.replace(reach.bounds, ahead_ms=dict(reach.bounds.ahead_ms)) for reach in self.reach],
            dict(chance),
        )

    def paced_late(self) -> set[VertexId]:
        """The vertices that rows may have reached too late, by the moment."""
        return {reach.judge.vertex for reach in self.reach if reach.late}

    def paced(self, before: KeptRun | None) -> list[Judge]:
        """The judges of which this run has shown that the moment may have decided. before: the run that this one goes on from."""
        known = [False] * len(self.reach) if before is None else [bounds.late for bounds in before.bounds]
        return [reach.judge for reach, was in zip(self.reach, known, strict=True) if reach.late and not was]

    def go_on(self, kept: KeptRun) -> None:
        """Stand where a run of the same document stood."""
        for vertex, source in kept.sources.items():
            self.sources[vertex].go_on(source)
        for reach, bounds in zip(self.reach, kept.bounds, strict=True):
            reach.bounds = structs.replace(bounds, ahead_ms=dict(bounds.ahead_ms))
        self.channels = {
            edge: InputProgress(watermark_ms, idle) for edge, (watermark_ms, idle) in kept.channels.items()
        }
        self.reached_ms = dict(kept.reached_ms)
        for vertex, chain in self.chains.items():
            chain.restore(dict(kept.parts[vertex]))
            due = chain.on_watermark(self.reached_ms[vertex])
            assert not due, f"{vertex}: rows came out that were due before the barrier"

    def build(self, begin: KeptRun | None) -> None:
        """All operators, as they stood at the end of this run."""
        for vertex in self.plan.vertices:
            if vertex.service == "sink":
                continue
            context = self.contexts[vertex.id]
            if vertex.chain and isinstance(vertex.chain[0], FrontSpec):
                self.sources[vertex.id] = _SourceTask(SourceFront(vertex.chain[0], context))
            self.chains[vertex.id] = build_chain(vertex.chain, context)
        if begin is not None:
            self.go_on(begin)

    def send(self, sender: VertexId, outs: Sequence[Out], origin: VertexId | None = None) -> None:
        """origin: the vertex whose rows these follow from, if it is another one."""
        for out in outs:
            for edge in self.plan.outputs_of(sender):
                if edge.port != out.port:
                    continue
                if edge.receiver not in self.chains:
                    self._arrive(sender, edge.receiver, out.batch, origin or sender)
                else:
                    found = self.chains[edge.receiver].on_batch(out.batch, out.content, edge.tag)
                    self.send(edge.receiver, found, sender)

    def _arrive(self, sender: VertexId, sink: VertexId, batch: pa.RecordBatch, origin: VertexId) -> None:
        """Rows that the target would refuse go to the dead letters, as a sink's task sends them (S6)."""
        accept = self.accepts.get(sink)
        rejected = accept(batch) if accept is not None else ()
        vertex = self.plan.vertex(sink)
        if self.refused is not None and not isinstance(vertex.head, DeadLetterHead):
            rejected = self.refused(rejected, batch, vertex.label, self.contexts[sink])
        rows = {r.row for r in rejected}
        taken = [d for row, d in enumerate(documents_of(batch)) if row not in rows]
        if (texts := self.texts.get(sink)) is not None:
            self.done.texts[sink] += texts(batch, rows)
        self.done.outputs[sink] += taken
        self.done.senders[sink] += [sender] * len(taken)
        self.done.origins[sink] += [origin] * len(taken)
        failures = [RowFailure(r.row, r.reason, WOULD_REFUSE) for r in rejected]
        if failures:
            self.send(sink, dead_letters(batch, failures, vertex.label, self.contexts[sink]), origin)

    def read(self, source: VertexId, batch: RawBatch, *, idled: bool) -> None:
        reading = self.sources[source]
        away = {batch.split} if idled else reading.input.rows({batch.split})
        outs = reading.front.on_records(batch, away=away)
        reading.input.judged(reading.front.watermarks({batch.split}), 0)
        for out in outs:
            if out.port == OUT:
                paced = np.zeros(out.batch.num_rows, dtype=np.bool_)
                for reach in self.reach:
                    paced |= reach.read(source, batch.split, out.batch, idled=idled)
                rows = self._admit(out.batch)
                if self.late and paced.any() and (late := paced & _among(rows, self.late.get(source, {}))).any():
                    self.came_late.append((source, Out(out.port, out.content, rows.filter(pa.array(late)))))
                    rows = rows.filter(pa.array(~late))
                self.send(source, self.chains[source].on_batch(rows, out.content, ""))
            else:
                self.send(source, [out])

    def _admit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """No watermark stood before a record that is admitted: it is late for nothing."""
        if not self.admitted:
            return batch
        before = np.where(_among(batch, self.admitted), MIN_TIME, batch.column(WM).to_numpy())
        return with_column(batch, WM, pa.array(before, pa.int64()))

    def settle(self) -> None:
        """The watermark through every vertex in the plan's order, at each with the rows that it holds for the barrier behind it."""
        for vertex, chain in self.chains.items():
            watermark_ms, idle = self._told(vertex)
            self.reached_ms[vertex] = max(watermark_ms, self.reached_ms.get(vertex, MIN_TIME))
            self.send(vertex, chain.on_watermark(self.reached_ms[vertex]))
            self.send(vertex, chain.before_barrier())
            for edge in self.plan.outputs_of(vertex):
                self.channels[edge.id] = InputProgress(chain.output_watermark(), idle)
        came_late, self.came_late = self.came_late, []
        for source, out in came_late:
            self.send(source, self.chains[source].on_batch(out.batch, out.content, ""))
        if came_late:
            self.flush()

    def _told(self, vertex: VertexId) -> tuple[int, bool]:
        """What a vertex is told in front of a barrier: its input watermark, ms, and whether its inputs are idle (W3)."""
        noted_ms = self.noted.reached_ms.get(vertex)
        if vertex in self.sources:
            reading = self.sources[vertex].input
            return reading.watermark_ms if noted_ms is None else noted_ms, reading.is_idle()
        channels = [self.channels[e.id] for e in self.plan.inputs_of(vertex) if e.id in self.channels]
        return combined_watermark(channels) if noted_ms is None else noted_ms, all_idle(channels)

    def watermarks(self) -> tuple[dict[EdgeId, InputProgress], dict[VertexId, int]]:
        """Those of channels and vertices at the last barrier: where they stay, nothing that is held can come out."""
        return dict(self.channels), dict(self.reached_ms)

    def highest_ms(self) -> int:
        """The highest watermark of a split."""
        splits = (split for source in self.sources.values() for split in source.input.splits.values())
        return max((split.progress.watermark_ms for split in splits), default=MIN_TIME)

    def flush(self) -> None:
        """Rows held for a barrier go on, and no window closes: else admitted records would come too late for it."""
        for vertex, chain in self.chains.items():
            self.send(vertex, chain.before_barrier())

    def counters(self) -> Counter[str]:
        """Records read, without those that are another source's (D16), and repeats: sums over the fronts and the chains."""
        found: Counter[str] = Counter()
        for source in self.sources.values():
            counts = source.front.counters()
            found["read"] += counts["records"] - counts["beyondSwitch"]
            found["duplicates"] += counts["duplicates"]
        for chain in self.chains.values():
            found["duplicates"] += chain.counters().get("duplicates", 0)
        return found


def _by_split(places: Positions) -> dict[int, Int64s]:
    """Positions by the ordinals of their splits."""
    found: dict[int, list[int]] = defaultdict(list)
    for ordinal, position in places:
        found[ordinal].append(position)
    return {ordinal: np.array(positions, dtype=np.int64) for ordinal, positions in found.items()}


def _among(batch: pa.RecordBatch, places: Mapping[int, Int64s]) -> Bools:
    """Which rows follow from one of these records; shape (m,)."""
    parts, positions = batch.column(PART).to_numpy(), batch.column(POS).to_numpy()
    mask = np.zeros(batch.num_rows, dtype=np.bool_)
    for ordinal in places.keys() & np.unique(parts).tolist():
        mask |= (parts == ordinal) & np.isin(positions, places[ordinal])
    return mask


def _contexts(processor: Processor, plan: PhysicalPlan, code: bytes, name: str) -> dict[VertexId, TaskContext]:
    """Of all tasks: rows and ids that have no room in memory lie in temporary files, as they do in an installation."""
    letter_bytes_max = processor.options.limits.letter_bytes_max
    return {
        vertex.id: replace(
            context_of(plan, vertex.id, name), letter_bytes_max=letter_bytes_max, code=code, shelve=in_temporary_files
        )
        for vertex in plan.vertices
    }


def recompute(  # noqa: PLR0913 - a document, its records, and what was known of them
    processor: Processor,
    splits: Sequence[SplitRecords],
    epochs: Sequence[tuple[Epoch, Mapping[SplitId, Stand]]],
    name: str,
    *,
    admitted: Positions = frozenset(),
    late: Mapping[VertexId, Positions] | None = None,
    passed: Sequence[Mapping[SplitId, int]] = (),
    noted: Mapping[Epoch, Noted] | None = None,
    collects: bool = False,
    accepts: Mapping[VertexId, Accept] | None = None,
    texts: Mapping[VertexId, Texts] | None = None,
    refusals: Callable[[], Refused] | None = None,
    code: bytes = b"",
    running: Collection[VertexId] | None = None,
    begin: KeptRun | None = None,
    keep: Epoch = NO_EPOCH,
) -> Recomputed:
    """Run the document over these records, from barrier to barrier: where each split stood says which records an epoch took in.

    admitted: records that are in time in spite of their watermark (`lateness: split`); an epoch has to cover their windows whole.
    late: by source, records that came late where other splits' pace decides that, all others came in time; None: it is not known which.
    passed: positions at the barriers on the way, in order: which record of an id counts is decided at each (DD2).
    noted: by epoch, where watermarks stood at its barrier, as far as that is known.
    accepts: by sink vertex, which rows its target would refuse; none for a vertex without an entry.
    texts: by sink vertex, how its rows are written where their metadata decide, too; none for others.
    refusals: makes, for one run, what takes the rows that targets would refuse now for those that they refused then.
    code: of its computations, as in the plan that ran. running: its vertices (`plan_processor`).
    begin: of an earlier run over the records in front of these. keep: the epoch with a barrier at which the run is kept; it is begun once.
    """
    plan = plan_processor(processor, engine="local", collects=collects, running=running)
    idled = any(stand.idled for _, stands in epochs for stand in stands.values())
    unbounded = idled and processor.options.alignment_timeout_ms is not None
    world = _World(
        plan,
        _contexts(processor, plan, code, name),
        admitted=_by_split(admitted),
        late={source: _by_split(places) for source, places in (late or {}).items()},
        accepts=accepts or {},
        texts=texts or {},
        refused=None if refusals is None else refusals(),
        reach=[Reach(judge, unbounded=unbounded, told=late is not None) for judge in judges_of(plan)],
    )
    world.build(begin)
    chance = {} if begin is None else begin.chance
    places = dict.fromkeys((s.split for s in splits), (0, 0))
    done: list[EpochDone] = []
    kept: KeptRun | None = None

    def by_now() -> dict[VertexId, str]:
        return by_chance(plan, processor, len(splits), world.chains, world.paced_late(), chance, world.highest_ms())

    before, is_still = None, False
    for epoch, stands in epochs:
        at = stands, (noted or {}).get(epoch, Noted())
        world.begin(epoch, at[1])
        if at != before or not is_still:  # a silent processor has tens of thousands of equal barriers a day
            had = world.watermarks()
            _up_to(world, [split for split in splits if split.split in stands], places, stands, passed)
            is_still = at == before and had == world.watermarks() and not any(world.done.outputs.values())
        before = at
        done.append(world.done)
        if epoch == keep:
            kept = world.keep(begin, by_now())
    return Recomputed(done, by_now(), plan, world.paced(begin), kept, world.beyond)


def _up_to(
    world: _World,
    splits: Sequence[SplitRecords],
    places: dict[SplitId, tuple[int, int]],
    stands: Mapping[SplitId, Stand],
    passed: Sequence[Mapping[SplitId, int]],
) -> None:
    """One epoch, up to where these splits stood at its barrier."""
    before = world.counters()
    for vertex, reading in world.sources.items():
        known = {s.split: KnownSplit(s.ordinal, "", FIRST_OFFSET) for s in splits if s.source == vertex}
        reading.input.listed(known)  # not before: an earlier listing would hold the output back (W2)
        new = reading.front.assign({split: each.ordinal for split, each in known.items()})
        reading.input.judged(reading.front.watermarks(new), 0)  # one may stand before the first row (SF5)
    for together in passed:
        for split in splits:
            if split.split in together:
                until = min(together[split.split], stands[split.split].next)
                _read(world, split, places, replace(stands[split.split], next=until))
        world.flush()
    for split in splits:
        stand, reading = stands[split.split], world.sources[split.source]
        _read(world, split, places, stand)
        if moved := reading.front.stand_at({split.split: stand.next}):
            reading.input.judged(reading.front.watermarks(moved), 0)
        reading.input.become([split.split], stand.status)
    world.settle()
    _reached(world, splits, stands)
    counters = world.counters()
    world.done.records = counters["read"] - before["read"]
    world.done.duplicates = counters["duplicates"] - before["duplicates"]


def _reached(world: _World, splits: Sequence[SplitRecords], stands: Mapping[SplitId, Stand]) -> None:
    """Each judge hears of the splits of its sources, behind a barrier."""
    at = {}
    for split in splits:
        stand, watermarks = stands[split.split], world.sources[split.source].front.watermarks({split.split})
        at[split.split] = SplitReach(split.source, watermarks[split.split], stand.idled, stand.status == "finished")
    waits = any(stand.waits for stand in stands.values())
    for reach in world.reach:
        vertex, noted_ms = reach.judge.vertex, reach.next_ms
        reach.at_barrier(at, MIN_TIME if waits else world.reached_ms[vertex])
        if reach.beyond_ms is not None and not world.beyond:
            world.beyond = (
                f"epoch {world.done.epoch}: {vertex} is said to have been at watermark {noted_ms} ms; the records in front of its barrier"
                f" allow {reach.beyond_ms} ms at most"
            )


def _read(world: _World, split: SplitRecords, places: dict[SplitId, tuple[int, int]], stand: Stand) -> None:
    """The records of a split in front of where it stood that have not been read yet."""
    at, begin = places[split.split]
    for batch in split.batches[at:]:
        stop = int(np.searchsorted(batch.positions, stand.next))
        if begin < stop:
            world.read(split.source, batch.rows(begin, stop), idled=stand.idled)
        places[split.split] = at, max(begin, stop)
        if stop < len(batch.positions):
            return
        at, begin = at + 1, 0
        places[split.split] = at, begin
