"""Documents to records of a schema (AV2): each value is exactly one of its type, or the document is refused with the place."""

import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, TypeAlias

from tidemark.shared.language.avro.schema import (
    DEPTH_MAX,
    ArrayType,
    AvroError,
    AvroSchema,
    AvroSchemaError,
    EnumType,
    FixedType,
    MapType,
    NamedType,
    PrimitiveType,
    RecordField,
    RecordType,
    Type,
    UnionType,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.values.fitting import double_of, whole_of
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, MISSING, Binary, Date, Long, Value

_DAY_MS: Final = 86_400_000
"""The unit of `date`."""
_TICKS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_UNITS: Final = {1: "milliseconds", 1_000: "microseconds", 1_000_000: "nanoseconds"}


class _Out(bytearray):
    """A record's bytes, and how deep the value is that is being written."""

    depth = 0


_Write: TypeAlias = Callable[[_Out, Value, str], None]
"""Appends a value, given with its place."""


def writer_of(schema: AvroSchema) -> Callable[[Value], bytes]:
    """From a value, mostly a document, to its record. It raises AvroError for a misfit. AvroSchemaError for a wrong default."""
    root = Writers(schema).of(schema.root)

    def write(value: Value) -> bytes:
        out = _Out()
        root(out, value, "")
        return bytes(out)

    return write


def _wrong(at: str, expected: str, value: Value) -> AvroError:
    found = "nothing" if value is MISSING else f"a value of type {type_name(value)}"
    return AvroError(f"{at or 'the document'}: expected {expected}, found {found}")


def _put_long(out: bytearray, value: int) -> None:
    left = (value << 1) ^ (value >> 63)
    while left > 127:  # noqa: PLR2004 - seven bits a byte
        out.append((left & 127) | 128)
        left >>= 7
    out.append(left)


def _put_bytes(out: bytearray, data: bytes) -> None:
    _put_long(out, len(data))
    out += data


class Writers:
    """A function for each type; those of records are found by name, so that a record may be inside of itself."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._named: dict[str, _Write] = {}

    def of(self, kind: Type) -> _Write:
        """The function of a type."""
        match kind:
            case PrimitiveType():
                return _primitive(kind)
            case FixedType():
                return _fixed(kind)
            case EnumType():
                return _enumeration(kind)
            case ArrayType():
                return _array(self.of(kind.items))
            case MapType():
                return _map(self.of(kind.values))
            case UnionType():
                return self._union(kind)
            case NamedType():
                return self._by_name(kind.name)
            case RecordType():
                return self._record(kind)

    def _by_name(self, name: str) -> _Write:
        kind = self._schema.named[name]
        if not isinstance(kind, RecordType):
            return self.of(kind)
        if name not in self._named:
            self._record(kind)
        return self._named[name]

    def _record(self, kind: RecordType) -> _Write:
        self._named[kind.name] = lambda out, value, at: write(out, value, at)  # noqa: PLW0108 - it is not made yet
        parts = [(each.name, self.of(each.type), self.absent(each)) for each in kind.fields]
        names = frozenset(each.name for each in kind.fields)

        def write(out: _Out, value: Value, at: str) -> None:
            if type(value) is not dict:
                raise _wrong(at, f"an object, for {kind.name}", value)
            if out.depth >= DEPTH_MAX:
                raise AvroError(f"{at}: deeper than {DEPTH_MAX} levels")
            if not value.keys() <= names:
                other = next(name for name in value if name not in names)
                raise AvroError(
                    f"{join(at, other)}: {kind.name} has no such field; project it away, or add it to the schema"
                )
            out.depth += 1
            for name, part, absent in parts:
                if name not in value and absent is not None:
                    out.extend(absent)
                else:
                    part(out, value.get(name, MISSING), join(at, name))
            out.depth -= 1

        return write

    def absent(self, each: RecordField) -> bytes | None:
        """The bytes of a field that a document lacks: its default; null, where it may be null; None: it must be there."""
        kind = self._schema.resolved(each.type)
        if each.has_default:
            out = bytearray()
            self._put_default(out, kind, each.default, each.name)
            return bytes(out)
        nulls = (
            [i for i, b in enumerate(kind.branches) if b == PrimitiveType("null")]
            if isinstance(kind, UnionType)
            else []
        )
        if kind == PrimitiveType("null"):
            return b""
        return bytes([nulls[0] * 2]) if nulls else None

    def _put_default(self, out: bytearray, kind: Type, value: object, at: str) -> None:
        """A default is JSON: bytes as text of Latin 1, and of a union the first type."""
        kind = self._schema.resolved(kind)
        match kind, value:
            case UnionType(branches), _:
                out.append(0)
                self._put_default(out, branches[0], value, at)
            case RecordType(_, fields), dict():
                for each in fields:
                    if each.name not in value and not each.has_default:
                        raise AvroSchemaError(f"{at}: the default lacks {each.name}")
                    self._put_default(out, each.type, value.get(each.name, each.default), f"{at}.{each.name}")
            case ArrayType(items), list():
                if value:
                    _put_long(out, len(value))
                    for item in value:
                        self._put_default(out, items, item, at)
                out.append(0)
            case MapType(values), dict():
                if value:
                    _put_long(out, len(value))
                    for key, item in value.items():
                        _put_bytes(out, key.encode())
                        self._put_default(out, values, item, at)
                out.append(0)
            case EnumType(_, symbols), str() if value in symbols:
                _put_long(out, symbols.index(value))
            case PrimitiveType("null"), None:
                return
            case PrimitiveType("boolean"), bool():
                out.append(value)
            case (PrimitiveType("int"), int()) | (PrimitiveType("long"), int()) if abs(value) <= INT64_MAX:
                _put_long(out, int(value))
            case PrimitiveType("float" | "double" as width), int() | float():
                out += struct.pack("<f" if width == "float" else "<d", value)
            case PrimitiveType("string"), str():
                _put_bytes(out, value.encode())
            case PrimitiveType("bytes"), str() if value.isascii() or max(value) <= "\xff":
                _put_bytes(out, value.encode("latin-1"))
            case FixedType(_, size), str() if len(value) == size and max(value, default="") <= "\xff":
                out += value.encode("latin-1")
            case _:
                raise AvroSchemaError(f"{at}: the default {value!r:.60} is none of its type")

    def _union(self, kind: UnionType) -> _Write:
        writes = [self.of(branch) for branch in kind.branches]
        orders = orders_of(kind, self._schema)
        expected = " or ".join(dict.fromkeys(_words_of(kind, self._schema)))

        def write(out: _Out, value: Value, at: str) -> None:
            begin, depth, order = len(out), out.depth, orders.get(type(value), ())
            failed: AvroError | None = None
            for index in order:
                _put_long(out, index)
                try:
                    writes[index](out, value, at)
                except AvroError as error:
                    del out[begin:]
                    out.depth = depth
                    failed = error
                else:
                    return
            raise failed if failed is not None and len(order) == 1 else _wrong(at, expected, value)

        return write


def orders_of(kind: UnionType, schema: AvroSchema) -> Mapping[type, tuple[int, ...]]:
    """Which branches of a union are tried, in which order, for a value of each type."""
    words, orders = _words_of(kind, schema), {}
    for value_type, wanted in _PREFERRED.items():
        ranked = [(wanted.index(word), i) for i, word in enumerate(words) if word in wanted]
        orders[value_type] = tuple(i for _, i in sorted(ranked))
    return orders


def _words_of(kind: UnionType, schema: AvroSchema) -> list[str]:
    return [_words(schema.resolved(branch)) for branch in kind.branches]


def _words(kind: Type) -> str:
    match kind:
        case PrimitiveType(word, logical) | FixedType(word, _, logical):
            return logical or (word if isinstance(kind, PrimitiveType) else "fixed")
        case _:
            return _NAMES[type(kind)]


_NAMES: Final[Mapping[type, str]] = {
    ArrayType: "array",
    EnumType: "enum",
    MapType: "map",
    NamedType: "record",
    RecordType: "record",
    UnionType: "union",
}
_INSTANT: Final = ("ms", "us", "ns", "date")
_PREFERRED: Final[Mapping[type, tuple[str, ...]]] = {
    type(None): ("null",),
    type(MISSING): ("null",),
    bool: ("boolean",),
    int: ("int", "long", "double", "float", "decimal"),
    Long: ("long", "int", "double", "float", "decimal"),
    float: ("double", "float", "decimal", "long", "int"),
    Decimal: ("decimal", "double", "float", "long", "int"),
    str: ("string", "uuid", "enum"),
    Date: _INSTANT,
    Binary: ("bytes", "fixed", "uuid"),
    list: ("array",),
    dict: ("record", "map"),
}
"""Which types of a union are tried for a value, in which order."""


def _primitive(kind: PrimitiveType) -> _Write:
    match kind:
        case PrimitiveType("bytes", "decimal"):
            return _decimal(kind.precision, kind.scale, None)
        case PrimitiveType("long", "ms" | "us" | "ns" as unit):
            return _instant(_TICKS[unit])
        case PrimitiveType("int", "date"):
            return _day
        case PrimitiveType("string", "uuid"):
            return _uuid_text
    return _PLAIN[kind.kind]


def _null(_out: _Out, value: Value, at: str) -> None:
    if value is not None and value is not MISSING:
        raise _wrong(at, "null", value)


def _boolean(out: _Out, value: Value, at: str) -> None:
    if type(value) is not bool:
        raise _wrong(at, "true or false", value)
    out.append(value)


def _number(name: str, low: int, high: int) -> _Write:
    def write(out: _Out, value: Value, at: str) -> None:
        whole = value if type(value) is int else whole_of(value)
        if whole is None or not low <= whole <= high:
            raise _wrong(at, f"a whole number ({name})", value)
        _put_long(out, whole)

    return write


def _floating(name: str, packed: struct.Struct) -> _Write:
    def write(out: _Out, value: Value, at: str) -> None:
        found = value if type(value) is float else double_of(value)
        if found is None:
            raise _wrong(at, f"a number that a {name} has exactly", value)
        try:
            out.extend(packed.pack(found))
        except OverflowError:
            raise _wrong(at, f"a number within a {name}", value) from None

    return write


def _bytes(out: _Out, value: Value, at: str) -> None:
    if type(value) is not Binary:
        raise _wrong(at, "binary", value)
    _put_bytes(out, value)


def _string(out: _Out, value: Value, at: str) -> None:
    if type(value) is not str:
        raise _wrong(at, "a string", value)
    _put_bytes(out, value.encode())


def _uuid_text(out: _Out, value: Value, at: str) -> None:
    if type(value) is Binary and value.is_uuid:
        _put_bytes(out, str(uuid.UUID(bytes=bytes(value))).encode())
        return
    _string(out, value, at)


def _instant(ticks: int) -> _Write:
    def write(out: _Out, value: Value, at: str) -> None:
        if type(value) is not Date:
            raise _wrong(at, "a date", value)
        if not INT64_MIN <= value * ticks <= INT64_MAX:
            raise AvroError(
                f"{at or 'the document'}: expected a date that 64 bits of {_UNITS[ticks]} hold, found {int(value)} ms"
            )
        _put_long(out, value * ticks)

    return write


def _day(out: _Out, value: Value, at: str) -> None:
    if type(value) is not Date or value % _DAY_MS or not INT32_MIN <= value // _DAY_MS <= INT32_MAX:
        raise _wrong(at, "a date that is the beginning of a day", value)
    _put_long(out, value // _DAY_MS)


def _decimal(precision: int, scale: int, size: int | None) -> _Write:
    def write(out: _Out, value: Value, at: str) -> None:
        unscaled = _unscaled(value, scale)
        if unscaled is None or len(str(abs(unscaled))) > precision:
            raise _wrong(
                at,
                f"a number of at most {precision} digits, {scale} of them behind the point ($round, $toDecimal)",
                value,
            )
        length = unscaled.bit_length() // 8 + 1 if size is None else size
        try:
            data = unscaled.to_bytes(length, "big", signed=True)
        except OverflowError:
            raise _wrong(at, f"a number that fits {length} bytes", value) from None
        if size is None:
            _put_long(out, length)
        out.extend(data)

    return write


def _unscaled(value: Value, scale: int) -> int | None:
    """The value in units of 10^-scale, if it is a whole number of them; a double counts as its shortest decimal."""
    if type(value) in (int, Long):
        return int(value) * int(10**scale)
    number = Decimal(repr(value)) if type(value) is float else value
    if type(number) is not Decimal or not number.is_finite():
        return None
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    found = int("".join(map(str, digits)) or "0")
    shift = exponent + scale
    if found and shift > 2 * DEPTH_MAX:
        return None  # more digits than any decimal of a schema has
    if shift >= 0:
        found *= int(10 ** (shift if found else 0))
    else:
        found, left = divmod(found, int(10 ** min(-shift, len(digits) + 1)))
        if left:
            return None
    return -found if sign else found


def _fixed(kind: FixedType) -> _Write:
    if kind.logical == "decimal":
        return _decimal(kind.precision, kind.scale, kind.size_bytes)

    def write(out: _Out, value: Value, at: str) -> None:
        if type(value) is not Binary or len(value) != kind.size_bytes:
            raise _wrong(at, f"binary of {kind.size_bytes} bytes", value)
        out.extend(value)

    return write


def _enumeration(kind: EnumType) -> _Write:
    numbers = {symbol: number for number, symbol in enumerate(kind.symbols)}

    def write(out: _Out, value: Value, at: str) -> None:
        if type(value) is not str or value not in numbers:
            raise _wrong(at, f"one of {', '.join(kind.symbols)}", value)
        _put_long(out, numbers[value])

    return write


def _array(item: _Write) -> _Write:
    def write(out: _Out, value: Value, at: str) -> None:
        if type(value) is not list:
            raise _wrong(at, "an array", value)
        if value:
            _put_long(out, len(value))
            for number, each in enumerate(value):
                item(out, each, f"{at}[{number}]")
        out.append(0)

    return write


def _map(part: _Write) -> _Write:
    def write(out: _Out, value: Value, at: str) -> None:
        if type(value) is not dict:
            raise _wrong(at, "an object", value)
        if value:
            _put_long(out, len(value))
            for key, each in value.items():
                _put_bytes(out, key.encode())
                part(out, each, join(at, key))
        out.append(0)

    return write


_PLAIN: Final[dict[str, _Write]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _number("int", INT32_MIN, INT32_MAX),
    "long": _number("long", INT64_MIN, INT64_MAX),
    "float": _floating("float", struct.Struct("<f")),
    "double": _floating("double", struct.Struct("<d")),
    "bytes": _bytes,
    "string": _string,
}
