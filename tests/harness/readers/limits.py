"""What a reader cannot carry, and why. Each entry was seen; what it excuses is counted: one that excuses nothing any more is noticed.

The library or program does the same with files and tables of any writer: there is nothing in the bytes that would be otherwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tests.harness.readers.drawing import Story
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


def _nested(value: Any) -> bool:
    return isinstance(value, list | dict)


def _is_nan(cell: Any) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def _framed(_: Story, name: str, value: Any, cell: Any) -> bool:
    """Pandas has NaN for null, and doubles for whole numbers and flags in a column with nulls."""
    if _nested(value):
        return _nested(cell) and "nan" in repr(cell)
    if value is None or value is MISSING or _is_nan(cell):
        return _is_nan(cell)
    return isinstance(cell, float) and isinstance(value, int) and cell == float(value)


def _says(*parts: str) -> Excuse:
    return lambda _story, _name, _value, found: isinstance(found, str) and any(part in found for part in parts)


def _hidden(story: Story, name: str, _value: Any, _found: Any) -> bool:
    return name == ROWS and any(field[0] in "_." for field in story.partition_by)


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
        _says("No such file", "no rows", "expanded paths were empty"),
    ),
    Limit(
        ("chdb_delta", "chdb_iceberg"),
        "no null arrays and objects: empty ones",
        lambda _s, _n, value, cell: (value is None or value is MISSING or cell is not None) and _empty(cell),
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


def _empty(cell: Any) -> bool:
    """Whether it is a default of ClickHouse's at any depth."""
    if isinstance(cell, list):
        return all(map(_empty, cell))
    if isinstance(cell, dict):
        return all(map(_empty, cell.values()))
    return cell is None or cell in ("", 0, False, Decimal(0))


def excused(story: Story, reader: str, name: str, value: Any, found: Any) -> str:
    """Why a finding is none; "" if it is one."""
    cell = (
        found[0] if isinstance(found, tuple) and len(found) == 2 and found[0] not in ("stamp", "day", "raw") else found
    )
    for limit in LIMITS:
        if reader.endswith(limit.readers) and limit.excuse(story, name, value, cell):
            return limit.why
    return ""
