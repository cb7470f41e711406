"""Strings, by code point or by UTF-8 byte, and regular expressions on them. Case is changed in ASCII letters only, as it is defined."""

import math
import string
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.expressions.errors import CONVERSION, TYPE, VALUE, fail
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.registry import ABSENT, named, positional
from tidemark.shared.language.patterns import BadPattern, compile_pattern
from tidemark.shared.language.values.instants import DAY_MS, date_of, format_iso
from tidemark.shared.language.values.types import is_finite, is_integral, is_number, type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Date, Long, Regex, Timestamp, Value

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def double_text(value: float) -> str:
    """The shortest text that reads back as the same double; whole ones without a point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    return text.removesuffix(".0")


def decimal_text(value: Decimal) -> str:
    """A decimal as MongoDB shows it."""
    return "NaN" if value.is_nan() else str(value)


def date_text(value: Date) -> str:
    """`2024-03-05T12:00:00.000Z`; ExpressionError for years without four digits."""
    text = format_iso(value, always_ms=True)
    if text is None:
        raise fail(f"the year {date_of(value // DAY_MS)[0]} has no text: it has not four digits", CONVERSION)
    return text


def scalar_text(value: Any) -> str | None:
    """The text of a string, number or date; None for other types."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is int or kind is Long:
        return str(int(value))
    if kind is float:
        return double_text(value)
    if kind is Decimal:
        return decimal_text(value)
    if kind is Date:
        return date_text(value)
    return None


