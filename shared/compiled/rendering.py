"""Rows to JSON texts, or to the compact codec, from documents in either form, with some fields from columns.

- R1 The output is, byte for byte, the interpreter's rendering of the documents: `shared.language.values.written`, in the form asked for, or
  `encode_doc`.
- R2 Untouched values are copied from their input; JSON without its spaces, with the escapes and the forms of numbers that R1
  wants.
- R3 A row that this code does not surely write (typed values that it does not know, names that stand twice) is marked; the interpreter
  writes it.

There is one walk. `form` says what it writes: CODEC, or one of RELAXED, CANONICAL and BASIC, with ISO added where dates are texts.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.compiled import encoding, tags
from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
    BYTE_ROWS,
    BYTES,
    BYTES_OUT,
    INT64_ROWS,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    UINT64S_OUT,
    compiled,
    part,
    rare,
)
from tidemark.shared.compiled.hashing import hashed, mixed
from tidemark.shared.compiled.json import first_kind, scalar, typed
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes
from tidemark.shared.compiled.name_tables import number_of
from tidemark.shared.compiled.packed import header, is_text, skip
from tidemark.shared.compiled.scanning import QUOTE, copy_string, skip_space, string_end
from tidemark.shared.compiled.writing import (
    YEAR_0_MS,
    YEAR_10000_MS,
    put_all,
    put_date,
    put_date_number,
    put_double,
    put_instant,
    put_repr,
    put_text,
    put_unescaped,
    put_whole,
)

ASK: Final = 255
"""A cell of which the document says whether it is null or missing; it says nothing else of the field (B1)."""
ENCODED: Final = 254
"""A cell with a value in the compact codec."""
CODEC: Final = -1
RELAXED, CANONICAL, BASIC, ISO = 0, 1, 2, 4
_DEPTH_MAX: Final = 1000
"""Of values in each other; deeper ones are the interpreter's."""
_NAMES_BITS_MIN, _NAMES_BITS_MAX = 6, 20
"""Room for two to the power of so many names of objects that are open at a time; more are the interpreter's."""
_FIELD_BYTES_MIN: Final = 2
"""Of a field: those of a map in Avro."""
_FEW_NAMES: Final = 24
"""Up to so many names of an object are compared one by one: that is faster than a table."""
_BITS, _SERIAL, _FIRST = 0, 1, 2
"""Of the room for names: how many bits number them, the number of the document, the first name. Twice as many slots stand behind them."""
_PROBES_MAX: Final = 64
"""Slots that are looked at for a name: they fill with names of large objects that were closed. Beyond, the interpreter looks."""
_OPEN, _CLOSE, _LIST, _COMMA, _COLON = (ord(c) for c in "{}[,:")
_TRUE, _FALSE, _NULL = (np.frombuffer(text, dtype=np.uint8) for text in (b"true", b"false", b"null"))
_NAN, _INFINITY, _MINUS_INFINITY = (np.frombuffer(text, dtype=np.uint8) for text in (b"NaN", b"Infinity", b"-Infinity"))
_INT, _LONG, _DOUBLE = (
    np.frombuffer(b'{"$number%b":"' % name, dtype=np.uint8) for name in (b"Int", b"Long", b"Double")
)
"""The begin of a value whose type is written out."""
_EXPONENT: Final = 0x7FF << 52
_FRACTION: Final = (1 << 52) - 1


@part
def _close_typed(out, to):
    """Write the end of a value whose type is written out."""
    out[to], out[to + 1] = QUOTE, _CLOSE
    return to + 2


@rare
def put_double_cell(form, out, to, number):
    """Write a double; one that is no number, or infinite, has a form of its own."""
    if number & _EXPONENT != _EXPONENT:
        if form & CANONICAL:
            return _close_typed(out, put_repr(out, put_all(out, to, _DOUBLE), number))
        return put_double(out, to, number)
    text = _NAN if number & _FRACTION else _INFINITY if number > 0 else _MINUS_INFINITY
    if not form & BASIC:
        return _close_typed(out, put_all(out, put_all(out, to, _DOUBLE), text))
    out[to] = QUOTE
    to = put_all(out, to + 1, text)
    out[to] = QUOTE
    return to + 1


