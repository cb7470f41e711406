"""Where the keys of a computation lie that nobody has asked for lately: packed, outside the task's memory.

A store belongs to one task for its life. It is no durable state: that is the snapshot's, from which a new one is filled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tidemark.shared.model.ids import KeyGroup


class ColdKeys(Protocol):
    """Bytes by key group and key. Whatever goes wrong is an OperatorError that says what to do."""

    def put(self, group: KeyGroup, key: bytes, data: bytes) -> None:
        """Keep; what was there is replaced."""
        ...

    def get(self, group: KeyGroup, key: bytes) -> bytes | None:
        """What lies there; None for nothing."""
        ...

    def remove(self, group: KeyGroup, key: bytes) -> None:
        """Forget, if it is there."""
        ...

    def of_group(self, group: KeyGroup) -> Iterator[tuple[bytes, bytes]]:
        """Keys and bytes of a group, in the order of the keys. The store does not change meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Cooling:
    """How many keys stay in memory, and who makes the store for the others."""

    keys_in_memory: int
    make: Callable[[], ColdKeys]

    def __post_init__(self) -> None:
        if self.keys_in_memory < 1:
            raise ValueError(f"keys_in_memory={self.keys_in_memory} must be at least 1")
