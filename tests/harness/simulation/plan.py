"""What befalls a world, drawn from its seed: crashes, pauses, cuts, clocks, outages, and a user's orders; each at its time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tests.harness.simulation.drawing import Scenario
from tests.harness.simulation.faults import CALM, Side, Strike, Weather
from tests.harness.simulation.writes import LED_BY, RARE, RAREST, SCARCE, is_possible

Kind = Literal[
    "crash", "crash several", "freeze", "cut out", "cut in", "cut off", "broker away", "leader change",
    "store away", "blobs away", "target away", "clock jumps", "dies at await", "rescale", "modify", "stop and start",
    "begin anew", "drop and create", "topic made anew", "redrive", "store falls back", "go back",
]  # fmt: skip
_WEIGHTS: Final[dict[Kind, int]] = {
    "crash": 5, "crash several": 1, "freeze": 4, "cut out": 2, "cut in": 2, "cut off": 2, "broker away": 1,
    "leader change": 2, "store away": 1, "blobs away": 1, "target away": 1, "clock jumps": 2, "dies at await": 5,
    "rescale": 2, "modify": 1, "stop and start": 1, "redrive": 2,
}  # fmt: skip
UPHEAVALS: Final[tuple[Kind, ...]] = ("begin anew", "drop and create", "topic made anew")
"""After which a processor has another life; at most one a seed."""
ORDERS: Final = ("rescale", "modify", "stop and start", "redrive", "go back", *UPHEAVALS)

MILD: Final = Weather(
    refused=0.012, lost=0.012, slow=0.07, slow_ms_max=120, turns_max=3, blocking_slow=0.05, odd_blobs=0.005
)
WEATHERS: Final = (
    CALM,
    MILD,
    MILD,
    MILD,
    Weather(refused=0.02, lost=0.02, slow=0.1, slow_ms_max=60, turns_max=3, odd_blobs=0.02),
    Weather(refused=0.03, lost=0.03, slow=0.1, slow_ms_max=30, turns_max=2, odd_blobs=0.01),
    Weather(slow=0.2, slow_ms_max=200, turns_max=5, blocking_slow=0.1),
)
UPHEAVAL_RATE: Final = 0.25
FALL_BACK_RATE: Final = 0.15
BACK_RATE: Final = 0.2
FALLS: Final = (1, 1, 2, 5, 20)
"""Changes that a store loses."""
EVENT_MS: Final = 500
"""Events do not come more often, at the mean: between them something is to be reached."""
RARE_AT_ONCE: Final = 9
SCARCE_AT_ONCE: Final = 6
"""Of the rare ones, those of services that few seeds have."""
TURNS: Final = 7
GUST_MS: Final = 2_000
"""Where faults come in gusts: so long they do, then so long they do not, and something is committed."""
RESTARTS_MS: Final = (1, 300, 2_500)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that befalls the world. `number`: which of the seed's."""

    at_ms: int
    """From the begin of the feed."""
    number: int
    kind: Kind
    place: str
    length_ms: int
    choice: int

    @property
    def id(self) -> str:
        """For people and for leaving it out."""
        what = {
            "freeze": f"freeze {self.place} for {self.length_ms} ms",
            "dies at await": f"{self.place} dies at await {self.choice}",
            "crash several": f"crash {1 + self.choice % 3} from {self.place} on",
            "store falls back": f"store falls back by {self.length_ms} changes",
        }.get(self.kind, self.kind if "away" in self.kind or self.kind in ORDERS else f"{self.kind} {self.place}")
        return f"{what} at {self.at_ms} ms (e{self.number})"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that befalls a world."""

    weather: Weather
    late: bool
    """Whether faults begin only when something is committed."""
    gusts: bool
    """Whether what strikes by chance comes in gusts (GUST_MS)."""
    strikes: Sequence[Strike]
    events: Sequence[Event]
    early: bool
    """Whether the drain comes while faults go on."""
    calm_ms: int
    """When faults end, from the begin of the feed."""
    skewed: bool
    """Whether the clocks of processes are off."""


def draw_plan(scenario: Scenario, places: Sequence[str], writes: Sequence[str]) -> Plan:
    """The plan of a scenario's seed. `writes`: names of durable writes at which processes may die."""
    chooser = random.Random(f"{scenario.seed}/plan")
    count = chooser.choice((3, 7, 12, 18))
    calm_ms = max(scenario.span_ms + chooser.choice((500, 2_000, 5_000)), count * EVENT_MS)
    events = []
    for number in range(count):
        kind = chooser.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        length_ms = chooser.choice((200, 700, 1_500, 3_000, 6_000, 11_000))
        events.append(
            Event(chooser.randint(0, calm_ms), number, kind, chooser.choice(places), length_ms, chooser.randint(1, 60))
        )
    events += _falls_back(scenario.seed, places[0], calm_ms, len(events))
    events += _goes_back(scenario.seed, places[0], calm_ms, len(events))
    weather = chooser.choice(WEATHERS)
    if chooser.random() < UPHEAVAL_RATE:
        kind = chooser.choice(UPHEAVALS)
        events.append(Event(chooser.randint(0, calm_ms), len(events), kind, places[0], 0, chooser.randint(1, 60)))
    return Plan(
        weather=weather,
        late=chooser.random() < 0.6,
        gusts=chooser.random() < 0.7,
        strikes=_strikes(scenario, chooser, writes, calm_ms),
        events=sorted(events, key=lambda event: (event.at_ms, event.number)),
        early=chooser.random() < 0.5,
        calm_ms=calm_ms,
        skewed=chooser.random() < 0.3,
    )


