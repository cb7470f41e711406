"""The stages that stand at the top of a pipeline, by their operators. Those that stand inside windows alone are in `inner.GATHERING`."""

from typing import Final

from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.stages import compute, https, join, lookup, set_stream_meta, union, windows
from tidemark.shared.language.stages.inner import STATELESS
from tidemark.shared.language.stages.sinks import emit, merge
from tidemark.shared.language.stages.sources import source

STAGES: Final[dict[str, StageSpec]] = {
    "$source": source.SPEC,
    **STATELESS,
    "$setStreamMeta": set_stream_meta.SPEC,
    "$tumblingWindow": windows.TUMBLING,
    "$hoppingWindow": windows.HOPPING,
    "$sessionWindow": windows.SESSION,
    "$lookup": lookup.SPEC,
    "$cachedLookup": lookup.CACHED,
    "$https": https.SPEC,
    "$compute": compute.SPEC,
    "$join": join.SPEC,
    "$union": union.SPEC,
    "$emit": emit.SPEC,
    "$merge": merge.SPEC,
}
