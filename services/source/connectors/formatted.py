"""Records of a plug-in's format as the JSON that sources read. One that is none stays as it is, with the reason."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.language.values import render_json
from tidemark.shared.model.records import RawBatch
from tidemark.shared.plugins.format import Format
from tidemark.shared.ports.clock import Executor


class FormattedRecords:
    """One source's records. `make` gives the format, and blocks; PluginError."""

    def __init__(
        self, make: Callable[[], Format[Any]], form: PluginFormat, executor: Executor, record_bytes_max: int
    ) -> None:
        self._make = make
        self._place = f"{form.path}, plug-in {form.plugin}"
        self._executor = executor
        self._record_bytes_max = record_bytes_max
        self._format: Format[Any] | None = None

    async def decoded(self, batch: RawBatch) -> RawBatch:
        """The same records, values as JSON. PluginError."""
        return await self._executor.blocking(self._read, batch)

    def _read(self, batch: RawBatch) -> RawBatch:
        if self._format is None:
            self._format = self._make()
        found: list[bytes | None] = []
        unread: dict[int, str] = {}
        for row, data in enumerate(batch.values.to_pylist()):
            text, reason = (None, "") if data is None else self._one(self._format, data)
            found.append(data if reason else text)
            if reason:
                unread[row] = f"{self._place}: {reason}"
        return replace(batch, values=pa.array(found, pa.binary()), unread={**unread, **batch.unread})

    def _one(self, form: Format[Any], data: bytes) -> tuple[bytes, str]:
        """The JSON of a record; or why there is none."""
        try:
            found: Any = form.decode(data)
            text = render_json(found, canonical=True) if isinstance(found, dict) else found
        except Exception as error:  # noqa: BLE001 - of another package, about this record: it is a dead letter
            return b"", f"{type(error).__name__}: {error}"
        if not isinstance(text, bytes):
            return b"", f"expected a document, or JSON in bytes, found {type(text).__name__}"
        if len(text) > self._record_bytes_max:
            return b"", (
                f"as JSON the record has {len(text)} bytes, at most {self._record_bytes_max} are allowed"
                " (options.limits.recordBytes)"
            )
        return text, ""
