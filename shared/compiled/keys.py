"""Canonical bytes of encoded values (`language.values.keys`, K1 to K3), without an object a value."""

from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Bools
from tidemark.shared.compiled.compiling import BOOLS_OUT, BYTES, BYTES_OUT, INT64S, INT64S_OUT, compiled, part
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.memory import borrowed, copy_bytes, double_of_bits
from tidemark.shared.compiled.packed import header
from tidemark.shared.compiled.values import binary_of

_GROWTH: Final = 9
"""How many times as long as its encoding a value's canonical bytes may be: a small int has nine."""


def canonical(cells: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
    """The canonical bytes of each cell, a null one as null's, and which are sure, shape (n,) both."""
    cells = cells.fill_null(b"\xc0") if cells.null_count else cells
    text, bounds = buffers(cells)
    out = np.empty(int(bounds[-1] - bounds[0]) * _GROWTH, np.uint8)
    offsets, sure = np.empty(len(cells) + 1, np.int64), np.ones(len(cells), np.bool_)
    size = _canonical(text, bounds, out, offsets, sure)
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None), sure


@part
def _put(out, to, kind, number, width):
    """Write a letter and a big-endian number."""
    out[to] = kind
    for i in range(width):
        out[to + 1 + i] = np.uint8(number >> (8 * (width - 1 - i)) & 0xFF)
    return to + 1 + width


@compiled(1, BYTES, INT64S, BYTES_OUT, INT64S_OUT, BOOLS_OUT)
def _canonical(text, bounds, out, offsets, sure):
    """Both forms have what is inside a value behind its header, so a value is gone through once from the beginning to the end."""
    whole, target, to = borrowed(text), borrowed(out), np.int64(0)
    for row in range(len(bounds) - 1):
        offsets[row], at = to, bounds[row]
        while at < bounds[row + 1] and sure[row]:
            tag, number, at, size, inside = header(whole, at)
            if tag == tags.STRING:
                to = _put(target, to, ord("s"), size, 4)
                copy_bytes(target, to, whole, at, size)
                to += size
            elif tag == tags.INT or tag == tags.LONG or tag == tags.DATE:
                to = _put(target, to, ord("d") if tag == tags.DATE else ord("i"), number, 8)
            elif tag == tags.NULL or tag == tags.BOOL:
                to = _put(target, to, ord("n") if tag == tags.NULL else ord("T") if number else ord("F"), 0, 0)
            elif tag == tags.OBJECT or tag == tags.ARRAY:
                to = _put(target, to, ord("o") if tag == tags.OBJECT else ord("a"), inside, 4)
            elif tag == tags.DOUBLE:
                value = double_of_bits(np.int64(number))
                if np.isnan(value):
                    to = _put(target, to, ord("N"), 0, 0)
                elif value == np.inf or value == -np.inf:
                    to = _put(target, to, ord("P") if value > 0 else ord("M"), 0, 0)
                elif -(2.0**63) <= value < 2.0**63 and np.float64(np.int64(value)) == value:
                    to = _put(target, to, ord("i"), np.int64(value), 8)
                else:
                    sure[row] = False
            else:
                sure[row] = False
            at += size
        if not sure[row]:
            to = offsets[row]
    offsets[len(bounds) - 1] = to
    return to
