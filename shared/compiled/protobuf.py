"""Messages of Protocol Buffers to extended JSON, canonical but for plain numbers: what `shared.language.protobuf.reading` gives.

- PM1 A record of which this code is not sure is marked; the plain reader reads it, or says why it is none: what is malformed, unknown,
  required and missing, deeper than DEPTH_MAX, a group, fields that come twice or not together, keys that stand twice, rare values.
- PM2 A schema is a table of nodes: [operation, first, count, more, begin, end]. The operation is the type's number in descriptor.proto, or
  one of those below. Of a message: its fields and how many sets of alternatives it has (`oneof`); of an enumeration its symbols (number,
  begin and end in `names`) by number, and whether others may come; of a wrapper `first` is the node of its value. begin, end: the text of
  the default in `names`.
- PM3 A field is [number, how, node, set of alternatives or -1, tag, begin, end, type of a map's key]: the name in `names`. Messages write
  their fields in the order of the schema; `lookup` has them by number: [number, field].
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
    compiled,
    part,
    rare,
)
from tidemark.shared.compiled.entries import BY_BYTES, BY_TEXT, sorted_entries
from tidemark.shared.compiled.memory import borrowed, byte_at
from tidemark.shared.compiled.packed import is_text
from tidemark.shared.compiled.protobuf_values import (
    BOOL,
    FIXED32,
    FIXED64,
    INT32,
    MESSAGE,
    ROOM_BYTES,
    SFIXED32,
    SINT32,
    SINT64,
    STRING,
    UINT32,
    UINT64,
    WIRES,
    behind_value,
    content,
    fixed,
    low_number,
    plain,
    put_name,
    short,
)
from tidemark.shared.compiled.varints import varint
from tidemark.shared.compiled.writing import put_all, put_text, put_whole

DEFAULT, OPTIONAL, REQUIRED, LIST, MAP = range(5)
"""How a field stands in a message; that of DEFAULT has no presence."""
DEPTH_MAX: Final = 64
"""As the plain reader's."""
FRAMES: Final = 6
"""Rows of the stack."""
_ITEMS, _ENTRIES = -1, -2
"""What is open that is no message."""
_FAILED, _STAYED, _VALUE, _OPENED, _CLOSED = range(5)
"""What a step has done: a value follows; a list or a map was opened; something was closed."""
_TRUE, _FALSE = (np.frombuffer(text, dtype=np.uint8) for text in (b"true", b"false"))


# --- messages ---------------------------------------------------------------------------------------------------------


@part
def _place_of(lookup, first, count, number, guess):
    """Where the field with a number stands in `lookup`, from the message's first; -1 if it has none."""
    if guess < count and lookup[first + guess, 0] == number:
        return guess
    if guess + 1 < count and lookup[first + guess + 1, 0] == number:
        return guess + 1
    low, high = np.int64(0), count
    while low < high:
        middle = (low + high) >> 1
        if lookup[first + middle, 0] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < count and lookup[first + low, 0] == number else np.int64(-1)


@rare
def _scan(text, at, end, node, schema, slots, base):
    """Whether this code is sure of a message's fields. slots: where the value of each begins, of several the first one's tag; -1: none."""
    nodes, fields, lookup, _, _ = schema
    first, count = nodes[node, 1], nodes[node, 2]
    for slot in range(base, base + count + nodes[node, 3]):
        slots[slot] = -1
    place, last = np.int64(0), np.int64(-1)
    while at < end:
        begin = at
        at, tag = short(text, at, end)
        if at < 0:
            return False
        place = _place_of(lookup, first, count, np.int64(tag >> np.uint64(3)), max(place, 0))
        if place < 0:
            return False
        field = lookup[first + place, 1]
        row, slot, wire = first + field, base + field, np.int64(tag & np.uint64(7))
        same = np.int64(tag) == fields[row, 4]
        if fields[row, 1] >= LIST:
            if not same and (wire != 2 or WIRES[nodes[fields[row, 2], 0]] == 3):
                return False
            if field != last:
                if slots[slot] >= 0:
                    return False
                slots[slot] = begin
        else:
            if not same or slots[slot] >= 0:
                return False
            slots[slot] = at
            if fields[row, 3] >= 0:
                other = base + count + fields[row, 3]
                if slots[other] >= 0:
                    return False
                slots[other] = at
        last = field
        at = behind_value(text, at, end, wire)
        if at < 0:
            return False
    return True


