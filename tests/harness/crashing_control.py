"""`python -m tests.harness.crashing_control`: the control service as it runs, and SIGUSR1 makes its agents' library crash."""

import asyncio
import signal
import sys

from tidemark.services.control.service import ControlService, build
from tidemark.shared.process.host import serve
from tidemark.shared.process.settings import ProcessSettings


async def crashing(settings: ProcessSettings) -> ControlService:
    """The service, and a way to break it."""
    service = await build(settings)
    crashes: list[asyncio.Future[None]] = []

    def crash() -> None:
        assert service.agents is not None
        crashes.append(asyncio.ensure_future(service.agents._app.crash(RuntimeError("made by the test"))))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, crash)
    return service


if __name__ == "__main__":
    sys.exit(serve(crashing))
