"""JSON records to typed columns of declared fields, and the records as they came beside them.

- DE1 The plain path defines the result: `parse_json`, then `fit` to the schema. The compiled reader reads the sure values; its cells
  fit by the same rules; every other record is read the plain way, alone.
- DE2 A record that the plain path takes and the reader is not sure of goes on in the form in which the interpreter renders it, canonical:
  behind this point the reader reads every record (`trusted`), whatever path a stage asks for.
- DE3 One record is one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import documents, tags
from tidemark.shared.compiled.columns import TAGS, Path, Tagged
from tidemark.shared.language.schema import Field, Schema, SchemaMismatch, fit, misfit
from tidemark.shared.language.values import ExtendedJsonError, from_json, parse_json, render_json
from tidemark.shared.language.values.instants import parse_iso
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, Document
from tidemark.shared.operators.base import RAW
from tidemark.shared.operators.batches import ARROW_TYPES, TIMESTAMP
from tidemark.shared.operators.dead_letters import Cause
from tidemark.shared.operators.read_ahead import read_columns

MISMATCH: Final = "SchemaMismatch"
EXACT_MAX: Final = 2.0**53
"""Below this, a double tells whole numbers apart."""

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]


class Bad(NamedTuple):
    """Why a record is no document of the schema."""

    cause: Cause
    document: bytes | None
    """Its JSON, as the reader takes it; None: it is no JSON object at all."""


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """Records that are no documents of the schema, as columns of one length n, in the order of the records."""

    rows: Int64s
    causes: Sequence[Cause]
    places: Int64s
    """Shape (n,): where the cause of each stands in `causes`."""
    documents: pa.BinaryArray
    """Their JSON, as the reader takes it; null: it is no JSON object at all."""

    def __len__(self) -> int:
        """How many."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows that decoded, and those that did not, both in the order of the records."""

    rows: Int64s
    """Shape (n,): the record of each row of `batch`."""
    batch: pa.RecordBatch
    """Typed columns and RAW."""
    bad: RefusedRecords


def decode(values: pa.BinaryArray, schema: Schema, ahead: Sequence[Path] = ()) -> Decoded:
    """Decode records; a bad record raises nothing. ahead: undeclared paths to read in the same pass."""
    columns, fits, misfits = _columns(values, schema, ahead, trusted=False)
    if bool(fits.all()):
        return Decoded(np.arange(len(values), dtype=np.int64), _batch(columns, values), misfits.refused(values, {}))
    asked = np.flatnonzero(~fits & (misfits.places < 0))
    taken: list[tuple[int, bytes]] = []
    bad: dict[int, bytes | None] = {}
    for row, text in zip(asked.tolist(), values.take(pa.array(asked)).to_pylist(), strict=True):
        item = read_alone(text, schema)
        if isinstance(item, Bad):
            misfits.places[row] = misfits.place_of(item.cause)
            bad[row] = item.document
        else:
            taken.append((row, render_json(item, canonical=True)))
    rows = np.flatnonzero(fits)
    batch = _batch(columns, values)
    if len(rows) < len(values):
        batch = batch.take(pa.array(rows))
    return Decoded(
        *(_with_rendered(rows, batch, taken, schema, ahead) if taken else (rows, batch)), misfits.refused(values, bad)
    )


class _Misfits:
    """Which records are refused, and why."""

    def __init__(self, count: int) -> None:
        self.places: Int64s = np.full(count, -1)
        """Shape (n,): where the cause of each record stands in `causes`, -1 for none."""
        self.causes: dict[Cause, int] = {}

    def place_of(self, cause: Cause) -> int:
        """Where a cause stands."""
        return self.causes.setdefault(cause, len(self.causes))

    def refused(self, values: pa.BinaryArray, documents: Mapping[int, bytes | None]) -> RefusedRecords:
        """The records; these were rendered (None: no object), the reader has read the others."""
        rows = np.flatnonzero(self.places >= 0)
        texts = values.take(pa.array(rows))
        if documents:
            rendered = np.isin(rows, list(documents))
            texts = pc.replace_with_mask(texts, pa.array(rendered), pa.array(documents.values(), texts.type))
        return RefusedRecords(rows, tuple(self.causes), self.places[rows], texts)