# --- maps -------------------------------------------------------------------------------------------------------------


@rare
def _entry(text, at, stop, op, value_tag, entries, place):
    """Whether this code is sure of a map's entry: [begin of the value or -1, end, number or begin of the key, the key's bytes]."""
    wire, key_at, value_at = WIRES[op], np.int64(-1), np.int64(-1)
    entries[place, 1], entries[place, 2], entries[place, 3] = stop, 0, 0
    while at < stop:
        at, tag = short(text, at, stop)
        if at >= 0 and np.int64(tag) == 8 | wire and key_at < 0:
            key_at = np.int64(at)
            at = behind_value(text, at, stop, wire)
        elif at >= 0 and np.int64(tag) == value_tag and value_at < 0:
            value_at = np.int64(at)
            at = behind_value(text, at, stop, value_tag & 7)
        else:
            return False
        if at < 0:
            return False
    entries[place, 0] = value_at
    if key_at < 0:
        return True
    if wire == 2:
        begin, behind = content(text, key_at, stop)
        entries[place, 2], entries[place, 3] = begin, behind - begin
        return is_text(text, begin, behind - begin) and (begin == behind or byte_at(text, begin) != 36)
    found = varint(text, key_at, stop)[1] if wire == 0 else fixed(text, key_at, 8 if wire == 1 else 4)
    if op == BOOL:
        number = np.int64(found != 0)
    elif op == SINT32 or op == SINT64:
        found &= np.uint64(0xFFFFFFFF) if op == SINT32 else ~np.uint64(0)
        number = np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1))
    elif op == INT32 or op == SFIXED32:
        number = low_number(found)
    else:
        number = np.int64(found & np.uint64(0xFFFFFFFF)) if op == UINT32 or op == FIXED32 else np.int64(found)
    entries[place, 2] = number
    return number >= 0 or (op != UINT64 and op != FIXED64)


@rare
def _entries(text, at, end, row, schema, entries, low):
    """How many entries a map has, from the tag of the first; they are in `entries`, sorted. -1 where the plain reader has to look."""
    nodes, fields, _, _, _ = schema
    count, value_tag = np.int64(0), 16 | WIRES[nodes[fields[row, 2], 0]]
    while at < end:
        at, tag = short(text, at, end)
        if np.int64(tag) != fields[row, 4]:
            break
        at, stop = content(text, at, end)
        if not _entry(text, at, stop, fields[row, 7], value_tag, entries, low + count):
            return np.int64(-1)
        at = stop
        count += 1
    return (
        count
        if sorted_entries(text, entries, low, count, BY_BYTES if fields[row, 7] == STRING else BY_TEXT)
        else np.int64(-1)
    )


@part
def _put_key(text, size, op, entries, entry, out, to):
    if op == STRING:
        return put_text(out, to, text, entries[entry, 2], entries[entry, 2] + entries[entry, 3], size)
    out[to] = 34
    if op == BOOL:
        to = put_all(out, to + 1, _TRUE) if entries[entry, 2] else put_all(out, to + 1, _FALSE)
    else:
        to = put_whole(out, to + 1, entries[entry, 2])
    out[to] = 34
    return to + 1


# --- records ----------------------------------------------------------------------------------------------------------


@part
def _close(out, to, bracket):
    """Write the end of what is open, over the comma behind the last value."""
    to -= out[to - 1] == 44
    out[to], out[to + 1] = bracket, 44
    return to + 2


