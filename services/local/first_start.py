"""Work of a user's first local installation, done once: machine code of the readers and writers, and the broker's jars."""

import asyncio
import subprocess
import sys
from collections.abc import Callable

from tidemark.services.local.broker import BrokerError
from tidemark.services.local.jars import JarsError, default_cache, ensure_jars
from tidemark.shared.compiled.keeping import is_kept

_SAID_CHARACTERS_MAX = 2_000
"""The last characters of a failed compiler's output that are shown."""


async def make_ready(say: Callable[[str], None]) -> None:
    """Make the missing parts; `say` hears of those that take a while. BrokerError says why one cannot be made."""
    if not is_kept():
        say("First start: readers and writers are compiled (half a minute, once)")
        command = [sys.executable, "-m", "tidemark.shared.compiled"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, said = await process.communicate()
        if process.returncode:
            last = said.decode(errors="replace").strip()[-_SAID_CHARACTERS_MAX:]
            raise BrokerError(f"the readers cannot be compiled (`{' '.join(command)}`): {last}")
    if not (default_cache() / "repository").exists():
        say("First start: the broker's jars are fetched (42 MiB, once)")
        try:
            await asyncio.to_thread(ensure_jars)
        except JarsError as error:
            raise BrokerError(str(error)) from error