def _with_rendered(
    rows: Int64s, batch: pa.RecordBatch, taken: Sequence[tuple[int, bytes]], schema: Schema, ahead: Sequence[Path]
) -> tuple[Int64s, pa.RecordBatch]:
    """The rows with those that the interpreter rendered in their places (DE2)."""
    texts = pa.array([text for _, text in taken], pa.binary())
    columns, fits, _ = _columns(texts, schema, ahead, trusted=True)
    assert bool(fits.all()), "what the interpreter takes and renders, the reader reads"
    every = np.concatenate((rows, np.array([row for row, _ in taken], dtype=np.int64)))
    order = np.argsort(every, kind="stable")
    both = pa.concat_batches([batch, _batch(columns, texts)])
    return every[order], both.take(pa.array(order))


# --- columns ----------------------------------------------------------------------------------------------------------


def _columns(
    values: pa.BinaryArray, schema: Schema, ahead: Sequence[Path], *, trusted: bool
) -> tuple[dict[str, pa.Array], Bools, _Misfits]:
    """The columns of the declared fields and of the paths read ahead; which records they describe in full, shape (n,); the misfits."""
    found = documents.read(values, [*((f.name,) for f in schema), *ahead], trusted=trusted)
    columns: dict[str, pa.Array] = {}
    fits = found.sure
    misfits = _Misfits(len(values))
    asked = ~found.sure  # the interpreter says what is wrong with these
    for field in schema:
        cells = found.columns[field.name,]
        if field.type == "decimal":  # has no column: the interpreter judges whether it fits, and renders it (DE2)
            own: Bools | None = np.isin(cells.tags, (*_empty(field), *((tags.OTHER,) if trusted else ())))
        else:
            columns[field.name], own = _fitted(cells, field)
        if own is not None:
            fits = fits & own
            asked |= ~own & ((cells.tags == tags.OTHER) | (field.type == "decimal"))
            odd = np.flatnonzero(~own & ~asked)
            _note(misfits, field, odd, cells.tags[odd])
            asked[odd] = True
    columns.update(read_columns({path: found.columns[path] for path in ahead}, values))
    return columns, fits, misfits


def _note(misfits: _Misfits, field: Field, rows: Int64s, kinds: npt.NDArray[np.uint8]) -> None:
    """Note why rows do not fit if their value of a field has one of these tags, as `fit` says it."""
    for kind in np.unique(kinds).tolist():
        why = misfit(field, TYPE_NAMES[kind])
        misfits.places[rows[kinds == kind]] = misfits.place_of(Cause(why.reason, MISMATCH, field.name))


TYPE_NAMES: Final = {
    **{tag: name for name, tag in TAGS.items()},
    tags.MISSING: "missing", tags.NULL: "null", tags.OBJECT: "object", tags.ARRAY: "array",
}  # fmt: skip
"""Types as messages name them, by their tags."""


def _fitted(cells: Tagged, field: Field) -> tuple[pa.Array, Bools | None]:
    """The column of a declared field, as `fit` and `_whole` would make its cells, and which cells fit (None: all do)."""
    assert field.type != "decimal", "decimals have no columns"
    exact, empty = TAGS[field.type], _empty(field)
    if cells.all(exact, *empty):
        return cells.of(field.type), None
    if field.type in ("string", "bool", "date"):
        return cells.of(field.type), np.isin(cells.tags, (exact, *empty))
    numbers, there = _converted(cells, field)
    fits = there | np.isin(cells.tags, empty)
    kind = ARROW_TYPES[field.type]
    return pa.array(numbers.astype(kind.to_pandas_dtype()), type=kind, mask=~there), fits


def _empty(field: Field) -> tuple[int, ...]:
    return (tags.MISSING, tags.NULL) if field.optional else ()


