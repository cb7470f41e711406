"""Values of any types, one a cell, in the compact codec: written from columns, read as columns, and arrays taken apart.

A cell is an encoded value; a null cell stands for a missing one.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Bools, Int64s, Path, Tagged, bitmap
from tidemark.shared.compiled.compiling import (
    BOOLS,
    BOOLS_OUT,
    BYTES,
    BYTES_OUT,
    INT32S,
    INT32S_OUT,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    UINT64S_OUT,
    compiled,
    part,
)
from tidemark.shared.compiled.documents import buffers, cells_of, read_packed
from tidemark.shared.compiled.encoding import put_cell, put_count, put_head, put_string_head
from tidemark.shared.compiled.hashing import equal, hashed, slot_of
from tidemark.shared.compiled.memory import borrowed, copy_bytes
from tidemark.shared.compiled.name_tables import name_table, number_of
from tidemark.shared.compiled.packed import header, is_text, skip
from tidemark.shared.compiled.rendering import CODEC, ENCODED, begin_names, encode, put_value, room_to_work

_GROWTH: Final = 3
"""How many times as long as its JSON a value may be: a double has nine bytes."""
_HEAD_BYTES: Final = 16
"""The most bytes of a number, or of a header."""
_SLOT: Final = 3
"""Numbers of a slot (`_field_of`)."""


def write(cells: Tagged) -> tuple[pa.BinaryArray, Bools]:
    """The values encoded, and which are: the rest, shape (n,) both, only the interpreter can tell."""
    count = len(cells)
    there = cells.tags != tags.MISSING
    packed = cells.form == "packed"
    long = np.where(there, (cells.ends - cells.begins).astype(np.int64), 0)
    out = np.empty(int(long.sum()) * (1 if packed else _GROWTH) + _HEAD_BYTES * (count + 1), np.uint8)
    offsets, sure = np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    _, stack, known = room_to_work(0, int(long.max(initial=0)))
    size = _write(
        cells.text, cells.tags, cells.numbers, cells.begins, cells.ends, packed, out, offsets, sure, stack, known
    )
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, there), sure


def read(cells: pa.BinaryArray) -> Tagged:
    """Encoded values as a column."""
    text, bounds = buffers(cells)
    found = _empty(len(cells))
    _read(text, bounds, *found)
    return cells_of(*found, text, "packed")


def read_inside(cells: pa.BinaryArray, path: Path) -> Tagged:
    """The column of a path inside encoded values."""
    kinds = read(cells).tags
    objects = kinds == tags.OBJECT
    documents = pc.if_else(pa.array(objects), cells, pa.scalar(b"", pa.binary()))
    found = read_packed(documents, [path])[path]
    spread = kinds == tags.ARRAY
    if not spread.any():
        return found
    return cells_of(
        np.where(spread, tags.SPREAD, found.tags).astype(np.uint8),
        found.numbers,
        found.begins,
        found.ends,
        found.text,
        "packed",
    )


def items(cells: pa.BinaryArray) -> tuple[Int64s, pa.BinaryArray]:
    """(number of items of each array, shape (n,), -1 where it is no array; the items of all, one behind the other)."""
    text, bounds = buffers(cells)
    counts = np.empty(len(cells), np.int64)
    offsets = np.empty(_count(text, bounds, tags.ARRAY, counts) + 1, np.int64)
    out = np.empty(int(bounds[-1] - bounds[0]) if len(cells) else 0, np.uint8)
    size = _items(text, bounds, counts, offsets, out)
    out.resize(size, refcheck=False)
    return counts, binary_of(offsets, out, None)


def fields(cells: pa.BinaryArray) -> tuple[Int64s, pa.BinaryArray, pa.BinaryArray]:
    """(number of fields of each object, shape (n,), -1 where it is no object; the names of all fields, encoded texts; their values)."""
    text, bounds = buffers(cells)
    counts = np.empty(len(cells), np.int64)
    total = _count(text, bounds, tags.OBJECT, counts)
    ends, offsets = np.empty(total + 1, np.int64), np.empty(total + 1, np.int64)
    size = int(bounds[-1] - bounds[0]) if len(cells) else 0
    names, out = np.empty(size, np.uint8), np.empty(size, np.uint8)
    _fields(text, bounds, counts, ends, names, offsets, out)
    names.resize(int(ends[-1]), refcheck=False)
    out.resize(int(offsets[-1]), refcheck=False)
    return counts, binary_of(ends, names, None), binary_of(offsets, out, None)


def deeper(cells: pa.BinaryArray, most: int) -> Bools:
    """In which values more than so many arrays and objects lie in each other, shape (n,)."""
    text, bounds = buffers(cells)
    found = np.zeros(len(cells), np.bool_)
    _deeper(text, bounds, most, np.empty(most, np.int64), found)
    return found


def objects_of(cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """(the objects, and no bytes for other values; which they are)."""
    found = pa.array(read(cells).tags == tags.OBJECT)
    return pc.if_else(found, cells, pa.scalar(b"", pa.binary())), found


def at(cells: pa.BinaryArray, *names: str) -> pa.BinaryArray:
    """The values at a path of objects alone, null where there is none."""
    for name in names:
        base, _ = objects_of(cells)
        cells, sure = write(read_packed(base, [(name,)])[name,])
        assert bool(sure.all()), "no array is on the way to a field of an object"
    return cells


def picked(cells: pa.BinaryArray, path: Path) -> pa.BinaryArray:
    """The values at a path as expressions read them: of an array an array, of what its objects have there (`read_path`)."""
    if not path or cells.null_count == len(cells):
        return cells
    made = picked(at(cells, path[0]), path[1:])
    counts, inside = items(cells)
    return _with_items(made, counts, picked(objects_of(inside)[0], path)) if (counts >= 0).any() else made


def through_arrays(
    cells: pa.BinaryArray, change: Callable[[pa.BinaryArray, Int64s | None], pa.BinaryArray]
) -> pa.BinaryArray:
    """What `change` makes of values that are no arrays, and of arrays what it makes of their items, through arrays in each other.

    change: of values, and the row of each, None where each has its own; it is called once, for all levels. A missing item goes.
    """
    counts, inside = items(cells)
    if not (counts >= 0).any():
        return change(cells, None)
    rows = np.arange(len(cells))
    around: list[Int64s] = []
    values, rows_of_values = [], []
    while True:
        plain = np.flatnonzero(counts < 0)
        values.append(cells.take(pa.array(plain)))
        rows_of_values.append(rows[plain])
        around.append(counts)
        if len(plain) == len(counts):
            break
        cells, rows = inside, rows[rows_of(counts)]
        counts, inside = items(cells)
    made = change(pa.concat_arrays(values), np.concatenate(rows_of_values))
    end, found = len(made), pa.nulls(0, pa.binary())
    for counts in reversed(around):
        there = counts >= 0
        begin = end - int(np.count_nonzero(~there))
        own = made.slice(begin, end - begin).take(pa.array(np.cumsum(~there) - 1, mask=there))
        found, end = _with_items(own, counts, found), begin
    return found


def _with_items(made: pa.BinaryArray, counts: Int64s, inside: pa.BinaryArray) -> pa.BinaryArray:
    """Arrays of so many of the items each; what was made of other values where the count is below 0. A missing item goes."""
    there = counts >= 0
    kept = rows_of(counts)[inside.is_valid().to_numpy(zero_copy_only=False)]
    left = np.bincount(kept, minlength=len(counts))
    return pc.if_else(pa.array(there), arrays(left, inside.drop_null(), there), made)


def rows_of(counts: Int64s) -> Int64s:
    """Of each item its row, where rows have so many; none below 0."""
    return np.repeat(np.arange(len(counts)), np.maximum(counts, 0))


def no_fields(count: int) -> pa.BinaryArray:
    """Objects without fields, for `objects` to write into."""
    return pa.repeat(pa.scalar(b"", pa.binary()), count)


def arrays(counts: Int64s, cells: pa.BinaryArray, there: Bools) -> pa.BinaryArray:
    """Arrays of so many of the items each, a missing item as null; null cells where none is `there`, which take no item."""
    text, bounds = buffers(cells.fill_null(b"\xc0") if cells.null_count else cells)
    out = np.empty(int(bounds[-1] - bounds[0]) + 5 * len(counts), np.uint8)
    offsets = np.empty(len(counts) + 1, np.int64)
    size = _arrays(text, bounds, counts, there, offsets, out)
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, there)


def objects(base: pa.BinaryArray, names: Sequence[str], parts: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Encoded objects with fields written over, or behind the others; a field with a missing part goes. No bytes: an empty object."""
    count, text = len(base), [name.encode("utf-8", "surrogatepass") for name in names]
    written = [_name(name) for name in text]
    data = [buffers(cells) for cells in parts]
    starts = np.cumsum([0, *(len(found) for found, _ in data)])
    begins, ends = np.empty((2, len(parts), count), np.int64)
    kinds = np.empty((len(parts), count), np.uint8)
    for at, ((_, bounds), cells) in enumerate(zip(data, parts, strict=True)):
        begins[at], ends[at] = bounds[:-1] + starts[at], bounds[1:] + starts[at]
        kinds[at] = np.where(cells.is_valid().to_numpy(zero_copy_only=False), ENCODED, tags.MISSING)
    whole, bounds = buffers(base)
    strings = np.concatenate([found for found, _ in data]) if data else np.empty(0, np.uint8)
    name_bytes = sum(map(len, written))
    out = np.empty(
        int(bounds[-1] - bounds[0]) + int((ends - begins).sum()) + count * (name_bytes + 5) + _HEAD_BYTES, np.uint8
    )
    offsets, sure = np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    size = encode(
        CODEC,
        whole, bounds, True, *name_table(tuple(written)), kinds,
        np.zeros_like(begins), begins, ends, strings, out, offsets, sure, *room_to_work(len(parts), 0),
    )  # fmt: skip
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None)


