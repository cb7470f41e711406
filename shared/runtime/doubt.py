"""A leader that stood still for longer than its lease may have been followed: it decides nothing until it has asked the store (C8).

What it writes is refused in any case. But tasks that its successor began are strangers to it, and it would tell their workers to stop.
"""

import asyncio

from tidemark.shared.ports.clock import Clock


class Doubt:
    """Of one coordinator's process."""

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._ran_ms = clock.monotonic_ms()
        self._gone = asyncio.Event()
        self._gone.set()
        self.number = 0
        """Of the last time that it stood still."""

    def runs(self) -> None:
        """The process runs: to be said much oftener than a lease lasts."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._ran_ms > self._lease_ms:
            self.number += 1
            self._gone.clear()
        self._ran_ms = now_ms

    def asked(self, number: int) -> None:
        """The store was asked, or could not be, when the process had stood still so often."""
        if number == self.number:
            self._gone.set()

    def there(self) -> bool:
        """Whether the store is to be asked."""
        return not self._gone.is_set()

    async def over(self) -> None:
        """Wait until there is none."""
        self.runs()
        await self._gone.wait()
