"""The story of a seed: documents, options and acts."""

import math
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.stages import DateFormat, EmitFormat, OutputFormat
from tidemark.shared.model.values import (
    MAX_KEY,
    MIN_KEY,
    Binary,
    Date,
    Document,
    ObjectId,
    Regex,
    Timestamp,
    long,
)

FORMS: Final[tuple[EmitFormat, ...]] = ("parquet", "iceberg", "json", "csv")
FORMATS: Final[tuple[OutputFormat, ...]] = ("relaxedJson", "canonicalJson", "basicJson")
DATE_FORMATS: Final[tuple[DateFormat, ...]] = ("default", "default", "ISO8601")
LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
FIRST_MS: Final = -62_135_596_800_000
"""The first one of the year 1."""
DATES: Final = (
    0, -1, 1, 999, 1_000, FIRST_MS, FIRST_MS + 1, LAST_MS, 2**31 * 1000 - 1, 2**31 * 1000, -(2**31) * 1000,
    9_223_372_036_854, 9_223_372_036_855, -9_223_372_036_854, -9_223_372_036_855, -12_219_292_800_000, -12_219_292_800_001,
    1_709_208_000_123, 951_782_400_000,
)  # fmt: skip
"""Around 1970, 2038, 2262 and 1677, the calendar's reform, and leap days."""
INTS: Final = (
    0,
    1,
    -1,
    127,
    128,
    -129,
    32_768,
    2**31 - 1,
    -(2**31),
    2**31,
    2**53,
    2**53 + 1,
    -(2**53) - 1,
    2**63 - 1,
    -(2**63),
)
DOUBLES: Final = (
    0.0, -0.0, 1.5, -2.25, 0.1, 1e300, -1e-300, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf, 3.0, 2.0**53, 1e16,
)  # fmt: skip
DECIMALS: Final = (
    "0",
    "1.50",
    "-3.14159265358979323846264338327950",
    "1E+6144",
    "1E-6143",
    "NaN",
    "Infinity",
    "-Infinity",
    "-0.00",
    "007",
)
TEXTS: Final = (
    "", " ", "a", "plain words", "ünïcödé", "日本語", "🌊🚀", "e\u0301", "\u200b", "\ufeffbom", "it's", 'say "hi"', "a,b", "a;b",
    "a\tb", "line\nfeed",
    "cr\rhere", "crlf\r\nhere", "back\\slash", 'end\\"', "\\N", "null", "NULL", "None", "NA", "NaN", "nan", "true", "007", "1e5",
    "-", "+1", "=1+1", "0x10",
    "2024-02-29", "2024-02-29T12:00:00Z", "12:30", "{}", "[]", '{"a":1}', "{not json", "#comment", "%", "%41", "a/b", "..",
    "\u2028", "\x00", "\x01\x1f",
    "\x7f", "<b>", "&amp;", "x" * 5000, " lead", "trail ", '"', '""', "''", "\n", "\r\n", "\\", "$a", "__HIVE_DEFAULT_PARTITION__",
)  # fmt: skip
PLACES: Final = (
    None, "", "a", "A", "a/b", "x%41", "100%", "ü", "日本", "🌊", "a b", "a=b", "k=v/w", "..", ".", ".hidden", "_under",
    "2024-02-29", "007", "1", "1.0", "1e5",
    "true", "null", "NULL", "NaN", "a:b", "a?b#c", "a*b", "[x]", "{y}", "q'q", 'd"d', "back\\s", "x" * 100, "ö" * 30, "x" * 300,
    "+", "a+b", "~tilde", "a\nb",
    " ", "__HIVE_DEFAULT_PARTITION__", 5, -1, 1.5, math.nan, True, Date(0), Date(LAST_MS), Decimal("1.50"),
    ObjectId(b"abcdefghijkl"), Binary(b"\x00\xff"),
    2**40, {"o": 1}, [1],
)  # fmt: skip
"""Values of a field that divides."""
NAMES: Final = (
    "plain", "Plain", "PLAIN", "a", "A", "with space", "with.dot", "a.b", "dollar$", "comma,", "semi;", "eq=", "par(en)",
    "curly{}", "tab\t", "new\nline",
    'quo"te', "it's", "ünïcödé", "日本", "🌊", "x" * 200, "1digit", "42", "select", "from", "order", "table", "null", "_under",
    "__index", "-dash", "a-b", "a/b",
    "a:b", "per%cent", "back\\slash", "tick`", "[brack]", "hash#", "ß", "ẞ", "İ", "true", "timestamp", "date", "at@", "plus+",
    "star*", "q?", " lead", "trail ",
    "", "k",
)  # fmt: skip
Make = Callable[[random.Random], Any]


