"""How far time had come at each vertex is in the mirror: an audit goes by it, does without it, and believes no more than records allow."""

import itertools
import logging
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.harness.audited import READINGS, Saved, Story, finished_run, run
from tidemark.services.audit.check import Audited, AuditFailed
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import run_virtual
from tidemark.shared.model.checkpoint import MirrorRow, VertexReached
from tidemark.shared.model.ids import JobId, VertexId
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_mirror_row, encode_message


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    out = tmp_path_factory.mktemp("reached")
    return run_virtual(lambda world: finished_run(world, out))


def _rows(told: Story) -> list[tuple[int, MirrorRow]]:
    records = told.records(Topics().commits(JobId(told.job)))
    return [(record.offset, decode_mirror_row(record.value or b"")) for record in records]


def _rewritten(told: Story, change: Callable[[MirrorRow], MirrorRow], first: int, last: int) -> None:
    for offset, row in _rows(told)[first:last]:
        told.rewrite(Topics().commits(JobId(told.job)), offset, encode_message(change(row)))


def test_a_commit_says_where_the_watermark_stood_at_each_vertex_in_front_of_the_sinks(saved: Saved) -> None:
    """It never falls, no vertex is ahead of those in front of it, and with the last commit all is over."""

    async def then(told: Story) -> None:
        found = [{each.vertex: each.watermark_ms for each in row.reached} for _, row in _rows(told)]
        source, distinct, window = (VertexId(name) for name in ("source-1", "distinct-1", "window-1"))
        assert all(each.keys() == {source, distinct, window} for each in found), found
        assert all(each[window] <= each[distinct] <= each[source] for each in found)
        assert all(a[source] <= b[source] for a, b in itertools.pairwise(found))
        assert set(found[-1].values()) == {MAX_TIME}
        assert len({each[window] for each in found}) > len(READINGS) // 100

    run(saved, then)


@pytest.mark.parametrize(("first", "last"), [(0, None), (0, 3), (3, 5)])
def test_rows_of_an_earlier_release_do_not_say_it(saved: Saved, first: int, last: int | None) -> None:
    """They are judged as ever, and so are those behind them; a leader of this release may have written one again, with it."""

    async def then(told: Story) -> Audited:
        rows = _rows(told)
        _rewritten(told, lambda row: replace(row, reached=()), first, last or len(rows))
        await told.append(Topics().commits(JobId(told.job)), encode_message(rows[first][1]))
        return await told.audit()

    found: Audited = run(saved, then)
    assert (found.unchecked, found.records) == ((), len(READINGS) + 15)


def test_a_watermark_that_no_record_can_have_brought_is_accused(saved: Saved) -> None:
    """A job that ran ahead of its records would have called rows late that were not."""

    async def then(told: Story) -> None:
        ahead = (VertexReached(VertexId("source-1"), 10**12), VertexReached(VertexId("window-1"), 10**12))
        _rewritten(told, lambda row: replace(row, reached=ahead), 2, 3)
        with pytest.raises(
            AuditFailed, match=r"window-1 is said to have been at watermark 10+ ms; the records .* allow \d+ ms"
        ):
            await told.audit()

    run(saved, then)
