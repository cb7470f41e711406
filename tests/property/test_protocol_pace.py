# ruff: noqa: N802 -- a test carries its rule's name
"""F9 in a closed loop: a source with more than enough, what follows it, and a coordinator that tells the times, on virtual time.

What follows takes a fixed time for an epoch and a time for each row, behind the barrier (a step, a commit) and at the release; both change
while it goes on, by up to a hundred times. One epoch is under way while the next is being read, as with real tasks.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.protocol.coordinator.pace import EpochTimes, first_rows
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.task.pace import Pace

TARGET_MS, INTERVAL_MS, TIMEOUT_MS, FIRST_ROWS = 5_000, 1_000, 60_000, 10_000
READ_ROWS_PER_MS = 1_500
UNRELEASED_MAX = 8
STEP_MS = 20
ABORTS_MAX = 3


@dataclass(frozen=True)
class Speed:
    """How long an epoch of n rows takes until its commit, and its release: fixed + n · each, ms."""

    fixed_ms: float = 100.0
    each_ms: float = 0.001
    release_fixed_ms: float = 20.0
    release_each_ms: float = 0.0


@dataclass
class Loop:
    """Time goes on in steps of STEP_MS; speeds hold for epochs that begin while they do."""

    source_rows_per_ms: float = READ_ROWS_PER_MS
    now_ms: int = 0
    pace: Pace = field(default_factory=Pace)
    times: EpochTimes = field(default_factory=EpochTimes)
    epoch: int = 0
    wanted: bool = False
    started_ms: int = 0
    flight: tuple[Epoch, int, int] | None = None
    """Epoch, rows, when it will be committed."""
    left_ms: float = 0.0
    """Work of aborted epochs that goes on behind the next barrier."""
    releases: list[tuple[Epoch, int]] = field(default_factory=list)
    releasing_until_ms: float = 0.0
    took: list[tuple[int, int]] = field(default_factory=list)
    """Rows, and time until the commit, of each epoch."""
    rows: int = 0
    aborted: int = 0
    aborts: int = 0
    """In a row."""
    failures: int = 0
    """Generations in a row without a commit."""
    read: float = 0.0

    def run(self, speed: Speed, until_ms: int) -> None:
        """Go on with this speed."""
        self.pace.begin(TARGET_MS, FIRST_ROWS)
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            self.pace.now_ms = self.now_ms
            self._read()
            self._release(speed)
            self._land(speed)
            self._start(speed)

    def oldest(self) -> Epoch:
        """Of those that are under way, or wait for their release; the next one where there is none."""
        under_way = [self.flight[0]] if self.flight is not None else []
        return min([*under_way, *(epoch for epoch, _ in self.releases)], default=Epoch(self.epoch + 1))

    def _read(self) -> None:
        self.read = min(self.read + self.source_rows_per_ms * STEP_MS, 4_000_000)
        if not self.pace.full():
            taken = min(int(self.read), self.pace.room_rows())
            self.read -= taken
            self.pace.produced(taken, taken, 0)
        self.wanted = self.wanted or self.pace.full()

    def _release(self, speed: Speed) -> None:
        while self.releases and self.now_ms >= self.releasing_until_ms:
            self.releases.pop(0)
            self.times.look([epoch for epoch, _ in self.releases], self.now_ms)
            if self.releases:
                self._begin_release(speed)

    def _begin_release(self, speed: Speed) -> None:
        self.releasing_until_ms = self.now_ms + speed.release_fixed_ms + speed.release_each_ms * self.releases[0][1]

    def _land(self, speed: Speed) -> None:
        if self.flight is None:
            return
        epoch, rows, done_ms = self.flight
        if self.now_ms >= done_ms:
            self.flight = None
            self.left_ms = 0.0
            self.pace.committed(epoch)
            self.times.committed(epoch, self.now_ms - self.started_ms, self.now_ms)
            self.took.append((rows, self.now_ms - self.started_ms))
            self.rows += rows
            self.aborts = self.failures = 0
            self.releases.append((epoch, rows))
            if len(self.releases) == 1:
                self._begin_release(speed)
        elif self.now_ms - self.started_ms > TIMEOUT_MS:
            self.flight = None
            self.left_ms = done_ms - self.now_ms
            self.pace.aborted(epoch)
            self.aborted += 1
            self.aborts += 1
            if self.aborts == ABORTS_MAX:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """The next generation reads from the last commit."""
        self.failures += 1
        assert self.failures < CoordinatorSettings().failures_max
        self.read += self.pace.sent_rows
        self.aborts, self.left_ms, self.wanted = 0, 0.0, False
        self.pace, self.times = Pace(now_ms=self.now_ms), EpochTimes()
        self.pace.begin(TARGET_MS, first_rows(CoordinatorSettings(), self.failures, operators=False))

    def _start(self, speed: Speed) -> None:
        due = self.wanted or self.now_ms - self.started_ms >= INTERVAL_MS
        if self.flight is not None or not due or len(self.releases) > UNRELEASED_MAX:
            return
        self.wanted = False
        self.started_ms = self.now_ms
        self.epoch += 1
        self.pace.took(*self.times.told(TARGET_MS, self.now_ms))
        rows = self.pace.sent_rows
        self.pace.barrier(Epoch(self.epoch))
        work_ms = speed.fixed_ms + speed.each_ms * rows if not self.left_ms else self.left_ms + speed.fixed_ms
        self.flight = Epoch(self.epoch), rows, int(self.now_ms + work_ms)
        self.pace.validate("source")


def settled(speed: Speed, ms: int = 600_000) -> Loop:
    """A loop that has had time to settle at this speed; what it measured is that of the time since."""
    loop = Loop()
    loop.run(speed, ms)
    loop.took.clear()
    loop.rows = loop.aborted = 0
    loop.run(speed, 2 * ms)
    return loop


SPEEDS = {
    "an efficient step": Speed(),
    "a slow step": Speed(each_ms=0.1),
    "a very slow step": Speed(each_ms=5.0),
    "a slow release": Speed(release_each_ms=0.1),
    "an expensive epoch": Speed(fixed_ms=8_000.0, each_ms=0.01),
    "an expensive release": Speed(release_fixed_ms=8_000.0, release_each_ms=0.01),
}


@pytest.mark.parametrize("name", SPEEDS)
def test_F9_an_epoch_keeps_to_its_target_and_what_follows_has_work(name: str) -> None:
    """Epochs behind a backlog take about the target, or twice their fixed cost, and go at no less than two thirds of what is possible."""
    speed = SPEEDS[name]
    loop = settled(speed)
    fixed_ms = speed.fixed_ms + speed.release_fixed_ms
    longest_ms = max(ms + speed.release_fixed_ms + speed.release_each_ms * rows for rows, ms in loop.took)
    assert longest_ms <= 1.5 * max(TARGET_MS, 2 * fixed_ms) + INTERVAL_MS
    spare_ms = max(TARGET_MS - fixed_ms, fixed_ms)
    possible = min(READ_ROWS_PER_MS, spare_ms / max(speed.each_ms, speed.release_each_ms) / (spare_ms + fixed_ms))
    assert loop.rows / 600_000 >= 0.66 * possible
    assert loop.aborted == 0


def test_F9_a_backlog_before_an_efficient_step_is_read_as_fast_as_without_a_bound() -> None:
    """Four million rows before a step of a microsecond a row take no second longer than with the first epochs unbounded."""
    bounded, free = Loop(), Loop()
    free.pace.begin(TARGET_MS, 10**12)
    for loop in (bounded, free):
        while loop.rows < 4_000_000:
            loop.run(Speed(), loop.now_ms + STEP_MS)
    assert bounded.now_ms <= free.now_ms + 1_000


@pytest.mark.parametrize("slower", [10, 100])
def test_F9_what_becomes_slower_is_given_less(slower: int) -> None:
    """A step that becomes slower by so many times under a backlog: after two epochs the next keep to the target again."""
    loop = Loop()
    loop.run(Speed(each_ms=0.01), 120_000)
    loop.took.clear()
    loop.run(Speed(each_ms=0.01 * slower), 3_600_000)
    assert all(ms <= 2 * TARGET_MS for _, ms in loop.took[4:])
    assert loop.took[4:]


def test_F9_an_outage_is_forgotten() -> None:
    """A release that waited for ten minutes costs no more than some epochs: a minute later it goes at full speed."""
    loop = Loop()
    loop.run(Speed(), 60_000)
    loop.run(Speed(release_fixed_ms=600_000.0), 61_000)
    loop.run(Speed(), 720_000)
    loop.rows = 0
    loop.run(Speed(), 730_000)
    assert loop.rows >= 5_000_000


def test_F9_where_nothing_can_keep_up_something_goes_on() -> None:
    """A row that takes ten seconds: epochs go on, and are not aborted again and again."""
    loop = Loop()
    loop.pace.begin(TARGET_MS, 1)
    loop.run(Speed(each_ms=10_000.0), 600_000)
    assert loop.rows >= 20
    assert loop.aborted == 0


@pytest.mark.parametrize("seed", [*range(16), 105, 148, 290, 311])
def test_F9_no_speeds_stop_it(seed: int) -> None:
    """Whatever speeds follow one another, rows go on being committed, and at the end epochs keep to the target."""
    random = Random(seed)
    loop, speed = Loop(source_rows_per_ms=10 ** random.uniform(-2, 3.3)), Speed()
    for _ in range(random.randint(1, 6)):
        fixed_ms, release_ms = 10 ** random.uniform(1, 3.5), 10 ** random.uniform(0, 3.5)
        speed = Speed(fixed_ms, 10 ** random.uniform(-4, 1.3), release_ms, 10 ** random.uniform(-4, 0.7))
        loop.run(speed, loop.now_ms + random.randint(1, 90) * 1_000)
    # Filled for another speed, or before the first of them had shown how slow its release is: what is in them takes as long as it takes.
    filled = Epoch(loop.epoch + 1 + UNRELEASED_MAX)
    while loop.oldest() <= filled:
        loop.run(speed, loop.now_ms + 10_000)
    loop.run(speed, loop.now_ms + 600_000)
    loop.took.clear()
    loop.rows = loop.aborted = 0
    loop.run(speed, loop.now_ms + 300_000)
    fixed_ms = speed.fixed_ms + speed.release_fixed_ms
    one_ms = speed.each_ms + speed.release_each_ms
    assert loop.rows > 0
    assert loop.aborted == 0
    assert max(ms for _, ms in loop.took) <= 1.25 * max(TARGET_MS, 2 * fixed_ms) + one_ms


def test_F9_the_time_of_an_epoch_is_until_its_release_without_the_wait_for_others() -> None:
    """Two commits that wait for their release: each takes its own time; one that takes too long is told while it does."""
    times = EpochTimes()
    assert times.told(TARGET_MS, 0) == (NO_EPOCH, 0, NO_EPOCH, 0)
    times.committed(Epoch(1), 300, 1_000)
    times.committed(Epoch(2), 200, 2_000)
    times.look([Epoch(1), Epoch(2)], 2_500)
    assert times.told(TARGET_MS, 2_500) == (NO_EPOCH, 0, NO_EPOCH, 0)
    assert times.told(TARGET_MS, 7_000) == (NO_EPOCH, 0, 1, 6_300)
    times.look([Epoch(2)], 8_000)
    assert times.told(TARGET_MS, 8_000) == (1, 7_300, NO_EPOCH, 0)
    times.look([], 8_500)
    assert times.told(TARGET_MS, 9_000) == (2, 700, NO_EPOCH, 0)
