"""No answer of a broker that falls ill is taken for a refusal (`tests/harness/ailing_broker.py`)."""

import pytest

from tests.harness.ailing_broker import story
from tests.harness.share import share
from tidemark.services.local.broker import LocalBroker

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("seed", share(range(18), 18))
async def test_what_an_ailing_broker_answers_is_no_refusal(fresh_broker: LocalBroker, seed: int) -> None:
    """Each call either succeeds or says that waiting may help; with the broker well again each succeeds."""
    calls = await story(fresh_broker, seed)
    assert not calls.refusals, calls.refusals
    assert {name for name, said in calls.said if said == "unavailable"}, "no call met the ailing broker"
