"""Types of columns with values: as SQL writes them, and as documents have them."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from tidemark.shared.model.values import INT64_MAX, INT64_MIN, UUID_SUBTYPE, Binary, Date, Document, long

SCHEMA: Final = 'Odd.Schema "q" %s'
"""A schema with a name that has to be quoted."""
ODD_NAMES: Final = ("a.b", "$d", 'q"q', "sp ace", "UPPER", "select", "é", "_id", "%s", "x" * 63)
"""Of columns."""
OBJECTS: Final = (
    'CREATE SCHEMA "Odd.Schema ""q"" %s"',
    "CREATE TYPE mood AS ENUM ('sad', 'O''k, \"x\"', '')",
    'CREATE TYPE pair AS (a int, "B c" text)',
    "CREATE DOMAIN above_0 AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN domain_of_domain AS above_0",
    "CREATE DOMAIN longs AS int8[]",
    'CREATE DOMAIN "Odd.Schema ""q"" %s"."Odd Domain" AS numeric(10, 2)',
)
"""What the types are made of."""
Value = tuple[str, Any]
"""As SQL writes it, and as documents have it."""


@dataclass(frozen=True)
class Kind:
    """A type of a column, and values of it."""

    sql: str
    values: tuple[Value, ...]
    keyable: bool = False
    big: bool = False
    """Its values lie outside of their rows (TOAST)."""


@dataclass(frozen=True)
class Column:
    """A column of a table; a generated one has no values of its own."""

    name: str
    kind: Kind
    generated: str = ""


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _same(*texts: str) -> tuple[Value, ...]:
    return tuple((literal(text), text) for text in texts)


def big(number: int) -> Value:
    """A value that the server does not send again where an update leaves it: never twice the same."""
    text = f"{number}-" + "x" * 3000
    return literal(text), text


_UUID: Final = UUID("00112233-4455-6677-8899-aabbccddeeff")
_DEEP: Final = "[" * 200 + "]" * 200
NR: Final = Kind("int8", (), keyable=True)
"""Of the column that tells each row from all others."""
BIG: Final = Kind("text", (), big=True)
LONG: Final = Kind(
    "int8", ((str(INT64_MAX), long(INT64_MAX)), (f"({INT64_MIN})", long(INT64_MIN)), ("0", long(0))), keyable=True
)
INT: Final = Kind("int4", (("2147483647", 2147483647), ("-2147483648", -2147483648), ("7", 7)), keyable=True)
TEXT: Final = Kind("text", _same("", " a ", "é\U0001f600", "'", 'a"b\\c', "null", "%s {}", "\n\t"), keyable=True)
KINDS: Final[tuple[Kind, ...]] = (
    LONG,
    INT,
    TEXT,
    Kind("int2", (("-32768", -32768), ("5", 5)), keyable=True),
    Kind("numeric", tuple((text, Decimal(text)) for text in ("1.50", "-0.0001", "9" * 34, "0", "12345678901234567890.123"))
         + _same("1" * 40, "0." + "1" * 35), keyable=True),
    Kind("numeric", (("'NaN'", Decimal("NaN")), ("'Infinity'", Decimal("Infinity")), ("'-Infinity'", Decimal("-Infinity")))),
    Kind("numeric(6,2)", (("1.5", Decimal("1.50")), ("-9999.99", Decimal("-9999.99")))),
    Kind("float8", (("0.1", 0.1), ("'Infinity'", float("inf")), ("'NaN'", float("nan")), ("1e300", 1e300), ("5e-324", 5e-324))),
    Kind("float4", (("0.1", 0.1), ("16777216", 16777216.0), ("'-Infinity'", float("-inf")))),
    Kind("bool", (("true", True), ("false", False)), keyable=True),
    Kind("timestamptz", (("'2020-02-01 01:00:00+01'", Date(1_580_515_200_000)), ("'1969-12-31 23:59:59.999+00'", Date(-1)),
         *_same("infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "12026-01-01 00:00:00+00")), keyable=True),
    Kind("timestamp", (("'2020-02-01 00:00'", Date(1_580_515_200_000)), *_same("infinity"))),
    Kind("date", (("'1969-12-31'", Date(-86_400_000)), *_same("-infinity", "10000-01-01")), keyable=True),
    Kind("time", _same("24:00:00", "23:59:59.999999")),
    Kind("timetz", _same("12:00:00+02", "00:00:00-15:59:59")),
    Kind("interval", _same("1 mon -1 days +00:00:01.5", "178000000 years", "-00:00:01")),
    Kind("bytea", ((r"'\x00ff5c'", Binary(b"\x00\xff\x5c")), (r"'\x'", Binary(b""))), keyable=True),
    Kind("uuid", ((f"'{_UUID}'", Binary(_UUID.bytes, UUID_SUBTYPE)),), keyable=True),
    Kind("jsonb", (("""'{"a": [1, null, "x"]}'""", {"a": [1, None, "x"]}), ("'null'", None), ("'1e400'", "1" + "0" * 400),
         ("""'{"$date": 5}'""", '{"$date": 5}'), ("'9007199254740993'", long(9007199254740993)), ("""'"s"'""", "s"))),
    Kind("json", (("""'{"a":1}'""", {"a": 1}), *_same(_DEEP, '"\\ud800"', "1e400"))),
    Kind("mood", _same("sad", 'O\'k, "x"', ""), keyable=True),
    Kind("mood[]", (("ARRAY['sad', NULL, '']::mood[]", '{sad,NULL,""}'),)),
    Kind("pair", (("ROW(1, 'a,\"b\"')", '(1,"a,""b""")'), ("ROW(NULL, '')", '(,"")'))),
    Kind("above_0", (("5", 5),)),
    Kind("domain_of_domain", (("6", 6),), keyable=True),
    Kind("longs", (("ARRAY[1, NULL]", [long(1), None]),)),
    Kind('"Odd.Schema ""q"" %s"."Odd Domain"', (("1.1", Decimal("1.10")),)),
    Kind("int[]", (("ARRAY[[1,2],[3,NULL]]", [[1, 2], [3, None]]), ("'{}'", []), ("'[0:1]={7,8}'", [7, 8]))),
    Kind("numeric[]", (("ARRAY[1.5, NULL]", [Decimal("1.5"), None]), ("ARRAY[1.5, " + "1" * 40 + "]", "{1.5," + "1" * 40 + "}"))),
    Kind("text[]", (("ARRAY['a,b', NULL, 'NULL', '']", ["a,b", None, "NULL", ""]),)),
    Kind("timestamptz[]", (("'{2020-02-01 00:00:00+00}'", [Date(1_580_515_200_000)]), *_same('{infinity,"2020-02-01 00:00:00+00"}'))),
    Kind("jsonb[]", (("""ARRAY['{"a": 1}', '[]']::jsonb[]""", [{"a": 1}, []]),)),
    Kind("bytea[]", ((r"ARRAY['\x00'::bytea, NULL]", [Binary(b"\x00"), None]),)),
    Kind("int8range", _same("[1,5)", "empty", "(,)"), keyable=True),
    Kind("tstzmultirange", _same("{}")),
    Kind("inet", _same("10.0.0.1", "::1", "10.0.0.0/8"), keyable=True),
    Kind("cidr", _same("10.0.0.0/8")),
    Kind("macaddr", _same("08:00:2b:01:02:03")),
    Kind("money", (("1.5", "$1.50"),)),
    Kind("char(5)", (("'ab'", "ab   "),), keyable=True),
    Kind("varchar(5)", _same("ab ", ""), keyable=True),
    Kind('"char"', _same("x")),
    Kind("name", _same("some_name"), keyable=True),
    Kind("oid", (("4294967295", 4294967295),)),
    Kind("bit(3)", (("B'101'", "101"),)),
    Kind("varbit", (("B''", ""),)),
    Kind("point", _same("(1,2)")),
    Kind("tsvector", (("'a b'::tsvector", "'a' 'b'"),)),
    Kind("xid8", _same("42")),
    Kind("pg_lsn", _same("16/B374D848")),
    Kind("regclass", (("'pg_class'::regclass", "pg_class"),)),
)  # fmt: skip
"""`jsonb` null and a value of SQL's null are the same in documents."""
NULL: Final[Value] = ("NULL", None)
Row = dict[str, Value]


def document(row: Row, names: list[str]) -> Document:
    """A row as documents have it."""
    return {name: row[name][1] for name in names}
