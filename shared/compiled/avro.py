"""Avro records of one schema to extended JSON, canonical but for plain numbers: what the plain reader of `shared.language.avro` gives.

- AC1 A record of which this code is not sure (malformed, deeper than DEPTH_MAX, keys of a map that stand twice, rare decimals) is marked;
  the plain reader reads it, or says why it is none.
- AC2 A schema is a table of nodes: [operation, first, count]. A record's are its fields (begin and end of the name in `names`, node), a
  union's its branches (nodes), an enumeration's its symbols (begin and end in `names`). Of an array and a map `first` is the node of
  the items, of an instant the ticks of a millisecond, of a decimal the scale; `count` of bytes is their number, -1 where it comes first.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
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
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes
from tidemark.shared.compiled.packed import is_text
from tidemark.shared.compiled.rendering import begin_names, known_name
from tidemark.shared.compiled.typed import double_of_float, put_any_double, put_binary, put_decimal, put_long
from tidemark.shared.compiled.varints import signed, varint
from tidemark.shared.compiled.writing import (
    put_all,
    put_date_number,
    put_text,
    put_whole,
)

NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, INSTANT, DAYS, ENUM, UNION, ARRAY, MAP, RECORD, BINARY, DECIMAL = (
    range(16)
)
UUID: Final = 16
"""As BINARY, of its own subtype."""
DEPTH_MAX: Final = 64
"""As the plain reader's."""
ITEMS_MIN: Final = 10_000
"""A record may have so many items that take no byte."""
_ROOM_BYTES: Final = 128
"""A value without its characters, and the end of what is open."""
_INT32: Final = 1 << 31
_DAY_MS: Final = 86_400_000
"""The unit of `date`."""
_TRUE, _FALSE, _NULL = (np.frombuffer(text, dtype=np.uint8) for text in (b"true", b"false", b"null"))


@part
def _number(text, at, end):
    """(behind it, a number of the encoding); (-1, …) where the plain reader has to look."""
    at, found = varint(text, at, end)
    return at, signed(found)


