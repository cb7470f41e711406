"""What happens to a cluster of three brokers under a job of a real installation: the short form of `make brokers`."""

from pathlib import Path

import pytest

from tests.harness.brokers.running import stories

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.long]
"""Three brokers, an installation and an audit take a minute on two cores."""

_SEED = 4
"""The installation's own topics lie there, too; three replicas, of which two have to be in sync."""


async def test_a_job_goes_on_without_the_coordinator_of_its_transactions(tmp_path: Path) -> None:
    """While a broker is away, and behind it: each record is in the output once, and no topic of the product's has fewer replicas."""
    assert await stories([_SEED], tmp_path, act="transactions", acts=1, records=600) == {}
