"""One pass over JSON documents: whether each is strict JSON, and the values at the paths that are asked for.

- J1 A document is *sure* where this pass and the plain interpreter (`shared.language.values.parse_json`) surely agree, on that it is
  a document and on every value in it. The interpreter reads the documents that are not sure: malformed and rare ones.
- J2 Of fields of one name in an object the last value counts, at the first one's place: where such a field is asked for, the interpreter
  says so.
- J3 A typed value of the interpreter (`{"$date": …}`) is one here; it has no fields.
- J4 *Trusted* texts were rendered by the interpreter, canonical: in these, typed values that this pass does not know are OTHER.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
    BYTE_ROWS_OUT,
    BYTES,
    BYTES_OUT,
    INT32_ROWS_OUT,
    INT32S,
    INT32S_OUT,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    compiled,
    part,
    rare,
)
from tidemark.shared.compiled.memory import borrowed, byte_at, double_bits
from tidemark.shared.compiled.name_tables import number_of
from tidemark.shared.compiled.scanning import (
    BACKSLASH,
    MINUS,
    PLUS,
    QUOTE,
    SIGN,
    copy_string,
    hex_of,
    instant,
    number,
    skip_space,
    string_end,
)

DEPTH_MAX: Final = 180
"""Arrays and documents in each other, as the interpreter bounds them by default."""
UNESCAPED_BYTES: Final = 1024
"""Of a name that has escapes; of a longer one the interpreter says which it is."""
_OPEN, _CLOSE, _LIST, _LIST_END, _COMMA, _COLON, _DOLLAR = (ord(c) for c in "{}[],:$")
_OBJECT: Final = 1
_MAY_BE_TYPED: Final = 2
"""An object with a first field that makes a typed value, if it is the only one."""
_NONE: Final = -1
_COUNTED: Final = 240
"""Bytes whose count is a byte: sixteen are compared and added at once."""
_DATE, _INT, _LONG, _DOUBLE, _OID, _DECIMAL, _END, _UNKNOWN = range(1, 9)
_TYPED: Final = (
    (b"$date", _DATE),
    (b"$numberInt", _INT),
    (b"$numberLong", _LONG),
    (b"$numberDouble", _DOUBLE),
    (b"$numberDecimal", _DECIMAL),
    (b"$oid", _OID),
    (b"$minKey", _END),
    (b"$maxKey", _END),
    (b"$binary", _UNKNOWN),
    (b"$uuid", _UNKNOWN),
    (b"$regularExpression", _UNKNOWN),
    (b"$timestamp", _UNKNOWN),
    (b"$symbol", _UNKNOWN),
    (b"$undefined", _UNKNOWN),
)
_NAMES: Final = np.frombuffer(b"".join(name for name, _ in _TYPED), dtype=np.uint8)
_NAME_ENDS: Final = np.cumsum([len(name) for name, _ in _TYPED])
_KINDS: Final = np.array([kind for _, kind in _TYPED])
_TRUE, _FALSE, _NULL = (np.frombuffer(word, dtype=np.uint8) for word in (b"true", b"false", b"null"))
_NAN, _INFINITY = (np.frombuffer(word, dtype=np.uint8) for word in (b"NaN", b"Infinity"))
_INT64_MAX: Final = np.uint64(2**63 - 1)
_NAN_BITS: Final = 0x7FF8 << 48
_INFINITY_BITS: Final = 0x7FF << 52
_DECIMAL_DIGITS_MAX: Final = 34
"""Digits of a decimal, as IEEE 754 has it."""


@part
def same(text, at, end, word, begin, length):
    """Whether a word stands at a place."""
    if end - at < length:
        return False
    for i in range(length):  # a loop compiles, a generator does not
        if byte_at(text, at + i) != byte_at(word, begin + i):
            return False
    return True


# --- typed values -----------------------------------------------------------------------------------------------------


@rare
def _typed_kind(text, begin, end):
    """Which typed value a field of this name makes; 0 for none, _UNKNOWN if the name has escapes."""
    low = 0
    for i in range(len(_KINDS)):
        high = _NAME_ENDS[i]
        if end - begin == high - low and same(text, begin, end, _NAMES, low, high - low):
            return _KINDS[i]
        low = high
    for at in range(begin, end):
        if byte_at(text, at) == BACKSLASH:
            return _UNKNOWN
    return 0


@part
def _whole(text, at, end):
    """(whether it is one, value) of the digits of a whole number of 64 bits, in a string."""
    negative, positive = at < end and byte_at(text, at) == MINUS, at < end and byte_at(text, at) == PLUS
    at += 1 if negative or positive else 0
    if not 1 <= end - at <= 19:
        return False, np.int64(0)
    found = np.uint64(0)
    for place in range(at, end):
        digit = np.int64(byte_at(text, place)) - 48
        if not 0 <= digit <= 9:
            return False, np.int64(0)
        found = found * np.uint64(10) + np.uint64(digit)
    if found > _INT64_MAX + np.uint64(negative):
        return False, np.int64(0)
    return True, np.int64(np.uint64(0) - found) if negative else np.int64(found)


@part
def _of_text(text, begin, end, kind):
    """(tag, value) of a typed value written as a string without escapes; tag 0 where it is not known."""
    if kind == _DATE:
        known, ms = instant(text, begin, end)
        return tags.DATE if known else 0, ms
    if kind == _INT or kind == _LONG:
        known, found = _whole(text, begin, end)
        if kind == _INT:
            return tags.INT if known and -(2**31) <= found < 2**31 else 0, found
        return tags.LONG if known else 0, found
    if kind == _OID:
        whole = end - begin == 24 and hex_of(text, begin, 12) >= 0 and hex_of(text, begin + 12, 12) >= 0
        return tags.OTHER if whole else 0, np.int64(0)
    if kind == _DECIMAL:
        return tags.OTHER if _plain_decimal(text, begin, end) else 0, np.int64(0)
    return _double_of_text(text, begin, end) if kind == _DOUBLE else (0, np.int64(0))


@part
def _plain_decimal(text, at, end):
    """Whether it is a decimal of few digits, without an exponent."""
    at += 1 if at < end and byte_at(text, at) == MINUS else 0
    if not 1 <= end - at <= _DECIMAL_DIGITS_MAX:
        return False
    points = 0
    for place in range(at, end):
        digit = np.int64(byte_at(text, place)) - 48
        if byte_at(text, place) == 46:  # a point, between digits
            points += 1
            if points > 1 or place == at or place == end - 1:
                return False
        elif not 0 <= digit <= 9:
            return False
    return True


@part
def _double_of_text(text, begin, end):
    negative = begin < end and byte_at(text, begin) == MINUS
    at = begin + 1 if negative else begin
    if end - at == len(_INFINITY) and same(text, at, end, _INFINITY, 0, len(_INFINITY)):
        return tags.DOUBLE, np.int64(_INFINITY_BITS) | (SIGN if negative else 0)
    if end - begin == len(_NAN) and same(text, begin, end, _NAN, 0, len(_NAN)):
        return tags.DOUBLE, np.int64(_NAN_BITS)
    if begin == end:
        return 0, np.int64(0)
    after, tag, found = number(text, begin, end)
    if after != end:
        return 0, np.int64(0)
    if tag != tags.DOUBLE:
        found = SIGN if negative and found == 0 else double_bits(np.float64(found))
    return tags.DOUBLE, np.int64(found)


@part
def _of_number(text, at, end, kind):
    """(behind it, tag, value) of a typed value written as a number; tag 0 where it is not known."""
    after, tag, found = number(text, at, end)
    if after < 0 or tag == tags.DOUBLE:
        return after, tags.DOUBLE if after >= 0 and kind == _DOUBLE else 0, found
    if kind == _DATE:
        return after, tags.DATE, found
    if kind == _LONG or (kind == _INT and tag == tags.INT):
        return after, tags.LONG if kind == _LONG else tags.INT, found
    if kind == _DOUBLE:
        return after, tags.DOUBLE, np.int64(double_bits(np.float64(found)))
    return after, tags.OTHER if kind == _END and found == 1 else 0, np.int64(0)


@rare
def typed(text, at, end, size, kind):
    """(behind its object, tag, value) of a typed value, from behind the name of its field; (-1, …) where it is not known."""
    nothing = -1, 0, np.int64(0)
    at = skip_space(text, at, end)
    if at >= end or byte_at(text, at) != _COLON:
        return nothing
    at = skip_space(text, at + 1, end)
    if at >= end:
        return nothing
    byte = byte_at(text, at)
    if byte == QUOTE:
        close, saved = string_end(text, at + 1, end, size)
        if close < 0 or saved:
            return nothing
        tag, found = _of_text(text, at + 1, close, kind)
        at = close + 1
    elif byte == _OPEN and kind == _DATE:
        key = skip_space(text, at + 1, end)
        close, saved = string_end(text, key + 1, end, size) if key < end and byte_at(text, key) == QUOTE else (-1, 0)
        if close < 0 or _typed_kind(text, key + 1, close) != _LONG:
            return nothing
        at, tag, found = _inner_long(text, close + 1, end, size)
        if at < 0:
            return nothing
    else:
        at, tag, found = _of_number(text, at, end, kind)
    if at < 0 or tag == 0:
        return nothing
    at = skip_space(text, at, end)
    return (at + 1, tag, found) if at < end and byte_at(text, at) == _CLOSE else nothing


@part
def _inner_long(text, at, end, size):
    """(behind its object, DATE, ms) of `{"$numberLong": …}` within a date, from behind the name."""
    nothing = -1, 0, np.int64(0)
    at = skip_space(text, at, end)
    if at >= end or byte_at(text, at) != _COLON:
        return nothing
    at = skip_space(text, at + 1, end)
    if at >= end or byte_at(text, at) != QUOTE:
        return nothing
    close, _ = string_end(text, at + 1, end, size)
    known, found = _whole(text, at + 1, close)
    at = skip_space(text, close + 1, end)
    if close < 0 or not known or at >= end or byte_at(text, at) != _CLOSE:
        return nothing
    return at + 1, tags.DATE, found


# --- documents --------------------------------------------------------------------------------------------------------


@part
def scalar(text, at, end, size):
    """(behind it, tag, value) of a value that is neither object nor array; (-1, …) where it is none."""
    byte = byte_at(text, at)
    if byte == QUOTE:
        close, saved = string_end(text, at + 1, end, size)
        return (close + 1, tags.STRING, np.int64(close - at - 1 - saved)) if close >= 0 else (-1, 0, np.int64(0))
    if byte == MINUS or 48 <= byte <= 57:  # digits
        return number(text, at, end)
    if same(text, at, end, _TRUE, 0, 4):
        return at + 4, tags.BOOL, np.int64(1)
    if same(text, at, end, _FALSE, 0, 5):
        return at + 5, tags.BOOL, np.int64(0)
    return (at + 4, tags.NULL, np.int64(0)) if same(text, at, end, _NULL, 0, 4) else (-1, 0, np.int64(0))


@part
def is_leaf(tree, node):
    """Whether nothing is asked for below a node."""
    return tree[1][node] == node


@part
def _field(text, begin, close, saved, size, tree, node, scratch):
    """The node of the field with the name in the text, 0 if it is not asked for; _NONE where that cannot be told."""
    if node < 0 or is_leaf(tree, node):
        return np.int64(0)
    if saved == 0:
        return number_of(tree[0], node, text, begin, close, size)
    if close - begin > len(scratch):
        return np.int64(_NONE)
    return number_of(tree[0], node, scratch, 0, copy_string(text, begin, close, scratch, 0), len(scratch))


@part
def below(cells, tree, node, row, tag):
    """Give this tag to all nodes below a node."""
    for at in range(node + 1, (tree[1][node] + 1) if node else 0):
        cells[0][at, row] = tag


@part
def put(cells, node, row, tag, found, begin, end):
    """Fill a cell."""
    cells[0][node, row], cells[1][node, row], cells[2][node, row], cells[3][node, row] = tag, found, begin, end


@part
def _after(text, at, end, frames, depth, cells, tree, row, trusted):
    """(place, depth) behind a value, the ends of the objects and arrays around it, and a comma; (-1, 0) if another character follows."""
    while depth:
        at = skip_space(text, at, end)
        if at >= end:
            return -1, 0
        byte, kind, node = byte_at(text, at), frames[1, depth - 1], frames[2, depth - 1]
        at += 1
        if byte == _COMMA:
            return at, depth
        if byte != (_CLOSE if kind & _OBJECT else _LIST_END):
            return -1, 0
        depth -= 1
        if kind & _MAY_BE_TYPED:
            if not trusted:
                return -1, 0
            if node:
                cells[0][node, row] = tags.OTHER
                below(cells, tree, node, row, tags.MISSING)
        if node:
            cells[3][node, row] = at
    return skip_space(text, at, end), 0


@part
def first_kind(text, at, end, size):
    """(which typed value the object that opens at a place may be, behind the name of its first field)."""
    at = skip_space(text, at + 1, end)
    if at + 1 >= end or byte_at(text, at) != QUOTE:
        return np.int64(0), at
    first = byte_at(text, at + 1)
    if first != _DOLLAR and not (first == BACKSLASH and at + 7 <= end and hex_of(text, at + 3, 4) == _DOLLAR):
        return np.int64(0), at
    close, _ = string_end(text, at + 1, end, size)
    return (np.int64(_typed_kind(text, at + 1, close)), close + 1) if close >= 0 else (np.int64(0), at)


@part
def _opened(text, at, end, size):
    """(where to go on, tag, value, flags) of an object or an array that opens at a place; of a typed value the place behind it."""
    if byte_at(text, at) == _LIST:
        return at + 1, tags.ARRAY, np.int64(0), 0
    kind, behind = first_kind(text, at, end, size)
    if kind:
        after, tag, found = typed(text, behind, end, size, kind)
        if after >= 0:
            return after, tag, found, 0
    return at + 1, tags.OBJECT, np.int64(0), _OBJECT | _MAY_BE_TYPED if kind else _OBJECT


@part
def _document(text, at, end, size, tree, cells, row, frames, scratch, trusted):
    """Whether the document is sure (J1). Its values at the paths of the tree are in the cells of the row."""
    at = skip_space(text, at, end)
    if at >= end or byte_at(text, at) != _OPEN:
        return False
    kind, _ = first_kind(text, at, end, size)
    if kind and not trusted:
        return False
    frames[0, 0], frames[1, 0], frames[2, 0] = 0, _OBJECT, 0
    depth, first = 1, True
    at += 1
    while depth:
        holder, inside, node = frames[1, depth - 1], frames[0, depth - 1], np.int64(0)
        at = skip_space(text, at, end)
        if at >= end:
            return False
        if first and byte_at(text, at) == (_CLOSE if holder & _OBJECT else _LIST_END):
            at, depth = _after(text, at, end, frames, depth, cells, tree, row, trusted)
            first = False
            if at < 0:
                return False
            continue
        if holder & _OBJECT:
            close, saved = string_end(text, at + 1, end, size) if byte_at(text, at) == QUOTE else (-1, 0)
            if close < 0:
                return False
            if holder & _MAY_BE_TYPED and not first:
                if not trusted and (saved or _typed_kind(text, at + 1, close)):
                    return False
                frames[1, depth - 1] = _OBJECT
            node = _field(text, at + 1, close, saved, size, tree, inside, scratch)
            at = skip_space(text, close + 1, end)
            if node < 0 or at >= end or byte_at(text, at) != _COLON:
                return False
            at = skip_space(text, at + 1, end)
            if at >= end:
                return False
        if node and cells[0][node, row]:
            return False
        begin, byte = at, byte_at(text, at)
        if byte == _OPEN or byte == _LIST:
            at, tag, found, flags = _opened(text, at, end, size)
            if tag == tags.OBJECT or tag == tags.ARRAY:
                if depth >= DEPTH_MAX:
                    return False
                frames[0, depth], frames[1, depth], frames[2, depth] = (node or _NONE), flags, node
                if node:
                    put(cells, node, row, tag, found, begin, 0)
                if tag == tags.ARRAY:
                    frames[0, depth] = _NONE
                    below(cells, tree, node, row, tags.SPREAD)
                depth, first = depth + 1, True
                continue
        else:
            at, tag, found = scalar(text, at, end, size)
            if at < 0:
                return False
        if node:
            put(cells, node, row, tag, found, begin, at)
        at, depth = _after(text, at, end, frames, depth, cells, tree, row, trusted)
        first = False
        if at < 0:
            return False
    return at == end


@compiled(
    *(0, BYTES, INT64S, BYTES, INT64S, INT64S, INT64S, INT64S),
    *(BYTE_ROWS_OUT, INT64_ROWS_OUT, INT32_ROWS_OUT, INT32_ROWS_OUT),
    *(BOOLS_OUT, "bool", INT64_ROWS_OUT, BYTES_OUT),
)
def read(
    text, bounds, names, name_ends, above, slots, last, kinds, values, begins, ends, sure, trusted, stack, unescaped
):  # fmt: skip
    """Read the documents text[bounds[i]:bounds[i + 1]], of which `sure` is true; the cells of all others stay as they are.

    names to last: the tree of paths (`documents.Tree`) of m nodes. kinds, values, begins, ends: shape (m + 1, n), by node and document: tag
    (0 at first), value, and the place of the value's text; the first row of each is not used. sure: shape (n,). stack, unescaped: room to
    work in, shape (3, DEPTH_MAX + 1) and (UNESCAPED_BYTES,).
    """
    tree = (borrowed(names), borrowed(name_ends), borrowed(above), borrowed(slots)), borrowed(last)
    cells = borrowed(kinds), borrowed(values), borrowed(begins), borrowed(ends)
    frames, scratch, whole = borrowed(stack), borrowed(unescaped), borrowed(text)
    for row in range(len(bounds) - 1):
        if sure[row]:
            sure[row] = _document(
                whole, bounds[row], bounds[row + 1], len(text), tree, cells, row, frames, scratch, trusted
            )
            if not sure[row]:
                for node in range(1, len(last)):
                    kinds[node, row], begins[node, row], ends[node, row] = tags.MISSING, 0, 0


@compiled(0, BYTES, BYTES, INT64S, INT32S, INT32S, INT32S_OUT, BYTES_OUT)
def strings(text, kinds, lengths, begins, ends, offsets, out):
    """The characters of the cells that are strings, one behind the other; the others are empty. offsets: shape (n + 1,).

    A place of as many bytes as the string has is that of its characters; a longer one begins and ends with quotes, and may have escapes.
    """
    for row in range(len(kinds)):
        if kinds[row] == tags.STRING:
            at, end, to = np.int64(begins[row]), np.int64(ends[row]), offsets[row]
            if end - at == lengths[row] + 2:
                at, end = at + 1, end - 1
            if end - at == lengths[row]:
                for i in range(end - at):
                    out[to + i] = byte_at(text, at + i)
            else:
                copy_string(text, at + 1, end - 1, out, to)


@part
def _brackets(text, at, end):
    """How many bytes open something: counted many at a time, where to read a text is a step for each."""
    count = np.int64(0)
    while at < end:
        behind, some = min(end, at + _COUNTED), np.uint8(0)
        for i in range(at, behind):
            byte = byte_at(text, i)
            some += np.uint8(byte == _OPEN) | np.uint8(byte == _LIST)
        count, at = count + np.int64(some), behind
    return count


@compiled(0, BYTES, INT64S, "int64", BOOLS_OUT)
def deeper(text, bounds, most, found):
    """In which documents text[bounds[i]:bounds[i + 1]] more than so many brackets stand in each other."""
    whole = borrowed(text)
    for row in range(len(found)):
        at, end, depth = bounds[row], bounds[row + 1], 0
        if end - at <= 2 * most or _brackets(whole, at, end) <= most:  # each closes, too
            continue
        while at < end and depth <= most:
            byte = byte_at(whole, at)
            at += 1
            if byte == QUOTE:
                at, _ = string_end(whole, at, end, len(text))
                if at < 0:
                    break
                at += 1
            elif byte == _OPEN or byte == _LIST:
                depth += 1
            elif byte == _CLOSE or byte == _LIST_END:
                depth -= 1
        found[row] = depth > most


@compiled(0, BYTES, INT64S, INT64S_OUT, BOOLS_OUT)
def instants(text, bounds, found, known):
    """The instants (UTC ms) that the texts text[bounds[i]:bounds[i + 1]] name, and whether they surely do; shape (n,) each."""
    whole = borrowed(text)
    for row in range(len(found)):
        known[row], found[row] = instant(whole, bounds[row], bounds[row + 1])
