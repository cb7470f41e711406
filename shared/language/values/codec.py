"""The compact form in which documents travel between services and lie in state.

MessagePack without extension types. Documents are maps, arrays are arrays; null, bool, double, string, and ints are their native
forms. Every other type is a `bin`: one tag byte, then its payload. Nothing else uses `bin`, so nothing is ambiguous, and every value
comes back as exactly what it was (-0.0, 1.0 beside 1, a decimal's trailing zeros, a long that 32 bits would hold).

Decoding is bounded in size and nesting and never runs anything that it reads.
"""

import struct
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgpack
import msgspec

from tidemark.shared.model.values import (
    INT64_MAX,
    INT64_MIN,
    MAX_KEY,
    MIN_KEY,
    Binary,
    Date,
    Document,
    EndKey,
    Long,
    ObjectId,
    Regex,
    Timestamp,
    Value,
    long,
)

SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
"""Default bound of one encoded value."""

_OWN: Final = msgspec.msgpack.Decoder(dict[str, Any])
_BIN_8, _BIN_16, _BIN_32 = 0xC4, 0xC5, 0xC6
"""First bytes of binary. To look for bytes takes six times as long as for numbers."""
_Q: Final = struct.Struct(">q")
_TS: Final = struct.Struct(">II")


class CodecError(ValueError):
    """Bytes that are no encoded value, or a value beyond the bounds."""


def _regex_bytes(value: Regex) -> bytes:
    return value.options.encode() + b"\0" + value.pattern.encode("utf-8", "surrogatepass")


def _regex(data: bytes) -> Regex:
    options, _, pattern = data.partition(b"\0")
    return Regex(pattern.decode("utf-8", "surrogatepass"), options.decode())


_TAGGED: Final[dict[type, Callable[[Any], bytes]]] = {
    Long: lambda v: b"L" + _Q.pack(v),
    Date: lambda v: b"D" + _Q.pack(v),
    Decimal: lambda v: b"N" + str(v).encode(),
    Binary: lambda v: b"B" + bytes([v.subtype]) + bytes(v),
    ObjectId: lambda v: b"O" + v.data,
    Regex: lambda v: b"R" + _regex_bytes(v),
    Timestamp: lambda v: b"T" + _TS.pack(v.seconds, v.increment),
    EndKey: lambda v: b"X" if v is MAX_KEY else b"M",
}

_UNTAG: Final[dict[int, Callable[[bytes], Any]]] = {
    ord("L"): lambda d: long(_Q.unpack(d)[0]),
    ord("D"): lambda d: Date(_Q.unpack(d)[0]),
    ord("N"): lambda d: Decimal(d.decode()),
    ord("B"): lambda d: Binary(d[1:], d[0]),
    ord("O"): ObjectId,
    ord("R"): _regex,
    ord("T"): lambda d: Timestamp(*_TS.unpack(d)),
    ord("X"): lambda _: MAX_KEY,
    ord("M"): lambda _: MIN_KEY,
}


def _tag(value: Any) -> Any:
    form = _TAGGED.get(type(value))
    if form is None:
        raise CodecError(f"not a value of the language: {type(value).__name__}")
    if type(value) is Long and type(long(value)) is int:
        return int(value)
    return form(value)


def _untag(data: bytes) -> Any:
    if not data or data[0] not in _UNTAG:
        raise CodecError(f"unknown tag in an encoded value: {data[:1]!r}")
    return _UNTAG[data[0]](data[1:])


def _in_map(fields: Document) -> Document:
    for name, value in fields.items():
        if type(value) is bytes:
            fields[name] = _untag(value)
    return fields


def _in_list(items: list[Any]) -> list[Any]:
    for i, value in enumerate(items):
        if type(value) is bytes:
            items[i] = _untag(value)
    return items


def _packer() -> msgpack.Packer:
    return msgpack.Packer(default=_tag, strict_types=True, unicode_errors="surrogatepass")


def encoder() -> Callable[[Value], bytes]:
    """`encode_value` with a buffer of its own, for one thread."""
    pack = _packer().pack

    def encode(value: Value) -> bytes:
        try:
            data: bytes = pack(value)
        except (ValueError, OverflowError, TypeError, struct.error) as e:
            raise CodecError(f"cannot be encoded: {e}") from e
        if len(data) > SIZE_MAX_BYTES:
            raise CodecError(f"{len(data)} bytes encoded, at most {SIZE_MAX_BYTES} are allowed")
        return data

    return encode


def encode_value(value: Value) -> bytes:
    """The bytes of any value but MISSING; CodecError beyond `SIZE_MAX_BYTES` or if it is no value."""
    return encoder()(value)


def is_tagged(data: bytes) -> bool:
    """Whether these bytes may have a tagged value in them: without a first byte of binary there is none."""
    return _BIN_8 in data or _BIN_16 in data or _BIN_32 in data


def decode_value(data: bytes) -> Value:
    """The value of these bytes; CodecError for bytes that `encode_value` cannot have made."""
    if len(data) > SIZE_MAX_BYTES:
        raise CodecError(f"{len(data)} bytes to decode, at most {SIZE_MAX_BYTES} are allowed")
    tagged = is_tagged(data)  # a hook for each map would be half of the time
    try:
        value = msgpack.unpackb(
            data,
            object_hook=_in_map if tagged else None,
            list_hook=_in_list if tagged else None,
            unicode_errors="surrogatepass",
            strict_map_key=True,
            max_ext_len=0,
        )
        value = _untag(value) if type(value) is bytes else value
    except (ValueError, struct.error, InvalidOperation, UnicodeDecodeError, msgpack.UnpackException) as e:
        raise CodecError(f"does not decode: {e}") from e
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise CodecError("an integer of more than 64 bits")
    return value


def encode_doc(document: Document) -> bytes:
    """The bytes of a document; as `encode_value`."""
    return encode_value(document)


def encode_docs(documents: Iterable[Document]) -> list[bytes]:
    """The bytes of each document; as `encode_value`."""
    packer = _packer()
    try:
        found: list[bytes] = [packer.pack(document) for document in documents]
    except (ValueError, OverflowError, TypeError, struct.error) as e:
        raise CodecError(f"cannot be encoded: {e}") from e
    longest = max(map(len, found), default=0)
    if longest > SIZE_MAX_BYTES:
        raise CodecError(f"{longest} bytes encoded, at most {SIZE_MAX_BYTES} are allowed")
    return found


def decode_doc(data: bytes) -> Document:
    """The document of these bytes; CodecError for anything else."""
    value = decode_value(data)
    if type(value) is not dict:
        raise CodecError(f"expected an encoded document, found {type(value).__name__}")
    return value


def decode_own_doc(data: bytes) -> Document:
    """The document of bytes that this codec has made: five times as fast as `decode_doc`, which looks whether they are a document's."""
    try:
        document: Document = _OWN.decode(data)
        if is_tagged(data):
            _untag_within(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Half a surrogate pair; deeper than the interpreter's stack.
        return decode_doc(data)
    return document


def _untag_within(value: Any) -> None:
    places = value.items() if type(value) is dict else enumerate(value)
    for place, item in places:
        kind = type(item)
        if kind is bytes:
            value[place] = _untag(item)
        elif kind is dict or kind is list:
            _untag_within(item)