@rare
def _put_date_cell(form, out, to, number):
    if form & ISO and YEAR_0_MS <= number < YEAR_10000_MS:
        out[to] = QUOTE
        to = put_instant(out, to + 1, number)
        out[to] = QUOTE
        return to + 1
    if form & BASIC:
        return put_whole(out, to, number)
    return put_date_number(out, to, number) if form & CANONICAL else put_date(out, to, number)


@rare
def _put_text_cell(form, out, to, tag, number, text, begin, end, size):
    """Write a value of a type that has a form of its own; of a string the characters from begin to end, of OTHER the JSON."""
    if tag == tags.STRING:
        return put_text(out, to, text, begin, end, size)
    if tag == tags.INT or tag == tags.LONG:
        if form & CANONICAL:
            small = tag == tags.INT and -(1 << 31) <= number < 1 << 31
            to = put_all(out, to, _INT) if small else put_all(out, to, _LONG)
            return _close_typed(out, put_whole(out, to, number))
        return put_whole(out, to, number)
    if tag == tags.DOUBLE:
        return put_double_cell(form, out, to, number)
    if tag == tags.DATE:
        return _put_date_cell(form, out, to, number)
    if tag == tags.BOOL:
        return put_all(out, to, _TRUE) if number else put_all(out, to, _FALSE)
    if tag == tags.NULL:
        return put_all(out, to, _NULL)
    copy_bytes(out, to, text, begin, end - begin)
    return to + end - begin


@part
def _put_cell(form, out, to, tag, number, text, begin, end, size):
    """The same, or in the codec; of ENCODED the bytes."""
    if form < 0:
        return encoding.put_cell(out, to, tag, number, text, begin, end)
    return _put_text_cell(form, out, to, tag, number, text, begin, end, size)


@part
def begin_names(names):
    """Before the names of another document."""
    names[_SERIAL] += np.uint64(1)


@part
def known_name(out, begin, end, names, used):
    """Whether a name, as it was written, is among those of its object, of numbers from used[0] to used[1]; else it is added.

    Names are compared by a number of 64 bits: of two that share one the interpreter finds that they differ. Those of a large object
    are found by slots. A slot keeps the numbers of a document and of a name; it is free if the document is another one, or if the name's
    object is closed, so that its number is not below that of the new name. An open name stays findable: the slots that were passed over
    for it belong to names with lower numbers, which are closed after it.
    """
    found, first, at = hashed(out, begin, end, end + 8), used[0], used[1]
    if at >> np.int64(names[_BITS]):
        return True
    names[_FIRST + at] = found
    used[1] = at + 1
    if at - first < _FEW_NAMES:
        same = False
        for i in range(_FIRST + first, _FIRST + at):
            same |= names[i] == found
        return same
    if at - first == _FEW_NAMES:
        for i in range(first, at):
            if _slot_taken(names, first, i):
                return True
    return _slot_taken(names, first, at)


@rare
def _slot_taken(names, first, at):
    """Whether the name of number `at` stands before, from `first` on, or no slot is found for it; else it has one."""
    found, bits, one = names[_FIRST + at], names[_BITS], np.uint64(1)
    slot, serial = mixed(found, np.uint64(first)), names[_SERIAL] << bits
    for _ in range(_PROBES_MAX):
        place = _FIRST + np.int64((one << bits) + (slot & (one << bits + one) - one))
        other = np.int64(names[place] & (one << bits) - one)
        if names[place] >> bits << bits != serial or other >= at:
            names[place] = serial | np.uint64(at)
            return False
        if other >= first and names[_FIRST + other] == found:
            return True
        slot += one
    return True


# --- values in JSON ---------------------------------------------------------------------------------------------------


@part
def _put_string(form, text, at, end, size, out, to):
    """(behind it, behind the output) of a JSON string that opens at a place; (-1, …) if it is none."""
    close, saved = string_end(text, at + 1, end, size) if at < end and byte_at(text, at) == QUOTE else (-1, 0)
    if close < 0:
        return -1, to
    if form < 0:
        to = encoding.put_string_head(out, to, close - at - 1 - saved)
        if saved:
            return close + 1, copy_string(text, at + 1, close, out, to)
        copy_bytes(out, to, text, at + 1, close - at - 1)
        return close + 1, to + close - at - 1
    if saved:
        out[to] = QUOTE
        to = put_unescaped(out, to + 1, text, at + 1, close)
        out[to] = QUOTE
        return close + 1, to + 1
    copy_bytes(out, to, text, at, close + 1 - at)
    return close + 1, to + close + 1 - at


