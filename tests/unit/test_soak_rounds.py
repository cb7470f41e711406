"""What a soak strikes is chosen by a seed and left to no luck; the ledger says what was missed."""

from dataclasses import replace

import pytest

from tests.e2e.jobs import meters_job
from tests.e2e.ledger import OUTSIDE, Entry, findings
from tests.e2e.soaking import PHASES, Pause, Rounds, Struck
from tidemark.services.local.supervisor import BROKER

WORKERS = {"coordinator": 2, "source": 2, "operator": 2, "spark": 1, "sink": 2}
JOB = replace(meters_job(1, 1), workers=WORKERS)


@pytest.mark.parametrize("seed", range(10))
def test_one_round_strikes_every_phase_and_two_every_service_from_outside(seed: int) -> None:
    """Each phase of each service, each service killed and paused, the broker killed; all at places that there are."""
    rounds = Rounds(JOB, seed)
    first, second = rounds.next(15, 8), rounds.next(15, 8)
    phases = {(service, phase) for service in WORKERS for phase in PHASES[service]}
    for of in (first, second):
        assert {(kill.place.rpartition("-")[0], kill.phase) for kill in of.kills} == phases
        assert len({(kill.place, kill.phase) for kill in of.kills}) == of.count - 8
    outers = [*first.outers, *second.outers]
    assert {(o.place.rpartition("-")[0] or o.place, type(o) is Pause) for o in outers} == {
        (BROKER, False),
        *((service, pauses) for service in WORKERS for pauses in (True, False)),
    }
    numbers = {f"{service}-{n}" for service, count in WORKERS.items() for n in range(count)}
    assert {kill.place for kill in [*first.kills, *second.kills]} | {o.place for o in outers} <= {*numbers, BROKER}


def test_the_ledger_names_what_was_not_equal_and_what_was_never_struck() -> None:
    """A whole soak has no findings; without one phase, the broker, or an equal run it has one that says so."""
    services = [service for service in PHASES if service != "spark"]
    struck = [Struck(f"{s}-0", phase, 1) for s in services for phase in (*PHASES[s], *OUTSIDE)]
    whole = Entry("c", "meters", 1, 1, 60, "", [*struck, Struck(BROKER, "random", 2)])
    assert findings([whole]) == []
    assert findings([replace(whole, struck=struck)]) == ["meters: the broker was never killed"]
    assert findings([replace(whole, struck=whole.struck[1:])]) == ["meters: source was never struck at snapshot-taken"]
    assert findings([replace(whole, wrong="a row is missing")]) == ["meters, seed 1, run 1 on c: a row is missing"]
