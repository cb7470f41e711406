"""Columns of what nobody declared: the paths that an expression reads, taken out of the rows' documents.

Of each document only those paths are decoded. Where most rows have values of one type at a path, or nothing, they become a column that
the language's kernels take; the other rows are doubtful, and whoever asks looks at their documents one by one.

- X1 A column says of its rows what the document says: types, nulls, and fields that are missing. Rows of which it could not (another
  type, an array on the way or at the end of a path, a whole number of the other size) are doubtful.
- X2 With a typed column of the same name nothing is taken out: the column speaks for its field (B2).
- X3 A name that no field of a struct can have (quotes, backslashes, control characters) is not taken out: the documents tell.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.kernels.base import ARROW, Column, ColumnType, Path
from shared.language.values import CodecError, ExtendedJsonError, decode_value, from_json
from shared.language.values.extended_json import SPECIAL
from shared.model.values import INT32_MAX, INT32_MIN, MISSING, Date, Long, Missing
from shared.operators.base import RAW, REST
from shared.operators.batches import user_columns

Bools: TypeAlias = npt.NDArray[np.bool_]
_Tree: TypeAlias = tuple[tuple[str, "_Tree"], ...]
DOUBTFUL_MOST: Final = 0.5
"""With a larger part of doubtful rows the columns are not worth it."""
_BIN8: Final = b"\xc4"
_NO_FIELD: Final = re.compile(r'[\x00-\x1f"\\]')
"""What no name of a struct's field may hold (X3)."""
_TYPES: Final[Mapping[type, ColumnType]] = {
    str: "string", int: "int", Long: "long", float: "double", bool: "bool", Date: "date", dict: "object",
}  # fmt: skip


class _Odd:
    """What stands at a path where an array was on the way."""


_ODD: Final = _Odd()


@dataclass(frozen=True, slots=True)
class Extracted:
    """Columns by path, and which rows they do not speak for; cells of those are null."""

    columns: Mapping[Path, Column]
    doubtful: Bools
    """Shape (n,)."""


def extracted(batch: pa.RecordBatch, paths: Iterable[Path], *, exact: bool = False) -> Extracted | None:
    """What the documents of a batch have at these paths; None where only the documents can tell.

    exact: a column has either nulls or missing fields, not both; rows of the rarer kind are doubtful.
    """
    known = user_columns(batch)
    wanted = tuple(sorted({path for path in paths if path and path[0] not in known}))
    doubtful: Bools = np.zeros(batch.num_rows, dtype=np.bool_)
    if not wanted or not batch.num_rows:
        return Extracted({}, doubtful)
    if any(_NO_FIELD.search(name) for path in wanted for name in path):
        return None
    try:
        found = _cells(batch, _tree(wanted))
    except (msgspec.DecodeError, UnicodeError, CodecError, ExtendedJsonError):
        return None
    columns: dict[Path, Column] = {}
    for path in wanted:
        made = _column(found.at(path), doubtful, exact=exact)
        if made is None:
            return None
        columns[path] = made
    return None if doubtful.sum() > DOUBTFUL_MOST * len(doubtful) else Extracted(columns, doubtful)


def beside(batch: pa.RecordBatch, names: Iterable[str]) -> tuple[pa.RecordBatch, Bools]:
    """The batch with columns of these fields beside its documents, and the rows of which they do not speak, shape (n,)."""
    found = extracted(batch, [(name,) for name in names])
    if found is None:
        return batch, np.zeros(batch.num_rows, dtype=np.bool_)
    for (name, *_), column in found.columns.items():
        if column.type in ARROW and column.type != "null":
            batch = batch.append_column(name, column.values)
    return batch, found.doubtful


# --- cells ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cells:
    """Values at the roots of paths, and below."""

    roots: dict[str, list[Any]]
    below: Callable[[Sequence[Any], str], list[Any]]
    leaf: Callable[[list[Any]], list[Any]]
    _known: dict[Path, list[Any]] = field(default_factory=dict)

    def at(self, path: Path) -> list[Any]:
        """A value a row: MISSING where there is none, `_ODD` behind an array."""
        return self.leaf(self._inside(path))

    def _inside(self, path: Path) -> list[Any]:
        if len(path) == 1:
            return self.roots[path[0]]
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = self.below(self._inside(path[:-1]), path[-1])
        return found