@part
def _put_name(form, text, at, end, size, out, to):
    """(where the value begins, behind the name, in a text with its colon) of a field; (-1, …) if it is none."""
    at, to = _put_string(form, text, at, end, size, out, to)
    at = skip_space(text, at, end) if at >= 0 else end
    if at >= end or byte_at(text, at) != _COLON:
        return -1, to
    if form >= 0:
        out[to] = _COLON
        to += 1
    return skip_space(text, at + 1, end), to


@rare
def put_value(form, text, at, end, size, out, to, frames, names, used_before):
    """(behind it, behind the output) of the value at a place; (-1, …) where the interpreter has to write it (R3).

    frames: by depth: the bracket, the names of the object around, where it was begun, and the fields or items so far.
    """
    depth = 0
    used = frames[4]
    used[0] = used[1] = used_before
    while at < end:
        byte = byte_at(text, at)
        done = True
        if byte == _OPEN or byte == _LIST:
            kind, behind = first_kind(text, at, end, size) if byte == _OPEN else (np.int64(0), at)
            if kind:
                at, tag, found = typed(text, behind, end, size, kind)
                if at < 0 or tag == tags.OTHER:
                    return -1, to
                to = _put_cell(form, out, to, tag, found, text, at, at, size)
            else:
                if depth >= _DEPTH_MAX:
                    return -1, to
                frames[0, depth], frames[1, depth], frames[2, depth] = byte, used[0], to
                used[0] = used[1]
                out[to] = byte
                depth, to = depth + 1, to + 1
                at = skip_space(text, at + 1, end)
                done = at < end and byte_at(text, at) == byte + 2  # the closing bracket
                frames[3, depth - 1] = -1 if done else 0
        elif byte == QUOTE:
            at, to = _put_string(form, text, at, end, size, out, to)
        else:
            at, tag, found = scalar(text, at, end, size)
            to = _put_cell(form, out, to, tag, found, text, at, at, size) if at >= 0 else to
        if at < 0:
            return -1, to
        while done and depth:
            frames[3, depth - 1] += 1
            at = skip_space(text, at, end)
            if at >= end:
                return -1, to
            byte = byte_at(text, at)
            at += 1
            if form >= 0:
                out[to] = byte
                to += 1
            if byte == _COMMA:
                at = skip_space(text, at, end)
                done = False
            elif byte == frames[0, depth - 1] + 2:
                depth -= 1
                if form < 0:
                    to = encoding.put_head(out, frames[2, depth], to, frames[3, depth], frames[0, depth] == _LIST)
                used[1], used[0] = used[0], frames[1, depth]
            else:
                return -1, to
        if depth == 0:
            return at, to
        if frames[0, depth - 1] == _OPEN:
            begin = to
            at, to = _put_name(form, text, at, end, size, out, to)
            if at < 0 or known_name(out, begin, to, names, used):
                return -1, to
    return -1, to


# --- values in the compact codec --------------------------------------------------------------------------------------


@rare
def put_decoded(form, text, at, end, size, out, to, frames):
    """As `put_value`, of an encoded value that is written as JSON."""
    depth = 0
    while at < end:
        tag, found, content, length, count = header(text, at)
        if tag == tags.OTHER or (tag == tags.STRING and not is_text(text, content, length)):
            return -1, to
        at = content + length
        if tag == tags.OBJECT or tag == tags.ARRAY:
            if depth >= _DEPTH_MAX:
                return -1, to
            frames[0, depth], frames[1, depth] = (_OPEN if tag == tags.OBJECT else _LIST), count
            out[to] = frames[0, depth]
            depth, to = depth + 1, to + 1
        else:
            to = _put_text_cell(form, out, to, tag, found, text, content, at, size)
        opens = (tag == tags.OBJECT or tag == tags.ARRAY) and count > 0
        while depth and frames[1, depth - 1] == 0:
            depth -= 1
            out[to] = frames[0, depth] + 2
            to += 1
        if depth == 0:
            return at, to
        if not opens:
            out[to] = _COMMA
            to += 1
        frames[1, depth - 1] -= 1
        if frames[0, depth - 1] == _OPEN:
            _, _, content, length, _ = header(text, at)
            if not is_text(text, content, length):
                return -1, to
            to = put_text(out, to, text, content, content + length, size)
            out[to] = _COLON
            at, to = content + length, to + 1
    return -1, to


