"""Records of a topic in another form than JSON (a schema registry's, MessagePack, a plug-in's): written again, and read.

Nothing is registered. A schema stays what it is by its number, and what a format gives follows from what it is given. Bytes that are the
same need not be read; others are compared as what a source would read, as JSON is by its content.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidemark.services.audit.history import NotAuditable
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.reading import patiently
from tidemark.services.audit.recompute import ROWS_AT_ONCE, raw_batch
from tidemark.services.sink.connecting import forms_of
from tidemark.services.sink.connectors.formatted import FormattedForms
from tidemark.services.sink.connectors.registered import RegisteredForms
from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.model.ids import SplitId
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.sink import TargetDenied, TargetRefused, TargetUnavailable

_JSON_BYTES_MAX: Final = 2**31 - 1
"""Of a record that is read: more than a sink writes."""


def encoding_of(stage: KafkaEmit) -> str:
    """Of values, as the texts that are compared: those that are no JSON are a character a byte."""
    return "utf-8" if stage.format is None and stage.value_schema is None else "latin-1"


@dataclass(slots=True)
class TargetForms:
    """How one sink vertex' values are written, and read back."""

    path: str
    forms: RegisteredForms | FormattedForms
    reader: RegisteredRecords | FormattedRecords | None
    """Of values; None where they are JSON as it stands."""
    _asked: set[str] = field(default_factory=set)

    async def ask(self, topic: str) -> bool:
        """Know what the records of a topic need; False if it was asked for before. NotAuditable, LogUnavailable, PluginError."""
        if topic in self._asked:
            return False
        self._asked.add(topic)
        await patiently(partial(self._ask, topic))
        return True

    async def _ask(self, topic: str) -> None:
        try:
            await self.forms.ask(topic)
        except TargetUnavailable as error:
            raise LogUnavailable(str(error)) from error
        except (TargetDenied, TargetRefused) as error:
            raise NotAuditable(f"{self.path}: what was written cannot be written again: {error}") from error

    async def read(self, texts: Sequence[str]) -> tuple[list[str], Mapping[int, str]]:
        """Records as JSON; those that are none stay as they are, with the reason, by row. LogError."""
        found, unread = list[str](), dict[int, str]()
        if self.reader is None:
            return [*texts], unread
        for first in range(0, len(texts), ROWS_AT_ONCE):
            some = texts[first : first + ROWS_AT_ONCE]
            raw = raw_batch(SplitId(""), 0, [(n, 0, text.encode("latin-1"), None) for n, text in enumerate(some)])
            read = await patiently(partial(self.reader.decoded, raw))
            unread |= {first + row: why for row, why in read.unread.items()}
            for row, (text, value) in enumerate(zip(some, read.values.to_pylist(), strict=True)):
                found.append(text if row in read.unread else value.decode(errors="backslashreplace"))
        return found, unread


def forms_at(processor: Processor, stage: KafkaEmit, installed: AuditedInstallation) -> TargetForms | None:
    """None where keys and values are what no registry and no format tells. NotAuditable."""
    reach, executor = installed.reach, installed.executor
    with installed.permitted(stage.path):
        forms = forms_of(reach, processor, stage, executor, registers=False)
        if forms is None:
            return None
        values = reach.format_of(stage.format)
        reader: RegisteredRecords | FormattedRecords | None = None
        if values is not None:
            reader = FormattedRecords(values, None, executor, _JSON_BYTES_MAX)
        elif stage.registry is not None and stage.value_schema is not None:
            registry = reach.registry(reach.get(processor, stage.registry))
            reader = RegisteredRecords(registry, executor, _JSON_BYTES_MAX)
        return TargetForms(stage.path, forms, reader)
