# ruff: noqa: N802 -- a test carries its rule's name
"""Rows of a `$join` beyond memory (J7), and what it refuses: more pairs than it may let out, and bytes that are no state of it."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemark.services.operator.shelved import shelved
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import StatePart, key_group_part
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators import join, join_rows
from tidemark.shared.operators.base import GROUP, KEY, PART, POS, TS, OperatorError, ScratchUnavailable
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.join_runs import Int64s
from tidemark.shared.operators.join_slots import Slots
from tidemark.shared.operators.specs import JoinSpec

SPEC = JoinSpec("pipeline[1].$join", "full", 5, 5, "r")


def rows(*found: tuple[int, str], group: int = 3) -> pa.RecordBatch:
    """Rows of (time, key), with places in their order."""
    n = len(found)
    documents: list[Document] = [{"t": time, "k": key} for time, key in found]
    engine = {
        TS: pa.array([t for t, _ in found], pa.int64()), PART: pa.array([0] * n, pa.int32()),
        POS: pa.array(range(n), pa.int64()), KEY: pa.array([canonical_key(k) for _, k in found], pa.binary()),
        GROUP: pa.array([group] * n, pa.uint16()),
    }  # fmt: skip
    return batch_of(documents, engine)


def on_disk(folder: Path, memory_bytes: int) -> TaskContext:
    """So many bytes of rows stay in memory."""
    return TaskContext(join_bytes_max=memory_bytes, shelve=partial(shelved, folder))


@pytest.mark.parametrize("within_ms", [5, 1_000_000])
def test_J7_rows_beyond_memory_lie_in_files_without_a_name(tmp_path: Path, within_ms: int) -> None:
    """Whether they wait or may still find a match: memory has what it may, nothing is missing, and files go with their rows."""
    operator = JoinOperator(JoinSpec("j", "full", within_ms, within_ms, "r"), on_disk(tmp_path, 40_000))
    outs, most, disk = 0, 0, 0
    for first in range(0, 2_000, 100):
        ahead = 500 if within_ms == 5 else 0
        for side, shift in (("left", ahead), ("right", 0)):
            operator.on_batch(rows(*((n + shift, f"{n + shift}") for n in range(first, first + 100))), "rows", side)
        outs += sum(out.batch.num_rows for out in operator.on_watermark(first + 100))
        most, disk = max(most, operator.counters()["keptBytes"]), max(disk, operator.counters()["diskBytes"])
    outs += sum(out.batch.num_rows for out in operator.on_watermark(MAX_TIME))
    assert outs == (2_500 if within_ms == 5 else 2_000)
    assert most <= 40_000
    assert disk > 40_000
    assert not list(tmp_path.iterdir())
    counters = operator.counters()
    assert (counters["keptBytes"], counters["diskBytes"], counters["keys"]) == (0, 0, 0)


def test_J7_a_run_is_in_one_snapshot_and_in_no_later_one(tmp_path: Path) -> None:
    """Its rows are written once; a later snapshot has what was taken from it or has found a match (JR2), and runs of other rows (JR4)."""
    operator = JoinOperator(SPEC, on_disk(tmp_path, 20_000))
    operator.on_batch(rows(*((n, "a") for n in range(100, 200))), "rows", "left")
    first = operator.snapshot()
    assert [part for part, data in first.items() if data] == ["kg:3#0", "kg:3#1"], "on the disk, and in memory"
    operator.on_batch(rows((110, "b")), "rows", "right")
    operator.on_watermark(150)
    second = operator.snapshot()
    assert "kg:3" in second
    assert not {part for part, data in second.items() if data}.intersection(first)
    operator.on_watermark(MAX_TIME)
    gone = operator.snapshot()
    assert all(data is None for data in gone.values())
    left = {**first, **second}
    assert gone.keys() >= {part for part, data in left.items() if data is not None}


@pytest.mark.parametrize("memory_bytes", range(1_000, 40_000, 500))
def test_J7_rows_that_leave_memory_in_a_restore_are_in_the_next_snapshot(memory_bytes: int) -> None:
    """Snapshots of builds before runs have all rows beside them, and the room may have been larger: none is lost, however much leaves."""
    spec = JoinSpec("j", "full", 1_000, 1_000, "r")
    first = JoinOperator(spec)
    for group, side, begin, count in ((0, "left", 0, 20), (0, "right", 500, 18), (1, "right", 500, 60)):
        first.on_batch(rows(*((begin + n, f"{side} {group}") for n in range(count)), group=group), "rows", side)
    first.on_watermark(100)
    before = {part: join._CODEC.encode(stored) for part, stored in first._rows._hot(range(2)).items() if stored}
    context = TaskContext(join_bytes_max=memory_bytes, shelve=pa.RecordBatchReader.read_all)
    second, third = JoinOperator(spec, context), JoinOperator(spec, context)
    second.restore(dict(before))
    third.restore({part: data for part, data in {**before, **second.snapshot()}.items() if data is not None})
    assert sum(out.batch.num_rows for out in third.on_watermark(MAX_TIME)) == 20 + 18 + 60


def test_state_of_a_join_under_a_name_of_a_later_version_is_refused() -> None:
    """Who goes back to this one reads what to do."""
    operator = JoinOperator(JoinSpec("j", "inner", 1_000, 1_000, "r"))
    with pytest.raises(OperatorError, match="found kg:1#z1: a later version of Tidemark wrote it"):
        operator.restore({StatePart("kg:1#z1"): b""})


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_RS1_what_is_written_of_a_join_follows_what_came(kind: Any) -> None:
    """64 snapshots with 50 more rows a side, all of which may still match: a row is written a few times, and not with each."""
    operator = JoinOperator(JoinSpec("j", kind, 1_000_000, 1_000_000, "r"))
    written, came = [], 0
    for first in range(0, 64 * 50, 50):
        for side in ("left", "right"):
            operator.on_batch(rows(*((n, f"{side} {n % 7}") for n in range(first, first + 50))), "rows", side)
        operator.on_watermark(first + 50)
        written.append(sum(len(data) for data in operator.snapshot().values() if data))
        came = came or written[0]
    assert sum(written) < 8 * 64 * came


def test_J7_senders_ahead_wait_where_too_many_rows_do() -> None:
    """Rows that wait count, wherever they lie; applied rows do not, for no sender is the cause of them."""
    context = TaskContext(join_bytes_max=1, join_ahead_bytes_max=1_000, shelve=pa.RecordBatchReader.read_all)
    operator = JoinOperator(JoinSpec("j", "inner", 10_000, 10_000, "r"), context)
    operator.on_batch(rows(*((n, "a") for n in range(10))), "rows", "left")
    assert operator.full()
    again = JoinOperator(JoinSpec("j", "inner", 10_000, 10_000, "r"), context)
    again.restore({part: data for part, data in operator.snapshot().items() if data is not None})
    assert again.full()
    for each in (operator, again):
        each.on_watermark(8)
        assert not each.full()


def test_J7_a_disk_without_room_is_an_outage_that_says_what_to_do(tmp_path: Path) -> None:
    """A folder that cannot be made, as where the disk is full: the processor waits for its owner, and is not FAILED."""
    (tmp_path / "file").write_bytes(b"")
    operator = JoinOperator(SPEC, on_disk(tmp_path / "file" / "below", 1))
    with pytest.raises(
        ScratchUnavailable, match=r"state beyond memory, in .*see that the disk has room.*join_bytes_max"
    ):
        operator.on_batch(rows((1, "a"), (2, "b")), "rows", "left")


def test_C13_a_piece_brings_back_what_it_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows of each key on the disk, and many that match them: those of the first one are in memory, and not those of all."""
    sizes: list[int] = []

    class Seen(Slots):
        def lay(self, documents: pa.BinaryArray) -> Int64s:
            slots = super().lay(documents)
            sizes.append(self.size_bytes)
            return slots

    monkeypatch.setattr(join_rows, "Slots", Seen)
    operator = JoinOperator(JoinSpec("j", "inner", 1_000, 1_000, "r"), on_disk(tmp_path, 20_000))
    operator.on_batch(rows(*((n, f"{n % 3}") for n in range(600))), "rows", "left")
    operator.on_watermark(600)
    operator.on_batch(rows(*((600 + n, f"{n % 3}") for n in range(60))), "rows", "right")
    sizes.clear()
    pairs, unfinished = 0, True
    while unfinished:
        outs, unfinished = operator.on_watermark_piece(700, 100)
        pairs += sum(out.batch.num_rows for out in outs)
    assert pairs == 60 * 200
    assert max(sizes) < 20_000 + 250 * 300


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
    assert second.snapshot() == {f"{key_group_part(3)}#0": None}


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
