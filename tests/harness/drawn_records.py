"""Records drawn as JSON texts: fields of any type by row, hard names and texts, numbers at their borders, fields given twice."""

import json
import random
from collections.abc import Mapping
from typing import Final

NAMES: Final = ("a", "b", "c", "k", "n")
"""Fields that stages and queries ask for."""
_ODD_NAMES: Final = (
    "", "a.b", "$a", "0", "1", "é", "A", "\0", "a\0b", "\ud800", "\udc00x", "\ufffe", "\U00010000",
    "_id", "__ts", "__raw", "x" * 300, '"', "\\",
    "$date", "$oid", "$numberLong", "/", "\x7f", "\u2028", "a ",
)  # fmt: skip
_TEXTS: Final = (
    "", "a", "ab", "b", "A", "é", "e\u0301", "17", "-0.5", "2013-01-01T00:00:00Z", "2020-02-30",
    "a\0", "\ufffe", "\uffff", "\U0001f600", "\u2028",
    "\x7f\x1f", '"\\/', "$a", "$$ROOT", "NaN", "x" * 40, "ß", "İ",
)  # fmt: skip
_NUMBERS: Final = (
    "0", "-0", "0.0", "-0.0", "1", "1.0", "-1", "2", "3", "2.5", "0.1", "2147483647", "-2147483648", "2147483648",
    "9007199254740993", "9007199254740992.0",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e308", "1E-400", "-1e-400", "1e400",
    "5e-324", "1e2", "123456789.125e-3",
    "18446744073709551616", "0.30000000000000004", "1e15", "1e16", "1e22", "-1e-7",
)  # fmt: skip
_TYPED: Final = (
    '{"$numberLong":"5"}', '{"$numberLong":"-9223372036854775808"}', '{"$numberInt":"7"}', '{"$numberDouble":"-0"}',
    '{"$numberDouble":"NaN"}',
    '{"$numberDouble":"-Infinity"}', '{"$numberDouble":"1"}', '{"$numberDecimal":"1.50"}', '{"$numberDecimal":"-0E+3"}',
    '{"$numberDecimal":"NaN"}',
    '{"$numberDecimal":"1E+6144"}', '{"$numberDecimal":"1E-6176"}', '{"$numberDecimal":"Infinity"}', '{"$numberDecimal":"1"}',
    '{"$date":"2020-02-29T12:00:00.123Z"}', '{"$date":{"$numberLong":"0"}}', '{"$date":{"$numberLong":"-9223372036854775808"}}',
    '{"$date":{"$numberLong":"253402300800000"}}', '{"$oid":"0123456789abcdef01234567"}', '{"$minKey":1}', '{"$maxKey":1}',
    '{"$binary":{"base64":"AQID","subType":"00"}}', '{"$timestamp":{"t":1,"i":2}}', '{"$regularExpression":{"pattern":"^a","options":"i"}}',
    '{"$uuid":"00112233-4455-6677-8899-aabbccddeeff"}', '{"$oid":5}', '{"$date":"x"}', '{"$other":1}', '{"$date":1,"x":2}',
)  # fmt: skip
_BROKEN: Final = (
    '"\\ud800"',
    '"\\udc00a"',
    '"\ud800"',
    "1e4000",
    "NaN",
    "01",
    '"\t"',
    '"\\x"',
    "[1,]",
    "tru",
    '"\0"',
    "nul",
    '"a',
    "{,}",
)


def _text(chooser: random.Random, text: str) -> str:
    """A JSON string in one of its ways to be written."""
    match chooser.randrange(6):
        case 0:
            return json.dumps(text)
        case 1:
            return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else json.dumps(c)[1:-1] for c in text) + '"'
        case _:
            return json.dumps(text, ensure_ascii=False)


class Records:
    """Values of few kinds or of all, so that fields of a batch have one type, or many.

    odd: how many values in one are hard to carry. types: declared ones, of which a field mostly is.
    """

    def __init__(self, chooser: random.Random, odd: float = 0.1, types: Mapping[str, str] | None = None) -> None:
        self._chooser = chooser
        self._odd = odd
        self._broken = chooser.choice((0.0, 0.0, 0.01))
        every = (self._number, self._string, self._any, self._array, self._object, self._typed)
        self._kinds = {
            name: [chooser.choice(every) for _ in range(chooser.choice((1, 1, 2, 4)))]
            for name in NAMES
        }  # fmt: skip
        for name, kind in (types or {}).items():
            own = {"string": self._string, "bool": self._constant, "date": self._typed}.get(
                kind.rstrip("?"), self._number
            )
            self._kinds[name] = [own, own, own, self._constant]

    def text(self) -> bytes:
        """A record."""
        chooser = self._chooser
        if chooser.random() < self._broken:
            return chooser.choice((b"", b"[]", b"null", b"{", b"\xff", b"{}x", b'{"a":1}{"a":2}', b"\xef\xbb\xbf{}"))
        names = [name for name in NAMES if chooser.random() < 0.85]
        if chooser.random() < 0.3:
            chooser.shuffle(names)
        fields = [f"{_text(chooser, name)}:{chooser.choice(self._kinds[name])(3)}" for name in names]
        while chooser.random() < self._odd:
            fields.insert(chooser.randint(0, len(fields)), self._field(2))
        if chooser.random() < self._odd / 3:
            depth = chooser.choice((20, 90, 140, 148, 149, 150, 160, 178, 179, 180, 181))
            opened, closed = chooser.choice((("[", "]"), ('{"a":', "}"), ('[{"b":', "}]")))
            fields.append(
                f'"{chooser.choice(NAMES)}":{opened * (depth // len(closed))}1{closed * (depth // len(closed))}'
            )
        space = chooser.choice(("", "", " ", "\n\t"))
        return ("{" + f",{space}".join(fields) + "}").encode("utf-8", "surrogatepass")

    def value(self, depth: int = 2) -> str:
        """Any value."""
        return self._any(depth)

    def _any(self, depth: int) -> str:
        chooser = self._chooser
        if chooser.random() < self._broken:
            return chooser.choice(_BROKEN)
        some = (self._number, self._string, self._constant, self._typed)
        return chooser.choice((*some, self._array, self._object) if depth > 0 else some)(depth)

    def _number(self, _: int) -> str:
        chooser = self._chooser
        return chooser.choice(_NUMBERS) if chooser.random() < self._odd * 3 else str(chooser.randint(-3, 5))

    def _string(self, _: int) -> str:
        chooser = self._chooser
        return _text(chooser, chooser.choice(_TEXTS if chooser.random() < self._odd * 3 else _TEXTS[:4]))

    def _constant(self, _: int) -> str:
        return self._chooser.choice(("null", "null", "true", "false"))

    def _typed(self, _: int) -> str:
        return self._chooser.choice(_TYPED[:-4] if self._chooser.random() > self._broken * 5 else _TYPED)

    def _array(self, depth: int) -> str:
        chooser = self._chooser
        one = chooser.choice((self._number, self._string, self._any, self._any, self._object, self._array))
        return (
            "["
            + ",".join((one if depth > 0 else self._number)(depth - 1) for _ in range(chooser.choice((0, 1, 1, 2, 3))))
            + "]"
        )

    def _object(self, depth: int) -> str:
        return "{" + ",".join(self._field(depth - 1) for _ in range(self._chooser.choice((0, 1, 2, 2, 3)))) + "}"

    def _field(self, depth: int) -> str:
        chooser = self._chooser
        name = chooser.choice(_ODD_NAMES if chooser.random() < self._odd else NAMES)
        return f"{_text(chooser, name)}:{self._any(depth) if depth > 0 else self._number(0)}"
