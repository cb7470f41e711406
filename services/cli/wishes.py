"""`tidemark wishes`: for programs that start and end workers outside, such as the containers of a compose installation."""

import json
import os
import sys
from pathlib import Path

from tidemark.services.audit.installed import read
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.messages import WorkerUnwanted, WorkerWanted
from tidemark.shared.process.settings import read_runtime
from tidemark.shared.runtime.wishes import wishes


def line_of(wish: WorkerWanted | WorkerUnwanted) -> str:
    """A wish as JSON: the service that needs one more worker and the places that it has, or the place that nobody needs."""
    if isinstance(wish, WorkerWanted):
        return json.dumps({"wanted": wish.service, "there": wish.there})
    return json.dumps({"unwanted": wish.place})


async def print_wishes(data: Path | None) -> None:
    """As they come, for ever. NoInstallation; LogError."""
    async with read(data) as installed:
        async for wish in wishes(installed.log, SystemClock(), read_runtime(os.environ), installed.topics):
            sys.stdout.write(f"{line_of(wish)}\n")
            sys.stdout.flush()
