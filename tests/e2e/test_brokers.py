"""What happens to a cluster of three brokers under a job of a real installation: the short form of `make brokers`."""

from pathlib import Path

import pytest

from tests.harness.brokers.running import stories

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.long]
"""Three brokers, an installation and an audit take a minute on two cores."""

_SEED = 4
"""The installation's own topics lie there, too; three replicas, of which two have to be in sync."""


@pytest.mark.parametrize("act", ["transactions", "few"])
async def test_a_job_goes_on_when_brokers_are_back(tmp_path: Path, act: str) -> None:
    """Each record is in the output once, without the coordinator of its transactions, too; no topic of the product's has fewer replicas."""
    assert await stories([_SEED], tmp_path, act=act, acts=1, records=600) == {}
