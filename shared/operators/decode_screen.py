"""Which records the fast path of decoding may take: strict JSON objects on which it cannot differ from the plain path.

The fast reader is lenient where `parse_json` is not: malformed numbers, control characters in texts, numbers in quotes, and all that
stands in fields that it skips. So one strict pass goes over the text first, for all records together; it also makes certain that each
record is one object, and that no declared number is a text. The rest is looked for on the bytes.
"""

import functools
import json
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.schema import NO_SCHEMA, Schema
from shared.language.values.extended_json import DEPTH_MAX

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]

_OPEN, _CLOSE, _LIST, _DOLLAR, _QUOTE, _BACKSLASH, _D, _E, _U, _DOT, _PLUS, _COLON, _SPACE = (
    ord(c) for c in '{}[$"\\deu.+: '
)
_LOWER: Final = 0x20
"""The bit that makes a letter small."""
_NUMBERS: Final = frozenset({"int", "long", "double"})
_FINITE_DIGITS: Final = 300
"""A run of fewer digits is a number that a double can hold."""
_STRIDE: Final = _FINITE_DIGITS // 2
_HUGE: Final = r"[:,\[\s]-?[0-9.]+[eE]\+?[0-9]{3}"
_CHUNK: Final = 1 << 17
"""Bytes looked at in one go: the working arrays then stay in the processor's cache."""
_ZERO: Final = np.uint8(ord("0"))
_TEN: Final = np.uint8(10)
"""Bytes less `0`, which wrap around, are digits below this."""


def whole_objects(values: pa.BinaryArray) -> Bools:
    """Which records begin with `{` and end with `}`, shape (n,); the others do not go into the stream."""
    ends, data = buffers(values)
    begin, end = ends[:-1], ends[1:]
    long_enough = end - begin >= len("{}")
    if values.null_count:
        long_enough &= values.is_valid().to_numpy(zero_copy_only=False)
    if not len(data):
        return np.zeros(len(values), dtype=np.bool_)
    top = len(data) - 1
    whole: Bools = long_enough & (data[np.minimum(begin, top)] == _OPEN) & (data[np.maximum(end, 1) - 1] == _CLOSE)
    return whole


def joined(values: pa.BinaryArray) -> pa.Buffer:
    """The records as lines."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], type=pa.int32()), values)
    return pc.binary_join(lists, b"\n")[0].as_buffer()


def strict(lines: pa.Buffer, count: int, schema: Schema) -> bool:
    """Whether the lines are `count` JSON objects, with numbers (or null) where numbers are declared.

    Each line begins with `{` and ends with `}` (`whole_objects`), so in strict JSON a line's end is an object's end, and `count` objects
    are one a line.
    """
    names = tuple(f.name for f in schema if f.type in _NUMBERS)
    if not _may_be_texts(np.frombuffer(lines, dtype=np.uint8), count, names):
        names = ()
    try:
        return len(_decoder(names).decode_lines(lines)) == count
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def strict_each(values: pa.BinaryArray) -> Bools:
    """Which records are one JSON object each, in UTF-8, shape (n,); all of them begin with `{` and end with `}`."""
    good: Bools = np.ones(len(values), dtype=np.bool_)
    if not len(values):
        return good
    lines = joined(values)
    with suppress(UnicodeDecodeError):  # then each is looked at, as where they are not all strict
        str(lines, "utf-8")  # what the decoder passes over it does not decode
        if strict(lines, len(values), NO_SCHEMA):
            return good
    decoder = _decoder(())
    for row, text in enumerate(values.to_pylist()):
        try:
            text.decode()
            decoder.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            good[row] = False
    return good


@functools.lru_cache(maxsize=64)
def _decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Reads only these fields, as numbers, and checks the rest in passing."""
    fields = [(f"f{i}", int | float | None, None) for i in range(len(names))]
    rename = {f"f{i}": name for i, name in enumerate(names)}
    return msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=rename, gc=False))


def _may_be_texts(data: npt.NDArray[np.uint8], count: int, names: tuple[str, ...]) -> bool:
    """Whether a text may stand behind one of these names; True, too, where only parsing could tell: escapes, or space at a colon."""
    if not names or not len(data):
        return False
    if any(name != json.dumps(name)[1:-1] for name in names) or bool((data == _BACKSLASH).any()):
        return True
    # Beyond the line ends there may be space in texts, or between tokens.
    if np.count_nonzero(data <= _SPACE) >= count and _space_at_colon(data):
        return True
    text = data[:-1] == _COLON
    text &= data[1:] == _QUOTE
    texts = np.flatnonzero(text)
    return any(_named(data, texts, f'"{name}"'.encode()) for name in names)


