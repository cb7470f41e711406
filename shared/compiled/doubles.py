"""Doubles as texts: the shortest that read back as the same, whole ones without a point (`double_text` of the language's strings)."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled.columns import Bools, bitmap
from tidemark.shared.compiled.compiling import BYTES_OUT, INT32S_OUT, INT64S, compiled
from tidemark.shared.compiled.memory import borrowed
from tidemark.shared.compiled.writing import put_repr

_BYTES_MAX: Final = 32
"""Of a double's text, with room for what is written on the way."""
_EXPONENT: Final = 0x7FF << 52


def texts(numbers: npt.NDArray[np.float64], there: Bools) -> pa.StringArray:
    """The texts of finite doubles, shape (n,); null where none is `there`, or one is not finite."""
    bits, there = numbers.view(np.int64), there & np.isfinite(numbers)
    out, offsets = np.empty(len(bits) * _BYTES_MAX, np.uint8), np.empty(len(bits) + 1, np.int32)
    size = _texts(bits, offsets, out)
    out.resize(size, refcheck=False)
    nulls = int(np.count_nonzero(~there))
    valid = bitmap(there) if nulls else None
    return pa.StringArray.from_buffers(len(bits), pa.py_buffer(offsets), pa.py_buffer(out), valid, nulls)


@compiled(1, INT64S, INT32S_OUT, BYTES_OUT)
def _texts(bits, offsets, out):
    target, to = borrowed(out), np.int64(0)
    for row in range(len(bits)):
        offsets[row] = to
        if bits[row] & _EXPONENT != _EXPONENT:
            to = put_repr(target, to, bits[row])
            if target[to - 1] == 48 and target[to - 2] == 46:
                to -= 2
    offsets[len(bits)] = to
    return to
