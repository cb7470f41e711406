"""A reader for the time of a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.ports.log import Log, Reader


@asynccontextmanager
async def reading(log: Log, *, committed_only: bool = False) -> AsyncIterator[Reader]:
    """A reader, closed at the end. LogUnavailable, also when it cannot be opened: catch it around the block."""
    reader = await log.reader(committed_only=committed_only)
    try:
        yield reader
    finally:
        await reader.close()