@part
def _message_step(text, schema, frames, top, slots, entries, out, to, room):
    """(what was done, the node and the place of a value, its end, behind the output): the next field of a message."""
    nodes, fields, _, _, names = schema
    node, step, used = frames[0, top], frames[1, top], frames[5]
    none = np.int64(0)
    if step == nodes[node, 2]:
        used[0] = frames[3, top]
        return _CLOSED, none, none, none, _close(out, to, 125)
    frames[1, top] = step + 1
    row, place = nodes[node, 1] + step, slots[frames[3, top] + step]
    how, inner = fields[row, 1], fields[row, 2]
    if place < 0 and (how == OPTIONAL or how == REQUIRED):
        return (_STAYED if how == OPTIONAL else _FAILED), none, none, none, to
    if to + fields[row, 6] - fields[row, 5] + nodes[inner, 5] - nodes[inner, 4] + ROOM_BYTES > room:
        return _FAILED, none, none, none, to
    to = put_name(out, to, names, fields[row, 5], fields[row, 6])
    if how < LIST:
        if place >= 0:
            return _VALUE, inner, place, frames[2, top], to
        to = put_name(out, to, names, nodes[inner, 4], nodes[inner, 5])
        out[to] = 44
        return _STAYED, none, none, none, to + 1
    out[to] = 91 if how == LIST else 123
    to += 1
    if place < 0:
        return _STAYED, none, none, none, _close(out, to, 93 if how == LIST else 125)
    frames[0, top + 1], frames[4, top + 1], frames[2, top + 1] = _ITEMS, row, frames[2, top]
    frames[1, top + 1] = frames[3, top + 1] = place
    if how == MAP:
        count = _entries(text, place, frames[2, top], row, schema, entries, used[1])
        if count < 0:
            return _FAILED, none, none, none, to
        frames[0, top + 1], frames[1, top + 1], frames[3, top + 1] = _ENTRIES, used[1], used[1]
        used[1] += count
        frames[2, top + 1] = used[1]
    return _OPENED, none, none, none, to


@part
def _items_step(text, schema, frames, top, out, to):
    """As `_message_step`, of a list. frames: the place, the end of the message, the end of a run of items without tags."""
    fields = schema[1]
    at, row, none = frames[1, top], frames[4, top], np.int64(0)
    inner = fields[row, 2]
    if at < frames[3, top]:
        return _VALUE, inner, at, frames[3, top], to
    at, tag = short(text, at, frames[2, top])
    if at < 0 or np.int64(tag >> np.uint64(3)) != fields[row, 0]:
        return _CLOSED, none, none, none, _close(out, to, 93)
    if np.int64(tag) == fields[row, 4]:
        return _VALUE, inner, np.int64(at), frames[2, top], to
    frames[1, top], frames[3, top] = content(text, at, frames[2, top])
    return _STAYED, none, none, none, to


@part
def _entries_step(text, size, schema, frames, top, entries, out, to, room):
    """As `_message_step`, of a map."""
    nodes, fields, _, _, names = schema
    entry, row, none = frames[1, top], frames[4, top], np.int64(0)
    if entry == frames[2, top]:
        frames[5, 1] = frames[3, top]
        return _CLOSED, none, none, none, _close(out, to, 125)
    frames[1, top] = entry + 1
    inner = fields[row, 2]
    if to + 6 * entries[entry, 3] + nodes[inner, 5] - nodes[inner, 4] + 2 * ROOM_BYTES > room:
        return _FAILED, none, none, none, to
    to = _put_key(text, size, fields[row, 7], entries, entry, out, to)
    out[to] = 58
    to += 1
    if entries[entry, 0] >= 0 or nodes[inner, 0] == MESSAGE:
        return _VALUE, inner, entries[entry, 0], entries[entry, 1], to
    to = put_name(out, to, names, nodes[inner, 4], nodes[inner, 5])
    out[to] = 44
    return _STAYED, none, none, none, to + 1


