"""What an operator is told about the task it works for; nothing else is known to it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Names for dead letters, the same over restarts, and bounds."""

    processor: str = ""
    instance: str = ""
    """The deployment's name (`instanceName` of a dead letter)."""
    topic: str | None = None
    """The source's topic, where it has exactly one; for `_stream_meta`."""
    join_bytes_max: int = 1024 * 1024 * 1024
    """Rows that one task of a `$join` may keep in memory."""


NOWHERE = TaskContext()
"""A task without names, for tests and single runs."""
