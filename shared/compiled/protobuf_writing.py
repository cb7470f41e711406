"""Documents in the compact codec to messages of Protocol Buffers: what `shared.language.protobuf.writing` makes.

- PW1 A document of which this code is not sure (one that does not fit, or has rare values) is marked; the plain writer writes it, or says
  why it cannot be written.
- PW2 A schema is a table of nodes: [operation, first, count, more], the operations of `protobuf_values.py`. Of a message: its fields and
  how many sets of alternatives it has (`oneof`); of an enumeration its symbols (begin and end in `names`, number), and whether others
  may come; of a wrapper `first` is the node of its value.
- PW3 A field is [begin, end, node, how, set of alternatives or -1, tag, type of a map's key]: the name in `names`. They stand in the order
  of their numbers; `lookup` has them by name.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
    BYTES,
    BYTES_OUT,
    INT64_ROWS,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    compiled,
    part,
    rare,
)
from tidemark.shared.compiled.encoding import NULL
from tidemark.shared.compiled.entries import LARGER_FIRST, LONGER_FIRST, sorted_entries
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes, move_bytes
from tidemark.shared.compiled.naming import place_fields, symbol_of
from tidemark.shared.compiled.numbers import (
    BINARY,
    INT32,
    decimal_parts,
    digits_in,
    double_of,
    float_of,
    kind_of,
    whole_of,
)
from tidemark.shared.compiled.numbers import DECIMAL as DECIMAL_VALUE
from tidemark.shared.compiled.packed import header, is_text, skip
from tidemark.shared.compiled.protobuf import DEFAULT, DEPTH_MAX, LIST, MAP, REQUIRED
from tidemark.shared.compiled.protobuf_values import (
    BOOL,
    BYTES_,
    DECIMAL,
    DOUBLE,
    ENUM,
    FIXED32,
    FIXED64,
    FLOAT,
    MESSAGE,
    SFIXED32,
    SINT32,
    SINT64,
    STRING,
    TIMESTAMP,
    UINT32,
    UINT64,
    WIRES,
    WRAPPER,
)
from tidemark.shared.compiled.protobuf_values import (
    INT32 as INT32_,
)
from tidemark.shared.compiled.varints import put_fixed, put_signed, put_varint

PACKED: Final = 5
"""How a field stands in a message, beside those of `protobuf.py`: items without tags."""
FRAMES: Final = 8
"""Rows of the stack."""
FRAMES_MAX: Final = 2 * DEPTH_MAX + 2
"""Its columns."""
_ITEMS, _ENTRIES = -1, -2
"""What is open that is no message."""
_FAILED, _STAYED, _VALUE, _OPENED, _CLOSED = range(5)
"""What a step has done: a value follows; a list or a map was opened; something was closed."""
_ROOM_BYTES: Final = 64
"""A value without its bytes, and the end of what is open."""
_KEY_DIGITS_MAX: Final = 18
"""So many digits are always a long; longer keys are left to the plain writer."""
_TRUE, _FALSE = (np.frombuffer(text, dtype=np.uint8) for text in (b"true", b"false"))


@rare
def _put_length(out, begin, to):
    """Write the length of what stands behind a byte at `begin` into it, and as many more as it takes; the place behind the content."""
    size = to - begin - 1
    more, left = 0, size >> 7
    while left:
        more += 1
        left >>= 7
    if more:
        move_bytes(out, begin + 1 + more, begin + 1, size)
    put_varint(out, begin, np.uint64(size))
    return to + more


@part
def _put_bytes(out, to, text, at, size):
    to = put_varint(out, to, np.uint64(size))
    copy_bytes(out, to, text, at, size)
    return to + size


@rare
def _put_whole(op, number, out, to):
    """Write a whole number of one of the types; -1 where it does not fit."""
    if op == UINT32 or op == FIXED32:
        if not 0 <= number < 2 * INT32:
            return -1
    elif op == UINT64 or op == FIXED64:
        if number < 0:
            return -1
    elif (op == INT32_ or op == SINT32 or op == SFIXED32) and not -INT32 <= number < INT32:
        return -1
    if WIRES[op] == 1:
        return put_fixed(out, to, number, 8)
    if WIRES[op] == 5:
        return put_fixed(out, to, number, 4)
    if op == SINT32 or op == SINT64:
        return put_signed(out, to, number)
    return put_varint(out, to, np.uint64(number))


@rare
def _put_timestamp(out, to, ms):
    begin, seconds, nanos = to, ms // 1000, ms % 1000 * 1_000_000
    to += 1
    if seconds:
        out[to] = 8
        to = put_varint(out, to + 1, np.uint64(seconds))
    if nanos:
        out[to] = 16
        to = put_varint(out, to + 1, np.uint64(nanos))
    out[begin] = to - begin - 1
    return to


@rare
def _put_money(text, kind, number, content, size, out, to):
    """Write Confluent's decimal: the unscaled number, how many digits it has, how many of them are behind the point."""
    point = np.int64(0)
    if kind == DECIMAL_VALUE:
        negative, number, _, point = decimal_parts(text, content, size)
        number = -number if negative else number
    elif kind != tags.INT and kind != tags.LONG:
        return -1
    if point < 0 or number == -(2**63):
        return -1
    bits, whole = np.int64(0), np.uint64(-number) if number < 0 else np.uint64(number)
    left = whole
    while left:
        bits += 1
        left >>= np.uint64(1)
    width, begin = bits // 8 + 1, to
    out[to + 1], out[to + 2] = 10, width
    to += 3
    for i in range(width):
        out[to + i] = np.uint8(number >> min(8 * (width - 1 - i), 63) & 0xFF)
    to += width
    out[to], out[to + 1] = 16, digits_in(whole)
    to += 2
    if point:
        out[to], out[to + 1] = 24, point
        to += 2
    out[begin] = to - begin - 1
    return to


