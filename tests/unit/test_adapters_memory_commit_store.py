"""The store in memory under faults: leaders come and go, answers are lost, and commits stay one line (C8)."""

import contextlib

import pytest
from msgspec.structs import replace

from tidemark.shared.adapters.faults import Fault, FaultRates, Faults
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import CommitRow
from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, ProcessorName
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.ports.commits import Ambiguous, Stale, StoreUnavailable

JOB = JobId("a" * 32)
LEASE_MS = 3_000
ROUGH = FaultRates(refused=0.05, lost_answer=0.1, turns_max=5, slow=0.3, slow_ms_max=800)


class Coordinator:
    """Leads when it can, and commits checkpoints numbered by their attempt, so that no number is used twice (C1)."""

    def __init__(self, name: str, store: MemoryCommitStore, world: VirtualWorld, numbers: list[int]) -> None:
        self._name = name
        self._store = store
        self._world = world
        self._numbers = numbers
        self.acknowledged: list[int] = []

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            # Each of these ends the round: the next begins by taking leadership anew, then reading (C8).
            with contextlib.suppress(Ambiguous, Stale, StoreUnavailable):
                await self._lead_and_commit()
            await self._world.clock.sleep_ms(self._world.chooser.randrange(LEASE_MS))

    async def _lead_and_commit(self) -> None:
        token = await self._store.lead(self._name, LEASE_MS, self._world.clock.now_ms())
        if token is None:
            return
        for _ in range(self._world.chooser.randint(1, 6)):
            (row,) = await self._store.processors()
            row = replace(row, leader=token)
            self._numbers[0] += 1
            epoch = Epoch(self._numbers[0])
            await self._store.commit(
                Expected(row.name, token, row.generation, row.last),
                replace(row, last=epoch),
                CommitRow(JOB, epoch, row.last, row.generation, ()),
            )
            self.acknowledged.append(epoch)
            await self._world.clock.sleep_ms(self._world.chooser.randrange(LEASE_MS))


def _simulate(seed: int) -> tuple[list[tuple[int, int]], list[int], int, Faults]:
    """(predecessor, epoch) of all commits, what was acknowledged, the row's last, and the faults met."""

    async def main(world: VirtualWorld) -> tuple[list[tuple[int, int]], list[int], int, Faults]:
        state = MemoryCommitState()
        faults = Faults(world.chooser, ROUGH)
        row = ProcessorRow(
            name=ProcessorName("p"),
            job=JOB,
            leader=LeaderToken(0),
            generation=Generation(1),
            last=Epoch(0),
            reserved=Epoch(0),
            desired="running",
            state="RUNNING",
            reason="",
            failures=0,
            plan_version=1,
            plan=b"",
            parallelism={},
        )
        await MemoryCommitStore(state).create(row)
        numbers = [0]
        people = [Coordinator(name, MemoryCommitStore(state, faults), world, numbers) for name in ("a", "b", "c")]
        handles = [world.executor.spawn(c.run(15), str(i), lambda _: None) for i, c in enumerate(people)]
        for handle in handles:
            await handle.join()
        faults.calm()
        await world.clock.sleep_ms(10_000)
        kept = await MemoryCommitStore(state).commits(JOB, Epoch(0))
        acknowledged = sorted(epoch for c in people for epoch in c.acknowledged)
        return [(c.predecessor, c.epoch) for c in kept], acknowledged, state.rows[row.name].last, faults

    return run_virtual(main, seed=seed, shuffle=True)


def test_commits_stay_one_line_under_any_faults() -> None:
    """Each commit's predecessor is the one before; what was acknowledged is there; the row names the last."""
    ambiguous = 0
    for seed in range(40):
        line, acknowledged, last, faults = _simulate(seed)
        epochs = [epoch for _, epoch in line]
        assert [predecessor for predecessor, _ in line] == [0, *epochs[:-1]]
        assert set(acknowledged) <= set(epochs)
        assert last == epochs[-1]
        ambiguous += len(epochs) - len(acknowledged)
        assert faults.drawn["store.write", Fault.LOST_ANSWER]
    assert ambiguous > 20, "faults must leave commits that are there but were not acknowledged"


def test_a_seed_repeats_its_leaders() -> None:
    """The same seed gives the same commits."""
    assert [_simulate(seed)[:3] for seed in range(4)] == [_simulate(seed)[:3] for seed in range(4)]


@pytest.mark.parametrize("rates", [{"refused": 2.0}, {"refused": 0.6, "lost_answer": 0.6}, {"slow": -1.0}])
def test_rates_are_chances(rates: dict[str, float]) -> None:
    """Rates that are no chances are refused."""
    with pytest.raises(ValueError, match="fault rates"):
        FaultRates(**rates)  # type: ignore[arg-type]
