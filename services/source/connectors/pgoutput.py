"""Messages of PostgreSQL's `pgoutput` (protocol 1, values as text) as change events, which have the form of MongoDB's.

Values become those of the language: whole numbers (bigint a long), numeric a decimal, instants and days dates (without a zone: as UTC),
bytea and uuid binary, json documents, arrays arrays. What has no counterpart there (enums, ranges, times of day, a numeric beyond 34
digits, an infinite date; json that
is nested too deeply, has a number beyond a double or half a surrogate pair, or would read as a typed value, as {"$date": 5} does) is the
text that the server writes. A value that the server did not send, because an update left it unchanged
outside of its row (TOAST), is not null: it is taken from the old row if that was sent, else its column is absent and named in
`updateDescription.notSent`.
"""

import datetime as dt
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import DataError
from psycopg.adapt import AdaptersMap, Buffer, Loader, Transformer
from psycopg.pq import Format

from tidemark.shared.language.values.cells import JSON_DEPTH_MAX, is_decimal
from tidemark.shared.language.values.extended_json import SPECIAL
from tidemark.shared.language.values.instants import ms_of
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, UUID_SUBTYPE, Binary, Date, Document, Timestamp, long

_INT8: Final = 20
_INT8S: Final = 1016
_FROM_1970_MS: Final = 946_684_800_000
"""PostgreSQL counts from 2000."""
_DIGITS_MAX: Final = 34
"""Of BSON's decimal: part of its format."""
_NOT_SENT: Final = object()
_HEX: Final = 0xFFFFFFFF


class UnreadMessage(ValueError):
    """The server sent what this protocol does not have."""


class _NoCounterpart(Exception):
    """A value that the language lacks."""


@dataclass(frozen=True, slots=True)
class _Json:
    """The value in a json or jsonb."""

    tree: Any


class _JsonLoader(Loader):
    """Takes json as it is, also within arrays."""

    def load(self, data: Buffer) -> _Json:
        return _Json(json.loads(bytes(data), parse_int=_whole))


class _Adapted:
    """Loaders of this module alone: the driver's own are everybody's."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        for name in ("json", "jsonb"):
            self.adapters.register_loader(name, _JsonLoader)


_ADAPTED: Final = _Adapted()


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation; `key`: it is one of the replica identity."""

    name: str
    oid: int
    key: bool


@dataclass(frozen=True, slots=True)
class _Relation:
    table: tuple[str, str]
    """Schema and name."""
    columns: tuple[RelationColumn, ...]
    oid: int = 0

    @property
    def name(self) -> str:
        return ".".join(self.table)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One event of a transaction, and the time at which that was committed, ms since 1970."""

    event: Document
    time_ms: int
    table: tuple[str, str] = ("", "")
    """Schema and name."""
    oid: int = 0
    """The table's number, which stays if it gets another name."""
    xid: int = 0
    """The transaction's id, of 32 bits."""
    keys: tuple[Mapping[str, str], ...] = ()
    """Texts of the replica identity's columns: of the old row if it was sent, then of the new one. None of a truncation."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction begins; its commit's record lies at this LSN."""

    commit_lsn: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A transaction ends; this LSN is behind its commit's record."""

    end_lsn: int


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & _HEX:X}"


class _Bytes:
    """The rest of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: str) -> Any:
        """One number of the struct's form, big-endian. UnreadMessage if it ends before."""
        try:
            (found,) = struct.unpack_from(">" + form, self._data, self._at)
        except struct.error as error:
            raise UnreadMessage(f"a message of type {self._data[:1]!r} ends within a number") from error
        self._at += struct.calcsize(">" + form)
        return found

    def raw(self, count: int) -> bytes:
        """Take so many bytes of the message."""
        if count < 0 or self._at + count > len(self._data):
            raise UnreadMessage(f"a message of type {self._data[:1]!r} ends within a value")
        self._at += count
        return self._data[self._at - count : self._at]

    def letter(self) -> str:
        """One byte, as a character."""
        return self.raw(1).decode("latin-1")

    def text(self) -> str:
        """Up to the zero byte."""
        end = self._data.find(b"\x00", self._at)
        if end < 0:
            raise UnreadMessage(f"a message of type {self._data[:1]!r} ends within a name")
        found = self.raw(end - self._at)
        self._at += 1
        return found.decode()


