# ruff: noqa: N802 -- a test carries its rule's name
"""Records of many splits that go through the source's front together give what they give split by split, however they were cut."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.fronted import Fronted
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.base import AWAY, PART, POS, TS, WM, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import FrontSpec

SPLITS = {SplitId(f"t-{number}"): number for number in range(4)}
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "maxSeen"},
    {"strategy": "boundedDisorder", "maxDelay": {"size": 7, "unit": "ms"}},
    {"strategy": "percentile", "lateFraction": 0.1, "window": {"size": 40, "unit": "ms"}},
)
_RECORD = st.one_of(
    st.tuples(st.integers(0, 60), st.integers(0, 5)).map(lambda r: b'{"t":%d,"id":"i%d"}' % r),
    st.integers(2_000, 2_010).map(lambda t: b'{"t":%d,"id":"j%d"}' % (t, t)),
    st.sampled_from([None, b"{", b'{"id":"x"}', b'{"t":"no time","id":"y"}', b'{"t":5}']),
)
_PIECES = st.lists(
    st.tuples(st.sampled_from(sorted(SPLITS)), st.lists(_RECORD, max_size=6), st.booleans()), max_size=12
)


def _front(strategy: dict[str, Any], *, dedupe: bool, jump: bool) -> Fronted:
    source: dict[str, Any] = {
        "connectionName": "c", "topic": "t", "timeField": {"$toDate": "$t"}, "schema": {"t": "long?", "id": "string?"},
        "watermark": strategy,
    }  # fmt: skip
    if dedupe:
        source |= {"recordId": "$id", "recordIdHorizon": {"positions": 4}, "recordIdScope": "split"}
    if jump:
        source["maxEventTimeJump"] = {"size": 100, "unit": "ms"}
    made = Fronted(FrontSpec(parse({"pipeline": [{"$source": source}]}).source), TaskContext("p", "i", "t"))
    made.assign(SPLITS)
    return made


def _batches(pieces: Sequence[tuple[SplitId, list[bytes | None], bool]]) -> list[RawBatch]:
    ends = dict.fromkeys(SPLITS, 0)
    made = []
    for split, texts, keyed in pieces:
        positions = np.arange(ends[split], ends[split] + len(texts), dtype=np.int64)
        ends[split] += len(texts)
        values = pa.array(texts, pa.binary())
        keys = pa.array([b"k%d" % p for p in positions], pa.binary()) if keyed else None
        made.append(RawBatch(split, SPLITS[split], positions, positions + 1_000, values, keys))
    return made


def _rows(outs: Sequence[Out]) -> dict[int, list[tuple[Any, ...]]]:
    """By split, in order: what later operators see."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for out in outs:
        if out.port == OUT:
            names = out.batch.schema.names
            assert not set(names) - {"t", "id", TS, WM, PART, POS, AWAY, "__raw", "__arr", "__srckey"}, names
            away = out.batch.column(AWAY).to_pylist() if AWAY in names else [False] * out.batch.num_rows
            keys = out.batch.column("__srckey").to_pylist() if "__srckey" in names else [None] * out.batch.num_rows
            columns = [out.batch.column(name).to_pylist() for name in (PART, POS, TS, WM)]
            for part, *row, document in zip(*columns, away, keys, documents_of(out.batch), strict=True):
                found.setdefault(part, []).append((*row, document))
    return found


def _letters(outs: Sequence[Out]) -> list[str]:
    return sorted(
        json.dumps(d, default=repr, sort_keys=True) for o in outs if o.port == DLQ for d in documents_of(o.batch)
    )


def _kept(front: Fronted) -> dict[str, Any]:
    return {part: data if data is None else msgspec.msgpack.decode(data) for part, data in front.snapshot().items()}


@settings(deadline=None)
@given(
    _PIECES,
    st.integers(1, 12),
    st.sampled_from(STRATEGIES),
    st.booleans(),
    st.booleans(),
    st.sets(st.sampled_from(sorted(SPLITS))),
)
def test_SF_what_is_gathered_gives_what_its_splits_give(
    pieces: list[tuple[SplitId, list[bytes | None], bool]],
    at_once: int,
    strategy: dict[str, Any],
    dedupe: bool,
    jump: bool,
    idle: set[SplitId],
) -> None:
    """Rows of a split with times, watermarks, keys and marks; dead letters; counts; the watermark; and what a snapshot keeps."""
    apart, together = (_front(strategy, dedupe=dedupe, jump=jump) for _ in range(2))
    for each in (apart, together):
        for split in sorted(idle):
            each.on_status(split, "idle")
    batches = _batches(pieces)
    one_by_one = [out for batch in batches for out in apart.on_records(batch)]
    gathered = [
        out for at in range(0, len(batches), at_once) for out in together.on_records(*batches[at : at + at_once])
    ]
    assert _rows(gathered) == _rows(one_by_one)
    assert _letters(gathered) == _letters(one_by_one)
    assert together.counters() == apart.counters()
    if idle:  # one that comes back in the same gathering holds the watermark before the others have moved it
        assert together.output_watermark() <= apart.output_watermark()
    else:
        assert together.output_watermark() == apart.output_watermark()
    assert _kept(together) == _kept(apart)
