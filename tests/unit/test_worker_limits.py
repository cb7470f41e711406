"""Settings of the source and operator services: each acts at its value, and what contradicts is refused at the start."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.opening import open_splits
from tests.harness.raw_log import LogRawReader
from tests.harness.source_stand import SourceStand, feed
from tests.harness.worker_stand import JOB
from tidemark.services.operator.body import OperatorBody
from tidemark.services.operator.settings import OperatorSettings, operator_settings
from tidemark.services.operator.users import UsersCode
from tidemark.services.source.filesources import file_source
from tidemark.services.source.settings import SourceSettings, source_settings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import FileSource
from tidemark.shared.model.frames import Inline
from tidemark.shared.model.ids import Epoch
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.build import OperatorChain
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.operators.specs import JoinSpec
from tidemark.shared.ports.log import LogError
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.arrow import encode_batch


def settings(extra: dict[str, Any]) -> ProcessSettings:
    """Of a process with this TIDEMARK_EXTRA."""
    return ProcessSettings(kafka="k:1", blobs="b", store="", place="x-0", extra=extra)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"files_max": 0}, "TIDEMARK_EXTRA: source setting files_max: expected a positive number, found 0"),
        ({"splits_max": "soon"}, r"TIDEMARK_EXTRA: Expected `int`, got `str` - at `\$.splits_max`"),
    ],
    ids=str,
)
def test_wrong_settings_of_sources_are_refused_at_the_start(extra: dict[str, Any], said: str) -> None:
    """The message names the setting, what is expected and what was found; what is another service's is left alone."""
    assert source_settings(settings({"splits_max": 3, "master": "x"})) == SourceSettings(splits_max=3)
    with pytest.raises(ProcessSettingsError, match=said):
        source_settings(settings(extra))


def test_wrong_settings_of_operators_are_refused_at_the_start() -> None:
    """As those of sources."""
    assert operator_settings(settings({"scratch": "/x", "call_ms_max": 7})) == OperatorSettings(
        scratch="/x", call_ms_max=7
    )
    with pytest.raises(ProcessSettingsError, match="operator setting call_ms_max: expected a positive number, found 0"):
        operator_settings(settings({"call_ms_max": 0}))


def test_W4_an_answer_is_young_for_longer_than_a_broker_may_take_to_give_one() -> None:  # noqa: N802
    """Said where a connection is opened, with both names."""
    SourceSettings(answer_age_ms_max=101).check_answers(100, "c")
    with pytest.raises(ValueError, match=r"answer_age_ms_max=100 must be above fetch_wait_ms=100 of connection 'c'"):
        SourceSettings(answer_age_ms_max=100).check_answers(100, "c")


# --- sources ----------------------------------------------------------------------------------------------------------


