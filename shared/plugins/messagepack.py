"""MessagePack as a format of records and of keys: `format: messagePack` of a topic. It has the interface of other packages' formats."""

import math
from typing import Any, Final

import msgpack
import msgspec

from tidemark.shared.computation.base import NoConfig
from tidemark.shared.language.values import to_json
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Binary, Date, Long
from tidemark.shared.plugins.interface import Format

_NS_OF_MS: Final = 1_000_000
"""Nanoseconds, which MessagePack's timestamps have, in a millisecond of a date."""
_TOO_DEEP: Final = f"nested more than {DEPTH_MAX} deep"


class MessagePack(Format[NoConfig]):
    """A value is a map with texts as names, a key any value. Types are those of documents; what has no type here is as in JSON.

    Binary is `bin`, a date a timestamp (milliseconds of it), a whole number beyond 64 bits a double. A decimal or an ObjectId is the map
    that extended JSON has for it (`{"$numberDecimal": "1.20"}`), and comes back as what it was.
    """

    api = 1

    def decode(self, data: bytes) -> bytes:
        """See `Format.decode`: JSON, for a document would be made into it one value at a time."""
        # Its lengths are bounded by those of the record; a decoder that trusts them would reserve what four bytes claim.
        try:
            found = msgpack.unpackb(data, timestamp=0, ext_hook=_unknown, strict_map_key=True)
        except msgpack.FormatError as error:  # it, and the next, have no words of their own
            raise ValueError("not MessagePack: no value begins with the byte 0xc1") from error
        except msgpack.StackError as error:
            raise ValueError(_TOO_DEEP) from error
        return msgspec.json.encode(_json(found))

    def encode(self, document: Any) -> bytes:
        """See `Format.encode`."""
        record: bytes = msgpack.packb(document, default=_form, strict_types=True)
        return record


def _unknown(code: int, _data: bytes) -> Any:
    raise ValueError(f"an extension of type {code}, and only timestamps (-1) are known")


def _json(found: Any, room: int = DEPTH_MAX) -> Any:
    kind = type(found)
    if kind is str or kind is bool or found is None:
        return found
    if kind is int:
        return found if found <= INT64_MAX else float(found)
    if kind is float:
        return found if math.isfinite(found) else to_json(found)
    if room == 0:
        raise ValueError(_TOO_DEEP)
    if kind is dict:
        for name in found:
            if type(name) is not str:
                raise ValueError(f"expected names that are texts, found {name!r}")
        return {name: _json(each, room - 1) for name, each in found.items()}
    if kind is list:
        return [_json(each, room - 1) for each in found]
    return to_json(Binary(found) if kind is bytes else _date(found), canonical=True)


def _date(found: msgpack.Timestamp) -> Date:
    ms = found.seconds * 1_000 + found.nanoseconds // _NS_OF_MS
    if not INT64_MIN <= ms <= INT64_MAX:
        raise ValueError(f"a timestamp of {found.seconds} seconds, more than a date holds")
    return Date(ms)


def _form(value: Any) -> Any:
    match value:
        case Long():
            return int(value)
        case Date():
            return msgpack.Timestamp(int(value) // 1_000, int(value) % 1_000 * _NS_OF_MS)
        case Binary() if value.subtype == 0:
            return bytes(value)
        case _:
            return to_json(value)