def _converted(cells: Tagged, field: Field) -> tuple[npt.NDArray[Any], Bools]:
    """Numbers as a declared type has them, and which cells lose nothing by that; shape (n,) each."""
    whole = cells.is_("int") | cells.is_("long")
    doubles, numbers = cells.numbers.view(np.float64), cells.numbers
    if field.type == "double":
        rounded = np.where(whole, numbers, 0).astype(np.float64)
        exact = (rounded < 2.0**63) & (np.where(rounded < 2.0**63, rounded, 0).astype(np.int64) == numbers)
        return np.where(whole, rounded, doubles), cells.is_("double") | (whole & exact)
    fraction = cells.is_("double")
    small = np.where(fraction, doubles, 0.0)
    with np.errstate(invalid="ignore"):
        fraction &= (np.abs(small) < EXACT_MAX) & (np.trunc(small) == small)
    numbers = np.where(fraction, np.where(fraction, small, 0.0).astype(np.int64), numbers)
    there = whole | fraction
    if field.type == "int":
        there &= (numbers >= INT32_MIN) & (numbers <= INT32_MAX)
    return np.where(there, numbers, 0), there


def _batch(columns: Mapping[str, pa.Array], values: pa.BinaryArray) -> pa.RecordBatch:
    """The columns, and RAW."""
    return pa.RecordBatch.from_arrays([*columns.values(), values], names=[*columns, RAW])


def instants(texts: pa.StringArray) -> pa.Array:
    """As `parse_iso`: timestamp[ms, UTC], null for a text that is no instant."""
    found, known = documents.instants(texts)
    odd = np.flatnonzero(~known)
    if not len(odd):
        return pa.array(found).cast(TIMESTAMP)
    told = [None if text is None else parse_iso(text) for text in texts.take(pa.array(odd)).to_pylist()]
    found[odd] = [0 if ms is None else ms for ms in told]
    known[odd] = [ms is not None for ms in told]
    return pa.array(found, mask=~known).cast(TIMESTAMP)


# --- plain path -------------------------------------------------------------------------------------------------------


def read_alone(text: bytes | None, schema: Schema) -> Document | Bad:
    """A record by the plain path (DE1)."""
    if text is None:
        return _NO_VALUE
    try:
        value = parse_json(text)
    except ExtendedJsonError as e:
        return Bad(Cause(f"The record does not decode: {e}", "DecodeFailure"), None)
    if type(value) is not dict:
        return Bad(Cause(f"The record is no document but {type(value).__name__}.", "DecodeFailure"), None)
    exact = _exact(_whole(value, schema), text, schema)
    fitted = exact if isinstance(exact, SchemaMismatch) else fit(exact, schema)
    if isinstance(fitted, SchemaMismatch):
        return Bad(Cause(fitted.reason, MISMATCH, fitted.path), render_json(value, canonical=True))
    return fitted


_NO_VALUE: Final = Bad(Cause("The record has no value.", "NoValue"), None)


def _exact(document: Document, text: bytes, schema: Schema) -> Document | SchemaMismatch:
    """JSON's numbers are decimals, digit by digit, where a decimal is declared: a double would not have all of them.

    A number that no decimal has does not fit: rounded, it would be another one.
    """
    fields = [f for f in schema.fields if f.type == "decimal" and type(document.get(f.name)) is float]
    if not fields:
        return document
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    found: Document = {}
    for field in fields:
        digits = bytes(raw[field.name]) if field.name in raw else b"{"
        if not digits.startswith(b"{"):
            try:
                found[field.name] = from_json({"$numberDecimal": digits.decode()})
            except ExtendedJsonError:
                return misfit(field, "a number of more than 34 digits, or beyond a decimal's exponents")
    return {**document, **found}


def _whole(document: Document, schema: Schema) -> Document:
    """JSON does not tell 5 from 5.0: a whole number with a point is an int where an int or a long is declared that has room for it."""
    changed = {
        f.name: int(v)
        for f in schema.fields
        if f.type in ("int", "long") and type(v := document.get(f.name)) is float and abs(v) < EXACT_MAX and v == int(v)
        if f.type == "long" or INT32_MIN <= v <= INT32_MAX
    }
    return {**document, **changed} if changed else document