@rare
def _put_symbol(node, nodes, text, kind, number, content, size, symbols, names, out, to):
    first, count = nodes[node, 1], nodes[node, 2]
    if kind == tags.STRING:
        found = symbol_of(text, content, size, names, symbols, first, count)
        return put_varint(out, to, np.uint64(symbols[first + found, 2])) if found >= 0 else -1
    known, whole = whole_of(kind, number)
    if not known or not -INT32 <= whole < INT32:
        return -1
    there = nodes[node, 3] != 0
    for i in range(first, first + count):
        there |= symbols[i, 2] == whole
    return put_varint(out, to, np.uint64(whole)) if there else -1


@rare
def _scalar(node, nodes, text, kind, number, content, size, symbols, names, out, to, room):
    """Behind the output of a value of a plain type; -1 where the plain writer has to look."""
    op = nodes[node, 0]
    if to + size + _ROOM_BYTES > room:
        return -1
    if op == STRING:
        return _put_bytes(out, to, text, content, size) if kind == tags.STRING and is_text(text, content, size) else -1
    if op == BYTES_:
        return _put_bytes(out, to, text, content + 2, size - 2) if kind == BINARY else -1
    if op == BOOL:
        out[to] = np.uint8(number)
        return to + 1 if kind == tags.BOOL else -1
    if op == ENUM:
        return _put_symbol(node, nodes, text, kind, number, content, size, symbols, names, out, to)
    if op == DOUBLE or op == FLOAT:
        known, bits = double_of(kind, number)
        bits = float_of(bits) if op == FLOAT else bits
        return put_fixed(out, to, bits, 4 if op == FLOAT else 8) if known and (op == DOUBLE or bits >= 0) else -1
    if op == TIMESTAMP:
        return _put_timestamp(out, to, number) if kind == tags.DATE else -1
    if op == DECIMAL:
        return _put_money(text, kind, number, content, size, out, to)
    known, whole = whole_of(kind, number)
    return _put_whole(op, whole, out, to) if known and WIRES[op] != 3 else -1


@part
def _is_zero(out, begin, to):
    found = True
    for i in range(begin, to):
        found &= out[i] == 0
    return found


@rare
def _plain(node, text, at, schema, out, to, room):
    """As `_scalar`, of a value at a place, or of its wrapper."""
    nodes, _, _, symbols, names = schema
    tag, number, content, size, _ = header(text, at)
    kind = kind_of(text, tag, content)
    if nodes[node, 0] != WRAPPER:
        return _scalar(node, nodes, text, kind, number, content, size, symbols, names, out, to, room)
    node, begin = nodes[node, 1], to
    out[to + 1] = 8 | WIRES[nodes[node, 0]]
    to = _scalar(node, nodes, text, kind, number, content, size, symbols, names, out, begin + 2, room)
    if to < 0:
        return -1
    return _put_length(out, begin, begin + 1 if _is_zero(out, begin + 2, to) else to)


# --- maps -------------------------------------------------------------------------------------------------------------


@part
def _equals(text, at, size, word):
    found = size == len(word)
    if found:
        for i in range(size):
            found &= byte_at(text, at + i) == word[i]
    return found