def _falls_back(seed: int, place: str, calm_ms: int, number: int) -> list[Event]:
    """The store does, once, in a few seeds: of a stream of its own, for the others to stay as they are."""
    chooser = random.Random(f"{seed}/store")
    if chooser.random() >= FALL_BACK_RATE:
        return []
    lost, choice = chooser.choice(FALLS), chooser.randint(1, 60)
    return [Event(chooser.randint(0, calm_ms), number, "store falls back", place, lost, choice)]


def _goes_back(seed: int, place: str, calm_ms: int, number: int) -> list[Event]:
    """The processor does, to a checkpoint that a user keeps, in some seeds; of a stream of its own, too."""
    chooser = random.Random(f"{seed}/back")
    if chooser.random() >= BACK_RATE:
        return []
    return [Event(chooser.randint(0, calm_ms), number, "go back", place, 0, chooser.randint(1, 60))]


def _strikes(scenario: Scenario, chooser: random.Random, writes: Sequence[str], calm_ms: int) -> list[Strike]:
    """Of the writes that the scenario can come to: some by turns, so that a row of seeds meets all; some by chance; of rare ones more."""
    sides: tuple[Side, Side] = ("before", "after")
    both = [(write, side) for write in writes if is_possible(write, scenario) for side in sides]
    if not both:
        return []
    rare = [(write, side) for write, side in both if write in RARE]
    turns = [both[(scenario.seed * TURNS + n) % len(both)] for n in range(TURNS)]
    chances = [chooser.choice(both) for _ in range(chooser.choice((0, 2, 5)))]
    found = {(write, side): chooser.choice((1, 2, 2, 4, 9)) for write, side in (*turns, *chances)}
    found |= dict.fromkeys(chooser.sample(rare, min(RARE_AT_ONCE, len(rare))), 1)
    scarce = [(write, side) for write, side in rare if write.startswith(SCARCE)]
    found |= dict.fromkeys(chooser.sample(scarce, min(SCARCE_AT_ONCE, len(scarce))), 1)
    found |= {(write, chooser.choice(sides)): 1 for write in RAREST if is_possible(write, scenario)}
    found |= {lead: 1 for write, _ in list(found) for lead in LED_BY.get(write, ())}
    return [Strike(*where, nth, 0 if nth == 1 else chooser.randint(0, calm_ms)) for where, nth in found.items()]
