"""The installation that a command reads by itself: the one whose settings the environment holds, or a local one."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidemark.services.audit.installed import STORE_VARIABLE, AuditedInstallation, installation_of, local_installation
from tidemark.services.cli.folders import chosen


@asynccontextmanager
async def read(data: Path | None) -> AsyncIterator[AuditedInstallation]:
    """TIDEMARK_STORE and the other settings of a coordinator, where no folder is named. NoInstallation; ProcessSettingsError."""
    if data is None and os.environ.get(STORE_VARIABLE):
        async with installation_of(os.environ) as installed:
            yield installed
    else:
        async with local_installation(chosen(data)) as installed:
            yield installed