@rare
def _key(text, at, size, op, entries, place):
    """Whether this code is sure of a key."""
    entries[place, 2], entries[place, 3] = at, size
    if op == STRING:
        return is_text(text, at, size)
    if op == BOOL:
        entries[place, 2] = size == 4
        return _equals(text, at, size, _TRUE) or _equals(text, at, size, _FALSE)
    end, negative = at + size, size > 1 and byte_at(text, at) == 45
    at += negative
    if at >= end or end - at > _KEY_DIGITS_MAX or (byte_at(text, at) == 48 and (negative or end - at > 1)):
        return False
    found = np.int64(0)
    for place_of in range(at, end):
        digit = np.int64(byte_at(text, place_of)) - 48
        if not 0 <= digit <= 9:
            return False
        found = found * 10 + digit
    entries[place, 2] = -found if negative else found
    return True


@rare
def _entries(text, at, end, count, op, entries, low):
    """Whether this code is sure of a map's keys, all different; its entries are in `entries`, sorted."""
    for place in range(low, low + count):
        _, _, name, size, _ = header(text, at)
        if not _key(text, name, size, op, entries, place):
            return False
        entries[place, 0] = name + size
        at = skip(text, name + size, end, 1)
    return sorted_entries(text, entries, low, count, LONGER_FIRST if op == STRING else LARGER_FIRST)


# --- messages ---------------------------------------------------------------------------------------------------------


@part
def _open(node, begin, text, at, end, schema, frames, depth, slots):
    """Whether this code is sure of the fields of a message, which is on top now."""
    nodes, fields, lookup, _, names = schema
    used, count, sets = frames[6], nodes[node, 2], nodes[node, 3]
    if used[2] >= DEPTH_MAX:
        return False
    frames[0, depth], frames[1, depth], frames[3, depth], frames[5, depth] = node, 0, used[0], begin
    behind = place_fields(text, at, end, names, fields, lookup, nodes[node, 1], count, slots, used[0])
    for slot in range(used[0] + count, used[0] + count + sets):
        slots[slot] = -1
    used[0] += count + sets
    used[2] += 1
    return behind >= 0


@part
def _message_step(text, end, schema, frames, top, slots, entries, out, to):
    """(what was done, the node and the place of a value, behind the output): the next field of a message."""
    nodes, fields, _, _, _ = schema
    node, step, used, none = frames[0, top], frames[1, top], frames[6], np.int64(0)
    if step == nodes[node, 2]:
        used[0] = frames[3, top]
        used[2] -= 1
        return _CLOSED, none, none, (_put_length(out, frames[5, top], to) if frames[5, top] >= 0 else to)
    frames[1, top] = step + 1
    row, place = nodes[node, 1] + step, frames[3, top] + step
    at, how = slots[place], fields[row, 3]
    if at < 0 or byte_at(text, at) == NULL:
        return (_FAILED if how == REQUIRED else _STAYED), none, none, to
    if fields[row, 4] >= 0:
        other = frames[3, top] + nodes[node, 2] + fields[row, 4]
        if slots[other] >= 0:
            return _FAILED, none, none, to
        slots[other] = at
    if how < LIST:
        frames[7, top] = to if how == DEFAULT else -1
        return _VALUE, fields[row, 2], at, put_varint(out, to, np.uint64(fields[row, 5]))
    tag, _, content, _, inside = header(text, at)
    if tag != (tags.OBJECT if how == MAP else tags.ARRAY):
        return _FAILED, none, none, to
    if inside == 0:
        return _STAYED, none, none, to
    below = top + 1
    frames[0, below], frames[1, below], frames[2, below] = _ITEMS, inside, content
    frames[4, below], frames[5, below], frames[7, below] = row, -1, -1
    if how == MAP:
        if not _entries(text, content, end, inside, fields[row, 6], entries, used[1]):
            return _FAILED, none, none, to
        frames[0, below], frames[1, below], frames[3, below] = _ENTRIES, used[1], used[1]
        used[1] += inside
        frames[2, below] = used[1]
    elif how == PACKED:
        frames[5, below] = to = put_varint(out, to, np.uint64(fields[row, 5]))
        to += 1
    return _OPENED, none, none, to


@part
def _items_step(text, end, schema, frames, top, out, to):
    """As `_message_step`, of a list. frames: the items left, the next one, where the length of a run stands."""
    fields, none = schema[1], np.int64(0)
    if frames[1, top] == 0:
        return _CLOSED, none, none, (_put_length(out, frames[5, top], to) if frames[5, top] >= 0 else to)
    at, row = frames[2, top], frames[4, top]
    frames[1, top] -= 1
    frames[2, top] = skip(text, at, end, 1)
    if frames[5, top] < 0:
        to = put_varint(out, to, np.uint64(fields[row, 5]))
    return _VALUE, fields[row, 2], at, to