def _timestamp_text(value: Timestamp) -> str:
    """`Jul 20 18:40:00:1`: the counter stands behind the second."""
    days, rest = divmod(value.seconds, DAY_MS // 1000)
    _, month, day = date_of(days)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{_MONTHS[month - 1]} {day:2d} {clock}:{value.increment}"


def text_of(name: str, value: Value) -> str:
    """A value as the text that string operators work on: null and missing are empty, doubles have six digits."""
    if value is None or value is MISSING:
        return ""
    if type(value) is float:
        return f"{value:g}"
    if type(value) is Timestamp:
        return _timestamp_text(value)
    text = scalar_text(value)
    if text is None:
        raise fail(f"{name} takes strings, numbers, dates and timestamps, found {type_name(value)}", TYPE)
    return text


def program_of(name: str, regex: Value, options: Value) -> Any:
    """The engine's program; None for a null pattern."""
    if options is not ABSENT and not is_null(options):
        need_string(name, options, "options as a string")
    given = "" if options is ABSENT or is_null(options) else options
    if is_null(regex):
        return None
    if type(regex) is Regex:
        if regex.options and options is not ABSENT and not is_null(options):
            raise fail(f"{name}: options stand in the regular expression or in options, not in both", VALUE)
        pattern, letters = regex.pattern, regex.options or given
    elif type(regex) is str:
        pattern, letters = regex, given
    else:
        raise fail(f"the regex of {name} is a string or a regular expression, found {type_name(regex)}", TYPE)
    try:
        return compile_pattern(pattern, "".join(sorted(letters)))
    except BadPattern as e:
        raise fail(str(e), VALUE) from e


def _prepared(name: str, value: Value, regex: Value, options: Value) -> Any:
    """The program to run on a text; None if the text or the pattern is null."""
    program = program_of(name, regex, options)
    if is_null(value):
        return None
    need_string(name, value)
    return program


def _found(match: Any) -> dict[str, Any]:
    return {"match": match.group(0), "idx": match.start(), "captures": list(match.groups())}


@named("$regexMatch", "input regex", "options")
def _regex_match(value: Value, regex: Value, options: Value) -> bool:
    """Whether a pattern is found in a string."""
    program = _prepared("$regexMatch", value, regex, options)
    return program is not None and program.search(value) is not None


@named("$regexFind", "input regex", "options")
def _regex_find(value: Value, regex: Value, options: Value) -> Value:
    """The first match: {match, idx (code point), captures}, or null."""
    program = _prepared("$regexFind", value, regex, options)
    match = None if program is None else program.search(value)
    return None if match is None else _found(match)


@named("$regexFindAll", "input regex", "options")
def _regex_find_all(value: Value, regex: Value, options: Value) -> list[Any]:
    """All matches: an array of {match, idx, captures}; none is looked for at the end of a string that is not empty."""
    program = _prepared("$regexFindAll", value, regex, options)
    if program is None:
        return []
    found: list[Any] = []
    start = 0
    for match in program.finditer(value):
        if start >= len(value) > 0:
            break
        found.append(_found(match))
        start = match.end() + (match.end() == match.start())
    return found


_UPPER: Final = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
BLANKS: Final = "\0\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
"""The characters that `$trim` takes away."""


def need_string(name: str, value: Value, what: str = "strings") -> str:
    """A string, or a failure that names the operator."""
    if type(value) is not str:
        raise fail(f"{name} takes {what}, found {type_name(value)}", TYPE)
    return value


def need_whole(name: str, what: str, value: Value) -> int:
    """A whole number, or a failure that names the operator."""
    if not is_integral(value):
        raise fail(f"the {what} of {name} is a whole number, found {type_name(value)}", TYPE)
    if not INT32_MIN <= value <= INT32_MAX:
        raise fail(f"the {what} of {name} is a whole number of 32 bits, found {value}", VALUE)
    return int(value)


@positional("$concat", 0, None, until_null=True)
def _concat(*values: Value) -> Value:
    """Joins strings; null if one is null."""
    for value in values:
        if is_null(value):
            return None
        need_string("$concat", value)
    return "".join(values)


@positional("$toUpper", 1)
def _to_upper(value: Value) -> str:
    """Capital letters; null gives the empty string."""
    return text_of("$toUpper", value).translate(_UPPER)


@positional("$toLower", 1)
def _to_lower(value: Value) -> str:
    """Small letters; null gives the empty string."""
    return text_of("$toLower", value).translate(_LOWER)


@positional("$strcasecmp", 2)
def _strcasecmp(left: Value, right: Value) -> int:
    """-1, 0 or 1: how two strings compare without regard to case."""
    a, b = (text_of("$strcasecmp", value).translate(_UPPER) for value in (left, right))
    return int(a > b) - int(a < b)


@positional("$strLenCP", 1)
def _str_len_cp(value: Value) -> int:
    """The number of code points."""
    return len(need_string("$strLenCP", value, "a string"))


@positional("$strLenBytes", 1)
def _str_len_bytes(value: Value) -> int:
    """The number of UTF-8 bytes."""
    return len(need_string("$strLenBytes", value, "a string").encode())


@positional("$substrCP", 3)
def _substr_cp(value: Value, start: Value, length: Value) -> str:
    """A part of a string, by code points."""
    text = text_of("$substrCP", value)
    first, count = need_whole("$substrCP", "start", start), need_whole("$substrCP", "length", length)
    if first < 0 or count < 0:
        raise fail("start and length of $substrCP are not negative", VALUE)
    return text[first : first + count]


def _substr_bytes(value: Value, start: Value, length: Value) -> str:
    """A part of a string, by UTF-8 bytes; a negative length means up to the end."""
    data = text_of("$substrBytes", value).encode()
    first, count = _cut("start", start), _cut("length", length)
    if first < 0:
        raise fail("the start of $substrBytes is not negative", VALUE)
    end = len(data) if count < 0 else first + count
    if any(place < len(data) and data[place] & 0xC0 == 0x80 for place in (first, end)):  # noqa: PLR2004 - a later byte
        raise fail("$substrBytes begins or ends inside a character", VALUE)
    return data[first:end].decode()


def _cut(what: str, value: Value) -> int:
    """A number of bytes; unlike all other positions a double that is not whole is cut, a decimal rounded, half to even.

    A decimal that is no number of 32 bits counts as negative.
    """
    if type(value) is Decimal:
        near = round(value) if value.is_finite() and abs(value) <= INT32_MAX + 1 else INT32_MIN
        return near if INT32_MIN <= near <= INT32_MAX else INT32_MIN
    if not is_number(value) or not is_finite(value):
        raise fail(f"the {what} of $substrBytes is a number, found {type_name(value)}", TYPE)
    if type(value) is float and not INT32_MIN <= value <= INT32_MAX:
        raise fail(f"the {what} of $substrBytes is a number of 32 bits, found {value}", VALUE)
    return int(value)


positional("$substrBytes", 3)(_substr_bytes)
positional("$substr", 3)(_substr_bytes)


@positional("$split", 2, null=2)
def _split(value: Value, delimiter: Value) -> Value:
    """The parts of a string between delimiters."""
    need_string("$split", value)
    if not need_string("$split", delimiter):
        raise fail("the delimiter of $split is not empty", VALUE)
    return value.split(delimiter)


def _trimmer(name: str, doc: str, trim: Callable[[str, str], str]) -> None:
    def apply(value: Value, chars: Value) -> Value:
        text = need_string(name, value)
        if is_null(chars):
            return None
        return trim(text, BLANKS if chars is ABSENT else need_string(name, chars))

    named(name, "input", "chars", null=1, doc=doc)(apply)


_trimmer("$trim", "Without blanks, or the given characters, at both ends.", lambda s, c: s.strip(c) if c else s)
_trimmer("$ltrim", "Without blanks, or the given characters, at the beginning.", lambda s, c: s.lstrip(c) if c else s)
_trimmer("$rtrim", "Without blanks, or the given characters, at the end.", lambda s, c: s.rstrip(c) if c else s)


def _bounds(name: str, size: int, start: Value, end: Value) -> tuple[int, int] | None:
    """Start and end as given, within the size; None where nothing can be found."""
    first = 0 if start is ABSENT else need_whole(name, "start", start)
    last = size if end is ABSENT else need_whole(name, "end", end)
    if first < 0 or last < 0:
        raise fail(f"start and end of {name} are not negative", VALUE)
    return None if first > size or first > last else (first, min(last, size))


@positional("$indexOfCP", 2, 4, null=1)
def _index_of_cp(value: Value, part: Value, start: Value = ABSENT, end: Value = ABSENT) -> Value:
    """Where a string begins first between start and end, by code points; -1 for nowhere."""
    text, wanted = need_string("$indexOfCP", value), need_string("$indexOfCP", part)
    bounds = _bounds("$indexOfCP", len(text), start, end)
    if bounds is None:
        return -1
    # As in the reference, what is found may end behind `end`, and nothing begins at it, not even the empty string; but "" in "" does.
    found = text.find(wanted, bounds[0])
    return found if found < bounds[1] or not (text or wanted) else -1


@positional("$indexOfBytes", 2, 4, null=1)
def _index_of_bytes(value: Value, part: Value, start: Value = ABSENT, end: Value = ABSENT) -> Value:
    """Where a string is found first, by UTF-8 bytes; -1 for nowhere."""
    text, wanted = need_string("$indexOfBytes", value).encode(), need_string("$indexOfBytes", part).encode()
    bounds = _bounds("$indexOfBytes", len(text), start, end)
    return -1 if bounds is None else text.find(wanted, *bounds)


def _replace(name: str, value: Value, find: Value, replacement: Value, count: int) -> Value:
    for item in (value, find, replacement):
        if not is_null(item):
            need_string(name, item)
    if is_null(value) or is_null(find) or is_null(replacement):
        return None
    occurrences = value.count(find) if count < 0 else 1
    if len(value) + occurrences * len(replacement) > _REPLACED_MAX_CHARS:
        raise fail(f"the result of {name} has more than {_REPLACED_MAX_CHARS} characters", VALUE)
    return str(value).replace(find, replacement, count)


_REPLACED_MAX_CHARS: Final = 16 * 1024 * 1024
"""The same for `$replaceAll`, before it is produced."""


@named("$replaceOne", "input find replacement")
def _replace_one(value: Value, find: Value, replacement: Value) -> Value:
    """The string with the first occurrence replaced."""
    return _replace("$replaceOne", value, find, replacement, 1)


@named("$replaceAll", "input find replacement")
def _replace_all(value: Value, find: Value, replacement: Value) -> Value:
    """The string with all occurrences replaced."""
    return _replace("$replaceAll", value, find, replacement, -1)
