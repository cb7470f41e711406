"""Records of plug-ins' formats as the JSON that sources read. One that is none stays as it is, with the reason.

Keys of a format may stand beside values of a schema registry, and values of a format beside its keys.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidemark.services.source.connectors.csvlines import csv_documents
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.shared.language.values import render_json
from tidemark.shared.model.records import RawBatch
from tidemark.shared.plugins.csvline import CsvLine
from tidemark.shared.plugins.interface import Format
from tidemark.shared.ports.clock import Executor
from tidemark.shared.runtime.plugged import PluggedFormat


class FormattedRecords:
    """One source's records: values, keys or both are of a plug-in's format."""

    def __init__(
        self,
        values: PluggedFormat | None,
        keys: PluggedFormat | None,
        executor: Executor,
        record_bytes_max: int,
        *,
        keys_must: bool = True,
        registered: RegisteredRecords | None = None,
    ) -> None:
        """keys_must: a record with a key that is not of the format is none. registered: reads what no format does."""
        self._values = values
        self._keys = keys
        self._executor = executor
        self._record_bytes_max = record_bytes_max
        self._keys_must = keys_must
        self._registered = registered

    async def decoded(self, batch: RawBatch) -> RawBatch:
        """The same records, values and keys as JSON. PluginError; as `RegisteredRecords.decoded`."""
        before = batch.unread
        if self._registered is not None:
            batch = await self._registered.decoded(batch)
        return await self._executor.blocking(self._read, batch, before)

    def _read(self, batch: RawBatch, before: Mapping[int, str]) -> RawBatch:
        """before: records that were none when they came."""
        values, keys, unread = batch.values, batch.keys, dict[int, str]()
        if self._keys is not None and keys is not None:
            keys, wrong = self._column(keys, self._keys)
            if self._keys_must:
                unread = {row: f"its key: {why}" for row, why in wrong.items()}
        unread |= batch.unread
        if self._values is not None:
            values, wrong = self._column(values, self._values)
            unread |= wrong
        return replace(batch, values=values, keys=keys, unread={**unread, **before})

    def _column(self, column: pa.BinaryArray, plugged: PluggedFormat) -> tuple[pa.BinaryArray, dict[int, str]]:
        """The records as JSON, and why some stay as they are."""
        form = plugged.loaded()
        found: list[bytes | None] = []
        unread: dict[int, str] = {}
        records: list[bytes | None] = column.to_pylist()
        known: Mapping[int, bytes] = {}
        if isinstance(form, CsvLine):
            layout = form.config
            known = csv_documents([r or b"" for r in records], layout.fields, layout.types, layout.delimiter)
        for row, data in enumerate(records):
            text, reason = (None, "") if data is None else self._one(form, data, known.get(row))
            found.append(data if reason else text)
            if reason:
                unread[row] = f"{plugged.place}: {reason}"
        return pa.array(found, pa.binary()), unread

    def _one(self, form: Format[Any], data: bytes, known: bytes | None) -> tuple[bytes, str]:
        """The JSON of a record; or why there is none. known: its JSON, where that was found before."""
        try:
            found: Any = form.decode(data) if known is None else known
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
