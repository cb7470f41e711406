"""Deletion vectors in Puffin files (`deletion-vector-v1`), where Iceberg keeps them.

(iceberg.apache.org, Puffin Spec.)
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE
from pyiceberg.table.puffin import MAGIC_BYTES, Footer

from tidemark.shared.adapters.deletionvectors import Places, check_bytes, places_of, unframed

_TAIL: Final = 12
"""Bytes behind a footer."""
_CARDINALITY: Final = "cardinality"


def vectors_of(puffin: Any, path: str, rows: int) -> list[Iterator[Places]]:
    """Of a data file with so many rows, those that an open file deletes. ValueError for what is no file of vectors, or damaged."""
    size = int(puffin.seek(0, 2))
    tail = _part(puffin, size - _TAIL, _TAIL, size)
    length, flags, mark = struct.unpack("<iI4s", tail)
    if mark != MAGIC_BYTES or flags:
        raise ValueError("expected a Puffin file with a plain footer")
    footer = Footer.model_validate_json(_part(puffin, size - _TAIL - length, length, size))
    found = []
    for blob in footer.blobs:
        if blob.properties.get(PROPERTY_REFERENCED_DATA_FILE) == path:
            if blob.compression_codec is not None:
                raise ValueError(f"a deletion vector is packed by {blob.compression_codec}; expected a plain one")
            check_bytes(blob.length, rows)
            vector = unframed(_part(puffin, blob.offset, blob.length, size))
            told = blob.properties.get(_CARDINALITY)
            found.append(places_of(vector, rows, None if told is None else int(told)))
    return found


def _part(file: Any, begin: int, length: int, size: int) -> bytes:
    if begin < 0 or length < 0 or begin + length > size:
        raise ValueError(f"a Puffin file of {size} bytes has a part of {length} at {begin}")
    file.seek(begin)
    return bytes(file.read(length))