@part
def _put_packed(form, text, at, end, size, out, to, frames):
    """As `put_value`, of an encoded value."""
    if form < 0:
        behind = skip(text, at, end, 1)
        copy_bytes(out, to, text, at, behind - at)
        return behind, to + behind - at
    return put_decoded(form, text, at, end, size, out, to, frames)


# --- rows -------------------------------------------------------------------------------------------------------------


@part
def _place(form, cells, row, column, null, out, mark, to, frames):
    """Write a column's value of the field with the name from `mark` to `to`; `mark` if it has none. null: the document's own value is null.

    -1 where the interpreter has to write it (R3).
    """
    kinds, numbers, begins, ends, strings = cells
    tag = kinds[column, row]
    if tag == ENCODED and form >= 0:
        at, to = put_decoded(form, strings, begins[column, row], ends[column, row], len(strings), out, to, frames)
        return to if at >= 0 else -1
    if tag == tags.MISSING or (tag == ASK and not null):
        return mark
    tag = tags.NULL if tag == ASK else tag
    begin, end = begins[column, row], ends[column, row]
    return _put_cell(form, out, to, tag, numbers[column, row], strings, begin, end, len(strings))


@part
def _comma(form, out, to, count):
    """Write the separator before a field; the place behind it."""
    if form < 0 or not count:
        return to
    out[to] = _COMMA
    return to + 1


@part
def _end(form, cells, row, columns, out, top, to, count, frames):
    """Write the fields that the document does not have, and its end; as `_place`."""
    (texts, ends, _, _), placed = columns
    for column in range(len(placed)):
        low, high = ends[column], ends[column + 1]
        tag = cells[0][column, row]
        if not placed[column] and tag != tags.MISSING and tag != ASK:
            to = _comma(form, out, to, count)
            copy_bytes(out, to, texts, low, high - low)
            to = _place(form, cells, row, column, False, out, to, to + high - low, frames)
            if to < 0:
                return -1
            count += 1
    if form < 0:
        return encoding.put_head(out, top, to, count, False)
    out[to] = _CLOSE
    return to + 1


@part
def _json_row(form, text, at, end, size, cells, row, columns, out, to, frames, names):
    """The place behind the output of a row with a JSON document; -1 where the interpreter has to write it (R3)."""
    texts, placed = columns
    at, top, count = skip_space(text, at, end), to, 0
    out[to] = _OPEN
    to += 1
    at = skip_space(text, at + 1, end) if at < end and byte_at(text, at) == _OPEN else end
    if at >= end:
        return -1
    used = frames[5]
    used[0] = used[1] = 0
    begin_names(names)
    while byte_at(text, at) != _CLOSE:
        mark = to
        begin = to = _comma(form, out, to, count)
        at, to = _put_name(form, text, at, end, size, out, to)
        if at < 0 or at >= end or known_name(out, begin, to, names, used):
            return -1
        column, null, value = number_of(texts, 0, out, begin, to, to + 8) - 1, byte_at(text, at) == 110, to
        at, to = put_value(form, text, at, end, size, out, to, frames, names, used[1])
        if at < 0:
            return -1
        if column >= 0:
            placed[column] = True
            to = _place(form, cells, row, column, null, out, mark, value, frames)
            if to < 0:
                return -1
        count += to != mark
        at = skip_space(text, at, end)
        if at < end and byte_at(text, at) == _COMMA:
            at = skip_space(text, at + 1, end)
        elif at >= end or byte_at(text, at) != _CLOSE:
            return -1
        if at >= end:
            return -1
    return _end(form, cells, row, columns, out, top, to, count, frames)


