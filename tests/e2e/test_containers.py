# ruff: noqa: N802 -- a test carries its rule's name
"""An installation as containers start it, on a machine that is far too busy: nobody gives up, nobody is taken for dead."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.harness.sealing import KEY, sealed
from tests.harness.share import CI
from tidemark.services.cli.installation import Installation
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.services.local.supervisor import LocalCluster, LocalSettings
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "deploy" / "images" / "start.sh"
NAME = ProcessorName("passing")
SERVICES = ("coordinator", "source", "sink")
HOGS = (1 if CI else 4) * len(os.sched_getaffinity(0))
HOGS_END_AFTER_S = 180
COMMITS = 8


@contextmanager
def busy() -> Iterator[None]:
    """Far more programs that never wait than there are cores. They end by themselves, too."""
    does = f"import time\nend = time.monotonic() + {HOGS_END_AFTER_S}\nwhile time.monotonic() < end: pass"
    hogs = [subprocess.Popen([sys.executable, "-I", "-S", "-c", does]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def container(service: str, bootstrap: str, folder: Path) -> subprocess.Popen[bytes]:
    """The service as its image starts it."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TIDEMARK_SERVICE": service,
        "TIDEMARK_PLACE": f"{service}-x",
        "TIDEMARK_SIGNING_KEYS": KEY,
        "TIDEMARK_KAFKA": bootstrap,
        "TIDEMARK_BLOBS": str(folder / "blobs"),
        "TIDEMARK_STORE": f"sqlite:///{folder / 'coordinator.db'}",
    }
    with (folder / f"{service}.log").open("wb") as log:
        return subprocess.Popen(["/bin/sh", str(START)], env=environment, stdout=log, stderr=log)


async def test_R1_a_first_start_on_a_busy_machine_takes_one_generation(tmp_path: Path) -> None:
    """All start before the broker does; it is a minute away. Nothing ends, nothing is begun anew, and every row comes."""
    rows, documents = tmp_path / "in.json", 200
    rows.write_text("".join(f'{{"n": {number}}}\n' for number in range(documents)))
    document = {
        "name": NAME,
        "pipeline": [
            {"$source": {"path": str(rows), "format": "json", "follow": True}},
            {"$emit": {"path": str(tmp_path / "out"), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }
    with ExitStack() as stack:
        running: dict[str, subprocess.Popen[bytes]] = {}
        stack.enter_context(busy())

        def start_all(bootstrap: str) -> None:
            for service in SERVICES:
                running[service] = container(service, bootstrap, tmp_path)
                stack.callback(_end, running[service])

        broker = LocalBroker(BrokerSettings(data_dir=tmp_path / "kafka", start_timeout_s=HOGS_END_AFTER_S))
        stack.callback(broker.kill)
        bootstrap = await broker.start(start_all)
        log = sealed(KafkaLog(KafkaSettings(bootstrap=bootstrap)))
        client = Client(log, Topics(), SystemClock(), lambda: uuid.uuid4().hex, waits_out_ms=HOGS_END_AFTER_S * 1000)
        await client.ready(HOGS_END_AFTER_S * 1000)
        run = Installation(LocalCluster(LocalSettings(data_dir=tmp_path)), log, client)
        await run.ensure_started(NAME, json.dumps(document), {})
        async for status in client.watch(NAME):
            assert status.state in ("CREATED", "STARTING", "RUNNING"), status.reason
            if status.commits >= COMMITS and len(read_released_rows(str(tmp_path / "out"))) == documents:
                break
        assert status.generation == 1
        assert {service: process.poll() for service, process in running.items()} == dict.fromkeys(SERVICES)
        await log.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
