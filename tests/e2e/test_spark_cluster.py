"""Windows on a standalone Spark cluster: executors do the steps, and what is killed of it is waited for, and goes on.

`make long ARGS='-k cluster'`. On a machine of its own a run takes a minute.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from tests.e2e.faults import until
from tests.e2e.jobs import departures_job, run_job
from tests.harness.spark_cluster import CONF, SparkCluster, spark_cluster
from tidemark.services.audit.check import audit_local
from tidemark.services.cli.installation import Installation

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
DAYS = 21


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """The environment of processes that keep blobs in S3; executors get it from their workers."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    fsspec.filesystem("s3", endpoint_url=endpoint, key="test", secret="test").mkdir("bucket")
    yield {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": endpoint,
        "TIDEMARK_BLOBS": "s3://bucket/blobs",
    }
    server.stop()


def settings(cluster: SparkCluster) -> dict[str, str]:
    """Of the processes."""
    return {"TIDEMARK_EXTRA": json.dumps({"master": cluster.url, "conf": CONF})}


def test_a_pipeline_runs_on_executors_with_segments_in_s3(
    tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of the stage on two executors, no file system of Hadoop's: the audit finds what one process computes."""
    with spark_cluster(tmp_path / "spark", environment=s3) as cluster:
        job = departures_job(DAYS, tasks={"source": 2, "operator": 2, "sink": 2, "spark": 2})
        ran = asyncio.run(run_job(job, tmp_path / "data", tmp_path / "out", environment={**settings(cluster), **s3}))
        assert len(cluster.executors()) in (0, 2), "the application has ended, or its executors are there"
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    audited = asyncio.run(audit_local(job.name, tmp_path / "data"))
    assert (audited.records, audited.waiting) == (len(job.order), ())
    assert ran.status.generation == 1
    assert not (tmp_path / "data" / "blobs").exists() or not list((tmp_path / "data" / "blobs").rglob("*.parquet"))


def test_an_executor_and_the_master_may_be_killed(tmp_path: Path) -> None:
    """With segments in a folder: an executor is replaced; a master that comes back without memory gets a new application. Never FAILED."""
    with spark_cluster(tmp_path / "spark") as cluster:
        job = departures_job(DAYS, tasks={"source": 2, "operator": 2, "sink": 2, "spark": 2})
        struck: list[str] = []

        async def hold(there: Installation, sent: int) -> None:
            if len(struck) == 2 or sent < (len(struck) + 1) * len(job.order) // 3:
                return
            before = await until(there, lambda s: s.state == "RUNNING" and s.commits > 0)
            if not struck:
                cluster.kill_executor()
            else:
                cluster.kill_master()
                cluster.start_master()
            struck.append("executor" if not struck else "master")
            await until(there, lambda s: s.state == "RUNNING" and s.commits >= before.commits + 3)

        run = run_job(job, tmp_path / "data", tmp_path / "out", hold=hold, environment=settings(cluster))
        ran = asyncio.run(run)
    assert (struck, ran.status.state) == (["executor", "master"], "FINISHED")
    audited = asyncio.run(audit_local(job.name, tmp_path / "data"))
    assert (audited.records, audited.waiting) == (len(job.order), ())
