"""The job's knowledge of its sources' splits: which exist, where each begins, where each ends (I1, I3, E1).

Reports of tasks lie in `GenerationRun` as facts. A write of the row makes them true (C8); only then are tasks told, and only then
do they read.
"""

from collections.abc import Iterable, Iterator

from msgspec import msgpack, structs

from tidemark.shared.model.checkpoint import CommitRow, KnownSplit, SplitStand
from tidemark.shared.model.formats import SPLIT_STANDS, Codec
from tidemark.shared.model.ids import SplitId, TaskId, VertexId
from tidemark.shared.model.messages import Drain, ReadSplits, TellEnds
from tidemark.shared.protocol.coordinator.state import Doom, GenerationRun, Learned, Phase, ProcessorState

SOURCE = "source"
_NAMED_MAX = 20
"""Splits that a refusal names."""
FINISHED = "finished"
"""The mark in a `SplitStand` of a split that is read to its end."""
_stands: Codec[tuple[SplitStand, ...]] = Codec(SPLIT_STANDS, tuple[SplitStand, ...])
_size = msgpack.Encoder().encode

Splits = dict[SplitId, KnownSplit]


def sources_of(run: GenerationRun) -> list[TaskId]:
    """The source tasks of a generation."""
    return sorted(task for task, work in run.tasks.items() if work.service == SOURCE)


def unlisted(p: ProcessorState, run: GenerationRun) -> list[VertexId]:
    """Sources whose splits the row does not list yet: none of them may be read (I1)."""
    return sorted({task.vertex for task in sources_of(run)} - p.kept.splits.keys())


def own_splits(p: ProcessorState, task: TaskId) -> Splits:
    """The splits that are a task's: by their ordinals."""
    tasks = p.plan.tasks[task.vertex]
    return {s: k for s, k in p.kept.splits.get(task.vertex, {}).items() if k.ordinal % tasks == task.index}


def write_what_is_told(p: ProcessorState) -> bool:
    """Decide on the reports of source tasks; True if one has to be written first, or ends the generation."""
    if p.phase in (Phase.RESTORING, Phase.RUNNING):
        _learn(p)
    if p.phase is Phase.RUNNING and p.write is None:
        _end_input(p)
    return p.write is not None or p.doom is not None


def _learn(p: ProcessorState) -> None:
    """Write the splits that tasks have found; tell the tasks to read those that are written.

    If a source was never looked at, the row takes the splits of all its tasks at once. If some were missing, the next generation would
    take them for new ones, which begin with their first record.
    """
    run = p.run
    assert run is not None
    if p.kept.ended or run.ends_asked:  # splits that come now are not part of the input, or are reported with the ends
        run.found.clear()
    missing = {v for v in unlisted(p, run) if any(t.vertex == v and t not in run.found for t in sources_of(run))}
    ready = [task for task in sorted(run.found) if task.vertex not in missing]
    if not ready:
        return None
    known = dict(p.kept.splits)
    for task in ready:
        found = run.found[task]
        before = {s: k for s, k in known.get(task.vertex, {}).items() if s not in found.gone}
        known[task.vertex] = {**found.splits, **before}
    if known != p.kept.splits:
        return _write(p, known, ended=False)
    for task in ready:
        # A task without splits is told, too: the splits that it finds from then on are new. And those that another has found for it.
        told, own = run.found.pop(task).splits.keys(), own_splits(p, task)
        splits = {split: own[split] for split in told} if told and told <= own.keys() else own
        p.tell(ReadSplits(p.row.job, p.row.generation, task.vertex, task.index, splits))
    return None


