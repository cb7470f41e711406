"""Documents as records of a plug-in's format. They are staged as bytes: a release asks no plug-in."""

from collections.abc import Callable
from typing import Any

from tidemark.services.sink.connectors.registered import NotWritten, Unregistered
from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.model.values import Document
from tidemark.shared.plugins.format import Format
from tidemark.shared.ports.clock import Executor


class FormattedForms:
    """One sink's records. `make` gives the format, and blocks; PluginError."""

    def __init__(self, make: Callable[[], Format[Any]], form: PluginFormat, executor: Executor) -> None:
        self._make = make
        self._place = f"{form.path}, plug-in {form.plugin}"
        self._executor = executor
        self._format: Format[Any] | None = None

    async def prepare(self, topic: str) -> None:
        """Load the format."""
        await self.ask(topic)

    def begin(self) -> None:
        """Nothing changes from batch to batch."""

    async def ask(self, topic: str) -> None:
        """Load the format: it is the same for all topics."""
        del topic
        if self._format is None:
            self._format = await self._executor.blocking(self._make)

    def value(self, document: Document, text: Callable[[], bytes], topic: str) -> bytes:
        """A document's record. Unregistered before the format is loaded; NotWritten."""
        del text
        if self._format is None:
            raise Unregistered(topic)
        try:
            found = self._format.encode(document)
        except Exception as error:
            raise NotWritten(f"{self._place}: {type(error).__name__}: {error}") from error
        if not isinstance(found, bytes):
            raise NotWritten(f"{self._place}: expected bytes, found {type(found).__name__}")
        return found