def paired(counts: Int64s, names: pa.BinaryArray, cells: pa.BinaryArray, there: Bools) -> pa.BinaryArray:
    """Objects of so many of the fields each; null cells where none is `there`, which take no field.

    names: encoded texts; of one that stands twice the last value counts. cells: without nulls.
    """
    (known, heads), (text, bounds) = buffers(names), buffers(cells)
    size = int(heads[-1] - heads[0]) + int(bounds[-1] - bounds[0]) if len(cells) else 0
    out = np.empty(size + _HEAD_BYTES * len(counts), np.uint8)
    offsets, most = np.empty(len(counts) + 1, np.int64), int(counts.max(initial=0))
    size = _paired(known, heads, text, bounds, counts, there, _room(most), np.empty(most, np.int64), offsets, out)
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, there)


def only(cells: pa.BinaryArray, names: Sequence[str]) -> pa.BinaryArray:
    """Encoded objects with the fields of these names alone, in the order that they have. No bytes stay no bytes."""
    text, bounds = buffers(cells)
    known = name_table(tuple(name.encode("utf-8", "surrogatepass") for name in names))
    out, offsets = np.empty(int(bounds[-1] - bounds[0]), np.uint8), np.empty(len(cells) + 1, np.int64)
    size = _only(text, bounds, *known, offsets, out)
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None)