@part
def _packed_row(form, text, at, end, size, cells, row, columns, out, to, frames):
    """As `_json_row`, of an encoded document; one of no bytes has no fields."""
    texts, placed = columns
    top, count = to, 0
    out[to] = _OPEN
    to += 1
    _, _, at, _, fields = header(text, at) if at < end else (0, np.int64(0), at, np.int64(0), np.int64(0))
    for _ in range(fields):
        mark = to
        begin = to = _comma(form, out, to, count)
        _, _, content, length, _ = header(text, at)
        if form < 0:
            copy_bytes(out, to, text, at, content + length - at)
            to += content + length - at
        elif is_text(text, content, length):
            to = put_text(out, to, text, content, content + length, size)
            out[to] = _COLON
            to += 1
        else:
            return -1
        at = content + length
        column, null, value = number_of(texts, 0, out, begin, to, to + 8) - 1, byte_at(text, at) == encoding.NULL, to
        at, to = _put_packed(form, text, at, end, size, out, to, frames)
        if at < 0:
            return -1
        if column >= 0:
            placed[column] = True
            to = _place(form, cells, row, column, null, out, mark, value, frames)
            if to < 0:
                return -1
        count += to != mark
    return _end(form, cells, row, columns, out, top, to, count, frames)


def room_to_work(
    columns: int, longest: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """The working memory of `render` and `encode`, for so many columns and documents of so many bytes (CC5)."""
    bits = min(max((longest // _FIELD_BYTES_MIN).bit_length(), _NAMES_BITS_MIN), _NAMES_BITS_MAX)
    known = np.zeros(_FIRST + (3 << bits), np.uint64)
    known[_BITS] = bits
    return np.empty(columns, np.bool_), np.empty((6, _DEPTH_MAX + 1), np.int64), known


def _writer(*, codec: bool) -> Any:
    """Write the rows one behind the other; how many bytes they take. A row where `sure` becomes false is empty (R3).

    form: of `render`; `encode` takes CODEC.
    text, bounds: the documents, JSON or `encoded`. texts to slots: the names of k columns (`name_table`), as they are written, in JSON
    with colons.
    kinds to ends: shape (k, n): the columns' values of the fields: tag, value, and place in `strings` (of a string its characters,
    of ENCODED the value, of OTHER, which the codec does not have, its JSON). out: with room. offsets: shape (n + 1,), where rows begin.
    sure: shape (n,). placed, stack, known: to work in, see `room_to_work`.
    """

    @compiled(
        *(1, "int64", BYTES, INT64S, "bool", BYTES, INT64S, INT64S, INT64S),
        *(BYTE_ROWS, INT64_ROWS, INT64_ROWS, INT64_ROWS, BYTES),
        *(BYTES_OUT, INT64S_OUT, BOOLS_OUT, BOOLS_OUT, INT64_ROWS_OUT, UINT64S_OUT),
        name="encode" if codec else "render",
    )
    def write(
        asked, text, bounds, encoded, texts, text_ends, above, slots, kinds, numbers, begins, ends, strings, out, offsets, sure,
        placed, stack, known,
    ):  # fmt: skip
        whole, target, frames, names = borrowed(text), borrowed(out), borrowed(stack), borrowed(known)
        cells = borrowed(kinds), borrowed(numbers), borrowed(begins), borrowed(ends), borrowed(strings)
        columns = (borrowed(texts), borrowed(text_ends), borrowed(above), borrowed(slots)), borrowed(placed)
        to = np.int64(0)
        form = np.int64(CODEC) if codec else asked
        for row in range(len(sure)):
            offsets[row] = to
            placed[:] = False
            at, end = bounds[row], bounds[row + 1]
            if encoded:
                behind = _packed_row(form, whole, at, end, len(text), cells, row, columns, target, to, frames)
            else:
                behind = _json_row(form, whole, at, end, len(text), cells, row, columns, target, to, frames, names)
            sure[row] = behind >= 0
            to = behind if behind >= 0 else to
        offsets[len(sure)] = to
        return to

    return write


render, encode = _writer(codec=False), _writer(codec=True)
