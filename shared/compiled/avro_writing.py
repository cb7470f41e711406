"""Documents in the compact codec to Avro records of one schema: what the plain writer of `shared.language.avro` makes.

- AW1 A document of which this code is not sure (one that does not fit, or has rare values) is marked; the plain writer writes it, or says
  why it cannot be written.
- AW2 A schema is a table of nodes: [operation, first, count, digits], the operations of `avro.py`. A record's are its fields (begin and end
  of the name in `names`, node, begin and end of what stands for a missing one, -1 where it must be there), `lookup` has them by name. An
  enumeration's are its symbols (begin and end), of an array and a map `first` is the node of the items. Of a decimal `first` is the
  scale, of an instant the ticks of a millisecond; `count` of bytes is their number, -1 where it comes first.
- AW3 Of a union `first` is its rows in `unions`, one for each type of a value: which branches (number, node) may take it, in the order in
  which they are tried. Objects and arrays have one at most; -1 where the plain writer has to choose.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.avro import (
    ARRAY,
    BINARY,
    BOOLEAN,
    DAYS,
    DECIMAL,
    DEPTH_MAX,
    DOUBLE,
    ENUM,
    FLOAT,
    INSTANT,
    INT,
    MAP,
    NULL,
    RECORD,
    STRING,
    UNION,
    UUID,
)
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
from tidemark.shared.compiled.memory import borrowed, copy_bytes
from tidemark.shared.compiled.naming import place_fields, symbol_of
from tidemark.shared.compiled.numbers import BINARY as BINARY_VALUE
from tidemark.shared.compiled.numbers import INT32, double_of, float_of, kind_of, unscaled_of, whole_of
from tidemark.shared.compiled.packed import header, is_text, skip
from tidemark.shared.compiled.varints import put_fixed, put_signed

FRAMES_MAX: Final = 256
"""Records, arrays and maps in each other; deeper ones are the plain writer's."""
_ROOM_BYTES: Final = 64
"""A value without its bytes, and the end of what is open."""
_DAY_MS: Final = 86_400_000
"""The unit of `date`."""
_INT64_MAX: Final = 2**63 - 1
"""What a long holds."""


@part
def _put_bytes(out, to, text, at, size):
    to = put_signed(out, to, size)
    copy_bytes(out, to, text, at, size)
    return to + size


@rare
def _put_decimal(out, to, number, size, digits):
    """Write a decimal's number; -1 where the plain writer has to look."""
    limit = np.int64(1)
    for _ in range(min(digits, 18)):
        limit *= 10
    if digits < 19 and not -limit < number < limit:
        return -1
    if size < 0:
        bits, left = np.int64(0), np.uint64(-number) if number < 0 else np.uint64(number)
        while left:
            bits += 1
            left >>= np.uint64(1)
        size = bits // 8 + 1
        to = put_signed(out, to, size)
    elif size < 8 and not -(np.int64(1) << (8 * size - 1)) <= number < np.int64(1) << (8 * size - 1):
        return -1
    for i in range(size):
        out[to + i] = np.uint8(number >> min(8 * (size - 1 - i), 63) & 0xFF)
    return to + size


@rare
def _put_number(op, count, kind, number, out, to):
    """Write a number of one of Avro's types; -1 where the plain writer has to look."""
    if op == FLOAT or op == DOUBLE:
        known, bits = double_of(kind, number)
        if op == FLOAT:
            bits = float_of(bits)
        return put_fixed(out, to, bits, 4 if op == FLOAT else 8) if known and (op == DOUBLE or bits >= 0) else -1
    if op == INSTANT or op == DAYS:
        if kind != tags.DATE:
            return -1
        if op == DAYS:
            number, rest = number // _DAY_MS, number % _DAY_MS
            return put_signed(out, to, number) if rest == 0 and -INT32 <= number < INT32 else -1
        most = _INT64_MAX // count
        return put_signed(out, to, number * count) if -most <= number <= most else -1
    known, whole = whole_of(kind, number)
    if not known or (op == INT and not -INT32 <= whole < INT32):
        return -1
    return put_signed(out, to, whole)