@part
def _entries_step(text, schema, frames, top, entries, out, to, room):
    """As `_message_step`, of a map. frames: where the length of the entry stands that is open."""
    nodes, fields, _, _, _ = schema
    entry, row, none = frames[1, top], frames[4, top], np.int64(0)
    if frames[5, top] >= 0:
        to = _put_length(out, frames[5, top], to)
        frames[5, top] = -1
    if entry == frames[2, top]:
        frames[6, 1] = frames[3, top]
        return _CLOSED, none, none, to
    frames[1, top] = entry + 1
    op, number, size = fields[row, 6], entries[entry, 2], entries[entry, 3]
    if to + size + 2 * _ROOM_BYTES > room:
        return _FAILED, none, none, to
    frames[5, top] = to = put_varint(out, to, np.uint64(fields[row, 5]))
    out[to + 1] = 8 | WIRES[op]
    to = _put_bytes(out, to + 2, text, number, size) if op == STRING else _put_whole(op, number, out, to + 2)
    if to < 0:
        return _FAILED, none, none, to
    out[to] = 16 | WIRES[nodes[fields[row, 2], 0]]
    return _VALUE, fields[row, 2], entries[entry, 0], to + 1


@part
def _record(text, at, end, schema, out, to, room, frames, slots, entries):
    """Behind a document's message; -1 where the plain writer has to look (PW1).

    frames: by depth the message's node or what else is open, and what the steps say; in use are slots, entries and messages. The last row:
    where a field began that is left out if it is zero.
    """
    nodes, used = schema[0], frames[6]
    used[0] = used[1] = used[2] = 0
    if not _open(np.int64(0), np.int64(-1), text, at, end, schema, frames, 0, slots):
        return -1
    depth = 1
    while True:
        if to + 2 * _ROOM_BYTES > room:
            return -1
        top = depth - 1
        kind = frames[0, top]
        if kind >= 0:
            done, node, at, to = _message_step(text, end, schema, frames, top, slots, entries, out, to)
        elif kind == _ITEMS:
            done, node, at, to = _items_step(text, end, schema, frames, top, out, to)
        else:
            done, node, at, to = _entries_step(text, schema, frames, top, entries, out, to, room)
        if done == _VALUE:
            if nodes[node, 0] == MESSAGE:
                if not _open(node, to, text, at, end, schema, frames, depth, slots):
                    return -1
                depth += 1
                to += 1
            else:
                begin, to = to, _plain(node, text, at, schema, out, to, room)
                if to < 0:
                    return -1
                if kind >= 0 and frames[7, top] >= 0 and _is_zero(out, begin, to):
                    to = frames[7, top]
        elif done == _OPENED:
            depth += 1
        elif done == _CLOSED:
            depth -= 1
            if depth == 0:
                return to
        elif done == _FAILED:
            return -1


@compiled(
    *(1, BYTES, INT64S, BYTES, INT64_ROWS, INT64_ROWS, INT64S, INT64_ROWS, BYTES),
    *(BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT, INT64S_OUT, INT64_ROWS_OUT),
)
def write(text, bounds, before, nodes, fields, lookup, symbols, names, out, offsets, sure, stack, slots, entries):
    """Write the records one behind the other; how many bytes they take. A record of which this is not sure is empty (PW1).

    text, bounds: encoded documents. before: what stands before each message. nodes to names: the schema (PW2, PW3), the root first. out:
    with room. offsets: shape (n + 1,), where records begin. sure: shape (n,). stack, slots, entries: to work in: shape (FRAMES,
    FRAMES_MAX); the most fields and sets of alternatives of a message for each of DEPTH_MAX; (half of the longest document's bytes, 4).
    """
    whole, target, frames, places, held = (
        borrowed(text),
        borrowed(out),
        borrowed(stack),
        borrowed(slots),
        borrowed(entries),
    )
    schema = borrowed(nodes), borrowed(fields), borrowed(lookup), borrowed(symbols), borrowed(names)
    to, size = np.int64(0), len(before)
    for row in range(len(sure)):
        offsets[row] = to
        at, end = bounds[row], bounds[row + 1]
        behind = np.int64(-1)
        if at < end and to + size + _ROOM_BYTES <= len(out):
            copy_bytes(target, to, before, 0, size)
            behind = _record(whole, at, end, schema, target, to + size, len(out), frames, places, held)
        sure[row] = behind >= 0
        to = behind if behind >= 0 else to
    offsets[len(sure)] = to
    return to
