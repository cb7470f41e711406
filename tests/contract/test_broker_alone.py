"""A broker that is started alone on an installation's folder, as an audit does, leaves what the last run has written."""

import json
from pathlib import Path

import pytest

from tidemark.services.local.supervisor import LocalCluster, LocalSettings, read_environment

pytestmark = pytest.mark.kafka


async def test_what_names_in_documents_stood_for_stays(tmp_path: Path) -> None:
    """The next audit resolves `${OUT}` as the run did."""
    (tmp_path / "environment.json").write_text(json.dumps({"OUT": "/out"}))
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, workers={}))
    await cluster.start()
    await cluster.stop()
    assert read_environment(tmp_path) == {"OUT": "/out"}
