"""What a reader cannot carry, and why. Each entry was seen; what it excuses is counted: one that excuses nothing any more is noticed.

The library or program does the same with files and tables of any writer: there is nothing in the bytes that would be otherwise.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.harness.readers.drawing import Story
from tests.harness.readers.rules import in_column, is_hollow
from tidemark.shared.model.values import MISSING

ROWS: Final = "rows"
"""The name of what is judged beside fields: that each row comes once."""
Excuse = Callable[[Story, str, Any, Any], bool]
"""Story, field, the document's value, what was found: a cell, or the text of an error."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`readers`: the ends of names."""

    readers: tuple[str, ...]
    why: str
    excuse: Excuse


def _is_nan(cell: Any) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def _framed(_: Story, _name: str, value: Any, cell: Any) -> bool:
    """Pandas has NaN for null, and doubles for whole numbers in a column, or a field, with nulls."""
    if value is None or value is MISSING:
        return cell is None or _is_nan(cell)
    if isinstance(value, dict) and isinstance(cell, dict):
        return all(_framed(_, name, value.get(name), cell.get(name)) for name in {**value, **cell})
    if isinstance(value, list) and isinstance(cell, list):
        return len(value) == len(cell) and all(_framed(_, _name, *pair) for pair in zip(value, cell, strict=True))
    if isinstance(cell, float) and isinstance(value, int) and not isinstance(value, bool):
        return cell == float(value)
    return in_column(value, cell)


def _without_null(_: Story, _name: str, value: Any, cell: Any) -> bool:
    """ClickHouse has empty arrays and objects for null."""
    if value is None or value is MISSING:
        return is_hollow(cell)
    if isinstance(value, dict) and isinstance(cell, dict):
        return all(_without_null(_, name, value.get(name), cell.get(name)) for name in {**value, **cell})
    if isinstance(value, list) and isinstance(cell, list):
        return len(value) == len(cell) and all(_without_null(_, _name, *pair) for pair in zip(value, cell, strict=True))
    return in_column(value, cell)


def _says(*parts: str) -> Excuse:
    return lambda _story, _name, _value, found: isinstance(found, str) and any(part in found for part in parts)


def _hidden(story: Story, name: str, _value: Any, _found: Any) -> bool:
    return name == ROWS and any(field[0] in "_." for field in story.partition_by)


TWINS: Final = ("", "a", "plain")
"""Of `drawing.NAMES`, those that case alone tells apart, and none."""


def _is_renamed(name: str) -> bool:
    return bool(re.fullmatch(r"(column|Unnamed: )\d+|.*_\d+|lead|trail", name))


FOLDERS: Final = ("pandas_folder", "pyarrow_folder", "polars_glob")
LIMITS: Final = (
    Limit(
        ("to_pandas", "pandas_folder"),
        "pandas: NaN for null; doubles for whole numbers beside nulls",
        _framed,
    ),
    Limit(
        (*FOLDERS, "duckdb_glob", "spark_folder"),
        "columns from folders: types are guessed from texts, and the folder of null is a text to some",
        lambda story, name, _value, _found: name in story.partition_by and not story.ordinary,
    ),
    Limit(
        FOLDERS,
        "the folder's columns are those of its first file",
        lambda _s, name, value, cell: name != ROWS and cell is None and value is not None,
    ),
    Limit(("pandas_folder", "pyarrow_folder"), "folders whose names begin with _ are passed over", _hidden),
    Limit(
        ("pandas_folder",),
        "a folder of null among others is an error",
        _says("Cannot yet unify dictionaries with nulls"),
    ),
    Limit(
        FOLDERS,
        "a folder without files, or of folders passed over, is an error",
        _says("No such file", "expanded paths were empty", "No non-null segments"),
    ),
    Limit(
        ("chdb_delta", "chdb_iceberg"),
        "no null arrays and objects: empty ones",
        _without_null,
    ),
    Limit(
        ("pyiceberg", "pyiceberg_to_pandas"),
        "null arrays of objects are empty ones",
        lambda _s, _n, value, cell: cell == [] and (value is None or value is MISSING),
    ),
    Limit(
        ("spark_folder",),
        "Delta's library encodes values in names of folders when it compacts, and Spark decodes them byte by byte",
        lambda story, name, value, _f: name in story.partition_by and story.compact < 256 and not str(value).isascii(),
    ),
    Limit(
        ("spark_folder",),
        "Spark comes without Brotli",
        lambda story, name, _v, _f: name == ROWS and story.options.get("compression") == "brotli",
    ),
    Limit(
        ("duckdb_csv_text", "pandas_text"),
        "columns without a name, with blanks around it, or with one that case alone tells apart, get another",
        lambda _s, name, value, _f: (
            _is_renamed(name) if value is MISSING else name.strip() != name or name.lower() in TWINS
        ),
    ),
    Limit(("polars_csv",), "quotes in a column's name stay doubled", lambda _s, name, _v, _f: '"' in name),
    Limit(
        ("pandas_csv",),
        "doubles are read in the last digit otherwise, without float_precision",
        lambda _s, _n, value, cell: (
            isinstance(value, float) and isinstance(cell, float) and math.isclose(value, cell, rel_tol=1e-15)
        ),
    ),
    Limit(
        ("pandas_text",),
        "a text ends at a null character",
        lambda _s, _n, value, cell: isinstance(value, str) and "\0" in value and cell == value.partition("\0")[0],
    ),
)


def excused(story: Story, reader: str, name: str, value: Any, found: Any) -> str:
    """Why a finding is none; "" if it is one."""
    cell = (
        found[0] if isinstance(found, tuple) and len(found) == 2 and found[0] not in ("stamp", "day", "raw") else found
    )
    for limit in LIMITS:
        if reader.endswith(limit.readers) and limit.excuse(story, name, value, cell):
            return limit.why
    return ""
