"""An installation on a cluster that is not ours: an old version, with defaults that would lose what it keeps there."""

from pathlib import Path

import pytest

from tests.harness.clusters.jobs import Cluster, run
from tests.harness.clusters.properties import HOSTILE, KEPT

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]


async def test_an_old_cluster_with_other_defaults_holds_an_installation(tmp_path: Path) -> None:
    """Three processors, with a kill: their outputs are the oracle's, and the audit's (`make kafka-versions` has the other versions)."""
    cluster = Cluster(version="2.8.2", where="whole", properties=HOSTILE, topics=KEPT, records=1_000, kills=1)
    assert not await run(cluster, tmp_path)