def _space_at_colon(data: npt.NDArray[np.uint8]) -> bool:
    colons = np.flatnonzero(data == _COLON)
    behind = data[np.minimum(colons + 1, len(data) - 1)]
    return bool((behind <= _SPACE).any()) or bool((data[np.maximum(colons - 1, 0)] <= _SPACE).any())


def _named(data: npt.NDArray[np.uint8], colons: npt.NDArray[np.intp], key: bytes) -> bool:
    """Whether these bytes stand before one of the colons."""
    left = colons[colons >= len(key)]
    for away, byte in enumerate(reversed(key), start=1):
        if not len(left):
            return False
        left = left[data[left - away] == byte]
    return bool(len(left))


def beyond(values: pa.BinaryArray, dates: Int64s) -> Bools:
    """Records with what only the plain path judges, shape (n,): typed values, numbers beyond doubles, deep nesting.

    dates: how many declared dates, `{"$date": …}`, each record has.
    """
    ends, data = buffers(values)
    found = _typed_values(ends, data, dates)
    for rows in (
        _surrogates(ends, data),
        _huge_numbers(values, ends, data),
        _long_numbers(ends, data),
        _deep(ends, data),
    ):
        found[rows] = True
    return found


def buffers(values: pa.BinaryArray) -> tuple[Int64s, npt.NDArray[np.uint8]]:
    """(n + 1 offsets, all bytes) of a binary array."""
    _, offsets, data = values.buffers()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    ends = np.frombuffer(offsets, dtype=width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return ends, np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)


def _row_of(ends: Int64s, places: npt.NDArray[np.intp]) -> Int64s:
    return np.searchsorted(ends[1:], places, side="right").astype(np.int64)


def _inside(ends: Int64s, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Of places in the bytes, those in the records."""
    if not len(places) or (places[0] >= ends[0] and places[-1] < ends[-1]):
        return places
    low, high = np.searchsorted(places, (ends[0], ends[-1]))
    return places[low:high]


def _typed_values(ends: Int64s, data: npt.NDArray[np.uint8], dates: Int64s) -> Bools:
    places = _inside(ends, np.flatnonzero(data == _DOLLAR))
    places = places[data[places - 1] == _QUOTE]
    counts = np.bincount(_row_of(ends, places), minlength=len(dates))
    found: Bools = counts != dates
    return found


def _exponents(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Where an e has a digit two places on, but for the three last bytes."""
    exponent = (data[1:-2] | _LOWER) == _E
    exponent &= data[3:] - _ZERO < _TEN
    return np.flatnonzero(exponent) + 1


def _huge_numbers(values: pa.BinaryArray, ends: Int64s, data: npt.NDArray[np.uint8]) -> Int64s:
    """Exponents of three digits, outside texts as far as one sees without parsing."""
    last = len(data) - 1
    found = [_exponents(data[at : at + _CHUNK + 3]) + at for at in range(0, max(last - 2, 1), _CHUNK)]
    places = _inside(ends, np.concatenate(found))
    for away in (-1, 2):
        near = data[np.minimum(places + away, last)]
        places = places[(near - _ZERO < _TEN) | (near == _DOT) | (near == _PLUS)]
    if not len(places):
        return places
    rows = np.unique(_row_of(ends, places))
    huge = pc.match_substring_regex(values.take(pa.array(rows)), _HUGE)
    mask: Bools = huge.to_numpy(zero_copy_only=False)
    return rows[mask]


def _surrogates(ends: Int64s, data: npt.NDArray[np.uint8]) -> Int64s:
    """Escaped surrogates, of which the fast reader makes another character."""
    places = _inside(ends, np.flatnonzero(data == _BACKSLASH))
    last = len(data) - 1
    places = places[(data[np.minimum(places + 1, last)] == _U) & (data[np.minimum(places + 2, last)] | _LOWER == _D)]
    return np.unique(_row_of(ends, places))


def _long_numbers(ends: Int64s, data: npt.NDArray[np.uint8]) -> Int64s:
    """Rows with so many digits in a row that two places at half the distance are digits."""
    if int(np.diff(ends).max(initial=0)) < _FINITE_DIGITS:
        return np.empty(0, dtype=np.int64)
    places = np.arange(ends[0], ends[-1], _STRIDE, dtype=np.int64)
    digits = data[places] - _ZERO < _TEN
    return np.unique(_row_of(ends, places[:-1][digits[:-1] & digits[1:]])) if len(places) else places


def _deep(ends: Int64s, data: npt.NDArray[np.uint8]) -> Int64s:
    if int(np.diff(ends).max(initial=0)) < 2 * DEPTH_MAX:
        return np.empty(0, dtype=np.int64)
    opens = np.concatenate(([0], np.cumsum((data == _OPEN) | (data == _LIST))))
    return np.flatnonzero(opens[ends[1:]] - opens[ends[:-1]] >= DEPTH_MAX)