def _cells(batch: pa.RecordBatch, tree: _Tree) -> _Cells:
    names = [name for name, _ in tree]
    if RAW in batch.schema.names:
        decoder = msgspec.json.Decoder(_json_struct(tuple(names)))
        rows = [decoder.decode(text) for text in batch.column(RAW).to_pylist()]
        return _Cells(_roots(rows, names), _below_json, _typed_json)
    if REST in batch.schema.names:
        packed = msgspec.msgpack.Decoder(_packed_struct(tree))
        none = packed.decode(b"\x80")
        rows = [none if data is None else packed.decode(data) for data in batch.column(REST).to_pylist()]
        roots = _roots(rows, names)
        return _Cells({name: _opened(roots[name], inner) for name, inner in tree}, _below_packed, _typed_packed)
    return _Cells({name: [MISSING] * batch.num_rows for name in names}, _below_json, _typed_json)


def _roots(rows: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: list(map(attrgetter(f"f{i}"), rows)) for i, name in enumerate(names)}


def _tree(paths: Sequence[Path]) -> _Tree:
    """Paths as a tree of names."""
    inner: dict[str, set[Path]] = {}
    for path in paths:
        inner.setdefault(path[0], set()).update([path[1:]] if len(path) > 1 else [])
    return tuple((name, _tree(sorted(rest))) for name, rest in sorted(inner.items()))


