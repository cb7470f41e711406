"""What a document's value is in each form: written anew here, so that the product's writers are compared with something else."""

import base64
import json
import math
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tests.harness.readers.drawing import FIRST_MS, LAST_MS, Story
from tidemark.shared.language.values import parse_json, to_json
from tidemark.shared.model.values import MISSING, Binary, Date, Document, Long, ObjectId, Regex, Timestamp

RESCUED: Final = "_rescued_data"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CENTURIES_MS: Final = 146_097 * 86_400_000
"""Four of them, after which the calendar repeats."""
_YEAR_ZERO_MS: Final = -62_167_219_200_000


def iso(date: Date) -> str | None:
    """An instant as ISO 8601 has it; None beyond the years 0 to 9999."""
    if not _YEAR_ZERO_MS <= date <= LAST_MS:
        return None
    if date < FIRST_MS:  # the year 0, which Python's calendar has not: it is as the year 400
        return "0000" + (iso(Date(date + _CENTURIES_MS)) or "")[4:]
    text = (_EPOCH + timedelta(milliseconds=int(date))).strftime("%m-%dT%H:%M:%S")
    year = (_EPOCH + timedelta(milliseconds=int(date))).year
    return f"{year:04d}-{text}" + (f".{date % 1000:03d}" if date % 1000 else "") + "Z"


def csv_text(value: Any) -> str:
    """A cell of CSV, or the name of a folder."""
    if value is None or value is MISSING:
        return ""
    kind = type(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is Date:
        return iso(value) or str(int(value))
    if kind in (int, Long):
        return str(int(value))
    if kind is float:
        return repr(value)
    if kind is Binary:
        return bytes(value).hex()
    return str(value) if kind in (str, Decimal, ObjectId) else json.dumps(to_json(value))


def in_text(value: Any, cell: str) -> bool:
    """Whether a cell of CSV is a document's value."""
    plain = isinstance(value, str | int | float | bytes | Decimal | ObjectId) or value in (None, MISSING)
    return cell == csv_text(value) if plain else same_json(cell, value)


def json_value(value: Any, form: str, dates: str) -> Any:
    """A value as a reader of JSON has it."""
    kind = type(value)
    if kind is dict:
        return {name: json_value(item, form, dates) for name, item in value.items()}
    if kind is list:
        return [json_value(item, form, dates) for item in value]
    if kind is Date and dates == "ISO8601" and iso(value) is not None:
        return iso(value)
    if form == "basicJson":
        return _basic(value)
    if form == "relaxedJson" and kind in (int, Long):
        return int(value)
    return to_json(value, canonical=form == "canonicalJson")


def _basic(value: Any) -> Any:
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind in (Date, Long):
        return int(value)
    if kind is Binary:
        return str(uuid.UUID(bytes=bytes(value))) if value.is_uuid else base64.b64encode(value).decode()
    if kind in (Decimal, ObjectId):
        return str(value)
    if kind is Regex:
        return {"pattern": value.pattern, "options": value.options}
    if kind is Timestamp:
        return value.seconds << 32 | value.increment
    return to_json(value)


def alike(one: Any, other: Any) -> bool:
    """Whether two plain values are the same, with their types; whole numbers and doubles of one value are."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        if isinstance(one, float) and isinstance(other, float):
            return repr(float(one)) == repr(float(other))
        return math.isfinite(one) and math.isfinite(other) and int(one) == other and one == int(other)
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() == other.keys() == {"$numberDecimal"}:
            pair = Decimal(one["$numberDecimal"]), Decimal(other["$numberDecimal"])
            return pair[0] == pair[1] or all(each.is_nan() for each in pair)
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other


def same_json(text: Any, value: Any) -> bool:
    """Whether a text is the relaxed extended JSON of a value."""
    if not isinstance(text, str):
        return False
    try:
        return alike(json.loads(text), json.loads(json.dumps(to_json(value))))
    except ValueError:
        return False


def in_column(value: Any, cell: Any) -> bool:
    """Whether a table's cell is a document's value."""
    if value is None or value is MISSING:
        return cell is None
    kind = type(value)
    if isinstance(cell, tuple) and cell[0] == "raw":  # bytes of a program that tells them from no text
        told: bytes = cell[1]
        return (kind is Binary and told == bytes(value)) or in_column(value, told.decode(errors="replace"))
    if isinstance(cell, str):
        return cell == str(value) if kind in (str, Decimal, ObjectId) else same_json(cell, value)
    if kind is Date:
        return bool(cell == ("stamp", int(value) * 1000))
    if kind is Binary:
        return type(cell) is bytes and cell == bytes(value)
    if kind is dict:
        return isinstance(cell, dict) and all(in_column(value.get(name), cell.get(name)) for name in {**value, **cell})
    if kind is list:
        return isinstance(cell, list) and len(cell) == len(value) and all(map(in_column, value, cell))
    if kind in (int, Long, float, bool):
        return alike(int(value) if kind is Long else value, cell)
    return False


def _text(cell: Any) -> Any:
    if isinstance(cell, tuple) and cell[0] == "raw":
        return cell[1].decode(errors="replace")
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def is_hollow(cell: Any) -> bool:
    """Whether it is what a program without null arrays and objects has for one."""
    if isinstance(cell, list | dict):
        return all(is_hollow(each) for each in (cell.values() if isinstance(cell, dict) else cell))
    return cell is None or cell in ("", 0, False, ("raw", b""))


def loosely(value: Any, cell: Any) -> bool:
    """Whether a reader that guesses types found a value of an ordinary document."""
    if isinstance(cell, tuple) and cell[0] == "raw":
        cell = cell[1].decode(errors="replace")
    if isinstance(cell, str) and not isinstance(value, str):
        return cell == csv_text(value) or (isinstance(value, float) and float(cell) == value)
    if isinstance(cell, Decimal) and type(value) is int:
        return cell == value
    return alike(value, cell)


def expected_partition(value: Any) -> str | None:
    """The text of a field that divides a table."""
    return None if value is None or value is MISSING else csv_text(value)


def differences(
    story: Story, document: Document, row: dict[str, Any], *, guesses: bool = False
) -> Iterator[tuple[str, Any, Any]]:
    """Fields that a row has otherwise: name, the document's value, what was found. guesses: the reader guesses at types."""
    if guesses:
        yield from (
            (name, document.get(name), row.get(name)) for name in document if not loosely(document[name], row.get(name))
        )
        return
    if story.form in ("parquet", "iceberg"):
        yield from _in_table(story, document, row)
        return
    for name in {**document, **row}:
        value, cell = document.get(name, MISSING), row.get(name)
        if story.form == "csv":
            same = in_text(value, cell or "")
        elif value is MISSING:
            same = cell is None
        else:
            same = alike(json_value(value, story.output_format, story.date_format), cell)
        if not same:
            yield name, value, cell


def _in_table(story: Story, document: Document, row: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    rescued: Any = parse_json(_text(row.get(RESCUED)) or "{}")
    for name in ({**document, **row}).keys() - {RESCUED}:
        value, cell = document.get(name), row.get(name)
        if name in story.partition_by:
            same = _text(cell) == expected_partition(value)
        else:
            same = in_column(value, cell)
            if not same and name in rescued and (_text(cell) is None or is_hollow(cell)):
                same = same_json(json.dumps(to_json(rescued[name])), value)
        if not same:
            yield name, value, (cell, rescued.get(name))
    for name in rescued.keys() - document.keys():
        yield name, MISSING, rescued[name]
