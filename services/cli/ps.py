"""`tidemark ps`: who runs on a folder, and what each process hosts."""

import os
from pathlib import Path
from typing import Any

from tidemark.services.local.supervisor import is_running, read_environment, read_state
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.process.settings import read_runtime
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics


class NothingRuns(Exception):
    """No installation runs on the folder: says how to start one."""


async def processes(data_dir: Path) -> dict[str, Any]:
    """The supervisor's state, each process with the tasks that the registry places on it (`processor: vertex/index`). NothingRuns."""
    try:
        state = read_state(data_dir)
    except FileNotFoundError as error:
        message = f"nothing runs on {data_dir}; `tidemark run FILE --data {data_dir}` starts something"
        raise NothingRuns(message) from error
    if not is_running(state):
        message = (
            f"what ran on {data_dir} has ended without a word; `tidemark run FILE --data {data_dir}` goes on with it"
        )
        raise NothingRuns(message)
    hosted: dict[str, list[str]] = {}
    log = KafkaLog(KafkaSettings(bootstrap=str(state["kafka"]), client="tidemark-ps"))
    try:
        runtime = read_runtime({**os.environ, **read_environment(data_dir)})
        client = Client(log, Topics(), SystemClock(), str, runtime)
        for status in (await client.statuses()).values():
            for vertex, index, place in status.tasks:
                hosted.setdefault(place, []).append(f"{status.name}: {vertex}/{index}")
    finally:
        await log.close()
    for process in state["processes"]:
        process["tasks"] = hosted.get(process["place"], [])
    return state