def _text(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(TEXTS)
    letters = rng.choice((string.ascii_letters, "äöü ß,;\"'\n\\", string.printable, "\u0000\u0001é日🌊"))
    return "".join(rng.choice(letters) for _ in range(rng.choice((1, 3, 8, 30))))


def _object(rng: random.Random) -> Document:
    names = rng.sample(("a", "b", "x y", "c.d", "A", "$n", "ü", "z-1"), rng.randint(0, 3))
    return {name: rng.choice(_INNER)(rng) for name in names}


def _array(rng: random.Random) -> list[Any]:
    make = rng.choice(_INNER)
    mixed = rng.random() < 0.15
    return [(rng.choice(_INNER) if mixed else make)(rng) for _ in range(rng.choice((0, 1, 2, 5)))]


def _date(rng: random.Random) -> Date:
    far = (LAST_MS + 1, FIRST_MS - 1, 2**63 - 1, -(2**63)) if rng.random() < 0.03 else ()
    return Date(rng.choice(far or DATES) if rng.random() < 0.7 else rng.randint(FIRST_MS, LAST_MS))


KINDS: Final[dict[str, Make]] = {
    "int": lambda rng: rng.choice([n for n in INTS if abs(n) < 2**31]),
    "long": lambda rng: long(rng.choice(INTS) if rng.random() < 0.7 else rng.randint(-(2**63), 2**63 - 1)),
    "double": lambda rng: rng.choice(DOUBLES) if rng.random() < 0.7 else rng.uniform(-1e6, 1e6),
    "number": lambda rng: rng.choice((rng.choice(INTS), rng.choice(DOUBLES))),
    "decimal": lambda rng: Decimal(rng.choice(DECIMALS)),
    "text": _text,
    "date": _date,
    "bool": lambda rng: rng.random() < 0.5,
    "binary": lambda rng: Binary(
        rng.choice((b"", b"\x00", b"\xff\xfe", bytes(range(256)))), rng.choice((0, 0, 4, 128))
    ),
    "uuid": lambda rng: Binary(rng.randbytes(16), 4),
    "id": lambda rng: ObjectId(rng.randbytes(12)),
    "odd": lambda rng: rng.choice((Regex("a.*b", "i"), Timestamp(1, 2), MIN_KEY, MAX_KEY)),
    "object": _object,
    "array": _array,
    "null": lambda _: None,
}
_INNER: Final = [KINDS[name] for name in ("int", "long", "double", "text", "date", "bool", "binary", "id", "decimal", "null", "null")] + [
    _text, _object, _array,
]  # fmt: skip


CITIES: Final = ("Berlin", "São Paulo", "Zürich", "a/b", "New York", "日本")
PLAIN: Final[dict[str, Make]] = {
    "count": lambda rng: rng.randint(-1000, 1000),
    "total": lambda rng: rng.choice((2**40, 2**53 + 1, -(2**62) - 1)),
    "price": lambda rng: round(rng.uniform(0.001, 999), 3) + 0.0001,
    "word": lambda rng: rng.choice(
        ("apple", "pear tree", "naïve", "it's", "a,b;c", 'say "x"', "日本語", "semi; colon")
    ),
    "flag": lambda rng: rng.random() < 0.5,
    "lines": lambda rng: "one\ntwo " + rng.choice(("x", "y")),
}
"""Fields of ordinary documents."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field of the documents. `until`: the kind of its values changes there; `since`: the first document that may have it."""

    name: str
    kind: str
    later: str
    since: int
    until: int
    share: float


@dataclass
class Story:
    """What is written, and how."""

    seed: int
    form: EmitFormat
    partition_by: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    output_format: OutputFormat = "relaxedJson"
    date_format: DateFormat = "default"
    buffer_bytes: int = 1 << 26
    """Of one batch when it is small: then each batch is a file."""
    compact: int = 256
    epochs: list[list[list[Document]]] = field(default_factory=list)
    """Batches of each commit."""
    deaths: dict[int, str] = field(default_factory=dict)
    """By the epoch: what its first attempt does not reach."""
    ordinary: bool = False
    """Documents as most have them: a field has one type, and a name that any program takes. Then every reader finds each value."""

    @property
    def traits(self) -> str:
        """For reports."""
        more = f" {self.output_format} {self.date_format}" if self.form == "json" else ""
        by = f" by {self.partition_by}" if self.partition_by else ""
        return f"{self.form}{more}{by} {self.options or ''} {len(self.epochs)} commits, compact {self.compact}, deaths {self.deaths}"


def drawn(seed: int, form: EmitFormat | None = None) -> Story:
    """The story of a seed, of a form or of any."""
    rng = random.Random(seed)
    first = rng.choice(FORMS)
    story = Story(seed, form or first)
    count = rng.choice((1, 5, 20, 60, 150))
    story.ordinary = rng.random() < 0.5
    columns = [_column(rng, name, count) for name in rng.sample(NAMES, rng.randint(0, 9))]
    if story.ordinary:
        columns = [
            Column(name, name, name, 0, 0, 1.0) for name in rng.sample(sorted(PLAIN), rng.randint(1, len(PLAIN)))
        ]
    if rng.random() < 0.4:
        story.partition_by = tuple(rng.sample(("place", "Other place", "_id", "ü"), rng.choice((1, 1, 2))))
        if story.ordinary:
            story.partition_by = ("place",)
    if story.form in ("parquet", "iceberg"):
        packing = rng.choice((None, None, "snappy", "gzip", "zstd", "lz4", "brotli", "none"))
        story.options = {} if packing is None else {"compression": packing}
        if rng.random() < 0.2:
            story.options["row_group_size"] = rng.choice((1, 7))
        story.compact = rng.choice((2, 3, 256))
    elif story.form == "csv" and rng.random() < 0.3:
        story.options = {"delimiter": rng.choice((";", "\t", "|"))}
    story.output_format = rng.choice(FORMATS)
    story.date_format = rng.choice(DATE_FORMATS)
    if story.ordinary and story.form == "json":
        story.output_format = rng.choice(("relaxedJson", "basicJson"))
    if story.form == "csv" and (story.ordinary or rng.random() < 0.3):
        story.options |= {"fields": ("id", *dict.fromkeys((*story.partition_by, *(column.name for column in columns))))}
    story.buffer_bytes = rng.choice((1, 1 << 26))
    documents = [_document(rng, story, columns, number) for number in range(count)]
    at = 0
    while at < count:
        size = rng.choice((1, 3, 10, 40))
        some = documents[at : at + size]
        cut = rng.randint(0, len(some))
        story.epochs.append([part for part in (some[:cut], some[cut:]) if part])
        if rng.random() < 0.15:
            story.epochs.append([])
        at += size
    for number in range(len(story.epochs)):
        if rng.random() < 0.1:
            story.deaths[number] = rng.choice(("accepted", "staged", "committed"))
    return story


def _column(rng: random.Random, name: str, count: int) -> Column:
    kinds = list(KINDS)
    kind = rng.choice(kinds)
    later = rng.choice(kinds) if rng.random() < 0.3 else kind
    since = rng.randint(0, count) if rng.random() < 0.3 else 0
    return Column(name, kind, later, since, rng.randint(0, count), rng.choice((0.1, 0.5, 0.9, 1.0)))


def _document(rng: random.Random, story: Story, columns: list[Column], number: int) -> Document:
    document: Document = {"id": number}
    for name in story.partition_by:
        if story.ordinary:
            document[name] = rng.choice(CITIES)
        elif rng.random() < 0.9:
            document[name] = rng.choice(PLACES[: rng.choice((3, len(PLACES)))])
    for column in columns:
        if number >= column.since and rng.random() < column.share:
            kind = column.kind if number < column.until else column.later
            makes = PLAIN if story.ordinary else KINDS
            document[column.name] = None if rng.random() < 0.08 and not story.ordinary else makes[kind](rng)
    return document