@rare
def _plain(node, nodes, text, kind, number, content, size, symbols, names, out, to, room):
    """Behind the output of a value without parts; -1 where the plain writer has to look."""
    op, first, count = nodes[node, 0], nodes[node, 1], nodes[node, 2]
    if to + size + max(count, 0) + _ROOM_BYTES > room:
        return -1
    if op == NULL:
        return to if kind == tags.NULL else -1
    if op == BOOLEAN:
        out[to] = np.uint8(number)
        return to + 1 if kind == tags.BOOL else -1
    if op == STRING:
        return _put_bytes(out, to, text, content, size) if kind == tags.STRING and is_text(text, content, size) else -1
    if op == ENUM:
        found = symbol_of(text, content, size, names, symbols, first, count) if kind == tags.STRING else -1
        return put_signed(out, to, found) if found >= 0 else -1
    if op == BINARY or op == UUID:
        if kind != BINARY_VALUE or (count >= 0 and count != size - 2):
            return -1
        if count < 0:
            return _put_bytes(out, to, text, content + 2, size - 2)
        copy_bytes(out, to, text, content + 2, count)
        return to + count
    if op == DECIMAL:
        known, unscaled = unscaled_of(text, kind, number, content, size, first)
        return _put_decimal(out, to, unscaled, count, nodes[node, 3]) if known else -1
    return _put_number(op, first, kind, number, out, to) if op < ENUM else -1


@part
def _chosen(union, kind, number, schema, text, content, size, out, to, room):
    """(node, behind the output) of a union's value: the branch's node where parts follow, -1 where it is written, -2 where it is not."""
    nodes, _, _, unions, branches, symbols, names = schema
    row = nodes[union, 1] + (tags.INT if kind == tags.LONG and not -INT32 <= number < INT32 else kind)
    for branch in range(unions[row, 0], unions[row, 0] + unions[row, 1]):
        node, behind = branches[branch, 1], put_signed(out, to, branches[branch, 0])
        op = nodes[node, 0]
        if op == RECORD or op == ARRAY or op == MAP:
            return node, behind
        behind = _plain(node, nodes, text, kind, number, content, size, symbols, names, out, behind, room)
        if behind >= 0:
            return np.int64(-1), behind
    return np.int64(-2), to


@part
def _opened(node, text, at, end, schema, frames, depth, slots, out, to):
    """Behind the head of a record, an array or a map that is on top now; -1 where the plain writer has to look."""
    nodes, fields, lookup, _, _, _, names = schema
    op, used = nodes[node, 0], frames[4]
    tag, _, content, _, inside = header(text, at)
    frames[0, depth], frames[1, depth], frames[2, depth], frames[3, depth] = node, 0, content, used[0]
    if op == RECORD:
        count = nodes[node, 2]
        if (
            used[1] >= DEPTH_MAX
            or place_fields(text, at, end, names, fields, lookup, nodes[node, 1], count, slots, used[0]) < 0
        ):
            return -1
        used[0] += count
        used[1] += 1
        return to
    if tag != (tags.ARRAY if op == ARRAY else tags.OBJECT):
        return -1
    frames[1, depth] = inside
    return put_signed(out, to, inside) if inside else to


