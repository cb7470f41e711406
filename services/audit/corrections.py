"""Corrections by the late records of a processor: the same windows, over the same records, with them and without.

With `lateness: split` a window is a function of the records that were in time for it. So a value before is the document run again as it
ran (recompute.py), and a value after is that with more records admitted. Only the first window and the stateless stages behind it are
run: a correction is one of a window's row. A record may be late by its own split while its window is still open for others, or join a
session that is. Rows that came out since the last redrive came out without it, and the next redrive corrects them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.services.audit.recompute import Positions, SplitRecords, Stand, recompute
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import KafkaSource, Sink, Stage, Stateless, Window
from tidemark.shared.language.values import canonical_key, render_json
from tidemark.shared.model.ids import Epoch, SplitId
from tidemark.shared.model.values import Document
from tidemark.shared.operators.dead_letters import LATE

_WINDOW = "__window"
Key = tuple[bytes, bytes]
"""The window's bounds, and the row's `_id` in it."""


Stands = Mapping[SplitId, Stand]
"""Where splits stood at a barrier."""


class CannotRedrive(Exception):
    """Records cannot be redriven. The message is a sentence for the user, with the remedy."""


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """All that a processor has read."""

    splits: Sequence[SplitRecords]
    stands: Stands
    """Where the splits stood at the last commit."""
    name: str
    passed: Sequence[Mapping[SplitId, int]] = ()
    """Where they stood at each commit, if an id counts once over all splits: each decided which record of it counts (DD2)."""


def windowed(processor: Processor) -> tuple[Processor, str]:
    """The document up to its first window and the stateless stages behind it, and that window's path. CannotRedrive."""
    if processor.options.lateness != "split":
        message = (
            "options.lateness: expected split, found merged: what was late depends on how the splits met, and cannot be "
            "computed again"
        )
        raise CannotRedrive(message)
    if len(processor.sources) != 1 or not isinstance(processor.source, KafkaSource):
        message = f"{processor.source.path}: expected one Kafka source, whose records can be read again"
        raise CannotRedrive(message)
    at = next((i for i, stage in enumerate(processor.pipeline) if isinstance(stage, Window)), None)
    if at is None:
        message = "pipeline: expected a window; without one nothing comes too late to be counted"
        raise CannotRedrive(message)
    stages: list[Stage] = [s for s in processor.pipeline[: at + 1] if not isinstance(s, Sink)]
    between = [s for s in stages[1:-1] if not isinstance(s, Stateless)]
    if between:
        message = f"{between[0].path}: expected nothing but stateless stages between $source and the window, found {between[0].name}"
        raise CannotRedrive(message)
    for stage in processor.pipeline[at + 1 :]:
        if not isinstance(stage, Stateless):
            break
        stages.append(stage)
    options = replace(processor.options, dlq=None, stream_meta_field_name=_WINDOW)
    return replace(processor, pipeline=tuple(stages), options=options), processor.pipeline[at].path


def late_places(
    letters: Iterable[Document], path: str | None, partitions: Mapping[tuple[str | None, int], int]
) -> Positions:
    """The records that letters name as late for the window at `path`; None: for any stage.

    partitions: ordinals of splits by topic and partition.
    """
    found = set()
    for letter in letters:
        error, source = letter["errInfo"], letter["_stream_meta"]["source"]
        if error["reason"] == LATE and path in (None, error["path"]) and "offset" in source:
            ordinal = partitions.get((source.get("topic"), int(source["partition"])))
            if ordinal is not None:
                found.add((ordinal, int(source["offset"])))
    return frozenset(found)


Rows = dict[Key, list[Document]]


def before(
    part: Processor, path: str, records: ReadRecords, then: Stands | None, admitted: Positions
) -> tuple[Rows, Positions]:
    """The window's rows as earlier redrives have left them, and all records that were late.

    then: where the splits stood at the last redrive, which had admitted these; None: there was none.
    """
    if then is None:
        return windows_of(part, path, records, frozenset())
    (_, late), (came, late_since) = windows_between(part, path, records, [then, records.stands], frozenset())
    ((corrected, _),) = windows_between(part, path, records, [then], admitted)
    rows = {key: [*corrected.get(key, ()), *came.get(key, ())] for key in {**corrected, **came}}
    return rows, late | late_since


def windows_of(part: Processor, path: str, records: ReadRecords, admitted: Positions) -> tuple[Rows, Positions]:
    """The window's rows by key, with these late records admitted; and the records that were late all the same."""
    return windows_between(part, path, records, [records.stands], admitted)[0]


def windows_between(
    part: Processor, path: str, records: ReadRecords, barriers: Sequence[Stands], admitted: Positions
) -> list[tuple[Rows, Positions]]:
    """The same, for the rows that came out up to each of these stands, behind the one before it."""
    done = recompute(
        part,
        records.splits,
        [(Epoch(number), stands) for number, stands in enumerate(barriers, 1)],
        records.name,
        admitted=admitted,
        passed=records.passed,
        collects=True,
    )
    ordinals = partitions_of(records)
    found = []
    for epoch in done.epochs:
        rows: Rows = defaultdict(list)
        late: list[Document] = []
        for vertex, documents in epoch.outputs.items():
            if vertex == "dlq":
                late += documents
                continue
            for document in documents:
                rows[_key(document)].append(document)
        found.append((rows, late_places(late, path, ordinals)))
    return found


def partitions_of(records: ReadRecords) -> dict[tuple[str | None, int], int]:
    """The splits' ordinals by topic and partition."""
    return {
        (split.split.rpartition("-")[0], int(split.split.rpartition("-")[2])): split.ordinal for split in records.splits
    }


def corrections(old: Mapping[Key, Sequence[Document]], new: Mapping[Key, Sequence[Document]]) -> list[Document]:
    """The differences, by window and `_id`: `{_id, window, old, new}`, null where there is, or was, no such row."""
    found: list[Document] = []
    for key in sorted({*old, *new}):
        before, after = _apart(old.get(key, ()), new.get(key, ()))
        for i in range(max(len(before), len(after))):
            a = before[i] if i < len(before) else None
            b = after[i] if i < len(after) else None
            found.append(_correction(a, b))
    return found


def _correction(old: Document | None, new: Document | None) -> Document:
    some = new if new is not None else old
    assert some is not None
    named: Document = {"_id": some["_id"]} if "_id" in some else {}
    return {**named, "window": some[_WINDOW]["window"], "old": _shown(old), "new": _shown(new)}


def _shown(row: Document | None) -> Any:
    return None if row is None else {name: value for name, value in row.items() if name != _WINDOW}


def _apart(old: Sequence[Document], new: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """The rows of one key that differ, as multisets, in their order."""
    same = Counter(map(_text, old)) & Counter(map(_text, new))
    return _without(old, Counter(same)), _without(new, Counter(same))


def _without(rows: Sequence[Document], gone: Counter[bytes]) -> list[Document]:
    left = []
    for row in rows:
        text = _text(row)
        if gone[text]:
            gone[text] -= 1
        else:
            left.append(row)
    return left


def _text(row: Document) -> bytes:
    return render_json(row, canonical=True)


def _key(row: Document) -> Key:
    return canonical_key(row[_WINDOW]["window"]), canonical_key(row.get("_id"))
