"""Bytes, damaged."""

import random
from typing import Final

_WORDS: Final = (
    b"\x00", b"\xff", b"\xc1", b"{", b"[", b'"', b"\\u0000", b"\\ud800", b"null", b"NaN", b"-0", b"1e999", b"$", b"$$ROOT",
    b"9" * 400, b"[" * 300, b'{"a":' * 300, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xef\xbb\xbf",
)  # fmt: skip


def damaged(data: bytes, chooser: random.Random) -> bytes:
    """The bytes with some of them changed, cut, doubled, or another's put between."""
    found = bytearray(data)
    for _ in range(chooser.choice((1, 1, 2, 5, 20))):
        at, size = chooser.randrange(len(found) + 1), chooser.choice((1, 2, 4, 8, 64))
        match chooser.randrange(6):
            case 0 if found:
                found[at % len(found)] ^= chooser.randrange(1, 256)
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = chooser.choice(_WORDS)
            case 3:
                found[at : at + size] = chooser.randbytes(size)
            case 4:
                found[at:at] = found[chooser.randrange(len(found) + 1) :][:size]
            case _:
                del found[at + 4 * size :]
    return bytes(found)
