"""CSV records to JSON documents: what `CsvRecords` of the file source makes of each, field by field.

- CV1 A record of which this code is not sure (quotes that are no CSV, bytes that are no UTF-8, more fields than the header, numbers in rare
  forms, no end in sight) ends the pass; the plain reader takes it, or says why it is none.
- CV2 A field of a type is what Python's `int`, `float` and `Decimal` make of its text, and stays the text where they refuse it.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import BYTES, BYTES_OUT, INT64S, INT64S_OUT, compiled, part, rare
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes, double_bits
from tidemark.shared.compiled.packed import is_text
from tidemark.shared.compiled.scanning import DOT, MINUS, PLUS, QUOTE, SIGN, SPACE, ZERO, number
from tidemark.shared.compiled.writing import put_all, put_double, put_text, put_whole

TEXT, WHOLE, DOUBLE, DECIMAL, BOOL = range(5)
"""The type that a field is to have."""
_LINE_FEED, _RETURN = 10, 13
_ROOM_BYTES: Final = 128
"""A value without its characters, and the end of the document."""
_DIGITS_MAX: Final = 18
"""Of a whole number that surely fits 64 bits."""
_NUMBER_MAX: Final = 64
"""Bytes of a number that is read here."""
_PLAIN_ZEROS: Final = 6
"""Behind the point, of a decimal without an exponent."""
_TRUE, _FALSE, _DECIMAL_HEAD = (np.frombuffer(text, np.uint8) for text in (b"true", b"false", b'{"$numberDecimal":"'))
_NUMERIC: Final = np.zeros(256, np.bool_)
"""Bytes that may stand in a number, its white space and the names of what is none; a text with others is no number."""
_NUMERIC[: SPACE + 1] = True
_NUMERIC[list(b"+-.0123456789")] = True
_WORDS: Final = _NUMERIC.copy()
_WORDS[list(b"aefinstyAEFINSTY")] = True


@rare
def _is_no_number(text, at, end, kind):
    """Whether Python surely refuses a text as a number."""
    if kind != WHOLE and end - at < 3 and byte_at(text, at) > 64:
        return True
    for place in range(at, end):
        byte = byte_at(text, place)
        if byte == 95 or byte >= 128 or not (_NUMERIC[byte] or (kind != WHOLE and _WORDS[byte])):
            return True
        if kind == WHOLE and byte == DOT:
            return True
    return False


@part
def _digits_end(text, at, end):
    while at < end and ZERO <= byte_at(text, at) <= ZERO + 9:
        at += 1
    return at


@rare
def _put_whole_number(text, at, end, out, to):
    """Behind the whole number that is written; -1 if this is none."""
    first = byte_at(text, at)
    begin = at + 1 if first == MINUS or first == PLUS else at
    if begin == end or end - begin > _DIGITS_MAX or _digits_end(text, begin, end) != end:
        return -1
    found = np.int64(0)
    for place in range(begin, end):
        found = found * 10 + np.int64(byte_at(text, place)) - ZERO
    return put_whole(out, to, -found if first == MINUS else found)


@rare
def _put_double(text, at, end, spare, out, to):
    """As `_put_whole_number`, of a double. spare: where the text has room for its form in JSON."""
    if end - at > _NUMBER_MAX:
        return -1
    first, behind = byte_at(text, at), spare
    if first == MINUS or first == PLUS:
        at += 1
    if first == MINUS:
        text[behind] = MINUS
        behind += 1
    if at < end and byte_at(text, at) == MINUS:
        return -1
    while at + 1 < end and byte_at(text, at) == ZERO and ZERO <= byte_at(text, at + 1) <= ZERO + 9:
        at += 1
    if at < end and byte_at(text, at) == DOT:
        text[behind] = ZERO
        behind += 1
    copy_bytes(text, behind, text, at, end - at)
    behind += end - at
    if behind == spare:
        return -1
    read, tag, found = number(text, spare, behind)
    if read != behind:
        return -1
    if tag != tags.DOUBLE:
        found = double_bits(np.float64(found))
        if first == MINUS:
            found |= np.int64(SIGN)
    return put_double(out, to, found)


@rare
def _put_decimal(text, at, end, out, to):
    """As `_put_whole_number`, of a decimal without an exponent."""
    to = put_all(out, to, _DECIMAL_HEAD)
    first = byte_at(text, at)
    if first == MINUS:
        out[to] = MINUS
        to += 1
    at += 1 if first == MINUS or first == PLUS else 0
    point = _digits_end(text, at, end)
    behind = end
    if point < end:
        if byte_at(text, point) != DOT or point + 1 == end or _digits_end(text, point + 1, end) != end:
            return -1
    elif point == at:
        return -1
    while at < point and byte_at(text, at) == ZERO:
        at += 1
    if at == point:
        zeros = 0
        while point + 1 + zeros < end and byte_at(text, point + 1 + zeros) == ZERO:
            zeros += 1
        if zeros >= _PLAIN_ZEROS:
            return -1
        out[to] = ZERO
        to += 1
    copy_bytes(out, to, text, at, behind - at)
    to += behind - at
    out[to], out[to + 1] = QUOTE, 125
    return to + 2


@part
def _is_word(text, at, end, word):
    """Whether letters are a word, capital or not."""
    same = end - at == len(word)
    if same:
        for i in range(len(word)):
            same &= byte_at(text, at + i) | 32 == word[i]
    return same


@rare
def _put_typed(kind, text, at, end, spare, out, to):
    """Behind a field that is to be no text; -1 where the plain reader has to look (CV1)."""
    if kind == BOOL:
        if _is_word(text, at, end, _TRUE):
            return put_all(out, to, _TRUE)
        if _is_word(text, at, end, _FALSE):
            return put_all(out, to, _FALSE)
        return put_text(out, to, text, at, end, len(text))
    if kind == WHOLE:
        behind = _put_whole_number(text, at, end, out, to)
    elif kind == DOUBLE:
        behind = _put_double(text, at, end, spare, out, to)
    else:
        behind = _put_decimal(text, at, end, out, to)
    if behind < 0 and _is_no_number(text, at, end, kind):
        return put_text(out, to, text, at, end, len(text))
    return behind


@part
def _field(text, at, end, delimiter, spare):
    """(what follows it, begin and end of its characters, whether all are ASCII) of a field; (-1, …) if it is none.

    Characters with quotes among them are put where there is room to spare.
    """
    high, to = np.uint8(0), spare
    if at >= end or byte_at(text, at) != QUOTE:
        begin = at
        while at < end:
            byte = byte_at(text, at)
            if byte == delimiter or byte == _LINE_FEED or byte == _RETURN:
                return at, begin, at, high < 128
            high |= byte
            at += 1
        return -1, at, at, False
    begin = at = at + 1
    while at < end:
        byte = byte_at(text, at)
        if byte == QUOTE:
            copied = to > spare
            if copied or (at + 1 < end and byte_at(text, at + 1) == QUOTE):
                copy_bytes(text, to, text, begin, at - begin)
                to += at - begin
            if at + 1 >= end or byte_at(text, at + 1) != QUOTE:
                return at + 1, spare if copied else begin, to if copied else at, high < 128
            text[to] = QUOTE
            to += 1
            begin = at = at + 2
            continue
        high |= byte
        at += 1
    return -1, at, at, False


@part
def _record(text, at, end, delimiter, columns, out, to, room):
    """(behind it, behind the output) of a record; (-1, …) where the plain reader has to look. An empty line gives nothing."""
    names, name_ends, kinds = columns
    if byte_at(text, at) == _LINE_FEED:
        return at + 1, to
    if byte_at(text, at) == _RETURN:
        return at + 2 if at + 1 < end and byte_at(text, at + 1) == _LINE_FEED else -1, to
    out[to] = 123
    to += 1
    column, low, written = 0, np.int64(0), False
    while True:
        at, begin, behind, plain = _field(text, at, end, delimiter, end)
        if at < 0 or at >= end or column >= len(kinds):
            return -1, to
        high = name_ends[column]
        if begin < behind:
            if to + high - low + 6 * (behind - begin) + _ROOM_BYTES > room:
                return -1, to
            if not plain and not is_text(text, begin, behind - begin):
                return -1, to
            if written:
                out[to] = 44
                to += 1
            copy_bytes(out, to, names, low, high - low)
            to += high - low
            if kinds[column] == TEXT or not plain:
                to = put_text(out, to, text, begin, behind, len(text))
            else:
                to = _put_typed(kinds[column], text, begin, behind, behind if begin >= end else end, out, to)
                if to < 0:
                    return -1, to
            written = True
        column, low = column + 1, high
        byte = byte_at(text, at)
        if byte == delimiter:
            at += 1
            continue
        if byte == _RETURN:
            at += 1
        if at >= end or byte_at(text, at) != _LINE_FEED:
            return -1, to
        out[to] = 125
        return at + 1, to + 1


@compiled(
    2, BYTES_OUT, "int64", "int64", "int64", "int64", "int64", BYTES, INT64S, INT64S, BYTES_OUT, INT64S_OUT, INT64S_OUT
)
def read(text, at, until, end, most, delimiter, names, name_ends, kinds, out, places, offsets):
    """(how many, where the next begins) of the records that begin before `until`, up to one that this is not sure of (CV1).

    text: the bytes up to `end`, and as much room to work in, and 128 bytes. most: bytes of a record. names, name_ends, kinds: of the
    header's fields; the names in JSON, with colons. out: the documents. places, offsets: where they begin in the text, and in `out`,
    with one offset more.
    """
    bytes_, target = borrowed(text), borrowed(out)
    columns = borrowed(names), borrowed(name_ends), borrowed(kinds)
    to, count = np.int64(0), np.int64(0)
    offsets[0] = 0
    while at < until and count < len(places) and to + _ROOM_BYTES <= len(out):
        behind, written = _record(bytes_, at, end, delimiter, columns, target, to, len(out))
        if behind < 0 or behind - at > most:
            break
        if written > to:
            places[count] = at
            count += 1
            offsets[count] = written
            to = written
        at = behind
    return count, at
