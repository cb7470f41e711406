"""CSV files, drawn: records read by compiled code are those that the plain reader gives, byte for byte and place by place."""

import io
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.services.source.connectors import filereaders
from tidemark.services.source.connectors.csvmany import CsvMany
from tidemark.services.source.connectors.filereaders import CsvRecords, Rows
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
_WRITTEN = st.from_regex(r"[+-]?\d*\.?\d*(e[+-]?\d+)?", fullmatch=True)
_NUMBERS = st.one_of(st.integers().map(str), st.floats().map(repr), st.decimals().map(str), _WRITTEN)
_FIELDS = st.one_of(
    _NUMBERS.map(str.encode),
    st.text(max_size=8).map(lambda text: '"{}"'.format(text.replace('"', '""')).encode()),
    st.sampled_from([b"", b"true", b"x", b"NA", b"2013-01-01"]),
)
_RECORDS = st.lists(_FIELDS, min_size=1, max_size=9).map(b",".join)
_CONTENTS = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join),
    st.lists(
        st.one_of(_RECORDS, _RECORDS, st.lists(st.sampled_from(_PIECES), max_size=6).map(b"".join)), max_size=20
    ).map(b"\n".join),
)


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
                rows: Rows = reader.read(io.BytesIO(content), "a.csv", position, size, grows=grows)
                position = rows.next_position
                found.append(astuple(rows))
            except LogError as error:
                found.append(str(error))
    return found


_HEADERS = st.lists(st.sampled_from(list(_HEADER)), min_size=1, max_size=8, unique=True)


@settings(max_examples=600)
@given(_CONTENTS, _HEADERS, st.integers(1, 400), st.booleans(), st.booleans())
@example(b'1,2\n"a""b","c\nd"\n,\n', ["s", "m"], 1, False, True)
@example(b"x\n" * 40 + b'a"b,\n"\n' * 40 + b"1\n", ["i"], 1 << 20, False, False)
def test_compiled_records_are_those_of_the_plain_reader(
    records: bytes, header: list[str], size: int, grows: bool, short: bool
) -> None:
    """For any bytes behind a header, however they are divided into reads."""
    names = b",".join(b'"%b"' % name.replace('"', '""').encode() for name in header)
    content = names + b"\n" + records
    most = 60 if short else 1 << 20
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
