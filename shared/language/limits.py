"""Bounds of what a document's stages compute, keep or refuse: `options.limits` of the document.

These bounds decide results. So they are no setting of a process: they stand in the document, are read with it, and travel in its parsed
stages. Every task of every generation has the same ones, and so have a try-out and an audit; they change when the document does.
"""

from dataclasses import dataclass
from typing import Final

CONDITIONS_MAX: Final = 4
"""Columns of a table that one question of a `$lookup` names: more narrow hardly more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one document."""

    windows_of_one_max: int = 100_000
    """Overlapping windows that one document may be in: it makes a row in each. More is refused when the document is read."""
    group_values_max: int = 4_000_000
    """Values that one accumulator (`$push`, `$addToSet`, `$mergeObjects`) keeps for one group of a window: the processor fails with
    a larger one, for which row is one too many depends on how rows were split. In a lookup's pipeline the document is a dead letter."""
    matches_max: int = 100_000
    """Foreign documents that a `$lookup` gives one document; a document with more is a dead letter."""
    combinations_max: int = 10_000
    """Combinations of values that one document looks for, items of arrays one by one; a document with more is a dead letter."""
    state_bytes_max: int = 8 * 1024 * 1024
    """A computation's state for one key, encoded; a callback that leaves more has failed."""
    timers_max: int = 10_000
    """Timers of one key of a computation that may be pending; the callback that sets one more has failed."""
    outputs_max: int = 100_000
    """Documents that one callback may yield, `process_batch` for each of its records; one that yields more has failed."""
    attempts_max: int = 3
    """Times that a callback is tried that fails; then its record is a dead letter."""
    passed_timers_max: int = 10_000
    """Timers of one key in a row that are set for a time that has passed; one more is a dead letter."""
    letter_bytes_max: int = 256 * 1024
    """Of a document larger than this its dead letter has the beginning; at most a quarter of what the queue's target takes."""
    record_bytes_max: int = 64 * 1024 * 1024
    """A line of a file: one above this is an error, for it is more likely no line at all."""


DEFAULTS: Final = Limits()
