"""Several task machines on one log, a coordinator that may do anything the protocol allows, and what must hold after every event.

`explore(seed)` runs one history and raises with its trace; `python -m tests.harness.task_world.world SEED` runs one alone.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.harness.task_world.actor import BYTES_ROW, Actor, Taken, size_of
from tests.harness.task_world.bodies import (
    AnyBody,
    Record,
    SinkBody,
    StepBody,
    restored_operator,
    restored_source,
)
from tests.harness.task_world.checks import Commit, check_end, check_prefix
from tests.harness.task_world.plan import OPERATOR, SINK, SOURCE, STEP, Layout, MemoryLog, Row
from tidemark.shared.model.checkpoint import LineageEntry, MirrorRow, TaskProtocolState
from tidemark.shared.model.frames import DataFrame
from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, Offset, TaskId, VertexId
from tidemark.shared.protocol.release import ReleaseMachine, ReleaseNow
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.start import TaskLimits, TaskStart, start_task

JOB = JobId("0" * 32)
SETTLE_ROUNDS_MAX = 4000
STILL_ROUNDS_MAX = 5


@dataclass
class Target:
    """What a release identity has made visible."""

    marker: Epoch
    rows: list[Row] = field(default_factory=list)


@dataclass
class Releaser:
    """A sink task's release side: reads the mirror, one release at a time."""

    machine: ReleaseMachine
    mirror_position: int
    now: ReleaseNow | None = None


