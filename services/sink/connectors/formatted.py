"""Documents, and keys that are documents, as records of plug-ins' formats. They are staged as bytes: a release asks no plug-in.

Keys of a format may stand beside values of a schema registry, and values of a format beside its keys.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.services.sink.connectors.csvlines import csv_records
from tidemark.services.sink.connectors.kafkacells import RecordRefused
from tidemark.services.sink.connectors.registered import RegisteredForms, Unregistered
from tidemark.shared.language.values import type_name
from tidemark.shared.model.values import Document, Value
from tidemark.shared.plugins.csvline import CsvLine
from tidemark.shared.ports.clock import Executor
from tidemark.shared.runtime.plugged import PluggedFormat


class FormattedForms:
    """One sink's records: values, keys or both are of a plug-in's format."""

    def __init__(
        self,
        values: PluggedFormat | None,
        keys: PluggedFormat | None,
        executor: Executor,
        registered: RegisteredForms | None = None,
    ) -> None:
        """registered: writes what no format does."""
        self._registered = registered
        self._values = values
        self._keys = keys
        self._executor = executor
        self._ready = False

    @property
    def has_keys(self) -> bool:
        """Whether `key` makes the keys."""
        return self._keys is not None or (self._registered is not None and self._registered.has_keys)

    async def prepare(self, topic: str) -> None:
        """Load the formats."""
        await self.ask(topic)
        self.begin()

    def begin(self) -> None:
        """Of formats nothing changes from batch to batch."""
        if self._registered is not None:
            self._registered.begin()

    async def ask(self, topic: str) -> None:
        """Load the formats: they are the same for all topics. PluginError; as `RegisteredForms.ask`."""
        if self._registered is not None:
            await self._registered.ask(topic)
        for plugged in (self._values, self._keys):
            if plugged is not None:
                await self._executor.blocking(plugged.loaded)
        self._ready = True

    def value(self, document: Document, text: Callable[[], bytes], topic: str) -> bytes:
        """A document's record; `text` gives its JSON. Unregistered before the formats are loaded; RecordRefused."""
        if self._values is not None:
            return self._record(self._values, document, topic)
        return text() if self._registered is None else self._registered.value(document, text, topic)

    def values(
        self,
        documents: Callable[[], pa.BinaryArray],
        texts: Callable[[], pa.BinaryArray],
        topics: Sequence[str],
        places: npt.NDArray[np.int64],
    ) -> pa.BinaryArray | None:
        """See `RegisteredForms.values`."""
        if self._values is None:
            by_registry = self._registered
            return texts() if by_registry is None else by_registry.values(documents, texts, topics, places)
        form = self._values.loaded() if self._ready else None
        if isinstance(form, CsvLine):
            return csv_records(documents(), form.config.fields, form.config.delimiter)
        return None

    def key(self, value: Value, topic: str) -> bytes:
        """A key's record. Unregistered, RecordRefused."""
        if self._keys is None:
            assert self._registered is not None, "the caller looks at has_keys"
            return self._registered.key(value, topic)
        if type(value) is not dict and not self._keys.form.own:
            raise RecordRefused(
                f"{self._keys.place}: expected a key that is a document, found a value of type {type_name(value)}"
            )
        return self._record(self._keys, value, topic)

    def _record(self, plugged: PluggedFormat, document: Any, topic: str) -> bytes:
        if not self._ready:
            raise Unregistered(topic)
        try:
            found = plugged.loaded().encode(document)
        except Exception as error:
            raise RecordRefused(f"{plugged.place}: {type(error).__name__}: {error}") from error
        if not isinstance(found, bytes):
            raise RecordRefused(f"{plugged.place}: expected bytes, found {type(found).__name__}")
        return found
