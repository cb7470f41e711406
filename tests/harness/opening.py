"""Opens a source as its task does: what is known of its splits first, then positions, then ends."""

from collections.abc import Collection, Mapping

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.ports.source import SourcePort


async def open_splits(
    source: SourcePort,
    positions: Mapping[SplitId, Offset] | None = None,
    *,
    splits: Collection[SplitId] | None = None,
    first: bool = True,
) -> dict[SplitId, KnownSplit]:
    """Read all splits, or these, from where they begin, or these positions; returns what is known of them."""
    wanted = splits if splits is not None else positions if positions is not None else await source.splits()
    known = dict(await source.found(list(wanted), first=first))
    await open_known(source, known, positions)
    return known


async def open_known(
    source: SourcePort, known: Mapping[SplitId, KnownSplit], positions: Mapping[SplitId, Offset] | None = None
) -> None:
    """As a task of a later generation does."""
    await source.open({split: (positions or {}).get(split, each.begin) for split, each in known.items()})
    source.end_at({split: each.end for split, each in known.items() if each.end is not None})
