"""A store for cold keys in memory, for tests of what is packed and found again."""

from collections.abc import Iterator

from tidemark.shared.model.ids import KeyGroup


class MemoryColdKeys:
    """Packed, yet in memory."""

    def __init__(self) -> None:
        self._groups: dict[KeyGroup, dict[bytes, bytes]] = {}

    def put(self, group: KeyGroup, key: bytes, data: bytes) -> None:
        """See `ColdKeys.put`."""
        self._groups.setdefault(group, {})[key] = data

    def get(self, group: KeyGroup, key: bytes) -> bytes | None:
        """See `ColdKeys.get`."""
        return self._groups.get(group, {}).get(key)

    def remove(self, group: KeyGroup, key: bytes) -> None:
        """See `ColdKeys.remove`."""
        self._groups.get(group, {}).pop(key, None)

    def of_group(self, group: KeyGroup) -> Iterator[tuple[bytes, bytes]]:
        """See `ColdKeys.of_group`."""
        yield from sorted(self._groups.get(group, {}).items())
