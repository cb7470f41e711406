"""The changes to a document with which its processor can go on from a checkpoint, and those with which it cannot.

State belongs to the source (positions, watermarks, record ids), to windows, to joins and to computations. Where the part that made the
state changes, a checkpoint cannot be resumed from, and the processor has to start without state (`resumeFromCheckpoint: false`). Stateless
stages and options may change; sinks and computations may be added and removed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from tidemark.shared.language.documents.model import Processor
from tidemark.shared.language.problems import DocumentError
from tidemark.shared.language.stages import (
    Compute,
    Group,
    HoppingWindow,
    Join,
    SessionWindow,
    Stage,
    TumblingWindow,
    Union,
    Window,
)
from tidemark.shared.language.stages.counting import Marked
from tidemark.shared.language.stages.sources.base import SourceBase

_NOT_MEANT = frozenset({"path", "limits", "counted"})
REMEDY = "; give it back, or start without state (--without-state; by REST resumeFromCheckpoint: false)"
"""What a user may do about a refused change."""


def meaning(value: object) -> Any:
    """A parsed thing without its places in the document, its limits, and what of a source may change with its state kept.

    Equal where the same is meant, wherever it stands.
    """
    if is_dataclass(value) and not isinstance(value, type):
        left = _NOT_MEANT | value.free if isinstance(value, SourceBase) else _NOT_MEANT
        inside = tuple((f.name, meaning(getattr(value, f.name))) for f in fields(value) if f.name not in left)
        return (type(value).__name__, inside)
    if isinstance(value, tuple | list):
        return tuple(meaning(item) for item in value if not isinstance(item, Marked))
    if isinstance(value, dict):
        return tuple((key, meaning(item)) for key, item in value.items())
    return (type(value).__name__, repr(value))


def refusals(old: Processor, new: Processor) -> tuple[DocumentError, ...]:
    """Why the new document cannot go on from a checkpoint of the old one; empty if it can. Places are those of the new document."""
    return tuple(_pipeline(old.pipeline, new.pipeline))


def _pipeline(old: Sequence[Stage], new: Sequence[Stage]) -> Iterator[DocumentError]:
    if meaning(old[0]) != meaning(new[0]):
        yield DocumentError(new[0].path, f"$source has changed{REMEDY}")
    yield from _windows(
        [s for s in old if isinstance(s, Window)], [s for s in new if isinstance(s, Window)], new[0].path
    )
    yield from _computations([s for s in old if isinstance(s, Compute)], [s for s in new if isinstance(s, Compute)])
    old_joins = [s for s in old if isinstance(s, Join | Union)]
    new_joins = [s for s in new if isinstance(s, Join | Union)]
    if len(old_joins) != len(new_joins):
        yield DocumentError(new[0].path, f"a $join or $union was added or removed{REMEDY}")
    for before, after in zip(old_joins, new_joins, strict=False):
        if meaning(before) != meaning(after):
            yield DocumentError(after.path, f"{after.name} has changed{REMEDY}")


def _windows(old: Sequence[Window], new: Sequence[Window], path: str) -> Iterator[DocumentError]:
    if len(old) != len(new):
        yield DocumentError(path, f"a window was added or removed{REMEDY}")
    for before, after in zip(old, new, strict=False):
        if type(before) is not type(after):
            yield DocumentError(after.path, f"the window's type has changed from {before.name}{REMEDY}")
        elif _shape(before) != _shape(after):
            yield DocumentError(after.path, f"the window's interval, boundary or key has changed{REMEDY}")
        elif _groups(before) != _groups(after):
            yield DocumentError(
                after.path, f"its first $group, which open windows already hold the work of, has changed{REMEDY}"
            )


def _shape(window: Window) -> Any:
    match window:
        case SessionWindow():
            return (window.boundary, window.gap_ms, meaning(window.partition_by))
        case TumblingWindow() | HoppingWindow():
            return (window.boundary, window.interval_ms, window.hop_size_ms, window.offset_ms)


def _groups(window: Window) -> Any:
    """The stages that may run before a window closes: those up to the first `$group`."""
    for i, stage in enumerate(window.pipeline):
        if isinstance(stage, Group):
            return meaning(window.pipeline[: i + 1])
    return ()


def _computations(old: Sequence[Compute], new: Sequence[Compute]) -> Iterator[DocumentError]:
    """Those that stay keep their class and key; where some were added or removed, the others stay in order."""
    known = [(c.class_, meaning(c.key)) for c in old]
    if len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            if before.class_ != after.class_:
                yield DocumentError(f"{after.path}.class", f"the class has changed from {before.class_}{REMEDY}")
            elif meaning(before.key) != meaning(after.key):
                yield DocumentError(f"{after.path}.key", f"the key has changed{REMEDY}")
        return
    position = 0
    for after in new:
        mine = (after.class_, meaning(after.key))
        same_class = [i for i, (name, _) in enumerate(known) if name == after.class_]
        if mine in known[position:]:
            position = known.index(mine, position) + 1
        elif same_class and len(new) <= len(old):
            yield DocumentError(f"{after.path}.key", f"the key of {after.class_} has changed{REMEDY}")