@part
def _record(text, at, end, size, node, schema, out, to, room, frames, slots, entries):
    """Behind the output of a message and a comma; -1 where the plain reader has to look (PM1).

    frames: by depth the message's node or what else is open, the next part, the end, what to go back to, a list's or a map's field.
    """
    nodes, used = schema[0], frames[5]
    used[0] = used[1] = 0
    depth, stop, opens = 0, end, True
    while True:
        if to + ROOM_BYTES > room:
            return -1
        if opens:
            if depth >= DEPTH_MAX or not _scan(text, at, stop, node, schema, slots, used[0]):
                return -1
            frames[0, depth], frames[1, depth], frames[2, depth], frames[3, depth] = node, 0, stop, used[0]
            used[0] += nodes[node, 2] + nodes[node, 3]
            out[to] = 123
            depth, to, opens = depth + 1, to + 1, False
        top = depth - 1
        kind = frames[0, top]
        if kind >= 0:
            done, node, at, stop, to = _message_step(text, schema, frames, top, slots, entries, out, to, room)
        elif kind == _ITEMS:
            done, node, at, stop, to = _items_step(text, schema, frames, top, out, to)
        else:
            done, node, at, stop, to = _entries_step(text, size, schema, frames, top, entries, out, to, room)
        if done == _VALUE:
            if to + ROOM_BYTES > room:
                return -1
            if nodes[node, 0] == MESSAGE:
                at, stop = content(text, at, stop) if at >= 0 else (stop, stop)  # a map's entry without a value
                opens = True
                behind = stop
            else:
                behind, to = plain(node, text, at, stop, size, schema, out, to, room)
                out[to] = 44
                to += 1
            if at < 0 or behind < 0:
                return -1
            if kind == _ITEMS:
                frames[1, top] = behind
        elif done == _OPENED:
            depth += 1
        elif done == _CLOSED:
            depth -= 1
            if depth == 0:
                return to
        elif done == _FAILED:
            return -1


@part
def _root(text, at, end, roots, names, guess):
    """Which message a record begins to name, of those whose places stand in `names`; -1 where the plain reader has to look."""
    for i in range(len(roots)):
        root = guess if i == 0 else i - 1 if i <= guess else i
        begin, size = roots[root, 0], roots[root, 1] - roots[root, 0]
        if size <= end - at:
            same = True
            for n in range(size):
                same &= byte_at(text, at + n) == names[begin + n]
            if same:
                return root
    return np.int64(-1)


@compiled(
    *(1, BYTES, INT64S, INT64_ROWS, INT64_ROWS, INT64_ROWS, INT64_ROWS, INT64_ROWS, BYTES),
    *(BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT, INT64S_OUT, INT64_ROWS_OUT),
)
def read(text, bounds, roots, nodes, fields, lookup, symbols, names, out, offsets, sure, stack, slots, entries):
    """Write the JSON of the records one behind the other; how many bytes it takes. A record of which this is not sure is empty (PM1).

    text, bounds: the records, each behind the place of its message in the schema. roots: these places (begin and end in `names`) and
    nodes. nodes to names: the schema (PM2, PM3). offsets: shape (n + 1,), where texts begin. sure: shape (n,). stack, slots, entries: to
    work in: shape (FRAMES, DEPTH_MAX + 2); the most fields and sets of alternatives of a message for each depth; (half of the longest
    record's bytes and two, 4) where the schema has maps.
    """
    whole, target, frames, places, held = (
        borrowed(text),
        borrowed(out),
        borrowed(stack),
        borrowed(slots),
        borrowed(entries),
    )
    schema = borrowed(nodes), borrowed(fields), borrowed(lookup), borrowed(symbols), borrowed(names)
    tops, to, root = borrowed(roots), np.int64(0), np.int64(0)
    for row in range(len(sure)):
        offsets[row] = to
        at, end = bounds[row], bounds[row + 1]
        found = _root(whole, at, end, tops, schema[4], root)
        behind = np.int64(-1)
        if found >= 0:
            root = found
            at += tops[root, 1] - tops[root, 0]
            behind = _record(
                whole, at, end, len(text), tops[root, 2], schema, target, to, len(out), frames, places, held
            )
        sure[row] = behind >= 0
        to = behind - 1 if behind >= 0 else to
    offsets[len(sure)] = to
    return to
