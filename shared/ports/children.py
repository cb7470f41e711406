"""A process that works for this one and may die without it: where users' code runs."""

from typing import Protocol


class ChildEnded(Exception):
    """The process has ended, or was ended: by which status, signal or limit."""


class Child(Protocol):
    """One process. Messages are bytes, whole and in their order; all calls but `end` come from one thread at a time."""

    @property
    def pid(self) -> int:
        """The process' id."""
        ...

    def send(self, message: bytes | memoryview) -> None:
        """Blocks while the process does not take it; ChildEnded."""
        ...

    def receive(self, wait_ms: int) -> bytes:
        """The next message. Blocks; ChildEnded, also where it takes longer than so many ms: then the process is ended."""
        ...

    def end(self) -> None:
        """End the child and all that it has started, at once. A caller of `receive` gets ChildEnded. Idempotent, from any thread."""
        ...


class Children(Protocol):
    """Starts child processes."""

    def start(self) -> Child:
        """One more; blocks for the moment that takes."""
        ...
