"""Seals of the records of an installation's own topics. Only a holder of one of its keys can have written a sealed record.

A seal binds the record to topic and partition, and all of it: key, value, headers. It is a MAC (HMAC-SHA256), no encryption: readers of
the topics see the records.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from tidemark.shared.model.formats import SEAL, Codec, FormatError
from tidemark.shared.wire.limits import WireError

HEADER: Final = "tidemark-seal"
KEY_CHARACTERS_MIN: Final = 32
"""A shorter key could be guessed: anybody who reads a topic may try."""
_ID_BYTES: Final = 4
"""Enough to tell the few keys of an installation apart."""
_SEAL_BYTES_MAX: Final = 256
"""A longer seal is not looked at; those that are written have some 60 bytes."""
_pack: Final = msgspec.msgpack.Encoder().encode

Headers = Sequence[tuple[str, bytes]]


class Seal(NamedTuple):
    """Which key made it, and the MAC."""

    key: bytes
    mac: bytes


SEALS: Final[Codec[Seal]] = Codec(SEAL, Seal)


@dataclass(frozen=True, slots=True)
class SealKeys:
    """The keys of an installation: the first seals, all are taken. Two at a time let it change its key while it runs."""

    _secrets: tuple[bytes, ...] = field(repr=False)
    _by_id: Mapping[bytes, bytes] = field(repr=False)

    @staticmethod
    def of(text: str) -> "SealKeys":
        """Keys separated by commas or white space. ValueError where there is none, or a short one; none is shown."""
        found = text.replace(",", " ").split()
        if not found:
            message = "expected one or more keys, separated by commas or lines, found none"
            raise ValueError(message)
        for number, key in enumerate(found, 1):
            if len(key) < KEY_CHARACTERS_MIN:
                message = f"key {number}: expected at least {KEY_CHARACTERS_MIN} characters, found {len(key)}"
                raise ValueError(message)
        secrets = tuple(key.encode() for key in found)
        return SealKeys(secrets, {_id(secret): secret for secret in secrets})

    def seal(self, place: tuple[str, int], key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
        """The seal of a record at (topic, partition) with these headers, which are all but the seal's own."""
        secret = self._secrets[0]
        return SEALS.encode(Seal(_id(secret), _mac(secret, place, key, value, headers)))

    def check(self, place: tuple[str, int], key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """WireError for a record that is not sealed by one of these keys, there and as it is."""
        others = [header for header in headers if header[0] != HEADER]
        if len(others) != len(headers) - 1:
            message = (
                f"expected one header {HEADER}, found {len(headers) - len(others)}: not written by this installation"
            )
            raise WireError(message)
        data = next(value for name, value in headers if name == HEADER)
        seal = _read(data)
        secret = self._by_id.get(seal.key)
        if secret is None:
            message = "sealed with a key that is not among this installation's"
            raise WireError(message)
        if not hmac.compare_digest(seal.mac, _mac(secret, place, key, value, others)):
            message = "its seal is not of this record at this place: it was changed, copied or made up"
            raise WireError(message)


def _read(data: bytes) -> Seal:
    if len(data) > _SEAL_BYTES_MAX:
        message = f"expected {SEAL.name} of at most {_SEAL_BYTES_MAX} bytes, found {len(data)}"
        raise WireError(message)
    try:
        return SEALS.decode(data)
    except FormatError as error:
        raise WireError(str(error)) from error


def _id(secret: bytes) -> bytes:
    return hashlib.sha256(b"tidemark key id " + secret).digest()[:_ID_BYTES]


def _mac(secret: bytes, place: tuple[str, int], key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    digest = None if value is None else hashlib.sha256(value).digest()
    return hmac.digest(secret, _pack((place, key, digest, list(headers))), "sha256")
