"""What windows are meant to give, worked out record by record in plain Python: slow, short, and nothing of the product's in it.

`lateness: split`: a record is late by its own split's watermark before it (the highest event time before it less the delay).
"""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """One record of a split."""

    split: int
    position: int
    time_ms: int
    key: str | None
    value: int
    counts: bool = True
    """Else it is a repeat, that moves the watermark of its split alone."""


@dataclass(frozen=True)
class Result:
    """One window of one key: its rows in order of (time, split, position)."""

    start_ms: int
    end_ms: int
    key: str | None
    values: tuple[int, ...]


@dataclass(frozen=True)
class Late:
    """A record that missed windows, with their starts (none named for sessions)."""

    record: Record
    missed: tuple[int, ...]


def watermarks_before(records: list[Record], delay_ms: int) -> list[int | None]:
    """The split's watermark before each record; None where there is none. `records`: one split's, in order."""
    highest: int | None = None
    found: list[int | None] = []
    for record in records:
        found.append(None if highest is None else highest - delay_ms)
        highest = record.time_ms if highest is None else max(highest, record.time_ms)
    return found


def hopping(
    splits: list[list[Record]], delay_ms: int, size_ms: int, hop_ms: int, offset_ms: int, lateness_ms: int
) -> tuple[list[Result], list[Late]]:
    """Tumbling (hop = size) and hopping windows under `lateness: split`."""
    held: dict[tuple[int, str | None], list[Record]] = defaultdict(list)
    late: list[Late] = []
    for records in splits:
        for record, watermark in zip(records, watermarks_before(records, delay_ms), strict=True):
            if not record.counts:
                continue
            missed = []
            for start in starts_of(record.time_ms, size_ms, hop_ms, offset_ms):
                if watermark is not None and watermark - lateness_ms >= start + size_ms:
                    missed.append(start)
                else:
                    held[(start, record.key)].append(record)
            if missed:
                late.append(Late(record, tuple(missed)))
    return [Result(s, s + size_ms, k, _ordered(rows)) for (s, k), rows in held.items()], late


def starts_of(time_ms: int, size_ms: int, hop_ms: int, offset_ms: int) -> list[int]:
    """All starts k · hop + offset with start ≤ time < start + size, ascending."""
    last = offset_ms + (time_ms - offset_ms) // hop_ms * hop_ms
    return sorted(s for s in range(last, time_ms - size_ms, -hop_ms) if s <= time_ms < s + size_ms)


def sessions(
    splits: list[list[Record]], delay_ms: int, gap_ms: int, lateness_ms: int
) -> tuple[list[Result], list[Late]]:
    """Sessions under `lateness: split`: late iff event time < split's watermark − lateness."""
    kept: dict[str | None, list[Record]] = defaultdict(list)
    late: list[Late] = []
    for records in splits:
        for record, watermark in zip(records, watermarks_before(records, delay_ms), strict=True):
            if not record.counts:
                continue
            if watermark is not None and record.time_ms < watermark - lateness_ms:
                late.append(Late(record, ()))
            else:
                kept[record.key].append(record)
    return [result for key, rows in kept.items() for result in grouped_by_gap(key, rows, gap_ms)], late


def grouped_by_gap(key: str | None, rows: list[Record], gap_ms: int) -> list[Result]:
    """The sessions of one key's records."""
    found: list[list[Record]] = []
    for record in sorted(rows, key=lambda r: (r.time_ms, r.split, r.position)):
        if found and record.time_ms < found[-1][-1].time_ms + gap_ms:
            found[-1].append(record)
        else:
            found.append([record])
    return [Result(s[0].time_ms, s[-1].time_ms + gap_ms, key, _ordered(s)) for s in found]


def _ordered(rows: list[Record]) -> tuple[int, ...]:
    return tuple(r.value for r in sorted(rows, key=lambda r: (r.time_ms, r.split, r.position)))
