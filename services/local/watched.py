"""`python -m tidemark.services.local.watched PROGRAM ARGUMENT…`: runs a worker's program, vouches for it, and ends as it does.

In a container nobody else sees that a worker's process runs while it cannot say so itself, or that it has ended. Settings are
the worker's own.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.services.local.tether import tethered
from tidemark.services.local.vouching import Voucher, runs
from tidemark.shared.process.host import begin
from tidemark.shared.process.settings import ProcessSettings
from tidemark.shared.process.signing import own_log
from tidemark.shared.runtime.topics import Topics

_TELL_S: Final = 3.0
"""For the message of its end, s: the container's restart does not wait for a broker that is away."""
_BY_SIGNAL: Final = 128


async def watch(settings: ProcessSettings, environment: Mapping[str, str], program: Sequence[str]) -> int:
    """Run the program with this environment; its exit status, of a signal as shells have it."""
    process = await asyncio.create_subprocess_exec(
        *tethered(program), env={**environment, "TIDEMARK_INCARNATION": settings.incarnation}
    )
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _pass_on, process, name)
    log = own_log(settings)
    voucher = Voucher(
        log, Topics(settings.prefix), settings.runtime, lambda: [settings.incarnation] if runs(process) else []
    )
    vouches = loop.create_task(voucher.run(), name="vouch")
    status = await process.wait()
    vouches.cancel()
    try:
        async with asyncio.timeout(_TELL_S):
            await voucher.ended(settings.incarnation, status)
            await log.close()
    except TimeoutError:
        return _status(status)
    return _status(status)


def _pass_on(process: asyncio.subprocess.Process, name: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(name)


def _status(returned: int) -> int:
    return returned if returned >= 0 else _BY_SIGNAL - returned


def main(program: Sequence[str]) -> int:
    """The exit status."""
    return begin(lambda settings: asyncio.run(watch(settings, os.environ, program)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