def merged(below: pa.BinaryArray, above: pa.BinaryArray) -> pa.BinaryArray:
    """Encoded objects with the fields of others written over, or behind theirs. No bytes: no fields."""
    (text, bounds), (over, ends) = buffers(below), buffers(above)
    count, fields = len(below), np.empty(len(below), np.int64)
    _count(over, ends, tags.OBJECT, fields)
    out = np.empty(int(bounds[-1] - bounds[0]) + int(ends[-1] - ends[0]) + _HEAD_BYTES * count, np.uint8)
    offsets = np.empty(count + 1, np.int64)
    size = _merged(text, bounds, over, ends, _room(int(fields.max(initial=0))), offsets, out)
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None)


def _room(names: int) -> npt.NDArray[np.int64]:
    """Slots for the names of an object (`_field_of`)."""
    return np.zeros((1 << (2 * names).bit_length(), _SLOT), np.int64)


def _name(text: bytes) -> bytes:
    """A field's name as the codec has it."""
    head = np.empty(_HEAD_BYTES, np.uint8)
    return head[: _head(len(text), head)].tobytes() + text


def _empty(count: int) -> tuple[npt.NDArray[np.uint8], Int64s, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    return np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.int32)


def binary_of(offsets: Int64s, out: npt.NDArray[np.uint8], there: Bools | None) -> pa.BinaryArray:
    """Cells of these bytes, null where none is `there`."""
    nulls = 0 if there is None else int(np.count_nonzero(~there))
    valid = bitmap(there) if there is not None and nulls else None
    places = pa.py_buffer(offsets.astype(np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, [valid, places, pa.py_buffer(out)], nulls)


@compiled(
    *(1, BYTES, BYTES, INT64S, INT32S, INT32S, "bool"),
    *(BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT, UINT64S_OUT),
)
def _write(text, kinds, numbers, begins, ends, packed, out, offsets, sure, stack, known):
    """Encode cells of `columns.Tagged`, shape (n,); those that are not sure, and the missing, have no bytes."""
    whole, target, frames, names = borrowed(text), borrowed(out), borrowed(stack), borrowed(known)
    to = np.int64(0)
    for row in range(len(kinds)):
        offsets[row] = to
        tag, begin, end = kinds[row], np.int64(begins[row]), np.int64(ends[row])
        if tag == tags.MISSING:
            continue
        if tag == tags.SPREAD:
            sure[row] = False
        elif packed and tag == tags.STRING:
            to = put_string_head(target, to, end - begin)
            copy_bytes(target, to, whole, begin, end - begin)
            to += end - begin
        elif tag < tags.STRING or tag == tags.DATE:
            to = put_cell(target, to, tag, numbers[row], whole, begin, begin)
        elif packed:
            copy_bytes(target, to, whole, begin, end - begin)
            to += end - begin
        else:
            begin_names(names)
            behind, after = put_value(CODEC, whole, begin, end, len(text), target, to, frames, names, 0)
            sure[row] = behind >= 0
            to = after if behind >= 0 else to
    offsets[len(kinds)] = to
    return to


@compiled(1, "int64", BYTES_OUT)
def _head(size, out):
    return put_string_head(borrowed(out), 0, size)


@compiled(0, BYTES, INT64S, BYTES_OUT, INT64S_OUT, INT32S_OUT, INT32S_OUT)
def _read(text, bounds, kinds, numbers, begins, ends):
    whole = borrowed(text)
    for row in range(len(kinds)):
        at = bounds[row]
        if at < bounds[row + 1]:
            tag, found, content, size, _ = header(whole, at)
            if tag == tags.STRING and not is_text(whole, content, size):
                tag = tags.OTHER
            kinds[row], numbers[row] = tag, found
            begins[row], ends[row] = content if tag == tags.STRING else at, bounds[row + 1]


@compiled(1, BYTES, INT64S, "int64", INT64S_OUT)
def _count(text, bounds, wanted, counts):
    whole, total = borrowed(text), np.int64(0)
    for row in range(len(counts)):
        counts[row] = -1
        if bounds[row] < bounds[row + 1]:
            tag, _, _, _, inside = header(whole, bounds[row])
            if tag == wanted:
                counts[row] = inside
                total += inside
    return total


@compiled(1, BYTES, INT64S, INT64S, INT64S_OUT, BYTES_OUT)
def _items(text, bounds, counts, offsets, out):
    whole, target, to, item = borrowed(text), borrowed(out), np.int64(0), np.int64(0)
    for row in range(len(counts)):
        if counts[row] > 0:
            _, _, at, _, _ = header(whole, bounds[row])
            copy_bytes(target, to, whole, at, bounds[row + 1] - at)
            for _ in range(counts[row]):
                offsets[item] = to
                behind = skip(whole, at, bounds[row + 1], 1)
                to, at, item = to + behind - at, behind, item + 1
    offsets[item] = to
    return to


@compiled(0, BYTES, INT64S, "int64", INT64S_OUT, BOOLS_OUT)
def _deeper(text, bounds, most, left, found):
    """left: of each object or array around, the values and names that are left of it."""
    whole, frames = borrowed(text), borrowed(left)
    for row in range(len(found)):
        at, end, depth = bounds[row], bounds[row + 1], 0
        if end - at <= most:  # each level has a byte
            continue
        while at < end:
            while depth and frames[depth - 1] == 0:
                depth -= 1
            if depth:
                frames[depth - 1] -= 1
            tag, _, at, size, inside = header(whole, at)
            at += size
            if tag == tags.OBJECT or tag == tags.ARRAY:
                if depth >= most:
                    found[row] = True
                    break
                frames[depth] = 2 * inside if tag == tags.OBJECT else inside
                depth += 1


@compiled(0, BYTES, INT64S, INT64S, INT64S_OUT, BYTES_OUT, INT64S_OUT, BYTES_OUT)
def _fields(text, bounds, counts, ends, names, offsets, out):
    whole, heads, target = borrowed(text), borrowed(names), borrowed(out)
    to, behind_name, field = np.int64(0), np.int64(0), np.int64(0)
    for row in range(len(counts)):
        if counts[row] > 0:
            _, _, at, _, _ = header(whole, bounds[row])
            for _ in range(counts[row]):
                _, _, name, size, _ = header(whole, at)
                value = name + size
                behind = skip(whole, value, bounds[row + 1], 1)
                ends[field], offsets[field] = behind_name, to
                copy_bytes(heads, behind_name, whole, at, value - at)
                copy_bytes(target, to, whole, value, behind - value)
                behind_name, to, at, field = behind_name + value - at, to + behind - value, behind, field + 1
    ends[field], offsets[field] = behind_name, to


@compiled(1, BYTES, INT64S, BYTES, INT64S, INT64S, INT64S, INT64S_OUT, BYTES_OUT)
def _only(text, bounds, names, ends, above, slots, offsets, out):
    whole, target, to = borrowed(text), borrowed(out), np.int64(0)
    known = borrowed(names), borrowed(ends), borrowed(above), borrowed(slots)
    for row in range(len(bounds) - 1):
        offsets[row] = to
        if bounds[row] < bounds[row + 1]:
            begin, kept = to, np.int64(0)
            _, _, at, _, fields = header(whole, bounds[row])
            to += 1
            for _ in range(fields):
                _, _, name, size, _ = header(whole, at)
                behind = skip(whole, name + size, bounds[row + 1], 1)
                if number_of(known, 0, whole, name, name + size, len(text)):
                    copy_bytes(target, to, whole, at, behind - at)
                    to, kept = to + behind - at, kept + 1
                at = behind
            to = put_head(target, begin, to, kept, False)
    offsets[len(bounds) - 1] = to
    return to


@part
def _opened(text, at, end):
    """(where its fields begin, how many there are) of an object, or of nothing."""
    if at == end:
        return at, np.int64(0)
    _, _, begin, _, fields = header(text, at)
    return begin, fields


@part
def _field_of(text, name, size, whole, others, others_whole, slots, row):
    """(slot, place) of a row's field with the name that stands in a text; (a slot that is free, -1) without such a field.

    slots: shape (a power of two, _SLOT): the row from 1 on, where the encoded name stands in `others`, and a number. whole, others_whole:
    the sizes of the texts.
    """
    slot = slot_of(hashed(text, name, name + size, whole), len(slots))
    while slots[slot, 0] == row + 1:
        _, _, begin, length, _ = header(others, slots[slot, 1])
        if equal(text, name, name + size, whole, others, begin, begin + length, others_whole):
            return slot, slots[slot, 1]
        slot = (slot + 1) & (len(slots) - 1)
    return slot, np.int64(-1)


@compiled(1, BYTES, INT64S, BYTES, INT64S, INT64_ROWS_OUT, INT64S_OUT, BYTES_OUT)
def _merged(below, bounds, above, ends, room, offsets, out):
    """room: of `_room`, for the fields of `above`; the number of a field says whether the object below has one of its name."""
    under, over, slots, target, to = borrowed(below), borrowed(above), borrowed(room), borrowed(out), np.int64(0)
    for row in range(len(bounds) - 1):
        offsets[row] = to
        end, last = bounds[row + 1], ends[row + 1]
        at, fields = _opened(under, bounds[row], end)
        first, others = _opened(over, ends[row], last)
        place = first
        for _ in range(others):
            _, _, name, size, _ = header(over, place)
            slot, _ = _field_of(over, name, size, len(above), over, len(above), slots, row)
            slots[slot, 0], slots[slot, 1], slots[slot, 2] = row + 1, place, 0
            place = skip(over, name + size, last, 1)
        begin, count = to, fields
        to += 1
        for _ in range(fields):
            _, _, name, size, _ = header(under, at)
            slot, place = _field_of(under, name, size, len(below), over, len(above), slots, row)
            kept = skip(under, name + size, end, 1) if place < 0 else name + size
            copy_bytes(target, to, under, at, kept - at)
            to += kept - at
            at = kept
            if place >= 0:
                slots[slot, 2] = 1
                _, _, name, size, _ = header(over, place)
                behind = skip(over, name + size, last, 1)
                copy_bytes(target, to, over, name + size, behind - name - size)
                to += behind - name - size
                at = skip(under, at, end, 1)
        at = first
        for _ in range(others):
            _, _, name, size, _ = header(over, at)
            behind = skip(over, name + size, last, 1)
            slot, _ = _field_of(over, name, size, len(above), over, len(above), slots, row)
            if slots[slot, 2] == 0:
                copy_bytes(target, to, over, at, behind - at)
                to, count = to + behind - at, count + 1
            at = behind
        to = put_head(target, begin, to, count, False)
    offsets[len(bounds) - 1] = to
    return to


@compiled(1, BYTES, INT64S, BYTES, INT64S, INT64S, BOOLS, INT64_ROWS_OUT, INT64S_OUT, INT64S_OUT, BYTES_OUT)
def _paired(names, ends, text, bounds, counts, there, room, latest, offsets, out):
    """room: of `_room`; the number of a name is that of its first field. latest: of a first field the last of its name, -1 for others."""
    known, whole, slots, target = borrowed(names), borrowed(text), borrowed(room), borrowed(out)
    to, first = np.int64(0), np.int64(0)
    for row in range(len(counts)):
        offsets[row] = to
        if there[row]:
            begin, count = to, np.int64(0)
            to += 1
            for field in range(counts[row]):
                at = ends[first + field]
                _, _, name, size, _ = header(known, at)
                slot, place = _field_of(known, name, size, len(names), known, len(names), slots, row)
                if place < 0:
                    slots[slot, 0], slots[slot, 1], slots[slot, 2] = row + 1, at, field
                    latest[field] = field
                else:
                    latest[slots[slot, 2]], latest[field] = field, -1
            for field in range(counts[row]):
                if latest[field] >= 0:
                    at, value = ends[first + field], first + latest[field]
                    size = ends[first + field + 1] - at
                    copy_bytes(target, to, known, at, size)
                    copy_bytes(target, to + size, whole, bounds[value], bounds[value + 1] - bounds[value])
                    to += size + bounds[value + 1] - bounds[value]
                    count += 1
            to = put_head(target, begin, to, count, False)
        first += counts[row]
    offsets[len(counts)] = to
    return to


@compiled(1, BYTES, INT64S, INT64S, BOOLS, INT64S_OUT, BYTES_OUT)
def _arrays(text, bounds, counts, there, offsets, out):
    whole, target, to, item = borrowed(text), borrowed(out), np.int64(0), np.int64(0)
    for row in range(len(counts)):
        offsets[row] = to
        if there[row]:
            begin, to = to, put_count(target, to, counts[row])
            target[begin] = target[begin] + 0x10 if counts[row] <= 15 else target[begin] - 2
            size = bounds[item + counts[row]] - bounds[item]
            copy_bytes(target, to, whole, bounds[item], size)
            to += size
        item += counts[row]
    offsets[len(counts)] = to
    return to