@dataclass(slots=True)
class Decoder:
    """Takes the messages of one peek, in order. Relations are told anew in each."""

    database: str
    from_lsn: int = 0
    """Changes of transactions whose commits lie before are left out."""
    domains: Mapping[int, int] = field(default_factory=dict)
    """Types (oid) of domains, with those that they are made of: queries tell these alone, and the slot those alone."""
    _relations: dict[int, _Relation] = field(default_factory=dict)
    _transformer: Any = field(default_factory=lambda: Transformer(_ADAPTED))
    _commit_lsn: int = 0
    _time_ms: int = 0
    _index: int = 0
    _xid: int = 0
    _texts: list[dict[str, str]] = field(default_factory=list)
    """Of the message's rows, see `RowChange.keys`."""

    def decode(self, data: bytes) -> Iterator[Begun | RowChange | TransactionEnd]:
        """A message, decoded. UnreadMessage."""
        rest = _Bytes(data)
        self._texts = []
        match rest.letter():
            case "B":
                self._commit_lsn = rest.take("Q")
                self._time_ms = rest.take("q") // 1000 + _FROM_1970_MS
                self._xid = rest.take("I")
                self._index = 0
                yield Begun(self._commit_lsn)
            case "C":
                rest.take("B")
                rest.take("Q")
                yield TransactionEnd(rest.take("Q"))
            case "R":
                self._relation(rest)
            case "I" | "U" | "D" | "T" if self._commit_lsn < self.from_lsn:
                pass
            case "I":
                relation = self._of(rest.take("I"))
                self._expect(rest, "N")
                yield self._change("insert", relation, None, self._tuple(rest, relation))
            case "U":
                yield self._update(rest)
            case "D":
                relation = self._of(rest.take("I"))
                kind = self._expect(rest, "K", "O")
                yield self._change("delete", relation, (kind, self._tuple(rest, relation)), None)
            case "T":
                count = rest.take("I")
                rest.take("B")
                for _ in range(count):
                    yield self._event("truncate", self._of(rest.take("I")), {})
            case "Y" | "O":
                pass  # names of types, and where a transaction came from: nothing follows from them
            case other:
                raise UnreadMessage(f"expected a message of pgoutput's protocol 1, found one of type {other!r}")

    @staticmethod
    def _expect(rest: _Bytes, *letters: str) -> str:
        found = rest.letter()
        if found not in letters:
            raise UnreadMessage(f"expected a row of kind {' or '.join(map(repr, letters))}, found {found!r}")
        return found

    def _of(self, oid: int) -> _Relation:
        if oid not in self._relations:
            raise UnreadMessage(f"a change of the relation {oid}, which was not described before")
        return self._relations[oid]

    def _relation(self, rest: _Bytes) -> None:
        oid = rest.take("I")
        table = (rest.text() or "pg_catalog", rest.text())
        rest.letter()
        columns = []
        for _ in range(rest.take("H")):
            key = bool(rest.take("B") & 1)
            column = rest.text()
            oid_of_type = rest.take("I")
            columns.append(RelationColumn(column, self.domains.get(oid_of_type, oid_of_type), key))
            rest.take("i")
        self._relations[oid] = _Relation(table, tuple(columns), oid)

    def _tuple(self, rest: _Bytes, relation: _Relation) -> list[Any]:
        count = rest.take("H")
        if count != len(relation.columns):
            raise UnreadMessage(f"{relation.name}: expected a row of {len(relation.columns)} columns, found {count}")
        self._texts.append(texts := dict(self._texts[-1]) if self._texts else {})
        return [self._cell(rest, column, texts) for column in relation.columns]

    def _cell(self, rest: _Bytes, column: RelationColumn, texts: dict[str, str]) -> Any:
        match rest.letter():
            case "n":
                return None
            case "u":
                return _NOT_SENT
            case "t":
                data = rest.raw(rest.take("i"))
                if column.key:
                    texts[column.name] = data.decode()
                return self.value(column.oid, data)
            case other:
                raise UnreadMessage(f"expected a value as text, found one of kind {other!r}")

    def value(self, oid: int, data: bytes) -> Any:
        """The text of a value of the type as a value of the language."""
        try:
            return _own(self._transformer.get_loader(oid, Format.TEXT).load(data), wide=oid in (_INT8, _INT8S))
        except (_NoCounterpart, DataError, ValueError, RecursionError):
            return data.decode()

    def row(
        self,
        table: tuple[str, str],
        columns: Sequence[RelationColumn],
        cells: Sequence[bytes | None],
        lsn: int,
        index: int,
        time_ms: int,
    ) -> RowChange:
        """A row that was read from its table, as an insert of its own; the LSN is where its changes begin."""
        self._commit_lsn, self._index, self._time_ms = lsn, index, time_ms
        values = [
            None if cell is None else self.value(each.oid, cell) for each, cell in zip(columns, cells, strict=True)
        ]
        found = self._change("insert", _Relation(table, tuple(columns)), None, values)
        found.event["_id"]["snapshot"] = True
        return found

    def _update(self, rest: _Bytes) -> RowChange:
        relation = self._of(rest.take("I"))
        kind = self._expect(rest, "K", "O", "N")
        old = None
        if kind != "N":
            old = (kind, self._tuple(rest, relation))
            self._expect(rest, "N")
        return self._change("update", relation, old, self._tuple(rest, relation))

    def _change(
        self, kind: str, relation: _Relation, old: tuple[str, list[Any]] | None, new: list[Any] | None
    ) -> RowChange:
        columns = relation.columns
        before = None if old is None else old[1]
        if old is not None and new is not None:
            kind_sent, sent = old  # of a key alone, the other columns are null
            new = [
                was if cell is _NOT_SENT and (kind_sent == "O" or column.key) else cell
                for column, cell, was in zip(columns, new, sent, strict=True)
            ]
        fields: Document = {}
        if new is not None:
            fields["fullDocument"] = _document(columns, new)
        if old is not None and old[0] == "O":
            fields["fullDocumentBeforeChange"] = _document(columns, old[1])
        key = [column for column in columns if column.key]
        cells = {column.name: cell for column, cell in zip(columns, new or before or [], strict=True)}
        fields["documentKey"] = {
            column.name: cells[column.name] for column in key if cells[column.name] is not _NOT_SENT
        }
        if kind == "update" and old is not None and old[0] == "K" and before is not None:
            fields["documentKeyBeforeChange"] = {
                column.name: cell for column, cell in zip(columns, before, strict=True) if column.key
            }
        if new is not None and any(cell is _NOT_SENT for cell in new):
            missed = [column.name for column, cell in zip(columns, new, strict=True) if cell is _NOT_SENT]
            fields["updateDescription"] = {"notSent": missed}
        return self._event(kind, relation, fields)

    def _event(self, kind: str, relation: _Relation, fields: Mapping[str, object]) -> RowChange:
        event: Document = {
            "_id": {"lsn": lsn_text(self._commit_lsn), "index": self._index},
            "operationType": kind,
            "clusterTime": Timestamp(max(0, self._time_ms // 1000), self._index & _HEX),
            "wallTime": Date(self._time_ms),
            "ns": {"db": self.database, "coll": relation.name},
            **fields,
        }
        self._index += 1
        return RowChange(event, self._time_ms, relation.table, relation.oid, self._xid, tuple(self._texts))


def _document(columns: Sequence[RelationColumn], cells: Sequence[object]) -> Document:
    return {column.name: cell for column, cell in zip(columns, cells, strict=True) if cell is not _NOT_SENT}


def _whole(text: str) -> int | Decimal | float:
    if len(text.removeprefix("-")) > _DIGITS_MAX:
        return float(text)
    found = int(text)
    return found if INT64_MIN <= found <= INT64_MAX else Decimal(found)


def _readable(tree: object, room: int = JSON_DEPTH_MAX) -> Any:
    """The tree, if it is the same again behind extended JSON. _NoCounterpart, UnicodeEncodeError."""
    match tree:
        case str():
            tree.encode()
        case float() if math.isinf(tree):
            raise _NoCounterpart
        case dict() | list() if room == 0:
            raise _NoCounterpart
        case dict():
            if len(tree) == 1 and SPECIAL.keys() & tree.keys():
                raise _NoCounterpart
            for name, each in tree.items():
                name.encode()
                _readable(each, room - 1)
        case list():
            for each in tree:
                _readable(each, room - 1)
    return tree


def _decimal(value: Decimal) -> Decimal:
    """At most 34 digits, as BSON's: another one would be another number."""
    if not is_decimal(value):
        raise _NoCounterpart
    return value


def _own(value: object, *, wide: bool = False) -> Any:
    """A value of the driver as one of the language; `wide`: whole numbers have 64 bits. _NoCounterpart."""
    match value:
        case None | bool() | float() | str():
            return value
        case int():
            return long(value) if wide else value
        case Decimal():
            return _decimal(value)
        case bytes():
            return Binary(value)
        case UUID():
            return Binary(value.bytes, UUID_SUBTYPE)
        case dt.date():
            return Date(ms_of(value))
        case list():
            return [_own(each, wide=wide) for each in value]
        case _Json(tree):
            return _readable(tree)
        case _:
            raise _NoCounterpart
