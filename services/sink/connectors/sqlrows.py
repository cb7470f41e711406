"""Documents as rows of a table, many at once: column by column where a kernel is sure, else by `sqlvalues`, which defines the result.

The documents come as they are staged, in the compact codec. A row of which a kernel is not sure (another type than the column takes for
certain, a field that the table has not, a null or nothing where a value must be) is converted value by value.
"""

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tidemark.services.sink.connectors.sqlvalues import (
    DATE_MAX_MS,
    DATE_MIN_MS,
    EXACT,
    PLACES,
    Misfit,
    NoColumn,
    converter_of,
    is_computed,
    makes_itself,
    takes_nested,
)
from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Bools, Int64s, Tagged
from tidemark.shared.compiled.documents import read_packed
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import CodecError, decode_doc
from tidemark.shared.language.values.instants import DAY_MS
from tidemark.shared.language.values.ranks import are_whole
from tidemark.shared.model.values import Document
from tidemark.shared.operators.encoded import field_counts

Objects = npt.NDArray[np.object_]
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SqlRows:
    """n rows by column. None in `values` is null; a column that a row does not name has no say."""

    values: Mapping[str, Objects]
    """As the database's driver takes them, shape (n,) each; only columns that some row names."""
    named: Mapping[str, Bools]
    """Shape (n,) each: which rows name the column."""
    size: int

    def taken(self, rows: Any) -> "SqlRows":
        """Some of the rows, by numbers, slice or mask."""
        values = {name: column[rows] for name, column in self.values.items()}
        named = {name: column[rows] for name, column in self.named.items()}
        return SqlRows(values, named, len(np.arange(self.size)[rows]))


# --- values that a column takes for certain ----------------------------------------------------------------------------

Sure = tuple[pa.Array, Bools]
"""The values, null where there is none, and which cells are certain, shape (n,)."""


def _between(cells: Tagged, there: Bools, low: int, high: int) -> Bools:
    found: Bools = there & (cells.numbers >= low) & (cells.numbers <= high)
    return found


def _numbers(values: npt.NDArray[Any], there: Bools, kind: pa.DataType) -> Sure:
    return pa.array(values, kind, mask=~there), there


def _integers(cells: Tagged, bits: int) -> Sure:
    high = 2 ** (bits - 1) - 1
    return _numbers(cells.numbers, _between(cells, are_whole(cells), -high - 1, high), pa.int64())


def _decimals(cells: Tagged, kind: sa.Numeric[Any]) -> Sure | None:
    """Whole numbers alone: how many digits a double has behind the point is looked at one by one."""
    if (kind.scale or 0) < 0:
        return None
    digits = None if kind.precision is None else max(0, kind.precision - (kind.scale or 0))
    most = _LARGEST if digits is None else min(_LARGEST, 10**digits - 1)
    return _numbers(cells.numbers, _between(cells, are_whole(cells), -most, most), pa.int64())


def _doubles(cells: Tagged, *, nan: bool) -> Sure:
    doubles, is_double = cells.numbers.view(np.float64), cells.tags == tags.DOUBLE
    there = is_double if nan else is_double & ~np.isnan(doubles)
    there = there | _between(cells, are_whole(cells), -EXACT, EXACT)
    return _numbers(np.where(is_double, doubles, cells.numbers.astype(np.float64)), there, pa.float64())


def _moments(cells: Tagged, kind: sa.DateTime) -> Sure | None:
    precision = getattr(kind, "precision", None)
    if precision is not None and precision < PLACES:
        return None
    there = _between(cells, cells.tags == tags.DATE, DATE_MIN_MS, DATE_MAX_MS)
    return _numbers(cells.numbers, there, pa.timestamp("ms", "UTC" if kind.timezone else None))