async def stand_of(partitions: int, **bounds: int) -> tuple[MemoryLog, SourceStand]:
    """A task on a topic in memory."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("in", partitions)
    return log, await SourceStand(log, LogRawReader(log), "in", bounds=SourceSettings(**bounds)).open()


async def test_so_many_splits_are_told() -> None:
    """A heartbeat speaks of as many as the setting says, those first that hold the watermark back."""
    log, stand = await stand_of(3, told_splits_max=2)
    await feed(log, "in", 0, 9)
    await feed(log, "in", 1, 5)
    await feed(log, "in", 2, 7)
    while stand.watermark() != 5:
        await stand.take(10)
    assert list(stand.body.details()) == ["split:in-1", "split:in-2"]


async def test_positions_of_so_many_checkpoints_are_known() -> None:
    """The oldest give way: nobody asks for them any more."""
    _, stand = await stand_of(1, noted_checkpoints_max=2)
    for epoch in range(1, 5):
        await stand.body.copy(Epoch(epoch), Epoch(0))
    assert sorted(stand.body.input._positions) == [3, 4]


@pytest.mark.parametrize(("beside_ms", "in_loop"), [(1, False), (1_000, True)])
async def test_what_takes_longer_than_the_setting_says_is_worked_on_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, beside_ms: int, in_loop: bool
) -> None:
    """Going by the batch before, here 50 ms."""
    log, stand = await stand_of(1, beside_ms=beside_ms)
    threads: list[int] = []
    on_records = SourceFront.on_records

    def noted(front: SourceFront, *records: Any, **how: Any) -> list[Out]:
        threads.append(threading.get_ident())
        stand.clock.at_ms += 50
        return on_records(front, *records, **how)

    monkeypatch.setattr(SourceFront, "on_records", noted)
    for _ in range(2):
        await feed(log, "in", 0, 1, 2, 3)
        assert await stand.take() == [1, 2, 3]
    assert (threads[1] == threading.get_ident()) == in_loop


async def test_bounds_of_files_reach_their_source(tmp_path: Path) -> None:
    """More files than are allowed are refused with the setting's name; a line longer than the document allows, with the option's."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text('{"a": "' + "x" * 2_000 + '"}\n')
    document = {
        "pipeline": [{"$source": {"path": f"{tmp_path}/*.json", "format": "json", "ordered": False}}],
        "options": {"limits": {"recordBytes": 1_024}},
    }
    processor = parse(document)
    stage = processor.source
    assert isinstance(stage, FileSource)
    outside: Any = SimpleNamespace(executor=AsyncExecutor(), clock=SystemClock())
    made = await file_source(Connections("x"), outside, processor, stage, SourceSettings(files_max=1))
    with pytest.raises(LogError, match="2 files match, but files_max is 1"):
        await made.splits()
    made = await file_source(Connections("x"), outside, processor, stage)
    await open_splits(made)
    with pytest.raises(LogError, match=r"options\.limits\.recordBytes"):
        await made.fetch(512, 0)


# --- operators --------------------------------------------------------------------------------------------------------


class Threads:
    """A chain of nothing that may take long: notes on which thread it is worked on."""

    operators = ()

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_batch(self, batch: pa.RecordBatch, content: str, tag: str) -> Sequence[Out]:
        """Nothing comes of it."""
        del batch, content, tag
        self.seen.append(threading.get_ident())
        return ()

    def holds(self) -> Sequence[Any]:
        """None."""
        return ()


def body_of(chain: Any, bounds: OperatorSettings, key_by: Any = None) -> OperatorBody:
    """A task of one."""
    plan = SimpleNamespace(tasks={"v": 1}, key_groups=1)
    assign = SimpleNamespace(job=JOB, vertex="v", index=0, plan=plan, handles=())
    outside = SimpleNamespace(blobs=None, executor=AsyncExecutor(), clock=SystemClock(), settings=RuntimeSettings())
    context: Any = SimpleNamespace(outside=outside, assign=assign)
    return OperatorBody(context, chain, key_by, settings=bounds)


@pytest.mark.parametrize(("beside_rows", "in_loop"), [(2, False), (3, True)])
async def test_so_many_rows_are_worked_on_beside_the_loop(beside_rows: int, in_loop: bool) -> None:
    """A batch of two rows, at the setting and below it: by the chain, and by the KeyBy in front of it."""
    rows = encode_batch(pa.RecordBatch.from_pydict({"a": [1, 2]}))
    for keyed in (False, True):
        asked: Any = Threads()
        body = body_of(
            Threads() if keyed else asked, OperatorSettings(beside_rows=beside_rows), asked if keyed else None
        )
        await body.apply("", [Inline("rows", 2, rows)])
        assert (asked.seen == [threading.get_ident()]) == in_loop


async def test_a_stop_waits_so_long_for_a_call_and_no_longer() -> None:
    """A call that does not end holds no task for ever; the store that it may be reading is left open."""

    class Endless(JoinOperator):
        began = threading.Event()
        went_on = threading.Event()

        def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
            self.began.set()
            self.went_on.wait(30)
            return super().on_watermark_piece(watermark_ms, items_max)

    closed: list[bool] = []
    body = body_of(
        OperatorChain((Endless(JoinSpec("pipeline[1].$join", "inner", 0, 0, "right")),)),
        OperatorSettings(close_wait_ms=1),
    )
    stores: Any = SimpleNamespace(close=lambda: closed.append(True))
    body._users = UsersCode(stores=stores)
    working = asyncio.ensure_future(body.advance(10))
    assert await asyncio.to_thread(Endless.began.wait, 30)
    await body.close()
    assert not closed
    Endless.went_on.set()
    await working
    await body.close()
    assert closed
