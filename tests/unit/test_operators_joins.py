"""What a `$join` refuses: more rows than it may keep, and bytes that are no state of it."""

import pyarrow as pa
import pytest

from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import StatePart, key_group_part
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import GROUP, KEY, PART, POS, TS, OperatorError
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.specs import JoinSpec

SPEC = JoinSpec("pipeline[1].$join", "full", 5, 5, "r")


def rows(*found: tuple[int, str]) -> pa.RecordBatch:
    """Rows of (time, key), with places in their order."""
    n = len(found)
    documents: list[Document] = [{"t": time, "k": key} for time, key in found]
    engine = {
        TS: pa.array([t for t, _ in found], pa.int64()), PART: pa.array([0] * n, pa.int32()),
        POS: pa.array(range(n), pa.int64()), KEY: pa.array([canonical_key(k) for _, k in found], pa.binary()),
        GROUP: pa.array([3] * n, pa.uint16()),
    }  # fmt: skip
    return batch_of(documents, engine)


def test_more_rows_than_may_be_kept_fail_the_task_with_what_to_do() -> None:
    """The message has the stage, the bound and its name, where the watermark stands, and remedies."""
    operator = JoinOperator(SPEC, TaskContext(join_bytes_max=1_000))
    operator.on_batch(rows((1, "a"), (2, "b")), "rows", "left")
    operator.on_watermark(1)
    with pytest.raises(OperatorError, match=r"pipeline\[1\]\.\$join.*join_bytes_max allows 1000.*at 1 ms.*`within`"):
        operator.on_batch(rows((3, "a"), (4, "b")), "rows", "right")


def test_more_pairs_than_one_watermark_may_let_out_fail_the_task_with_what_to_do() -> None:
    """As many as are allowed come out; one more is refused before all of them are made, with stage, bound and remedies."""
    for most, fits in ((9, True), (8, False)):
        operator = JoinOperator(SPEC, TaskContext(join_pairs_max=most))
        for side in ("left", "right"):
            operator.on_batch(rows((1, "a"), (1, "a"), (1, "a")), "rows", side)
        if fits:
            assert sum(out.batch.num_rows for out in operator.on_watermark(3)) == 9
            continue
        with pytest.raises(
            OperatorError, match=r"pipeline\[1\]\.\$join: the watermark 3 .* more than 8 .*join_pairs_max"
        ):
            operator.on_watermark(3)


def test_rows_that_are_gone_make_room() -> None:
    """What is kept is counted down to nothing as rows are dropped, over a restart, too."""
    first = JoinOperator(SPEC)
    first.on_batch(rows((1, "a"), (9, "b")), "rows", "left")
    first.on_watermark(8)
    second = JoinOperator(SPEC)
    second.restore({part: data for part, data in first.snapshot().items() if data is not None})
    assert second.counters()["keptBytes"] == first.counters()["keptBytes"] > 0
    second.on_watermark(MAX_TIME)
    assert (second.counters()["keptBytes"], second.counters()["keys"]) == (0, 0)
    assert second.snapshot() == {key_group_part(3): None}


def test_one_jump_of_the_watermark_gives_what_many_small_ones_give() -> None:
    """Documents, times and order keys are those of the rows, whenever the watermark lets them out."""
    found = []
    for steps in ([MAX_TIME], [*range(1, 30), MAX_TIME]):
        operator = JoinOperator(SPEC)
        operator.on_batch(rows((5, "a"), (5, "a"), (7, "b"), (20, "a")), "rows", "left")
        operator.on_batch(rows((5, "a"), (6, "a"), (9, "a"), (22, "c")), "rows", "right")
        outs = [out.batch for step in steps for out in operator.on_watermark(step)]
        places = [list(zip(*(b.column(n).to_pylist() for n in (TS, PART, POS)), strict=True)) for b in outs]
        lines = [
            (p, str(d)) for b, ps in zip(outs, places, strict=True) for p, d in zip(ps, documents_of(b), strict=True)
        ]
        assert len({place for place, _ in lines}) == len(lines)
        found.append(sorted(lines))
    assert found[0] == found[1]


@pytest.mark.parametrize("data", [b"", b"\x93\x01", b"\x92\x07\x90"])
def test_bytes_that_are_no_state_of_a_join_are_named(data: bytes) -> None:
    """The part is in the message."""
    with pytest.raises(OperatorError, match="kg:3"):
        JoinOperator(SPEC).restore({StatePart("kg:3"): data})
