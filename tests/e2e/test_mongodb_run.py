"""`tidemark run` into MongoDB, by real processes: the answer to a release is lost, a document is refused, and each record counts once."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.mongodb.servers import Passage, Servers
from tidemark.services.cli.records import letters_of
from tidemark.shared.language.documents import parse
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections

pytestmark = [pytest.mark.e2e, pytest.mark.mongodb]
COUNT = 40


def test_a_run_counts_each_record_once(mongodb_servers: Servers, tmp_path: Path) -> None:
    """What whenMatched adds up is exact though a commit's answer was lost; what no server takes is a dead letter, in a collection."""
    from tidemark.shared.adapters.mongodb import client_at

    documents = [{"_id": n, "place": f"p{n % 3}", "n": 1} for n in range(COUNT)]
    into = {"connectionName": "server", "db": f"run{os.getpid()}", "coll": "counts"}
    pipeline = [
        {"$source": {"documents": [*documents, {"_id": COUNT, "place": None}]}},
        {"$project": {"_id": "$place", "n": 1}},
        {"$merge": {"into": into, "whenMatched": [{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}]}},
    ]
    path = tmp_path / "counts.json"
    connections = {"server": {"type": "mongodb", "url": "${MONGODB}"}}
    options = {"dlq": {**into, "coll": "letters"}}
    document = json.dumps({"connections": connections, "pipeline": pipeline, "options": options})
    path.write_text(document)
    with closing(Passage(mongodb_servers.replicas)) as passage:
        passage.lose_answer(b"commitTransaction")
        command = [sys.executable, "-m", "tidemark.services.cli", "run", str(path)]
        environment = {**os.environ, "MONGODB": passage.url}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reading = Connections("test", allowed=OWNER, values={"MONGODB": mongodb_servers.replicas})
    told = asyncio.run(letters_of(parse(document), reading, 10))
    client = client_at(mongodb_servers.replicas, 10_000)
    counts = {one["_id"]: one["n"] for one in client[into["db"]]["counts"].find()}
    letters = list(client[into["db"]]["letters"].find())
    client.drop_database(into["db"])
    client.close()
    assert counts == {f"p{k}": len(range(k, COUNT, 3)) for k in range(3)}
    assert ["found type null" in letter["errInfo"]["reason"] for letter in letters] == [True]
    assert [letter["doc"] for letter in told] == [letter["doc"] for letter in letters]
