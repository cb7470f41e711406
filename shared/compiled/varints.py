"""Numbers in bytes, the lowest first: in as many as they need, seven bits each (Protocol Buffers, Avro, Kafka), or in a fixed number."""

import numpy as np

from tidemark.shared.compiled.compiling import part
from tidemark.shared.compiled.memory import byte_at


@part
def _long_varint(text, at, end):
    found, shift = np.uint64(0), np.uint64(0)
    while at < end:
        byte = np.uint64(byte_at(text, at))
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return -1, np.uint64(0)
        found |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return at, found
        shift += np.uint64(7)
    return -1, np.uint64(0)


@part
def varint(text, at, end):
    """(behind it, the number); (-1, 0) for one that is cut, or has more than 64 bits."""
    if at < end and byte_at(text, at) < 128:
        return at + 1, np.uint64(byte_at(text, at))
    return _long_varint(text, at, end)


@part
def signed(found):
    """The number with a sign that a number stands for (zigzag)."""
    return np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1))


@part
def put_varint(out, to, number):
    """Write a number without a sign; the place behind it."""
    while number > np.uint64(127):
        out[to] = np.uint8(number & np.uint64(127) | np.uint64(128))
        number >>= np.uint64(7)
        to += 1
    out[to] = np.uint8(number)
    return to + 1


@part
def put_signed(out, to, number):
    """Write a number with a sign (zigzag); the place behind it."""
    return put_varint(out, to, np.uint64(number << 1) ^ np.uint64(number >> 63))


@part
def put_fixed(out, to, number, size):
    """Write a number in so many bytes, the lowest first; the place behind it."""
    for i in range(size):
        out[to + i] = np.uint8(number >> 8 * i & 0xFF)
    return to + size
