"""`tidemark audit` of a job with a collection of MongoDB among its targets."""

from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.harness.audited import TABLE, Story, finished_run, run
from tests.harness.mongodb.servers import Servers
from tidemark.services.audit.history import AuditFailed
from tidemark.services.audit.report import Audited
from tidemark.shared.adapters.virtual import run_virtual
from tidemark.shared.model.ids import VertexId


@pytest.mark.mongodb
def test_a_collection_is_judged_with_the_other_outputs(mongodb_servers: Servers, tmp_path: Path) -> None:
    """Nothing is left unchecked, each document that was merged is counted, and one that was changed is named."""
    url = mongodb_servers.replicas
    client: MongoClient[Any]
    with MongoClient(url) as client:
        client.drop_database("audited")
    saved = run_virtual(lambda world: finished_run(world, tmp_path, collection=url))

    async def then(told: Story) -> Audited:
        return await told.audit()

    found: Audited = run(saved, then)
    assert (found.unchecked, found.notes) == ((), ())
    assert found.outputs[VertexId("emit-4")] > 0
    with MongoClient(url) as client:
        client["audited"][TABLE].update_one({"_id": "m3"}, {"$inc": {"wh": 1}})
    with pytest.raises(AuditFailed, match=r"collection audited.latest, row _id=.*m3.*: field wh: expected"):
        run(saved, then)
