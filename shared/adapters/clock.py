"""The system's clock: wall time stamps data, the monotonic clock measures time-outs, never the other way."""

import asyncio
import time

_NS_PER_MS = 1_000_000
"""A unit."""


class SystemClock:
    """`Clock` on the operating system's clocks and asyncio's timers."""

    def now_ms(self) -> int:
        """Wall clock, UTC, ms since 1970; jumps when the system's clock is set."""
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """The monotonic clock, ms."""
        return time.monotonic_ns() // _NS_PER_MS

    async def sleep_ms(self, duration_ms: int) -> None:
        """Return after this time; at the next turn of the loop for 0 or less."""
        await asyncio.sleep(max(0, duration_ms) / 1000)