def _end_input(p: ProcessorState) -> None:
    """A drain: ask where splits end, write it once for all generations, then tell (I3)."""
    run = p.run
    assert run is not None
    if p.kept.drain is None or run.ends_told:
        return None
    sources = sources_of(run)
    if p.kept.ended:
        run.ends_told = True
        for task in sources:
            p.tell(Drain(p.row.job, p.row.generation, task.vertex, task.index, own_splits(p, task)))
        return None
    if not run.ends_asked:
        run.ends_asked = True
        p.tell(TellEnds(p.row.job, p.row.generation, p.kept.drain))
    if any(task not in run.ends for task in sources):
        return None
    known = dict(p.kept.splits)
    for vertex in {task.vertex for task in sources}:
        told = {s: k for task in sources if task.vertex == vertex for s, k in run.ends[task].items()}
        # A split that the row lists begins where the row says; one that no task has is gone, and none can end it.
        known[vertex] = {s: _ended(p.kept.splits[vertex].get(s, k), k) for s, k in sorted(told.items())}
    return _write(p, known, ended=True)


def _ended(known: KnownSplit, told: KnownSplit) -> KnownSplit:
    return structs.replace(known, end=told.end)


def _write(p: ProcessorState, known: dict[VertexId, Splits], *, ended: bool) -> None:
    for vertex, tasks in p.plan.tasks.items():
        shares: dict[int, Splits] = {}
        for split, each in known.get(vertex, {}).items():
            shares.setdefault(each.ordinal % tasks, {})[split] = each
        for index, share in shares.items():
            if (size := len(_size(share))) > p.settings.splits_bytes_max:
                p.doom = Doom(
                    f"{vertex}/{index}: its {len(share)} splits take {size} bytes of an assignment, at most {p.settings.splits_bytes_max}"
                    ", by message_bytes_max: run more source tasks, read fewer files (`ordered` ones are one split) or partitions, or"
                    " raise it and the brokers' bound",
                    permanent=True,
                )
                return
    p.change_row(structs.replace(p.next_kept(), splits=known, ended=ended), Learned(), p.row)


def unknown_splits(p: ProcessorState, named: Iterable[str]) -> str:
    """Why a user cannot name these: the row lists its splits and has others; "" if it may, or has none yet."""
    listed = sorted({split for splits in p.kept.splits.values() for split in splits})
    wrong = sorted(set(named) - set(listed))
    if not listed or not wrong:
        return ""
    return f"until: {p.name} reads no split named {', '.join(wrong)}; it reads {', '.join(listed[:_NAMED_MAX])}" + (
        f" and {len(listed) - _NAMED_MAX} more" if len(listed) > _NAMED_MAX else ""
    )


def short_of_end(p: ProcessorState, commit: CommitRow) -> str:
    """Which split a commit does not have at its end, and where it stands; "" where all are read to their ends (E1)."""
    return next(_short(p, commit), "")


def has_read_on(before: CommitRow | None, commit: CommitRow) -> bool:
    """Whether a split stands elsewhere than at the commit before, or has come to its end (C10)."""
    stood = {} if before is None else _stands_of(before)
    for key, stand in _stands_of(commit).items():
        old = stood.get(key)
        if stand.next != (stand.begin if old is None else old.next):
            return True
        if stand.status == FINISHED and (old is None or old.status != FINISHED):
            return True
    return False


def _stands_of(commit: CommitRow) -> dict[tuple[VertexId, SplitId], SplitStand]:
    found: dict[tuple[VertexId, SplitId], SplitStand] = {}
    for handle in commit.tasks:
        if handle.positions:
            found |= {(handle.vertex, stand.split): stand for stand in _stands.decode(handle.positions)}
    return found


def _short(p: ProcessorState, commit: CommitRow) -> Iterator[str]:
    stands = _stands_of(commit)
    for vertex, splits in p.kept.splits.items():
        for split, known in splits.items():
            stand = stands.get((vertex, split))
            if stand is None:
                yield f"{vertex}: nothing was read of split {split}"
            elif stand.status != FINISHED or (known.end is not None and stand.next < known.end):
                end = "its end" if known.end is None else known.end
                yield f"{vertex}: split {split} stands at {stand.next} ({stand.status}), not at {end}"
