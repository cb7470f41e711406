"""What stands before a user's callback while a task recovers from a death of its process.

Between deaths nothing stands there: `watching` is false, and a callback costs the question alone.
"""

from typing import Protocol


class CallGuard(Protocol):
    """Counts, over deaths of the process, in which callback it died."""

    @property
    def watching(self) -> bool:
        """Whether `enter` and `leave` want to be told of callbacks."""
        ...

    def enter(self, call: bytes) -> str | None:
        """The callback of this name runs next, unless a reason is given: then the process has died in it too often."""
        ...

    def leave(self) -> None:
        """No callback runs."""
        ...
