"""`tidemark ps`: the processes that run on a folder, and what each hosts."""

import os
from pathlib import Path
from typing import Any

from tidemark.services.local.supervisor import is_running, open_log, read_environment, read_state
from tidemark.shared.adapters.clock import SystemClock
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
    environment = {**os.environ, **read_environment(data_dir)}
    log = open_log(data_dir, str(state["kafka"]), "ps", environment)
    try:
        client = Client(log, Topics(), SystemClock(), str, read_runtime(environment))
        for status in (await client.statuses()).values():
            for vertex, index, place in status.tasks:
                hosted.setdefault(place, []).append(f"{status.name}: {vertex}/{index}")
    finally:
        await log.close()
    for process in state["processes"]:
        process["tasks"] = hosted.get(process["place"], [])
    return state
