"""`python -m tests.harness.many NUMBER`: so many small window processors in one installation: time, processes, memory, processor time.

Each reads one topic of fifty records a second and counts them by second on Spark, with a checkpoint a second.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tidemark.services.cli.installation import Installation, installation
from tidemark.services.local.supervisor import CONTROL, WORKERS
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateProcessor, StartProcessor

_CLOCK: Final = SystemClock()
_INTERVAL_MS: Final = 20
_STEADY_S: Final = 20
_DOCUMENT: Final = """
connections: {{broker: {{type: kafka, bootstrapServers: "${{LOCAL_KAFKA}}"}}}}
pipeline:
  - $source: {{connectionName: broker, topic: in, timeField: {{$toDate: $at}}, schema: {{user: string, at: long}},
              watermark: {{strategy: boundedDisorder, maxDelay: {{size: 1, unit: second}}}}}}
  - $tumblingWindow: {{interval: {{size: 1, unit: second}}, pipeline: [{{$group: {{_id: $user, n: {{$sum: 1}}}}}}]}}
  - $emit: {{connectionName: broker, topic: out{number}}}
options: {{lateness: split, checkpoint: {{interval: {{size: 1, unit: second}}}}}}
"""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _used() -> tuple[int, float, float]:
    """Of all processes below this one: how many, memory in MiB with shared pages counted once, processor time in s."""
    count, memory, used = 0, 0.0, 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times, pages = process.cpu_times(), process.memory_full_info()
        except psutil.Error:
            continue  # it has ended meanwhile
        count, memory, used = count + 1, memory + pages.pss / 2**20, used + times.user + times.system
    return count, memory, used


async def _feed(bootstrap: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for number in itertools.count():
            await producer.send("in", f'{{"user": "u{number % 7}", "at": {time.time_ns() // 10**6}}}'.encode())
            await _CLOCK.sleep_ms(_INTERVAL_MS)
    finally:
        await producer.stop()


async def _start(there: Installation, number: int) -> None:
    client, name = there.client, ProcessorName(f"p{number}")
    await client.request(CreateProcessor(client.unique(), name, _DOCUMENT.format(number=number), {}))
    await client.request(StartProcessor(client.unique(), name))


async def _until(there: Installation, many: int) -> tuple[float, float]:
    """Until all run, and until all have committed: s since the first was asked for."""
    began, run_s = time.monotonic(), 0.0
    await asyncio.gather(*(_start(there, number) for number in range(many)))
    while True:
        known = (await there.client.statuses()).values()
        if failed := [status.reason for status in known if status.state == "FAILED"]:
            raise SystemExit(failed[0])
        if not run_s and sum(status.state == "RUNNING" for status in known) == many:
            run_s = time.monotonic() - began
        if sum(status.commits > 0 for status in known) == many:
            return run_s or time.monotonic() - began, time.monotonic() - began
        await _CLOCK.sleep_ms(10 * _INTERVAL_MS)


async def measure(many: int, folder: Path) -> None:
    """Print what it took."""
    async with installation(folder, {}, {**dict.fromkeys(WORKERS, 0), CONTROL: 1}) as there:
        admin = AIOKafkaAdminClient(bootstrap_servers=there.cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(name, 1, 1) for name in ("in", *(f"out{n}" for n in range(many)))])
        await admin.close()
        feeding = asyncio.create_task(_feed(there.cluster.bootstrap))
        run_s, committed_s = await _until(there, many)
        processes, memory_mib, used_s = _used()
        _say(f"{many} processors: all run after {run_s:.0f} s, all have committed after {committed_s:.0f} s")
        _say(f"{processes} processes, {memory_mib:.0f} MiB, {used_s:.0f} s of processor time")
        before = {status.name: status.commits for status in (await there.client.statuses()).values()}
        await _CLOCK.sleep_ms(_STEADY_S * 1_000)
        commits = [s.commits - before[s.name] for s in (await there.client.statuses()).values()]
        cores = (_used()[2] - used_s) / _STEADY_S
        _say(
            f"then {min(commits) / _STEADY_S:.2f} to {max(commits) / _STEADY_S:.2f} commits/s each, on {cores:.1f} cores"
        )
        feeding.cancel()
        await asyncio.wait({feeding})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="many-") as place:
        asyncio.run(measure(int(sys.argv[1]), Path(place)))
