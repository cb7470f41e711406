"""A check on the records that were read of a split, so that a later reader of the same place knows whether it reads the same ones.

A file can be changed behind its reader's back: a position says nothing of what was there. The check covers all records from the split's
first on. It is the same wherever batches were cut, and goes on from its own text, so a restored task continues with it.
"""

import zlib
from typing import Final

import numpy as np

from tidemark.shared.compiled.documents import buffers
from tidemark.shared.model.records import RawBatch

BEGUN: Final = "0-0-0"
"""Of no records."""


def taken(before: str, batch: RawBatch) -> str:
    """The check behind a batch, from that in front of it: of bytes, lengths, and arrivals, in hexadecimal."""
    data, lengths, times = (int(part, 16) for part in before.split("-"))
    text, bounds = buffers(batch.values)
    data = zlib.crc32(text[bounds[0] : bounds[-1]].data, data)
    lengths = zlib.crc32(np.ascontiguousarray(np.diff(bounds)).data, lengths)
    times = zlib.crc32(np.ascontiguousarray(batch.timestamps_ms).data, times)
    return f"{data:x}-{lengths:x}-{times:x}"


def same(one: str, other: str, *, arrivals: bool) -> bool:
    """Whether two checks are of the same records. arrivals: with the same times of arrival."""
    return one == other if arrivals else one.rpartition("-")[0] == other.rpartition("-")[0]