@part
def _next(text, end, schema, frames, top, slots, out, to, room):
    """(node, place, behind the output) of the next part of what is on top; node -1: none follows, -2: it was written, -3: not sure."""
    nodes, fields, _, _, _, _, names = schema
    node, none = frames[0, top], np.int64(0)
    op, step = nodes[node, 0], frames[1, top]
    if to + _ROOM_BYTES > room:
        return np.int64(-3), none, to
    if op != RECORD:
        if step == 0:
            out[to] = 0
            return np.int64(-1), none, to + 1
        frames[1, top] = step - 1
        at = frames[2, top]
        if op == MAP:
            _, _, content, size, _ = header(text, at)
            if to + size + _ROOM_BYTES > room or not is_text(text, content, size):
                return np.int64(-3), none, to
            to, at = _put_bytes(out, to, text, content, size), content + size
        frames[2, top] = skip(text, at, end, 1)
        return nodes[node, 1], at, to
    if step == nodes[node, 2]:
        frames[4, 0] = frames[3, top]
        frames[4, 1] -= 1
        return np.int64(-1), none, to
    frames[1, top] = step + 1
    field, at = nodes[node, 1] + step, slots[frames[3, top] + step]
    if at >= 0:
        return fields[field, 2], at, to
    begin, behind = fields[field, 3], fields[field, 4]
    if begin < 0 or to + behind - begin + _ROOM_BYTES > room:
        return np.int64(-3), none, to
    copy_bytes(out, to, names, begin, behind - begin)
    return np.int64(-2), none, to + behind - begin


@part
def _record(text, at, end, schema, out, to, room, frames, slots):
    """Behind a document's record; -1 where the plain writer has to look (AW1).

    frames: by depth the node, the fields done or the items left, the next item, the first slot of a record; and what is in use.
    """
    nodes, symbols, names = schema[0], schema[5], schema[6]
    frames[4, 0] = frames[4, 1] = 0
    depth, node = 0, np.int64(0)
    while True:
        if node >= 0:
            tag, number, content, size, _ = header(text, at)
            kind = kind_of(text, tag, content)
            op = nodes[node, 0]
            if op == UNION:
                node, to = _chosen(node, kind, number, schema, text, content, size, out, to, room)
                if node == -2:
                    return -1
            elif op != RECORD and op != ARRAY and op != MAP:
                to = _plain(node, nodes, text, kind, number, content, size, symbols, names, out, to, room)
                node = np.int64(-1)
            if node >= 0:
                if depth >= FRAMES_MAX:
                    return -1
                to = _opened(node, text, at, end, schema, frames, depth, slots, out, to)
                depth += 1
            if to < 0:
                return -1
        if depth == 0:
            return to
        node, at, to = _next(text, end, schema, frames, depth - 1, slots, out, to, room)
        if node == -3:
            return -1
        if node == -1:
            depth -= 1


@compiled(
    *(1, BYTES, INT64S, INT64_ROWS, INT64_ROWS, INT64S, INT64_ROWS, INT64_ROWS, INT64_ROWS, BYTES),
    *(BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT, INT64S_OUT),
)
def write(
    text, bounds, nodes, fields, lookup, unions, branches, symbols, names, out, offsets, sure, stack, slots
):  # fmt: skip
    """Write the records one behind the other; how many bytes they take. A record of which this is not sure is empty (AW1).

    text, bounds: encoded values. nodes to names: the schema (AW2, AW3), the root first. out: with room. offsets: shape (n + 1,), where
    records begin. sure: shape (n,). stack, slots: to work in: shape (5, FRAMES_MAX); the most fields of a record for each of DEPTH_MAX.
    """
    whole, target, frames, places = borrowed(text), borrowed(out), borrowed(stack), borrowed(slots)
    schema = (
        borrowed(nodes), borrowed(fields), borrowed(lookup), borrowed(unions), borrowed(branches), borrowed(symbols), borrowed(names),
    )  # fmt: skip
    to = np.int64(0)
    for row in range(len(sure)):
        offsets[row] = to
        at, end = bounds[row], bounds[row + 1]
        behind = np.int64(-1)
        if at < end and to + _ROOM_BYTES <= len(out):
            behind = _record(whole, at, end, schema, target, to, len(out), frames, places)
        sure[row] = behind >= 0
        to = behind if behind >= 0 else to
    offsets[len(sure)] = to
    return to