def _days(cells: Tagged) -> Sure:
    there = _between(cells, cells.tags == tags.DATE, DATE_MIN_MS, DATE_MAX_MS) & (cells.numbers % DAY_MS == 0)
    return _numbers((cells.numbers // DAY_MS).astype(np.int32), there, pa.date32())


def _texts(cells: Tagged, length: int | None) -> Sure | None:
    texts, there = cells.of("string"), cells.tags == tags.STRING
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return None
    fits = pc.invert(pc.match_substring(texts, "\x00"))
    if length is not None:
        fits = pc.and_(fits, pc.less_equal(pc.utf8_length(texts), length))
    return texts, there & pc.fill_null(fits, False).to_numpy(zero_copy_only=False)


def _surely(kind: sa.types.TypeEngine[Any], cells: Tagged, *, sqlite: bool) -> Sure | None:
    """The cells that a column of a type takes for certain, as `converter_of` has them; None where each is looked at."""
    match kind:
        case sa.Boolean():
            return cells.of("bool"), cells.tags == tags.BOOL
        case sa.BigInteger():
            return _integers(cells, 64)
        case sa.SmallInteger():
            return _integers(cells, 16)
        case sa.Integer():
            return _integers(cells, 64 if sqlite else 32)
        case sa.Float() if sqlite or not isinstance(kind, sa.REAL):
            return _doubles(cells, nan=not sqlite)
        case sa.Numeric() if not sqlite and not isinstance(kind, sa.Float):
            return _decimals(cells, kind)
        case sa.DateTime():
            return _moments(cells, kind)
        case sa.Date():
            return _days(cells)
        case sa.String(length=length) if not isinstance(kind, sa.Enum):
            return _texts(cells, length)
    return None


# --- as the driver takes them -------------------------------------------------------------------------------------------


def _literal_of(kind: sa.types.TypeEngine[Any]) -> Callable[[Any], str | None]:
    """A converted value as PostgreSQL's text for it, which is cast to the column's type."""
    match kind:
        case sa.JSON():
            return json.dumps
        case postgresql.DOMAIN(data_type=inner):
            return _literal_of(inner)
        case sa.ARRAY(item_type=item):
            return partial(_array_literal, _literal_of(item), nests=takes_nested(item))
    return _literal


def _array_literal(literal_of: Callable[[Any], str | None], values: list[Any], *, nests: bool) -> str:
    if nests and any(isinstance(each, list) for each in values):
        return "{" + ",".join(_array_literal(literal_of, each, nests=True) for each in values) + "}"
    return array_literal(pa.array([None if each is None else literal_of(each) for each in values], pa.string()))


def _literal(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case dt.datetime():  # as Arrow writes it: rows of one key are known by equal texts
            return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return "\\x" + value.hex()
    return str(value)


def array_literal(texts: pa.StringArray) -> str:
    """PostgreSQL's text of an array of these, null where they are null."""
    for found, put in (("\\", "\\\\"), ('"', '\\"')):
        texts = pc.replace_substring(texts, found, put)
    quoted = pc.binary_join_element_wise('"', texts, '"', "").fill_null("NULL")
    return "{" + ",".join(quoted.to_pylist()) + "}"


class RowMaker:
    """Documents to rows of a table. `inserts`: rows that are not there are written, so a column without default must have a value.

    `replaces`: rows that are there alone, and columns without a value become null: each that takes none must have one.
    """

    def __init__(
        self, table: sa.Table, on: tuple[str, ...], dialect: sa.Dialect, *, inserts: bool, replaces: bool = False
    ) -> None:
        self._on = on
        self._columns: Mapping[str, sa.Column[Any]] = {column.name: column for column in table.columns}
        self._sqlite = dialect.name == "sqlite"
        self._converters = {name: converter_of(column.type, dialect.name) for name, column in self._columns.items()}
        written = [c for c in table.columns if not makes_itself(c, table)] if inserts or replaces else []
        unfilled = [c for c in written if replaces or c.server_default is None]
        self._needed = {c.name for c in unfilled if not c.nullable}
        self.nulls = {c.name for c in unfilled if c.nullable}
        """Columns that are null where a document does not name them."""
        self._driver: Mapping[str, Callable[[Any], Any] | None] = {
            name: column.type.dialect_impl(dialect).bind_processor(dialect)
            if self._sqlite
            else _literal_of(column.type)
            for name, column in self._columns.items()
        }

    def parameters(self, document: Document) -> dict[str, Any]:
        """The columns that a document names, converted. Misfit with the field if the table would refuse it."""
        missing = [name for name in (*self._on, *sorted(self._needed)) if document.get(name) is None]
        if missing:
            raise Misfit(f"{missing[0]}: the column takes no null, and the document has no value for it")
        return {name: self._converted(name, value) for name, value in document.items()}

    def misfits_of(self, names: Collection[str]) -> Iterator[str]:
        """Why the table would refuse documents that have these fields, and no others; a document may lack `_id`."""
        for name in (*self._on, *sorted(self._needed - set(self._on))):
            if name not in names:
                yield f"{name}: the column takes no null, and no document has a value for it"
        for name in sorted(set(names) - {"_id"}):
            try:
                self._column(name)
            except Misfit as misfit:
                yield str(misfit)

    def _column(self, name: str) -> sa.Column[Any]:
        """The column of a field. Misfit where there is none that takes a value."""
        if name not in self._columns:
            raise NoColumn(f"{name}: the table has no such column; project the field away, or add the column")
        if is_computed(self._columns[name]):
            raise Misfit(f"{name}: the database gives this column its value; project the field away")
        return self._columns[name]

    def _converted(self, name: str, value: Any) -> Any:
        column = self._column(name)
        if value is None:
            if not column.nullable:
                raise Misfit(f"{name}: the column takes no null")
            return None
        try:
            return self._converters[name](value)
        except Misfit as misfit:
            raise Misfit(f"{name}: {misfit}") from None

    def misfits(self, documents: pa.BinaryArray) -> dict[int, Misfit]:
        """Why the table would refuse encoded documents, by row."""
        found: dict[int, Misfit] = {}
        for row in np.flatnonzero(self._read(documents).unsure).tolist():
            try:
                self.parameters(decode_doc(documents[row].as_py()))
            except Misfit as misfit:
                found[row] = misfit
        return found

    def rows(self, documents: pa.BinaryArray) -> tuple[SqlRows, dict[int, Misfit | CodecError]]:
        """Encoded documents as rows, and those that are none, by number: their rows mean nothing."""
        read = self._read(documents)
        values = {name: self._objects(name, cells) for name, cells in read.sure.items()}
        named = {name: read.named[name] for name in values}
        refused: dict[int, Misfit | CodecError] = {}
        for row in np.flatnonzero(read.unsure).tolist():
            try:
                parameters = self.parameters(decode_doc(documents[row].as_py()))
            except (Misfit, CodecError) as error:
                refused[row] = error
                continue
            for name, value in parameters.items():
                if name not in values:
                    values[name], named[name] = np.full(len(documents), None), read.named[name]
                values[name][row] = self._for_driver(name, value)
        return SqlRows(values, named, len(documents)), refused

    def _for_driver(self, name: str, value: Any) -> Any:
        process = self._driver[name]
        return value if process is None or value is None else process(value)

    def _objects(self, name: str, cells: pa.Array) -> Objects:
        if not self._sqlite:
            return np.array(cells.cast(pa.string()).to_pylist(), dtype=np.object_)
        found = np.empty(len(cells), dtype=np.object_)
        process = self._driver[name]
        found[:] = cells.to_pylist() if process is None else [process(value) for value in cells.to_pylist()]
        return found

    def _read(self, documents: pa.BinaryArray) -> "_Read":
        names = list(self._columns)
        columns = read_packed(documents, [(name,) for name in names])
        unsure = np.zeros(len(documents), dtype=np.bool_)
        fields: Int64s = np.zeros(len(documents), dtype=np.int64)
        sure: dict[str, pa.Array] = {}
        named: dict[str, Bools] = {}
        for name in names:
            cells, column = columns[(name,)], self._columns[name]
            named[name] = there = cells.tags != tags.MISSING
            fields += there
            if name in self._on or name in self._needed:
                unsure |= ~there
            if not there.any():
                continue
            found = None if is_computed(column) else _surely(column.type, cells, sqlite=self._sqlite)
            if found is None:
                unsure |= there
                continue
            sure[name], certain = found
            nulls = cells.tags == tags.NULL
            takes_null = column.nullable and name not in self._on and name not in self._needed
            unsure |= there & ~(certain | nulls if takes_null else certain)
        return _Read(sure, named, unsure | (fields != field_counts(documents)))


def maker_of(table: sa.Table, stage: Merge, dialect: sa.Dialect) -> RowMaker:
    """For the documents that a stage writes, with the columns that its actions need."""
    inserts = stage.when_not_matched == "insert"
    return RowMaker(table, stage.on, dialect, inserts=inserts, replaces=stage.when_matched == "replace" and not inserts)


@dataclass(frozen=True, slots=True)
class _Read:
    """The findings of the kernels: the columns that have one, the rows that name each column, and the rows that they cannot judge."""

    sure: Mapping[str, pa.Array]
    named: Mapping[str, Bools]
    unsure: Bools


def documents_array(documents: Sequence[bytes]) -> pa.BinaryArray:
    """Encoded documents, shape (n,)."""
    return pa.array(documents, pa.binary())
