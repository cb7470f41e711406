"""The workers, the tasks that they host, and the placement of tasks (R1, R2).

A slot is room for the tasks of one processor. Those workers come first that host the fewest processors, then by their places. The tasks
of one vertex go to distinct workers where there are several. If no worker has room, a new one is wished for; a worker that hosts nothing
is to retire.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.shared.model.ids import Place, ProcessorName, TaskId, WorkerIncarnation
from tidemark.shared.model.messages import Heartbeat, Register, WorkerUnwanted, WorkerWanted
from tidemark.shared.protocol.coordinator.commands import CoordinatorCommand, Publish
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

_DIGITS = re.compile(r"(\d+)")
_WISHES = 2
"""A wish that is not made again for so many times its wait is none any more."""


@dataclass(slots=True)
class RegisteredWorker:
    """A process that offers slots."""

    incarnation: WorkerIncarnation
    place: Place
    service: str
    slots: int
    seen_ms: int
    """When it was last known to live: by its own word, or by the starter of its process."""
    worked_ms: int
    """When it last spoke itself."""
    hosting: set[ProcessorName] = field(default_factory=set)
    empty_since_ms: int = 0
    retired_ms: int | None = None
    """When it was wished away."""


@dataclass(frozen=True, slots=True)
class Need:
    """A task that wants a worker of a service."""

    task: TaskId
    service: str


@dataclass(slots=True)
class Workers:
    """All workers that are alive, as far as their reports tell."""

    settings: CoordinatorSettings
    alive: dict[WorkerIncarnation, RegisteredWorker] = field(default_factory=dict)
    replaced: OrderedDict[WorkerIncarnation, None] = field(default_factory=OrderedDict)
    """Gone for good, or their place has a newer incarnation: nothing that they say counts (R1)."""
    wished: dict[str, int] = field(default_factory=dict)
    """When a worker of a service was last wished for."""
    settle_until_ms: int = 0
    """Before that, workers may be there that have not spoken yet."""

    def reset(self, now_ms: int) -> None:
        """Begin a new term: every worker that lives will report."""
        self.alive.clear()
        self.wished.clear()
        self.settle_until_ms = now_ms + self.settings.adopt_wait_ms

    def register(self, r: Register, now_ms: int) -> WorkerIncarnation | None:
        """A process has started; returns the incarnation that it replaces at its place (R1)."""
        if r.worker in self.replaced:
            return None
        older = self._at(r.place)
        lost = None
        if older is not None and older.incarnation != r.worker:
            lost = older.incarnation
            self.leave(lost)
        if self._has_room(r.worker):
            self._see(r, now_ms)
        return lost

    def beat(self, h: Heartbeat, now_ms: int) -> bool:
        """A worker lives. False: it does not count.

        An incarnation that was never seen waits until the one known at its place is lost: only `Register` says which is newer.
        """
        if h.worker in self.replaced:
            return False
        holder = self._at(h.place)
        if (holder is not None and holder.incarnation != h.worker) or not self._has_room(h.worker):
            return False
        self._see(h, now_ms)
        return True

    def vouch(self, workers: Iterable[WorkerIncarnation], now_ms: int) -> None:
        """The starter of their processes sees that they run."""
        for incarnation in workers:
            if (worker := self.alive.get(incarnation)) is not None:
                worker.seen_ms = now_ms

    def leave(self, worker: WorkerIncarnation) -> bool:
        """It is gone for good: nothing that it still says counts. False if it was not known."""
        self.replaced[worker] = None
        while len(self.replaced) > self.settings.replaced_max:
            self.replaced.popitem(last=False)
        return self.alive.pop(worker, None) is not None

    def lost(self, read_to_ms: int) -> list[WorkerIncarnation]:
        """Remove and return those of which nobody speaks any more, or that do not themselves (R1). All said before this has been read."""
        settings = self.settings
        gone = [
            w.incarnation
            for w in self.alive.values()
            if read_to_ms - w.seen_ms > settings.heartbeat_timeout_ms
            or read_to_ms - w.worked_ms > settings.work_timeout_ms
        ]
        for incarnation in gone:
            del self.alive[incarnation]
        return gone

    def excuse(self, held_up_ms: int) -> None:
        """The coordinator itself stood still for so long: that is not the workers' silence."""
        for w in self.alive.values():
            w.seen_ms += held_up_ms
            w.worked_ms += held_up_ms

    def place(
        self, name: ProcessorName, needs: Iterable[Need], now_ms: int
    ) -> dict[TaskId, WorkerIncarnation] | tuple[str, ...]:
        """A worker for every task, or the services that have no room. Nothing is taken yet: see `occupy`."""
        chosen: dict[TaskId, WorkerIncarnation] = {}
        by_vertex: dict[tuple[str, str], list[TaskId]] = {}
        lacking: set[str] = set()
        for need in needs:
            by_vertex.setdefault((need.service, need.task.vertex), []).append(need.task)
        for (service, _), tasks in by_vertex.items():
            room = [
                w
                for w in self._of(service)
                if name in w.hosting or (len(w.hosting) < w.slots and not self._retiring(w, now_ms))
            ]
            if not room:
                lacking.add(service)
                continue
            room.sort(key=lambda w: len(w.hosting))
            for i, task in enumerate(sorted(tasks)):
                chosen[task] = room[i % len(room)].incarnation
        return tuple(sorted(lacking)) or chosen

    def occupy(self, name: ProcessorName, workers: Iterable[WorkerIncarnation]) -> None:
        """The processor's tasks are on these workers; gone ones are passed over."""
        for incarnation in set(workers):
            if (worker := self.alive.get(incarnation)) is not None:
                worker.hosting.add(name)

    def vacate(self, name: ProcessorName, now_ms: int) -> None:
        """The processor has no tasks any more."""
        for worker in self.alive.values():
            if name in worker.hosting:
                worker.hosting.discard(name)
                worker.empty_since_ms = now_ms

    def wish(self, service: str, now_ms: int) -> list[CoordinatorCommand]:
        """Ask for a worker of a service, unless one has been asked for lately or some may still be silent."""
        since = self.wished.get(service)
        waiting = since is not None and now_ms - since < self.settings.spawn_wait_ms
        if waiting or now_ms < self.settle_until_ms:
            return []
        self.wished[service] = now_ms
        return [Publish(WorkerWanted(service, tuple(worker.place for worker in self._of(service))))]

    def retire(self, now_ms: int) -> list[CoordinatorCommand]:
        """Wish away workers that have hosted nothing for long, the last places first, never below `workers_min` of a service.

        None while another is being wished for: a processor may wait for several, and take those that came first when the last is there.
        """
        out: list[CoordinatorCommand] = []
        wishing = any(now_ms - since < self.settings.spawn_wait_ms for since in self.wished.values())
        if not self.settings.retires_workers or now_ms < self.settle_until_ms or wishing:
            return out
        for service in sorted({w.service for w in self.alive.values()}):
            staying = [w for w in self._of(service) if not self._retiring(w, now_ms)]
            surplus = len(staying) - self.settings.workers_min
            empty = [w for w in reversed(staying) if not w.hosting]
            for worker in empty[: max(surplus, 0)]:
                if now_ms - worker.empty_since_ms < self.settings.retire_idle_ms:
                    break
                worker.retired_ms = now_ms
                out.append(Publish(WorkerUnwanted(worker.place, worker.incarnation)))
        return out

    def wanted(self, now_ms: int) -> dict[str, int]:
        """How many workers each service should have, for a supervisor that starts processes by number and ends the last places first.

        One more than there are while one is wished for; else up to the last that hosts something or has not been empty for long. None are
        told while some may still be silent: who heard 0 would end them.
        """
        counts: dict[str, int] = {}
        if now_ms < self.settle_until_ms:
            return counts
        for service in sorted({w.service for w in self.alive.values()} | self.wished.keys()):
            there = self._of(service)
            idle_ms = self.settings.retire_idle_ms
            kept = [i for i, w in enumerate(there, 1) if w.hosting or now_ms - w.empty_since_ms < idle_ms]
            least = max(self.settings.workers_min, *kept, 0)
            wishing = now_ms - self.wished.get(service, now_ms - _WISHES * self.settings.spawn_wait_ms)
            counts[service] = max(least, len(there) + 1) if wishing < _WISHES * self.settings.spawn_wait_ms else least
        return counts

    def _retiring(self, worker: RegisteredWorker, now_ms: int) -> bool:
        """It has been wished away lately; if it is still there after long, nobody heard the wish."""
        return worker.retired_ms is not None and now_ms - worker.retired_ms < self.settings.spawn_wait_ms

    def _of(self, service: str) -> list[RegisteredWorker]:
        return sorted((w for w in self.alive.values() if w.service == service), key=lambda w: _order(w.place))

    def _at(self, place: Place) -> RegisteredWorker | None:
        return next((w for w in self.alive.values() if w.place == place), None)

    def _has_room(self, worker: WorkerIncarnation) -> bool:
        return worker in self.alive or len(self.alive) < self.settings.workers_max

    def _see(self, said: Register | Heartbeat, now_ms: int) -> None:
        worker = self.alive.get(said.worker)
        if worker is None:
            self.alive[said.worker] = RegisteredWorker(
                said.worker, said.place, said.service, said.slots, now_ms, now_ms, empty_since_ms=now_ms
            )
            self.wished.pop(said.service, None)
        else:
            worker.seen_ms = worker.worked_ms = now_ms
            worker.slots = said.slots


def _order(place: Place) -> tuple[tuple[int, int, str], ...]:
    """`operator-2` before `operator-10`."""
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in _DIGITS.split(place) if p)
