"""Types of a target's columns: values that fit, with the text of the cell, and values that do not."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from tidemark.shared.model.values import INT64_MAX, UUID_SUBTYPE, Binary, Date, ObjectId, long

_DAY: Final = Date(1_580_515_200_000)
_UUID: Final = UUID("00112233-4455-6677-8899-aabbccddeeff")


@dataclass(frozen=True)
class Cell:
    """A type of a column."""

    sql: str
    fits: tuple[tuple[Any, str], ...]
    """Values, with what the database shows of the cell."""
    unfit: tuple[Any, ...]
    """Values that it must not take: they would be cut, rounded or misread, or the type has none such."""
    keyable: bool = False
    sqlite: bool = False
    """SQLite has it, too, with the same values."""


CELLS: Final = (
    Cell("int4", ((7, "7"), (long(-5), "-5"), (2**31 - 1, "2147483647")), (2**31, 1.0, "7", True, Decimal(7), [7], {}), keyable=True),
    Cell("bigint", ((long(INT64_MAX), str(INT64_MAX)), (0, "0")), (0.5, "0", Decimal(INT64_MAX + 1), Date(5)), keyable=True, sqlite=True),
    Cell("smallint", ((-32768, "-32768"),), (32768, long(2**40)), keyable=True),
    Cell("text", (("", ""), ("a\n'\"\\{},NULL é\U0001f600", "a\n'\"\\{},NULL é\U0001f600"), ("NULL", "NULL"), ("x" * 9000, "x" * 9000)),
         ("a\x00b", 5, True, Date(5), 1.5), keyable=False, sqlite=True),
    Cell("text", (([1, "a"], '[1,"a"]'), ({"a": 1}, '{"a":1}')), (["\x00"],), sqlite=True),
    Cell("varchar(5)", (("abcde", "abcde"), ("é\U0001f600 ", "é\U0001f600 ")), ("abcdef", "abcde ", "\x00", 5), keyable=True),
    Cell("char(3)", (("ab", "ab"), ("abc", "abc")), ("abcd", 1)),
    Cell("numeric", ((Decimal("1.50"), "1.50"), (5, "5"), (0.1, "0.1"), (Decimal("1E+3"), "1000"), (Decimal("9" * 34), "9" * 34)),
         (Decimal("NaN"), float("inf"), "5", True)),
    Cell("numeric(6,2)", ((Decimal("1.5"), "1.50"), (-9999, "-9999.00"), (Decimal("1.500"), "1.50")), (Decimal("1.505"), 10000, "1")),
    Cell("numeric(5,-2)", ((12300, "12300"), (Decimal("1E+4"), "10000")), (12345, 10**7, 0.5)),
    Cell("numeric(2,4)", ((Decimal("0.0099"), "0.0099"), (0, "0.0000")), (Decimal("0.01"), 1, Decimal("0.00001"))),
    Cell("double precision", ((0.1, "0.1"), (float("nan"), "NaN"), (float("-inf"), "-Infinity"), (7, "7")), (long(2**53 + 1), "1")),
    Cell("real", ((0.5, "0.5"), (float("inf"), "Infinity")), (1e300, 1e-300, "1")),
    Cell("boolean", ((True, "true"), (False, "false")), (1, "true"), sqlite=False),
    Cell("timestamptz", ((_DAY, "2020-02-01 00:00:00+00"), (Date(-1), "1969-12-31 23:59:59.999+00")), ("2020-02-01", 5, Date(2**60))),
    Cell("timestamp", ((_DAY, "2020-02-01 00:00:00"),), ("2020-02-01", Date(-(2**60)))),
    Cell("timestamp(1)", ((Date(1_500), "1970-01-01 00:00:01.5"),), (Date(1_250), "x")),
    Cell("date", ((_DAY, "2020-02-01"), (Date(-62135596800000), "0001-01-01")), (Date(1), "2020-02-01")),
    Cell("time", (("10:00", "10:00:00"), ("23:59:59.999999", "23:59:59.999999")), ("25:00", "10:00+02:00", 5, "10:00:00.1234567")),
    Cell("timetz", (("10:00+02:00", "10:00:00+02"),), ("x", Date(5))),
    Cell("interval", (("1 day", "1 day"), ("PT5M", "00:05:00")), ("five minutes", 5)),
    Cell("bytea", ((Binary(b"\x00\xff"), "\\x00ff"), (Binary(b""), "\\x")), ("x", [1])),
    Cell("uuid", ((Binary(_UUID.bytes, UUID_SUBTYPE), str(_UUID)), (str(_UUID), str(_UUID))), ("x", Binary(b"x"), Binary(_UUID.bytes)),
         keyable=True),
    Cell("jsonb", (({"a": [1, None, "x"]}, '{"a": [1, null, "x"]}'), ("s", '"s"'), ([], "[]"), (5, "5")), ("\x00", {"\x00": 1})),
    Cell("json", (({"a": "x"}, '{"a": "x"}'),), ()),
    Cell("mood", (("sad", "sad"), ("", ""), ('O\'k, "x"', 'O\'k, "x"')), ("happy", 1, "Sad"), keyable=True),
    Cell("mood[]", ((["sad", None, ""], '{sad,NULL,""}'), ([], "{}")), (["happy"], "sad", [1])),
    Cell("pair", (('(1,"a,b")', '(1,"a,b")'),), ("(x,y)", "1", 5)),
    Cell("above_0", ((5, "5"),), (-5, "5", 2**31)),
    Cell("short_text", (("abc", "abc"),), ("abcd", "xyz", 5)),
    Cell("money_like", ((Decimal("1.5"), "1.50"),), (Decimal("1.239"), 10000, "x")),
    Cell("tenths", ((Date(1_500), "1970-01-01 00:00:01.5"),), (Date(1_250),)),
    Cell("short_text[]", ((["abc", None], "{abc,NULL}"),), (["abcd"], ["xyz"])),
    Cell("domain_of_domain", (("ab ", "ab "),), ("abcd", "xyz")),
    Cell('"Odd Schema %s"."Odd %s"', (("b%", "b%"),), ("c",)),
    Cell('"Odd Schema %s"."Odd %s"[]', ((["b%"], "{b%}"),), (["c"], "b%")),
    Cell('"Odd Schema %s".whole', ((5, "5"),), (-5,)),
    Cell("name", (("a" * 63, "a" * 63),), ("a" * 64, "é" * 32, 5)),
    Cell('"char"', (("x", "x"),), ("xy",)),
    Cell("interval(0)", (("1 day", "1 day"),), ("1.5 s",)),
    Cell("interval day to hour", (("1 day 02:00", "1 day 02:00:00"),), ("1 day 02:03",)),
    Cell("varbit(3)[]", ((["101"], "{101}"),), (["1011"],)),
    Cell("varchar(2)[]", ((["ab"], "{ab}"),), (["abc"],)),
    Cell("timestamp(0)[]", (([_DAY], '{"2020-02-01 00:00:00"}'),), ([Date(1)],)),
    Cell("int[]", (([1, None, 2], "{1,NULL,2}"), ([[1, 2], [3, 4]], "{{1,2},{3,4}}"), ([], "{}")), (["x"], 1, [2**31], [[1], [2, 3]], {})),
    Cell("text[]", ((["a,b", None, "NULL", "", '"\\'], '{"a,b",NULL,"NULL","","\\"\\\\"}'),), (["\x00"], [5], "x")),
    Cell("numeric(4,1)[]", (([Decimal("1.5"), 2], "{1.5,2.0}"),), ([Decimal("1.55")], [10000])),
    Cell("timestamptz[]", (([_DAY], '{"2020-02-01 00:00:00+00"}'),), ([5],)),
    Cell("jsonb[]", (([{"a": 1}, []], '{"{\\"a\\": 1}",[]}'),), ([{"a": "\x00"}], {"a": 1})),
    Cell("uuid[]", (([str(_UUID)], f"{{{_UUID}}}"),), (["x"],)),
    Cell("bytea[]", (([Binary(b"\x01")], '{"\\\\x01"}'),), (["x"],)),
    Cell("int4range", (("[1,5)", "[1,5)"), ("empty", "empty")), ("[5,1)", "x", [1, 5])),
    Cell("tstzrange", (("[2020-01-01 00:00:00+00,)", '["2020-01-01 00:00:00+00",)'),), ("[x,)",)),
    Cell("inet", (("10.0.0.1", "10.0.0.1/32"), ("::1", "::1/128")), ("10.0.0.256", 5, ""), keyable=True),
    Cell("cidr", (("10.0.0.0/8", "10.0.0.0/8"),), ("10.0.0.1/8",)),
    Cell("macaddr", (("08:00:2b:01:02:03", "08:00:2b:01:02:03"),), ("x",)),
    Cell("money", (("1.50", "$1.50"),), ("x", 1.5)),
    Cell("bit(3)", (("101", "101"),), ("1011", "10", "abc", 5)),
    Cell("varbit(3)", (("10", "10"),), ("1011",)),
    Cell("point", (("(1,2)", "(1,2)"),), ("1", 5)),
    Cell("tsvector", (("'a' 'b'", "'a' 'b'"),), ("'", 5)),
    Cell("oid", (("42", "42"),), ("x", "-")),
    Cell("pg_lsn", (("16/B374D848", "16/B374D848"),), ("x",)),
    Cell("varchar(30)", ((ObjectId(bytes.fromhex("0123456789abcdef01234567")), "0123456789abcdef01234567"),), (Binary(b"x"),)),
)  # fmt: skip
"""With `SET timezone = 'UTC'`."""
TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'O''k, \"x\"', '')",
    'CREATE TYPE pair AS (a int, "B c" text)',
    "CREATE DOMAIN above_0 AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN money_like AS numeric(6, 2)",
    "CREATE DOMAIN tenths AS timestamp(1)",
    'CREATE SCHEMA "Odd Schema %s"',
    "CREATE TYPE \"Odd Schema %s\".\"Odd %s\" AS ENUM ('a', 'b%')",
    'CREATE DOMAIN "Odd Schema %s".whole AS bigint CHECK (VALUE > 0)',
    "CREATE DOMAIN short_text AS varchar(3) CHECK (VALUE <> 'xyz')",
    "CREATE DOMAIN domain_of_domain AS short_text",
)
SQLITE: Final = (
    Cell("INTEGER", ((7, "7"), (long(INT64_MAX), str(INT64_MAX))), (0.5, "7", True)),
    Cell("TEXT", (("a'\"", "a'\""), ("", "")), ("\x00", 5)),
    Cell("REAL", ((0.5, "0.5"), (float("inf"), "Inf")), (float("nan"), "x", Decimal("0.1"))),
    Cell("NUMERIC", ((Decimal("1.5"), "1.5"), (5, "5")), (2**53 + 1, Decimal("0.12345678901234567890"), "x")),
    Cell("BLOB", ((Binary(b"ab"), "ab"),), ("x",)),
    Cell("BOOLEAN", ((True, "1"), (False, "0")), (1, "x")),
    Cell("VARCHAR(5)", (("abcde", "abcde"),), ("abcdef",)),
    Cell("DATE", ((_DAY, "2020-02-01"),), (Date(5), "x")),
    Cell("JSON", (({"a": [1]}, '{"a": [1]}'),), ()),
)