class World:
    """One processor's life."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.lines: list[str] = []
        self.met: set[str] = set()
        """Reasons for which frames were dropped, in generations that have ended."""
        rng = self.rng
        self.script: Mapping[int, list[Record]] = {
            split: _records(rng, rng.choice([5, 30, 60])) for split in range(rng.randint(2, 4))
        }
        self.limits = TaskLimits(
            waiting_bytes_max=rng.choice([0, 20, 40, 100, 1000]),
            ahead_bytes_max=rng.choice([0, 30, 100]),
            uncommitted_bytes_max=rng.choice([50, 200, 1000]),
        )
        self.alignment_timeout_ms = rng.choice([None, 0, 0, 5])
        """Of operators (C13)."""
        self.fault_rate = rng.choice([0.0005, 0.001, 0.004])
        """How often a generation ends for no reason of its own."""
        self.log = MemoryLog()
        self.layout = Layout.first({SOURCE: 2, OPERATOR: 2, STEP: 1, SINK: 2})
        self.lineage: list[LineageEntry] = []
        self.commits: list[Commit] = []
        self.mirror: list[MirrorRow] = []
        self.actors: list[Actor] = []
        self.zombies: list[Actor] = []
        self.in_flight: tuple[Epoch, dict[TaskId, Taken]] | None = None
        self.numbers = 0
        self.wanted = False
        self.read_up_to: dict[tuple[Incarnation, int], Offset] = {}
        self.targets: dict[TaskId, Target] = {}
        self.releasers: dict[TaskId, Releaser] = {}
        self.new_generation(dict(self.layout.tasks))

    def note(self, line: str) -> None:
        self.lines.append(line)

    # --- the coordinator ---------------------------------------------------------------------------------------------------

    def last(self) -> Epoch:
        return self.commits[-1].epoch if self.commits else Epoch(0)

    def new_generation(self, tasks: dict[VertexId, int]) -> None:
        """R1: all tasks begin again from the last commit, perhaps in other numbers (R4)."""
        generation = Generation(len(self.lineage) + 1)
        self.note(f"generation {generation} from {self.last()}, {tasks}")
        for actor in self.actors:
            self.met.update(actor.machine.drops)
            if self.rng.random() < 0.6:
                self.zombies.append(actor)
        self.zombies = [z for z in self.zombies if not z.machine.stopped][-6:]
        self.in_flight = None
        self.numbers = (self.numbers // 10 + 1) * 10 if self.numbers else 0
        self.lineage.append(LineageEntry(generation, self.last(), 1))
        previous = self.commits[-1].layout if self.commits else self.layout
        self.layout = previous.rescaled(tasks, generation)
        self._take_over_identities()
        self.actors = [self._actor(task, generation) for task in self.layout.all_tasks()]
        for actor in self.actors:
            actor.start()

    def _actor(self, task: TaskId, generation: Generation) -> Actor:
        commit = self.commits[-1] if self.commits else None
        saved = {t.index: taken for t, taken in commit.tasks.items() if t.vertex == task.vertex} if commit else {}
        restored: dict[int, TaskProtocolState] = {i: taken.protocol for i, taken in saved.items()}
        start = TaskStart(
            task=task,
            tasks=self.layout.tasks[task.vertex],
            job=JOB,
            generation=generation,
            lineage=tuple(self.lineage),
            restored_from=self.last(),
            inputs=self.layout.inputs(task.vertex),
            outputs=self.layout.outputs(task.vertex),
            restored=restored,
            is_source=task.vertex == SOURCE,
            limits=self.limits,
            alignment_timeout_ms=self.alignment_timeout_ms if task.vertex == OPERATOR else None,
        )
        machine = start_task(start)
        machine.validate()
        body = self._body(task, [taken.body for _, taken in sorted(saved.items())])
        actor = Actor(
            task, generation, machine, body, self.layout, self.log, self.rng, self.note, self._acked, self._ask
        )
        if commit and self.layout.tasks[task.vertex] == len(saved):
            live = set(self.layout.incarnations.values())
            actor.applied = {k: n for k, n in saved[task.index].applied.items() if k[0] in live}
        return actor

    def _body(self, task: TaskId, states: list[AnyBody]) -> AnyBody:
        count = self.layout.tasks[task.vertex]
        match task.vertex:
            case "source":
                return restored_source(self.script, task.index, count, states)
            case "operator":
                return restored_operator(task.index, count, states)
            case "step":
                return StepBody()
            case _:
                return SinkBody()

    def start_checkpoint(self) -> None:
        if self.in_flight is not None:
            self.note(f"aborts {self.in_flight[0]}")
            self._tell(ev.CheckpointAborted(self.in_flight[0]), lost=0.3)
        self.numbers += 1
        epoch = Epoch(self.numbers)
        self.note(f"starts {epoch} after {self.last()}")
        self.in_flight = (epoch, {})
        self.wanted = False
        started = ev.CheckpointStarted(epoch, self.last(), aligned=self.rng.random() < 0.2)
        lost = self.rng.random() < 0.05
        for actor in self.actors:
            if not lost or self.rng.random() < 0.5:
                actor.mailbox.append(started)

    def abort(self) -> None:
        assert self.in_flight is not None
        self.note(f"aborts {self.in_flight[0]}")
        self._tell(ev.CheckpointAborted(self.in_flight[0]), lost=0.3)
        self.in_flight = None

    def _tell(self, event: ev.Event, lost: float = 0.0) -> None:
        for actor in self.actors:
            if self.rng.random() >= lost:
                actor.mailbox.append(event)

    def _acked(self, actor: Actor, epoch: Epoch, taken: Taken) -> None:
        if self.in_flight is None or actor not in self.actors or self.in_flight[0] != epoch:
            return
        acks = self.in_flight[1]
        assert actor.task not in acks, f"{actor.task} acknowledges {epoch} twice"
        self._check_acked(actor, epoch)
        acks[actor.task] = taken

    def _check_acked(self, actor: Actor, epoch: Epoch) -> None:
        """C7: the broker has everything up to the barrier."""
        for binding in self.layout.outputs(actor.task.vertex):
            for partition in range(binding.receivers):
                frames = self.log.partitions.get((binding.incarnation, partition), [])
                barriers = [
                    f
                    for f in frames
                    if f.header.sender == actor.task and f.header.epoch == epoch and type(f).__name__ == "BarrierFrame"
                ]
                assert barriers, (
                    f"{actor.task} acknowledges {epoch}, but its barrier is not on {binding.edge}/{partition} (C7)"
                )

    def _ask(self) -> None:
        self.wanted = True

    def complete(self) -> bool:
        return self.in_flight is not None and len(self.in_flight[1]) == len(self.actors)

    def commit(self) -> None:
        """C8; then the mirror, then hints."""
        assert self.in_flight is not None
        epoch, tasks = self.in_flight
        commit = Commit(epoch, self.last(), self.layout, tasks, self._rows_in_flight(epoch, tasks))
        how = "" if commit.aligned() else f", unaligned, {commit.in_flight} in flight"
        self.note(f"commits {epoch} after {commit.predecessor}{how}")
        self.commits.append(commit)
        self.mirror.append(MirrorRow(JOB, epoch, commit.predecessor, self.lineage[-1].generation, ()))
        self.in_flight = None
        check_prefix(self.commits, self.script)
        self._tell(ev.CheckpointCommitted(epoch), lost=0.3)

    def _rows_in_flight(self, epoch: Epoch, tasks: Mapping[TaskId, Taken]) -> int:
        """What the channels into operators still carry of a checkpoint: in the log, behind what the snapshot has taken (C13)."""
        rows = 0
        for task, taken in tasks.items():
            for state in taken.protocol.inputs if task.vertex == OPERATOR else ():
                frames = self.log.partitions.get((Incarnation(state.incarnation), task.index), [])
                lineage = next(a for a in self.actors if a.task == task).machine.receiver.lineage
                for channel in state.channels:
                    sender = TaskId(channel.sender_vertex, channel.sender_index)
                    found = {
                        f.header.seq: size_of(f) // BYTES_ROW
                        for f in frames
                        if f.header.sender == sender
                        and isinstance(f, DataFrame)
                        and channel.next_seq <= f.header.seq
                        and f.header.epoch <= epoch
                        and lineage.judge(f.header.generation, f.header.epoch).value == "counts"
                    }
                    rows += sum(found.values())
        return rows

    # --- sinks -------------------------------------------------------------------------------------------------------------

    def _take_over_identities(self) -> None:
        """S1: what is committed is released first; then identities come and go (S2)."""
        wanted = {t for t in self.layout.all_tasks() if t.vertex == SINK}
        for task, target in self.targets.items():
            if task in self.releasers:
                self.releasers[task] = Releaser(
                    ReleaseMachine(JOB, target.marker), self.rng.randint(0, self._before(target.marker))
                )
                while self._release_step(task):
                    pass
                assert target.marker == self.last(), (
                    f"{task} stands at {target.marker} after its take-over, not {self.last()}"
                )
        self.releasers = {t: r for t, r in self.releasers.items() if t in wanted}
        # Sorted: the order in which a set gives its elements differs from process to process, and with it all that is drawn after.
        for task in sorted(wanted - set(self.releasers)):
            target = self.targets.setdefault(task, Target(self.last()))
            target.marker = self.last()
            self.releasers[task] = Releaser(ReleaseMachine(JOB, target.marker), len(self.mirror))

    def _before(self, marker: Epoch) -> int:
        return sum(1 for row in self.mirror if row.epoch <= marker)

    def _release_step(self, task: TaskId) -> bool:
        """One row of the mirror, or one release."""
        releaser = self.releasers[task]
        if releaser.now is not None and (self.rng.random() < 0.5 or releaser.mirror_position >= len(self.mirror)):
            row = releaser.now.row
            self._release(task, row)
            releaser.now = releaser.machine.released(row.epoch)
            return True
        if releaser.mirror_position < len(self.mirror):
            row = self.mirror[releaser.mirror_position]
            releaser.mirror_position += 1
            told = releaser.machine.mirrored(row)
            assert told is None or releaser.now is None
            releaser.now = told or releaser.now
            if self.rng.random() < 0.2:
                releaser.mirror_position = max(0, releaser.mirror_position - self.rng.randint(1, 3))
            return True
        return False

    def _release(self, task: TaskId, row: MirrorRow) -> None:
        target = self.targets[task]
        assert row.epoch <= self.last(), f"{task} releases {row.epoch} before it is committed"
        assert row.predecessor == target.marker, f"{task} releases {row.epoch} after {target.marker} (S2)"
        commit = next(c for c in self.commits if c.epoch == row.epoch)
        target.rows += commit.staged(task)
        target.marker = row.epoch
        self.note(f"{task} releases {row.epoch}")

    # --- histories ------------------------------------------------------------------------------------------------------------

    def wander(self, steps: int) -> None:
        """Random events, faults among them."""
        for _ in range(steps):
            roll = self.rng.random()
            if roll < self.fault_rate:
                self._fault_generation()
            elif roll < self.fault_rate + 0.0005 or (self.in_flight is None and (roll < 0.03 or self.wanted)):
                self.start_checkpoint()
            elif self.in_flight is not None and roll < self.fault_rate + 0.0015:
                self.abort()
            elif self.complete() and roll < 0.05:
                self.commit()
                if self.rng.random() < 0.15:
                    self._fault_generation()
            elif roll < 0.10:
                self._release_step(self.rng.choice(sorted(self.releasers)))
            elif roll < 0.15:
                self.rng.choice(self.actors).tick(self.rng.randint(0, 4))
            elif roll < 0.152:
                self._tell(ev.InputHeld(self.rng.random() < 0.3))
            elif roll < 0.25:
                self._report_reads(self.rng.choice(self.actors))
            else:
                self._act_someone()

    def _fault_generation(self) -> None:
        tasks = dict((self.commits[-1].layout if self.commits else self.layout).tasks)
        if self.commits and self.rng.random() < 0.5 and self.commits[-1].aligned():
            tasks[self.rng.choice([SOURCE, OPERATOR, SINK])] = self.rng.randint(1, 3)
        self.new_generation(tasks)

    def _act_someone(self) -> None:
        for _ in range(4):
            pool = self.zombies if self.zombies and self.rng.random() < 0.15 else self.actors
            if self._act(self.rng.choice(pool)):
                return

    def _act(self, actor: Actor) -> bool:
        choices = actor.choices(faults=True)
        if choices:
            name, act = self.rng.choice(choices)
            self.note(f"g{actor.generation} {actor.task} {name}")
            act()
        return bool(choices)

    def _report_reads(self, sender: Actor) -> None:
        """F7: as receivers of this generation stand."""
        for binding in self.layout.outputs(sender.task.vertex):
            for receiver in self.actors:
                if binding.edge in receiver.positions:
                    sender.handle(ev.ReadUpTo(binding.edge, receiver.task.index, receiver.positions[binding.edge]))

    def settle(self) -> None:
        """No more faults: the input must end, be committed and be released."""
        self.note("settles")
        self._tell(ev.InputHeld(held=False))
        if self.in_flight is not None and not self.complete():
            self._tell(ev.CheckpointAborted(self.in_flight[0]))
            self.in_flight = None
        still = 0
        for number in range(SETTLE_ROUNDS_MAX):
            if self._settled():
                check_end([row for target in self.targets.values() for row in target.rows], self.script)
                return
            still = 0 if self._round() else still + 1
            if self.complete():
                self.commit()
            elif self.in_flight is None and (self.wanted or number % 20 == 0):
                self.start_checkpoint_surely()
            elif self.in_flight is not None:
                # One quiet round may only have waited for what it reported at its end.
                assert still < STILL_ROUNDS_MAX, f"stuck: {self._where()}"
        raise AssertionError(f"does not end: {self._where()}")

    def start_checkpoint_surely(self) -> None:
        self.numbers += 1
        epoch = Epoch(self.numbers)
        self.note(f"starts {epoch} after {self.last()}")
        self.in_flight, self.wanted = (epoch, {}), False
        self._tell(ev.CheckpointStarted(epoch, self.last()))

    def _round(self) -> bool:
        moved = False
        for actor in self.actors:
            for _ in range(5):
                choices = actor.choices(faults=False)
                if choices:
                    name, act = self.rng.choice(choices)
                    self.note(f"g{actor.generation} {actor.task} {name}")
                    act()
                    moved = True
            actor.tick(2)
            self._report_reads(actor)
        for task in sorted(self.releasers) * 4:
            moved |= self._release_step(task)
        return moved

    def _settled(self) -> bool:
        if not self.commits or len(self.commits[-1].tasks) != len(self.actors):
            return False
        ended = all(t.protocol.ended for t in self.commits[-1].tasks.values())
        return ended and all(self.targets[t].marker == self.last() for t in self.releasers)

    def _where(self) -> str:
        epoch, acks = self.in_flight or (None, {})
        missing = sorted(str(a.task) for a in self.actors if a.task not in acks)
        return f"checkpoint {epoch}, without {missing}, {self.last()} committed"


def _records(rng: Random, count: int) -> list[Record]:
    ts, records = 0, []
    for _ in range(count):
        ts += rng.randint(0, 4)
        records.append(Record(rng.randint(0, 2), rng.randint(1, 9), max(0, ts - rng.choice([0, 0, 1, 3, 8]))))
    return records


def explore(seed: int, steps: int = 4000, watch: Callable[[World], None] | None = None) -> World:
    """One history; AssertionError (or the protocol's own) with the seed and the trace's end."""
    world = World(seed)
    try:
        world.wander(steps)
        world.settle()
    except Exception as error:
        tail = "\n".join(world.lines[-60:])
        message = f"seed {seed} (alone: python -m tests.harness.task_world.world {seed} {steps}): {error}\n{tail}"
        raise AssertionError(message) from error
    if watch is not None:
        watch(world)
    return world


def _main(arguments: list[str]) -> None:
    seed, steps = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 4000
    world = World(seed)
    try:
        world.wander(steps)
        world.settle()
    finally:
        sys.stdout.write("\n".join(world.lines) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
