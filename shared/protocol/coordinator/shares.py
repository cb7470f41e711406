"""Bytes that each source of a namespace may take in a second, where its quota bounds them (E4).

Shares go by what sources took lately: who took little keeps little, and what they leave is others'. A share rises only by what is free: the
quota less all shares that count. Of a source counts the larger of what it was told and what it last said that it has, so all never have
more than the quota, however late a command comes. A new leader knows no share before the source's beat; it raises none before it knows all.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from tidemark.shared.model.ids import ProcessorName, TaskId, namespace_of
from tidemark.shared.model.messages import SHARE, TAKEN, ShareBytes
from tidemark.shared.protocol.coordinator.quotas import quota_of
from tidemark.shared.protocol.coordinator.splits import sources_of
from tidemark.shared.protocol.coordinator.state import HOSTED, Context, GenerationRun, Phase, ProcessorState, TakenBytes

K = TypeVar("K")
_GROWTH: Final = 2
"""A source may take so many times what it took lately, if the quota has it."""
_KEPT: Final = 4
"""A source that takes nothing keeps this part of an equal share, so that it can begin."""
_ALIKE: Final = 0.05
"""A share that differs less is not told anew, unless another has to rise by it, or all are more than the quota."""


def heard(run: GenerationRun, task: TaskId, counters: Mapping[str, int], now_ms: int) -> None:
    """A source task has told its bytes, and the share that it has."""
    run.shares_had[task] = counters.get(SHARE, 0)
    run.shares.setdefault(task, run.shares_had[task])
    total, before = counters.get(TAKEN, 0), run.taken.get(task)
    rate = 0.0
    if before is not None:
        if now_ms <= before.at_ms:
            return
        # A source takes in pieces: one interval without any does not halve it twice.
        rate = max((total - before.total) * 1_000 / (now_ms - before.at_ms), before.bytes_per_s / _GROWTH)
    run.taken[task] = TakenBytes(total, now_ms, rate)


def share_all(ctx: Context, now_ms: int) -> None:
    """Tell sources their shares, where they have changed; all namespaces in one go, for each is counted as a whole."""
    if now_ms - ctx.shared_ms < ctx.settings.shares_interval_ms:
        return
    ctx.shared_ms = now_ms
    by_namespace: dict[str, list[ProcessorState]] = {}
    for p in _hosted(ctx):
        by_namespace.setdefault(namespace_of(p.name), []).append(p)
    for namespace, there in by_namespace.items():
        _share(there, [p for p in there if p.phase is Phase.RUNNING], _most(ctx, namespace))


def share_first(p: ProcessorState) -> None:
    """Tell the sources of a processor, which are about to begin, their shares."""
    namespace = namespace_of(p.name)
    assert p.run is not None
    if (most := _most(p.ctx, namespace)) is not None:
        for task in sources_of(p.run):
            p.run.shares.setdefault(task, 0)  # it has not read yet
        _share([o for o in _hosted(p.ctx) if namespace_of(o.name) == namespace], [p], most)


def _hosted(ctx: Context) -> Iterable[ProcessorState]:
    return (p for p in ctx.states() if p.run is not None and p.phase in HOSTED)


def _most(ctx: Context, namespace: str) -> int | None:
    return quota_of(ctx.settings.quotas, namespace).bytes_per_s


def _share(there: Sequence[ProcessorState], told: Iterable[ProcessorState], most: int | None) -> None:
    """Tell these of the processors of one namespace."""
    fair = {} if most is None else divided(_wanted(there), most)
    counted = {p.name: _counted(p) for p in there}
    all_known = all(known for known, _ in counted.values())
    used = sum(size for _, size in counted.values())
    alike = 0.0 if most is not None and (used > most + len(fair) or _one_rises(there, fair)) else _ALIKE
    for p in told:
        assert p.run is not None
        mine, (known, own) = sources_of(p.run), counted[p.name]
        if not known:
            continue
        shares = dict.fromkeys(mine, 0)
        if most is not None:
            free = most - used + own if all_known else own
            total = sum(fair[p.name, task] for task in mine)
            part = 1.0 if total <= free else max(0.0, free / total)
            shares = {task: max(1, int(fair[p.name, task] * part)) for task in mine}
        if any(abs(p.run.shares.get(task, 0) - found) > alike * found for task, found in shares.items()):
            p.run.shares.update(shares)
            p.tell(
                ShareBytes(
                    p.row.job, p.row.generation, tuple((t.vertex, t.index, n) for t, n in sorted(shares.items()))
                )
            )
            used += _counted(p)[1] - own


def _one_rises(there: Iterable[ProcessorState], fair: Mapping[tuple[ProcessorName, TaskId], float]) -> bool:
    shares = {(p.name, task): size for p in there if p.run is not None for task, size in p.run.shares.items()}
    return any(shares.get(key, 0) < (1 - _ALIKE) * each for key, each in fair.items())


def _wanted(there: Iterable[ProcessorState]) -> dict[tuple[ProcessorName, TaskId], float]:
    found = {}
    for p in there:
        assert p.run is not None
        for task in sources_of(p.run):
            took = p.run.taken.get(task)
            found[p.name, task] = 0.0 if took is None else _GROWTH * took.bytes_per_s
    return found


def _counted(p: ProcessorState) -> tuple[bool, int]:
    """Whether the shares of all sources that may be reading are known; and what may be taken by them in a second, as far as it is."""
    assert p.run is not None
    shares, had, mine = p.run.shares, p.run.shares_had, sources_of(p.run)
    known = p.phase not in (Phase.ADOPTING, Phase.RUNNING) or all(task in shares for task in mine)
    return known, sum(max(shares.get(task, 0), had.get(task, 0)) for task in mine)


def divided(wanted: Mapping[K, float], most: int) -> dict[K, float]:
    """All of `most`: to each what it wants, if that is no more than the others' equal part of the rest; then what is left, equally."""
    least = most / (_KEPT * max(1, len(wanted)))
    left, found = float(most), {}
    for place, key in enumerate(sorted(wanted, key=lambda each: wanted[each])):
        found[key] = min(max(wanted[key], least), left / (len(wanted) - place))
        left -= found[key]
    return {key: each + left / len(wanted) for key, each in found.items()}