@lru_cache(maxsize=256)
def _json_struct(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """The fields of a document that are asked for; nested ones whole, for only they tell a typed value (`$date`)."""
    return _struct([(name, Any) for name in names])


@lru_cache(maxsize=256)
def _packed_struct(tree: _Tree) -> type[msgspec.Struct]:
    """The paths that are asked for, and nothing else."""
    return _struct([(name, _packed_kind(inner)) for name, inner in tree])


def _packed_kind(tree: _Tree) -> Any:
    return msgspec.Raw if tree else Any


def _struct(fields: Sequence[tuple[str, Any]]) -> type[msgspec.Struct]:
    named = {f"f{i}": name for i, (name, _) in enumerate(fields)}
    own = [(f"f{i}", kind, MISSING) for i, (_, kind) in enumerate(fields)]
    return msgspec.defstruct("Taken", own, rename=named, gc=False)


def _below_json(cells: Sequence[Any], name: str) -> list[Any]:
    return [_json_field(_special(cell), name) if type(cell) is dict else _behind(cell) for cell in cells]


def _json_field(cell: Any, name: str) -> Any:
    return cell.get(name, MISSING) if type(cell) is dict else MISSING


def _behind(cell: Any) -> Any:
    """What is behind a value that is no document."""
    return _ODD if type(cell) is list or cell is _ODD else MISSING


def _special(cell: dict[str, Any]) -> Any:
    """A document, or the typed value that it stands for."""
    return from_json(cell) if len(cell) == 1 and next(iter(cell)) in SPECIAL else cell


def _typed_json(cells: list[Any]) -> list[Any]:
    return [_special(cell) if type(cell) is dict else cell for cell in cells] if dict in map(type, cells) else cells


def _opened(cells: list[Any], tree: _Tree) -> list[Any]:
    """Encoded values decoded as far as they are asked for; equal ones once."""
    if not tree:
        return cells
    decoder, known = msgspec.msgpack.Decoder(_packed_struct(tree)), dict[bytes, Any]()
    opened = []
    for cell in cells:
        data = MISSING if cell is MISSING else bytes(cell)
        if data is MISSING:
            opened.append(MISSING)
            continue
        value = known.get(data, _ODD)
        if value is _ODD:
            value = known[data] = _one_opened(data, decoder, tree)
        opened.append(value)
    return opened


def _one_opened(data: bytes, decoder: Any, tree: _Tree) -> Any:
    if data[0] & 0xF0 != 0x80 and data[0] not in (0xDE, 0xDF):  # noqa: PLR2004 - the forms of a map's header
        return msgspec.msgpack.decode(data)
    value = decoder.decode(data)
    for field_, (name, inner) in zip(msgspec.structs.fields(value), tree, strict=True):
        assert field_.encode_name == name
        if inner:
            setattr(value, field_.name, _opened([getattr(value, field_.name)], inner)[0])
    return value


def _below_packed(cells: Sequence[Any], name: str) -> list[Any]:
    return [_packed_field(cell, name) for cell in cells]


def _packed_field(cell: Any, name: str) -> Any:
    if isinstance(cell, msgspec.Struct):
        named = _places(type(cell)).get(name)
        assert named is not None, "a tree has the names of its paths"
        return getattr(cell, named)
    return _behind(cell)


@lru_cache(maxsize=512)
def _places(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The attributes of a struct by the names of the fields."""
    return {one.encode_name: one.name for one in msgspec.structs.fields(kind)}


def _typed_packed(cells: list[Any]) -> list[Any]:
    if bytes not in set(map(type, cells)):
        return cells
    return [decode_value(_bin(cell)) if type(cell) is bytes else cell for cell in cells]


def _bin(data: bytes) -> bytes:
    """Bytes as MessagePack has them, for the codec to read."""
    size = len(data)
    return (_BIN8 + bytes([size]) if size < 256 else b"\xc6" + size.to_bytes(4)) + data  # noqa: PLR2004 - bin 8, bin 32


# --- columns ----------------------------------------------------------------------------------------------------------


def _column(cells: list[Any], doubtful: Bools, *, exact: bool) -> Column | None:
    """The column of one path; rows of which it does not speak are noted. None where it could be none of anything."""
    kinds = {dict if issubclass(kind, msgspec.Struct) else kind for kind in set(map(type, cells))}
    empty = kinds & {type(None), Missing}
    plain = kinds - empty
    kind = _commonest(cells) if len(plain) > 1 else next(iter(plain), type(None))
    if kind is not type(None) and kind not in _TYPES:
        return None
    if plain - {kind}:
        odd = [not _is(cell, kind) and cell is not None and cell is not MISSING for cell in cells]
        doubtful |= np.array(odd, dtype=np.bool_)
        cells = [None if o else cell for cell, o in zip(cells, odd, strict=True)]
    missing, absent = _emptiness(cells, empty, doubtful, exact=exact)
    if Missing in empty:
        cells = [None if cell is MISSING else cell for cell in cells]
    if kind is type(None):
        return Column("null", pa.nulls(len(cells)), missing=missing, absent=absent)
    return _of_kind(cells, _TYPES[kind], doubtful, Column("null", pa.nulls(0), missing=missing, absent=absent))


def _emptiness(cells: Sequence[Any], empty: set[type], doubtful: Bools, *, exact: bool) -> tuple[bool, bool]:
    """(whether nulls may be missing fields, whether all are); with `exact` rows of the rarer kind become doubtful."""
    if len(empty) < 2 or not exact:  # noqa: PLR2004 - null and missing
        return Missing in empty, empty == {Missing}
    nulls = np.array([cell is None for cell in cells], dtype=np.bool_)
    gone = np.array([cell is MISSING for cell in cells], dtype=np.bool_)
    more = bool(gone.sum() > nulls.sum())
    doubtful |= nulls if more else gone
    return more, more


def _is(cell: Any, kind: type) -> bool:
    return type(cell) is kind or (kind is dict and isinstance(cell, msgspec.Struct))


def _commonest(cells: Sequence[Any]) -> type:
    """The type that most cells have, of those that columns take, if any."""
    counts: dict[type, int] = {}
    for cell in cells:
        kind = dict if isinstance(cell, msgspec.Struct) else type(cell)
        if kind in _TYPES:
            counts[kind] = counts.get(kind, 0) + 1
    return max(counts, key=counts.__getitem__) if counts else type(None)


def _of_kind(cells: list[Any], kind: ColumnType, doubtful: Bools, like: Column) -> Column | None:
    try:
        if kind == "object":
            array = pa.array([None if cell is None else True for cell in cells], pa.bool_())
        elif kind in ("int", "long"):
            return _whole(pa.array(cells, pa.int64()), kind, doubtful, like)
        elif kind == "date":
            array = pa.array(cells, pa.int64()).cast(ARROW["date"])
        else:
            array = pa.array(cells, ARROW[kind])
    except (pa.ArrowInvalid, OverflowError, UnicodeError):
        return None
    return replace(like, type=kind, values=array)


def _whole(values: pa.Array, kind: ColumnType, doubtful: Bools, like: Column) -> Column:
    """Plain ints are ints within 32 bits and longs beyond; those of the rarer size are doubtful. A `Long` is a long."""
    bounds = pc.min_max(values).as_py()
    if kind == "long":
        return replace(like, type="long", values=values)
    if bounds["min"] is None or (bounds["min"] >= INT32_MIN and bounds["max"] <= INT32_MAX):
        return replace(like, type="int", values=values.cast(pa.int32()))
    beyond = pc.or_(pc.less(values, INT32_MIN), pc.greater(values, INT32_MAX))
    many = 2 * (pc.sum(beyond).as_py() or 0) > len(values) - values.null_count
    odd = pc.fill_null(pc.invert(beyond) if many else beyond, False)
    doubtful |= odd.to_numpy(zero_copy_only=False)
    kept = pc.if_else(odd, pa.scalar(None, pa.int64()), values)
    return replace(like, type="long" if many else "int", values=kept if many else kept.cast(pa.int32()))


def of_rows(columns: Mapping[Path, Column], mask: pa.BooleanArray) -> dict[Path, Column]:
    """The columns of some rows."""
    return {path: replace(column, values=column.values.filter(mask)) for path, column in columns.items()}
