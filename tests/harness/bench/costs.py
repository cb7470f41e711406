"""What a record costs: processor time of a call over many records, the least of some rounds.

Processor time, not the clock's: it takes in the threads that Arrow starts, and other programs on the machine disturb it little.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

Result = TypeVar("Result")
_ROUNDS: Final = 3


@dataclass(frozen=True)
class Cost:
    """One line of the table: ns a record on columns of declared fields, and as documents; None where there is no such form."""

    kind: str
    name: str
    columns_ns: float | None
    documents_ns: float | None
    interpreted: bool = field(default=False, kw_only=True)
    """Whether the columns are what the interpreter gave."""

    @property
    def gain(self) -> float | None:
        """How many times the columns are faster."""
        if self.columns_ns is None or self.documents_ns is None:
            return None
        return self.documents_ns / self.columns_ns


def timed(call: Callable[[], Result], records: int, rounds: int = _ROUNDS) -> tuple[float, Result]:
    """(ns of processor time a record, what the last call gave); at least one round."""
    best, results = float("inf"), list[Result]()
    for _ in range(rounds):
        began = time.process_time_ns()
        results[:] = [call()]
        best = min(best, (time.process_time_ns() - began) / records)
    return best, results[0]


def table(costs: Sequence[Cost]) -> str:
    """The costs for people, ns a record."""
    width = max(len(cost.name) for cost in costs)
    lines = [f"{'':{width}}    declared  undeclared   gain    (ns a record)"]
    kind = ""
    for cost in costs:
        if cost.kind != kind:
            kind = cost.kind
            lines.append(f"-- {kind}")
        gain = f"{cost.gain:>5,.0f} x" if cost.gain is not None else ""
        how = "  interpreted" if cost.interpreted else ""
        lines.append(f"{cost.name:{width}} {_ns(cost.columns_ns)} {_ns(cost.documents_ns)} {gain}{how}".rstrip())
    return "\n".join(lines)


def _ns(found: float | None) -> str:
    return f"{'-':>11}" if found is None else f"{found:>11,.0f}"
