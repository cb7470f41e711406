"""`options.limits`: how the bounds of a document are written."""

from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import Kind, Option, closed_schema, integer, read_options
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.problems import Problems


@dataclass(frozen=True, slots=True)
class Range:
    """An option: its name in a document, its least and its greatest value, and the quantity that it bounds."""

    name: str
    least: int
    most: int
    doc: str


RANGES: Final = {
    "windows_of_one_max": Range("windowsPerDocument", 1, 1_000_000, "overlapping windows that one document may be in"),
    "group_values_max": Range("valuesPerGroup", 1, 100_000_000, "values that $push and its kin keep for one group"),
    "matches_max": Range("matchesPerDocument", 1, 10_000_000, "foreign documents that a lookup gives one document"),
    "combinations_max": Range(
        "combinationsPerDocument", 1, 1_000_000, "combinations of values that one document looks for"
    ),
    "state_bytes_max": Range("stateBytes", 64, 256 * 1024 * 1024, "a computation's state for one key"),
    "timers_max": Range("timersPerKey", 1, 1_000_000, "pending timers of one key of a computation"),
    "outputs_max": Range("outputsPerCall", 1, 10_000_000, "documents that one callback of a computation may yield"),
    "attempts_max": Range("attempts", 1, 100, "times that a callback is tried that fails"),
    "passed_timers_max": Range(
        "passedTimersInARow", 1, 10_000_000, "timers of a key in a row for a time that has passed"
    ),
    "letter_bytes_max": Range(
        "letterBytes", 64, 16 * 1024 * 1024, "a document in its dead letter, of which the beginning stays"
    ),
    "record_bytes_max": Range("recordBytes", 1024, 1024 * 1024 * 1024, "a line of a file"),
}
"""By the field of `Limits`."""
_OPTIONS: Final = tuple(
    Option(each.name, integer(each.least, each.most), f"{each.doc} (default {getattr(DEFAULTS, field)})", into=field)
    for field, each in RANGES.items()
)


def _read(tree: Any, path: str, scope: Scope) -> Limits:
    return Limits(**read_options(tree, path, scope, _OPTIONS).fields)


LIMITS: Final = Kind(_read, closed_schema(_OPTIONS))


def limits_of(options: Any) -> Limits:
    """The limits that a document's `options` give the stages, which are read before them; errors are noted with the options."""
    tree = options.get("limits") if type(options) is dict else None
    return DEFAULTS if tree is None else _read(tree, "", Scope(Problems()))
