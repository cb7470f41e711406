"""Keys of Kafka records by the format that `$source` names: their value in `$meta`, and the keys that are not of the format.

Formats are those of Kafka's own deserializers: strings UTF-8, int and long big-endian, JSON as extended JSON. Batches carry the bytes;
they become a value where a stage reads them.
"""

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.stages import KeyFormat
from tidemark.shared.language.values import ExtendedJsonError, parse_json
from tidemark.shared.model.values import Binary, Value, long
from tidemark.shared.operators.context import KeyedTopics, Topics
from tidemark.shared.operators.dead_letters import RowFailure

_SIZES: Final = {"int": 4, "long": 8, "double": 8}
_PATH: Final = "config.keyFormat"


class _NoKey(Exception):
    """Why bytes are no key of the format."""


def shown_key(topics: Topics, key: bytes) -> Value:
    """The key as `$meta` shows it; its bytes if it is not of the format (`keyFormatError: passThrough`)."""
    if not isinstance(topics, KeyedTopics):
        return Binary(key)
    try:
        return _value_of(key, topics.key_format)
    except _NoKey:
        return Binary(key)


def unfit_keys(keys: pa.BinaryArray, key_format: KeyFormat) -> Sequence[RowFailure]:
    """The rows that have a key which is not of the format. Of a schema registry's keys, and a plug-in's, the connector has said it."""
    if key_format in ("binData", "schemaRegistry", "plugin") or _all_fit(keys, key_format):
        return ()
    found: list[RowFailure] = []
    for row, key in enumerate(keys.to_pylist()):
        try:
            if key is not None:
                _value_of(key, key_format)
        except _NoKey as why:
            found.append(RowFailure(row, f"The record's key is no {key_format}: {why}.", "DecodeFailure", _PATH))
    return found


def _all_fit(keys: pa.BinaryArray, key_format: KeyFormat) -> bool:
    """Told for all rows at once, where that can be."""
    if key_format in _SIZES:
        return bool(pc.all(pc.equal(pc.binary_length(keys), _SIZES[key_format])).as_py() is not False)
    if key_format == "string":
        try:
            keys.cast(pa.string())
        except pa.ArrowInvalid:
            return False
        return True
    return False


def _value_of(key: bytes, key_format: KeyFormat) -> Value:
    match key_format:
        case "binData":
            return Binary(key)
        case "string":
            try:
                return key.decode()
            except UnicodeDecodeError as error:
                raise _NoKey(str(error)) from error
        case "json" | "schemaRegistry" | "plugin":
            try:
                return parse_json(key)
            except ExtendedJsonError as error:
                raise _NoKey(str(error)) from error
    if len(key) != _SIZES[key_format]:
        raise _NoKey(f"expected {_SIZES[key_format]} bytes, found {len(key)}")
    if key_format == "double":
        number: float = struct.unpack(">d", key)[0]
        return number
    whole = int.from_bytes(key, "big", signed=True)
    return long(whole) if key_format == "long" else whole
