"""An audit's verdict, which is kept, from its report."""

from collections.abc import Iterable
from typing import Final

from tidemark.services.audit.report import Audited
from tidemark.shared.model.ids import NO_EPOCH
from tidemark.shared.model.verdicts import Verdict

_SAID_MAX: Final = 20
"""Sentences of a sort that are kept: a topic may have many partitions."""


def verdict_of(audited: Audited) -> Verdict:
    """Of an audit without a discrepancy."""
    unchecked = [*audited.gone, *audited.unchecked]
    return Verdict(
        "unchecked" if unchecked else "held",
        epoch=max((each.epoch for each in audited.epochs if each.released), default=NO_EPOCH),
        records=audited.records,
        counted=audited.accepted,
        late=audited.late,
        repeated=audited.duplicates,
        dead=audited.dead_letters,
        outputs={str(vertex): rows for vertex, rows in audited.outputs.items()},
        waiting=len(audited.waiting),
        unchecked=_some(unchecked),
        notes=_some([*audited.notes, *audited.unread]),
    )


def _some(sentences: Iterable[str]) -> list[str]:
    found = list(sentences)
    left = len(found) - _SAID_MAX
    return [*found[:_SAID_MAX], f"and {left} more"] if left > 0 else found
