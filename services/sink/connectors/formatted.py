"""Documents, and keys that are documents, as records of plug-ins' formats. They are staged as bytes: a release asks no plug-in."""

from collections.abc import Callable

from tidemark.services.sink.connectors.registered import NotWritten, Unregistered
from tidemark.shared.language.values import type_name
from tidemark.shared.model.values import Document, Value
from tidemark.shared.ports.clock import Executor
from tidemark.shared.runtime.plugged import PluggedFormat


class FormattedForms:
    """One sink's records: values, keys or both are of a plug-in's format."""

    def __init__(self, values: PluggedFormat | None, keys: PluggedFormat | None, executor: Executor) -> None:
        self._values = values
        self._keys = keys
        self._executor = executor
        self._ready = False

    @property
    def has_keys(self) -> bool:
        """Whether `key` makes the keys."""
        return self._keys is not None

    async def prepare(self, topic: str) -> None:
        """Load the formats."""
        await self.ask(topic)

    def begin(self) -> None:
        """Nothing changes from batch to batch."""

    async def ask(self, topic: str) -> None:
        """Load the formats: they are the same for all topics. PluginError."""
        del topic
        for plugged in (self._values, self._keys):
            if plugged is not None:
                await self._executor.blocking(plugged.loaded)
        self._ready = True

    def value(self, document: Document, text: Callable[[], bytes], topic: str) -> bytes:
        """A document's record; `text` gives its JSON. Unregistered before the formats are loaded; NotWritten."""
        return text() if self._values is None else self._record(self._values, document, topic)

    def key(self, value: Value, topic: str) -> bytes:
        """A key's record. Unregistered, NotWritten."""
        assert self._keys is not None, "the caller looks at has_keys"
        if type(value) is not dict:
            raise NotWritten(
                f"{self._keys.place}: expected a key that is a document, found a value of type {type_name(value)}"
            )
        return self._record(self._keys, value, topic)

    def _record(self, plugged: PluggedFormat, document: Document, topic: str) -> bytes:
        if not self._ready:
            raise Unregistered(topic)
        try:
            found = plugged.loaded().encode(document)
        except Exception as error:
            raise NotWritten(f"{plugged.place}: {type(error).__name__}: {error}") from error
        if not isinstance(found, bytes):
            raise NotWritten(f"{plugged.place}: expected bytes, found {type(found).__name__}")
        return found
