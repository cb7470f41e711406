"""Statuses of processors, and connections, as readers put them together from compacted topics. Only leaders write there (C8)."""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tidemark.shared.language.redaction import shown_connection
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.ports.log import LogRecord
from tidemark.shared.runtime.fencing import LEADS_KEY, Fence
from tidemark.shared.runtime.reading import Unreadable, key_of
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.limits import WireLimits
from tidemark.shared.wire.messages import decode_status

_DEFAULT: Final = RuntimeSettings()


@dataclass(slots=True)
class Registry:
    """Processors by name, from records that are handed in in the order of the log."""

    wire: WireLimits = _DEFAULT.wire
    unreadable: Unreadable = field(default_factory=Unreadable)
    statuses: dict[ProcessorName, ProcessorStatus] = field(default_factory=dict)
    _fence: Fence = field(default_factory=Fence)

    def take(self, record: LogRecord) -> ProcessorName | None:
        """Take a record in; the name that it changes something about."""
        if not self._fence.admits(record) or record.key in (None, LEADS_KEY):
            return None
        said = self.unreadable.read(record, self._said)
        if said is None:
            return None
        name, status = said
        if status is None:
            self.statuses.pop(name, None)
        else:
            self.statuses[name] = status
        return name

    def _said(self, record: LogRecord) -> tuple[ProcessorName, ProcessorStatus | None]:
        status = None if record.value is None else decode_status(record.value, self.wire)
        return ProcessorName(key_of(record)), status


@dataclass(slots=True)
class KnownConnections:
    """Connections by name, with the part of them that everybody may see; the same."""

    values: dict[str, Any] = field(default_factory=dict)
    unreadable: Unreadable = field(default_factory=Unreadable)
    _fence: Fence = field(default_factory=Fence)

    def take(self, record: LogRecord) -> None:
        """Take a record in."""
        if not self._fence.admits(record) or record.key in (None, LEADS_KEY):
            return
        said = self.unreadable.read(record, _connection_of)
        if said is None:
            return
        name, value = said
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = shown_connection(value)


def _connection_of(record: LogRecord) -> tuple[str, dict[str, Any] | None]:
    value = None if record.value is None else msgspec.json.decode(record.value, type=dict[str, Any])
    return key_of(record), value
