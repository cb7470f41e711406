"""What clocks and networks do for a while, drawn from a seed: every kind once before any again, several at a time."""

import random
from collections.abc import Sequence
from typing import Final

from tests.harness.chaos.faults import EVERYTHING, Deck, Fault, Faults
from tests.harness.worlds.ways import Weather
from tidemark.services.local.supervisor import BROKER

DAY_S: Final = 86_400.0
STEPS_S: Final = (0.005, 0.4, 3.0, 9.0, 70.0, 600.0, 3_700.0, 2 * DAY_S, 366 * DAY_S, 12 * 366 * DAY_S)
"""By how much a clock is off: a step of NTP, a time zone that was taken for UTC, a day or a year typed wrong."""
FLAT_BATTERY: Final = "1970"
"""The clock of a machine that begins at the beginning of time."""
STORE: Final = "store"
"""The way to the coordinator's database."""
WEATHERS: Final = (
    "slow",
    "narrow",
    "still up",
    "still down",
    "still both",
    "swallows",
    "torn",
    "mute",
    "refused",
    "flaps",
)
LASTS_S: Final = (2.0, 20.0)


def kinds(services: Sequence[str], *, clocks: bool, store: bool) -> list[tuple[str, str, str]]:
    """Every kind of act."""
    found = []
    if clocks:
        for where in (*services, BROKER, EVERYTHING, "each"):
            found += [("clock", where, how) for how in ("ahead", "behind")]
        found += [("clock", EVERYTHING, FLAT_BATTERY), ("clock", BROKER, FLAT_BATTERY), ("clock", EVERYTHING, "drifts")]
        found += [("clock", EVERYTHING, "sleeps")]
    for where in (*services, EVERYTHING, *([STORE] if store else [])):
        found += [("way", where, how) for how in WEATHERS]
    return found


class Acts(Faults):
    """Rounds of them."""

    def __init__(
        self, seed: str, workers: dict[str, int], *, clocks: bool, store: bool, only: Sequence[str] = ()
    ) -> None:
        self._chance = random.Random(seed)
        self._workers = {service: count for service, count in workers.items() if count}
        found = kinds(list(self._workers), clocks=clocks, store=store)
        self._deck = Deck(self._chance, [kind for kind in found if not only or " ".join(kind).startswith(tuple(only))])

    def next(self, count: int, seconds: float) -> list[Fault]:
        """So many, spread over so many seconds."""
        return sorted((self._drawn(*self._deck.deal(), seconds) for _ in range(count)), key=lambda fault: fault.at_s)

    def victim(self) -> str:
        """Nobody is killed here: a drain goes on in the weather there is."""
        return ""

    def left_bytes(self) -> int:
        """No disk is full."""
        return 0

    def _drawn(self, what: str, where: str, how: str, seconds: float) -> Fault:
        place = f"{where}-{self._chance.randrange(self._workers[where])}" if where in self._workers else where
        if what == "clock" and how in ("ahead", "behind"):
            how = f"{self._chance.choice(STEPS_S) * (1 if how == 'ahead' else -1):+g}"
        return Fault(what, place, how, self._chance.uniform(0.0, seconds), self._chance.uniform(*LASTS_S))


def weather(how: str, chance: random.Random) -> Weather:
    """Of a kind, its measures drawn."""
    if how.startswith("still "):
        return Weather(still=how.removeprefix("still "))
    match how:
        case "slow":
            delay_s = chance.choice([0.001, 0.02, 0.2, 1.0, 3.0])
            return Weather(delay_s=delay_s, jitter_s=chance.choice([0.0, delay_s]))
        case "narrow":
            return Weather(bytes_per_s=chance.choice([2_000, 20_000, 200_000]), delay_s=0.02)
        case "swallows":
            return Weather(swallows=True)
        case "torn":
            return Weather(tears_bytes=chance.choice([3, 100, 1_000, 30_000]))
        case "mute":
            return Weather(mute=True)
        case _:
            return Weather(refused=True)