@rare
def _plain(op, first, count, text, at, end, size, symbols, names, out, to, room):
    """(behind it, behind the output) of a value without parts; (-1, …) where the plain reader has to look."""
    if op == NULL:
        return at, put_all(out, to, _NULL)
    if op == BOOLEAN:
        byte = byte_at(text, at) if at < end else np.uint8(2)
        if byte > 1:
            return -1, to
        return at + 1, put_all(out, to, _TRUE) if byte else put_all(out, to, _FALSE)
    if op == FLOAT or op == DOUBLE:
        width = 4 if op == FLOAT else 8
        if at + width > end:
            return -1, to
        bits = np.int64(0)
        for place in range(at + width - 1, at - 1, -1):
            bits = bits << 8 | np.int64(byte_at(text, place))
        return at + width, put_any_double(out, to, double_of_float(bits) if op == FLOAT else bits)
    length = count
    if op < BINARY or count < 0:
        at, length = _number(text, at, end)
        if at < 0:
            return -1, to
    if op == STRING or op >= BINARY:
        if length < 0 or length > end - at or to + 6 * length + _ROOM_BYTES > room:
            return -1, to
        if op == STRING:
            if not is_text(text, at, length):
                return -1, to
            return at + length, put_text(out, to, text, at, at + length, size)
        if op == DECIMAL:
            to = put_decimal(out, to, text, at, length, first)
            return at + length if to >= 0 else -1, to
        return at + length, put_binary(out, to, text, at, length, op == UUID)
    if op == LONG:
        return at, put_long(out, to, length)
    if op == INSTANT:
        return at, put_date_number(out, to, length // first)
    if op == ENUM:
        if length < 0 or length >= count:
            return -1, to
        begin, behind = symbols[first + length, 0], symbols[first + length, 1]
        copy_bytes(out, to, names, begin, behind - begin)
        return at, to + behind - begin
    if not -_INT32 <= length < _INT32:
        return -1, to
    return at, put_whole(out, to, length) if op == INT else put_date_number(out, to, length * _DAY_MS)


@part
def _branch(text, at, end, nodes, branches, union):
    """(behind the number of its type, the node of that type) of a union's value; (-1, …) where there is no such type."""
    at, index = _number(text, at, end)
    if at < 0 or index < 0 or index >= nodes[union, 2]:
        return -1, union
    return at, branches[nodes[union, 1] + index]


@part
def _block(text, at, end):
    """(behind it, how many items follow, 0 at the end) of a block's head; (-1, …) where the plain reader has to look."""
    at, count = _number(text, at, end)
    if at >= 0 and count < 0:
        count = -count
        at, _ = _number(text, at, end)  # the block's size, for readers that skip
    return (-1, np.int64(0)) if count < 0 else (at, count)


@part
def _put_key(text, at, end, size, out, to, room):
    """As `_plain`, of a map's key, with a colon; one that begins with `$` would be taken for a type."""
    at, length = _number(text, at, end)
    if at < 0 or length < 0 or length > end - at or to + 6 * length + _ROOM_BYTES > room:
        return -1, to
    if (length and byte_at(text, at) == 36) or not is_text(text, at, length):
        return -1, to
    to = put_text(out, to, text, at, at + length, size)
    out[to] = 58
    return at + length, to + 1


@part
def _record(text, at, end, size, schema, out, to, room, frames, known):
    """Behind the output of a record; -1 where the plain reader has to look (AC1).

    frames: by depth the node, the items left in a block, those so far, the names of the object around.
    """
    nodes, fields, branches, symbols, names = schema
    used = frames[4]
    used[0] = used[1] = 0
    begin_names(known)
    depth, node, items = 0, np.int64(0), end - at + ITEMS_MIN
    while True:
        op = nodes[node, 0]
        while op == UNION and at >= 0:
            at, node = _branch(text, at, end, nodes, branches, node)
            op = nodes[node, 0]
        if at < 0 or to + _ROOM_BYTES > room:
            return -1
        if op == RECORD or op == ARRAY or op == MAP:
            if depth >= DEPTH_MAX:
                return -1
            frames[0, depth], frames[1, depth], frames[2, depth], frames[3, depth] = node, 0, 0, used[0]
            used[0] = used[1]
            out[to] = 91 if op == ARRAY else 123
            depth, to = depth + 1, to + 1
        else:
            at, to = _plain(op, nodes[node, 1], nodes[node, 2], text, at, end, size, symbols, names, out, to, room)
            if at < 0:
                return -1
        closed = True
        while closed and depth:
            top = frames[0, depth - 1]
            op = nodes[top, 0]
            done = frames[2, depth - 1]
            if op == RECORD:
                closed = done == nodes[top, 2]
            elif frames[1, depth - 1] == 0:
                at, count = _block(text, at, end)
                items -= count
                if at < 0 or items < 0:
                    return -1
                frames[1, depth - 1] = count
                closed = count == 0
            else:
                closed = False
            if closed:
                depth -= 1
                used[1], used[0] = used[0], frames[3, depth]
                out[to] = 93 if op == ARRAY else 125
                to += 1
        if depth == 0:
            return to if at == end else -1
        if done:
            out[to] = 44
            to += 1
        frames[2, depth - 1] += 1
        if op == RECORD:
            field = nodes[top, 1] + done
            begin, behind, node = fields[field, 0], fields[field, 1], fields[field, 2]
            if to + behind - begin + _ROOM_BYTES > room:
                return -1
            copy_bytes(out, to, names, begin, behind - begin)
            to += behind - begin
        else:
            frames[1, depth - 1] -= 1
            node = nodes[top, 1]
            if op == MAP:
                begin = to
                at, to = _put_key(text, at, end, size, out, to, room)
                if at < 0 or known_name(out, begin, to, known, used):
                    return -1


@compiled(
    *(1, BYTES, INT64S, INT64_ROWS, INT64_ROWS, INT64S, INT64_ROWS, BYTES),
    *(BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT, UINT64S_OUT),
)
def read(text, bounds, nodes, fields, branches, symbols, names, out, offsets, sure, stack, known):
    """Write the JSON of the records one behind the other; how many bytes it takes. A record of which this is not sure is empty (AC1).

    text, bounds: the records. nodes to names: the schema (AC2), the root first; names as they are written, those of fields with colons.
    offsets: shape (n + 1,), where texts begin. sure: shape (n,). stack, known: to work in, see `rendering.room_to_work`.
    """
    whole, target, frames, seen = borrowed(text), borrowed(out), borrowed(stack), borrowed(known)
    schema = borrowed(nodes), borrowed(fields), borrowed(branches), borrowed(symbols), borrowed(names)
    to = np.int64(0)
    for row in range(len(sure)):
        offsets[row] = to
        at, end = bounds[row], bounds[row + 1]
        behind = _record(whole, at, end, len(text), schema, target, to, len(out), frames, seen)
        sure[row] = behind >= 0
        to = behind if behind >= 0 else to
    offsets[len(sure)] = to
    return to
