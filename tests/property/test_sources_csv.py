"""CSV files, drawn: records read by compiled code are those that the plain reader gives, byte for byte and place by place."""

import io
from dataclasses import astuple
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.services.source.connectors import filereaders
from tidemark.services.source.connectors.csvlines import CsvMany
from tidemark.services.source.connectors.filereaders import CsvRecords, FileRecords
from tidemark.shared.ports.log import LogError

_HEADER = {
    "i": "int",
    "l": "long",
    "d": "double",
    "m": "decimal",
    "b": "bool",
    "s": "string",
    'e\u00e9"': "date",
    "": "int",
}
_PIECES = [
    b",", b",", b",", b",", b"\n", b"\n", b"\r\n", b"\r", b'"', b'"', b'""', b" ", b"\t", b"\x00", b"\xff", b"\xc3\xa9", b"\xe2\x82",
    b"\\", b"0", b"1", b"00", b"123456789012", b".", b"-", b"+", b"e", b"E-7", b"_", b"true", b"FALSE", b"tRue", b"NA", b"nan", b"inf",
    b"Infinity", b"sNaN", b"null", b"x", b"0.1", b"0.0000001", b"-0", b"-0.0", b"1e400", b"\xd9\xa1", b"\xef\xbb\xbf", b"0000000",
]  # fmt: skip
_WORDS = [
    b"", b"true", b"FALSE", b"tRue", b"trux", b"NA", b"nan", b"inf", b"Infinity", b"sNaN", b"null", b"n/a", b"na ",
    b"2013-01-01", b"-inf", b"fini",
]  # fmt: skip
_QUOTED = [b'""', b"a", b",", b"\n", b"\r\n", b"\xc3\xa9", b"1", b"\x00"]


def _number(chance: Random) -> bytes:
    """What stands in columns of numbers, and what looks like it."""
    digits = "0" * chance.randint(0, 9) + str(chance.randint(0, 99))
    return chance.choice([
        str(chance.randint(-(10 ** chance.randint(0, 22)), 10**20)),
        repr(chance.uniform(-1, 1) * 10 ** chance.randint(-320, 308)),
        f"{chance.uniform(-1000, 1000):.{chance.randint(0, 12)}f}",
        "".join(chance.choices("0123456789+-.eE", k=chance.randint(1, 6))),
        chance.choice(["", "+", "-", "+-", " "]) + digits + chance.choice(["", ".", "_1", " ", f".{digits}", f"e{chance.randint(-9, 9)}"]),
        f"{chance.choice(['', '0', '-0'])}.{digits}",
    ]).encode()  # fmt: skip


def _field(chance: Random) -> bytes:
    """One field: mostly a number, for any column may hold one."""
    kind = chance.randrange(8)
    if kind < 4:
        return _number(chance)
    if kind == 4:
        return b'"' + chance.choice([_number(chance), b"".join(chance.choices(_QUOTED, k=chance.randint(0, 6)))]) + b'"'
    if kind == 5 and chance.random() < 0.2:
        return b"".join(chance.choices(_PIECES, k=chance.randint(1, 3)))
    return chance.choice(_WORDS)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """A header, and records by its columns. Drawn by a seed: by hypothesis alone nearly all records are short and few are read at once."""
    chance = Random(draw(st.integers(0, 2**32)))
    header = chance.sample(list(_HEADER), chance.randint(1, 8))
    found = b""
    for _ in range(chance.randint(1, 50)):
        width = len(header) if chance.random() < 0.9 else chance.randint(1, 9)
        found += b",".join(_field(chance) for _ in range(width)) + chance.choice([b"\n", b"\n", b"\r\n"])
    return header, found if chance.random() < 0.7 else found[:-1]


_HEADERS = st.lists(st.sampled_from(list(_HEADER)), min_size=1, max_size=8, unique=True)
_ODD = st.tuples(_HEADERS, st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join))


class _Nothing(CsvMany):
    """Leaves all to the plain reader."""

    def read(self, at: int, until: int) -> tuple[list[int], list[bytes], int]:
        del until
        return [], [], at


def _read(content: bytes, size: int, *, grows: bool, most: int, plain: bool) -> list[Any]:
    """All reads of a file, each with what it gave, to the end or an error."""
    reader, found, position = CsvRecords(_HEADER, record_bytes_max=most), list[Any](), 0
    with pytest.MonkeyPatch.context() as patched:
        if plain:
            patched.setattr(filereaders, "CsvMany", _Nothing)
        while not found or (not isinstance(found[-1], str) and not found[-1][3]):
            try:
                rows: FileRecords = reader.read(io.BytesIO(content), "a.csv", position, size, grows=grows)
                position = rows.next_position
                found.append(astuple(rows))
            except LogError as error:
                found.append(str(error))
    return found


@settings(max_examples=800)
@given(_tables() | _ODD, st.sampled_from([1, 60, 300, 1 << 20]), st.booleans(), st.sampled_from([80, 1 << 20]))
@example((["d"], b"+-9e5\n"), 1, False, 80)
@example((["s", "m"], b'1,2\n"a""b","c\nd"\n,\n'), 1, False, 80)
@example((["i"], b"x\n" * 40 + b'a"b,\n"\n' * 40 + b"1\n"), 1 << 20, False, 1 << 20)
def test_compiled_records_are_those_of_the_plain_reader(
    table: tuple[list[str], bytes], size: int, grows: bool, most: int
) -> None:
    """For any bytes behind a header, however they are divided into reads."""
    header, records = table
    names = b",".join(b'"%b"' % name.replace('"', '""').encode() for name in header)
    content = names + b"\n" + records
    assert _read(content, size, grows=grows, most=most, plain=False) == _read(
        content, size, grows=grows, most=most, plain=True
    )


def test_ordinary_records_are_all_read_by_compiled_code() -> None:
    """Else nobody would see that it reads none."""
    rows = [f'{n},{n}.5,-{n}.250,TRUE,"say ""{n}""",NA\r\n'.encode() for n in range(3000)]
    header = b"i,d,m,b,s,x\r\n"
    file = io.BytesIO(header + b"".join(rows))
    many = CsvMany(file, ["i", "d", "m", "b", "s", "x"], {**_HEADER, "x": "double"}, ",", 1 << 20)
    _, values, behind = many.read(len(header), 1 << 30)
    while behind < len(file.getvalue()):
        _, more, behind = many.read(behind, 1 << 30)
        assert more
        values += more
    assert len(values) == 3000
    assert values[7] == b'{"i":7,"d":7.5,"m":{"$numberDecimal":"-7.250"},"b":true,"s":"say \\"7\\"","x":"NA"}'
