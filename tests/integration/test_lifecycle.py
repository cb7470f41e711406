# ruff: noqa: N802 -- a test carries its rule's name
"""The life of a processor, by the real services on memory and virtual time: nothing is lost, repeated or forgotten by a change."""

import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.services.source import filesources
from tidemark.services.source.connectors.files import FileConnector
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import EdgeId, Offset, SplitId
from tidemark.shared.model.messages import ModifyProcessor
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.client import RequestRefused

Story = Callable[[Installed], Coroutine[Any, Any, None]]


def tell(story: Story) -> None:
    """Run a story on virtual time."""

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            await story(there)

    run_virtual(main)


class Feed:
    """A file that grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "in.json"
        self.path.write_text("")
        self.written = 0

    def add(self, second: int, count: int = 10) -> None:
        """So many events in this second of event time."""
        with self.path.open("a") as out:
            for _ in range(count):
                out.write(json.dumps({"t": 1_700_000_000_000 + second * 1000, "n": self.written}) + "\n")
                self.written += 1


WINDOW = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "second"},
        "allowedLateness": 0,
        "pipeline": [
            {"$group": {"_id": "all", "count": {"$sum": 1}}},
            {"$set": {"at": {"$meta": "stream.window.start"}}},
        ],
    }
}


def source(feed: Feed) -> dict[str, Any]:
    time = {"$toDate": {"$toLong": "$t"}}
    return {"$source": {"path": str(feed.path), "format": "json", "follow": True, "timeField": time}}


def emit(folder: Path) -> dict[str, Any]:
    return {"$emit": {"path": str(folder), "format": "json"}}


def pipeline(*stages: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": NAME,
        "pipeline": list(stages),
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


def test_a_stop_keeps_windows_open(tmp_path: Path) -> None:
    """A stop without drain closes no window; the start that follows counts what came before it and after it, once."""
    feed = Feed(tmp_path)

    async def story(there: Installed) -> None:
        await there.create(pipeline(source(feed), WINDOW, emit(tmp_path / "out")))
        await there.start()
        feed.add(1)
        await there.committed()
        assert (await there.stop()).state == "STOPPED"
        assert released(tmp_path / "out") == []
        feed.add(2)
        await there.start()
        await there.committed()
        assert (await there.stop(drain=True)).state == "FINISHED"
        assert [row["count"] for row in released(tmp_path / "out")] == [20]

    tell(story)


@pytest.mark.parametrize("lateness", ["merged", "split"])
@pytest.mark.parametrize("tasks", [1, 2])
def test_records_that_are_late_at_a_start_are_dead_letters(tmp_path: Path, lateness: str, tasks: int) -> None:
    """They come with the first records that a restored source reads, whose receivers have closed their windows."""
    feed, out, late = Feed(tmp_path), tmp_path / "out", tmp_path / "late"
    document = pipeline(source(feed), WINDOW, emit(out))
    document["options"] |= {"lateness": lateness, "dlq": {"path": str(late)}}

    async def story(there: Installed) -> None:
        feed.add(second=5)
        feed.add(second=25)
        await there.create(document)
        await there.start()
        await there.committed()
        await there.stop()
        feed.add(second=7, count=3)
        await there.client.request(ModifyProcessor(there.client.unique(), NAME, None, {"source": tasks}))
        await there.start()
        await there.committed()
        await there.stop(drain=True)

    tell(story)
    assert [row["count"] for row in released(out)] == [10, 10]
    assert [row["doc"]["n"] for row in released(late)] == [20, 21, 22]


def compute(name: str) -> dict[str, Any]:
    return {"$compute": {"class": f"tests.harness.computations:{name}", "key": "$_id", "order": "arrival"}}


def test_E3_a_computation_and_a_sink_join_and_leave_a_running_processor(tmp_path: Path) -> None:
    """Nothing is read again, no state is lost and nothing is written twice, whatever stands before and behind what stays (E3)."""
    feed = Feed(tmp_path)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))

    async def step(there: Installed, second_of_event: int) -> None:
        feed.add(second_of_event)
        await there.committed(3)

    async def story(there: Installed) -> None:
        plain = pipeline(source(feed), WINDOW, compute("Marks"), emit(first))
        await there.create(plain, operator=2)
        await there.start()
        for at in (1, 11, 21):
            await step(there, at)
        added = pipeline(
            source(feed), WINDOW, emit(second), compute("Adds"), compute("Marks"), emit(third), emit(first)
        )
        version = (await there.client.statuses())[NAME].plan_version
        await there.modify(added)
        status = await there.when(lambda s: s.plan_version == version + 1 and s.state == "RUNNING")
        assert {str(vertex) for vertex, _, _ in status.tasks} >= {
            "compute-1",
            "compute-2",
            "emit-1",
            "emit-2",
            "emit-3",
        }
        for at in (31, 41):
            await step(there, at)
        await there.modify(pipeline(source(feed), WINDOW, compute("Marks"), emit(third)))
        await there.when(lambda s: s.plan_version == version + 2 and s.state == "RUNNING")
        await step(there, 51)
        await there.stop(drain=True)

    tell(story)
    assert [(row["seen"], row["count"], row.get("added", False)) for row in released(first)] == [
        (1, 10, False),
        (2, 10, False),
        (3, 10, True),
        (4, 10, True),
    ]
    assert [row["count"] for row in released(second)] == [10, 10]
    assert [(row["seen"], row.get("added", False)) for row in released(third)] == [
        (3, True),
        (4, True),
        (5, False),
        (6, False),
    ]


def test_a_change_that_would_lose_state_is_refused_and_made_without_it(tmp_path: Path) -> None:
    """A stopped processor is not modified where its state would mean something else; without its state it is, as a new job."""
    feed = Feed(tmp_path)
    other = json.loads(json.dumps(WINDOW).replace('"size": 10', '"size": 20'))

    async def story(there: Installed) -> None:
        await there.create(pipeline(source(feed), WINDOW, emit(tmp_path / "out")))
        await there.start()
        feed.add(1)
        await there.committed()
        job = (await there.stop()).job
        changed = pipeline(source(feed), other, emit(tmp_path / "out"))
        with pytest.raises(RequestRefused, match=r"pipeline\[1\].*interval.*resumeFromCheckpoint"):
            await there.modify(changed)
        await there.modify(changed, resume=False)
        await there.start()
        status = await there.stop(drain=True)
        assert status.job != job
        assert [row["count"] for row in released(tmp_path / "out")] == [10]

    tell(story)


SUM = {"$group": {"_id": None, "count": {"$sum": 1}, "sum": {"$sum": "$n"}}}
TEN_TIMES = {"$addFields": {"n": {"$multiply": ["$n", 10]}}}


def summing(**options: Any) -> dict[str, Any]:
    window = {"interval": {"size": 10, "unit": "second"}, "allowedLateness": 0, "pipeline": [SUM]}
    return {"$tumblingWindow": {**window, **options}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([summing()], [TEN_TIMES, summing()]),
        ([TEN_TIMES, summing()], [summing()]),
        ([summing()], [summing(outputTime="latest")]),
    ],
    ids=["computes what was declared", "no longer computes it", "another output time"],
)
def test_a_change_that_open_windows_could_not_be_read_under_is_refused(
    before: list[Any], after: list[Any], tmp_path: Path
) -> None:
    """What windows hold is columns that the document decides: where others would be expected, the change is refused before it is made."""
    feed = Feed(tmp_path)
    declared = source(feed)
    declared["$source"]["schema"] = {"t": "long", "n": "int"}

    async def story(there: Installed) -> None:
        await there.create(pipeline(declared, *before, emit(tmp_path / "out")))
        await there.start()
        feed.add(1)
        await there.committed()
        await there.stop()
        with pytest.raises(RequestRefused, match=r"\$tumblingWindow: its open windows.*resumeFromCheckpoint"):
            await there.modify(pipeline(declared, *after, emit(tmp_path / "out")))
        await there.modify(pipeline(declared, {"$match": {"n": {"$ne": 15}}}, *before, emit(tmp_path / "out")))
        feed.add(2)
        await there.start()
        await there.stop(drain=True)
        assert [row["count"] for row in released(tmp_path / "out")] == [19]

    tell(story)


COUNT = {"$count": "count"}


@pytest.mark.parametrize(
    ("before", "refused", "why", "taken", "count"),
    [
        ([COUNT], [{"$limit": 30}], "there is no fields.*the new ones expect whole documents", [{"$skip": 1}, COUNT], 19),
        ([COUNT], [{"$sort": {"n": 1}}, COUNT], "the new ones expect the fields n;", [COUNT], 20),
        ([{"$limit": 15}, COUNT], [{"$limit": 16}, COUNT], "the first 15 records", [{"$limit": 12}, COUNT], 12),
        ([{"$limit": 15}, COUNT], [COUNT], "the first 15 records", [{"$skip": 2}, {"$limit": 13}, COUNT], 13),
    ],
    ids=["whole documents", "another field", "a larger limit", "no limit"],
)  # fmt: skip
def test_open_windows_have_no_more_of_their_records_than_the_stages_looked_at(
    before: list[Any], refused: list[Any], why: str, taken: list[Any], count: int, tmp_path: Path
) -> None:
    """A change that would need more is refused with what there is, and one that needs less goes on with it."""
    feed = Feed(tmp_path)

    def of(stages: list[Any]) -> dict[str, Any]:
        return pipeline(source(feed), summing(pipeline=stages), emit(tmp_path / "out"))

    async def story(there: Installed) -> None:
        await there.create(of(before))
        await there.start()
        feed.add(1)
        await there.committed()
        await there.stop()
        with pytest.raises(RequestRefused, match=rf"\$tumblingWindow: of.*{why}.*resumeFromCheckpoint"):
            await there.modify(of(refused))
        await there.modify(of(taken))
        feed.add(2)
        await there.start()
        await there.stop(drain=True)
        assert [row["count"] for row in released(tmp_path / "out")] == [count]

    tell(story)


def test_a_stopped_processor_goes_on_from_its_checkpoint_when_modified(tmp_path: Path) -> None:
    """What may change does, and the window that was open keeps what it had."""
    feed = Feed(tmp_path)

    async def story(there: Installed) -> None:
        await there.create(pipeline(source(feed), WINDOW, emit(tmp_path / "out")))
        await there.start()
        feed.add(1)
        await there.committed()
        await there.stop()
        await there.modify(pipeline(source(feed), {"$match": {"n": {"$gte": 15}}}, WINDOW, emit(tmp_path / "out")))
        feed.add(2)
        await there.start()
        await there.committed()
        await there.stop(drain=True)
        assert [row["count"] for row in released(tmp_path / "out")] == [15]

    tell(story)


def test_a_drop_leaves_nothing_behind(tmp_path: Path) -> None:
    """No topic, no blob and no row of a dropped processor stays; its name is free, and what it wrote stays."""
    feed = Feed(tmp_path)

    async def story(there: Installed) -> None:
        before = set(await there.outside.log.list_topics())
        await there.create(pipeline(source(feed), WINDOW, emit(tmp_path / "out")))
        await there.start()
        feed.add(1)
        await there.committed()
        with pytest.raises(RequestRefused, match="running: stop it"):
            await there.drop()
        job = (await there.stop(drain=True)).job
        await there.drop()
        assert set(await there.outside.log.list_topics()) == before
        assert [name for name in await there.blobs.list("") if name.startswith(job)] == []
        assert NAME not in await there.client.statuses()
        await there.outside.clock.sleep_ms(1_000)  # the row goes when the brokers have the answer
        assert there.store.rows == {}
        await there.create(pipeline(source(feed), WINDOW, emit(tmp_path / "again")))
        assert len(released(tmp_path / "out")) == 1

    tell(story)


def test_a_sample_shows_the_last_output_and_stats_count_it(tmp_path: Path) -> None:
    """A running processor shows what it writes, at most as many as asked; one that does not run refuses."""
    feed = Feed(tmp_path)

    async def story(there: Installed) -> None:
        await there.create(pipeline(source(feed), {"$project": {"n": 1, "_id": 0}}, emit(tmp_path / "out")))
        with pytest.raises(RequestRefused, match="CREATED: only a running"):
            await there.client.sample(NAME, 3, wait_ms=1_000)
        await there.start()
        feed.add(1)
        await there.committed(4)
        assert await there.client.sample(NAME, 3, wait_ms=1_000) == [{"n": 7}, {"n": 8}, {"n": 9}]
        async for beat in there.client.heartbeats():
            counters = {str(task.vertex): task.counters for task in beat.tasks}
            if "emit-1" in counters:
                assert counters["emit-1"]["inRows"] == 10
                break
        await there.stop(drain=True)

    tell(story)


def test_a_sample_of_an_edge_shows_what_goes_from_task_to_task(tmp_path: Path) -> None:
    """Rows with what their frames say of them, also of partial aggregates; where none come, that is said; an unknown edge is refused."""
    feed = Feed(tmp_path)

    async def story(there: Installed) -> None:
        await there.create(pipeline(source(feed), WINDOW, emit(tmp_path / "out")))
        await there.start()
        with pytest.raises(RequestRefused, match="no edge a>b; it has source-1>window-1, window-1>emit-1"):
            await there.client.sample_edge(NAME, EdgeId("a>b"), 3)
        none = await there.client.sample_edge(NAME, EdgeId("window-1>emit-1"), 3)
        assert (none.rows, none.troubles) == ([], ("emit-1/0: no rows came within 5 s",))
        feed.add(1)
        feed.add(2, count=5)
        (partial,) = (await there.client.sample_edge(NAME, EdgeId("source-1>window-1"), 3)).rows
        assert (partial["sender"], partial["partition"], partial["partial"]) == ("source-1/0", 0, True)
        assert partial["document"]["__ws"] == partial["eventTime"] == 1_700_000_000_000
        assert (partial["document"]["__id"], partial["document"]["__n"]) == ("all", 15)
        feed.add(30)
        feed.add(60)
        found = await there.client.sample_edge(NAME, EdgeId("window-1>emit-1"), 3)
        assert [(row["partial"], row["document"]["_id"], row["document"]["count"]) for row in found.rows] == [
            (False, "all", 15),
            (False, "all", 10),
        ]
        await there.committed(4)
        await there.stop(drain=True)

    tell(story)


def test_a_registered_connection_stands_in_for_one_in_the_document(tmp_path: Path) -> None:
    """A stage may name what the registry has; a name that nobody knows is refused at its place, with those that are known."""
    feed = Feed(tmp_path)
    sink = {"$emit": {"connectionName": "target", "path": "out", "format": "json"}}

    async def story(there: Installed) -> None:
        with pytest.raises(RequestRefused, match=r"pipeline\[1\]\.\$emit.*connectionName.*target"):
            await there.create(pipeline(source(feed), sink))
        value = {"type": "files", "path": str(tmp_path), "config": {"secret": "s3cr3t"}}
        await there.client.put_connection("target", value)
        await there.create(pipeline(source(feed), sink))
        await there.start()
        feed.add(1)
        await there.committed()
        await there.stop(drain=True)
        assert len(released(tmp_path / "out")) == 10
        shown = await there.client.connections()
        assert shown == {"target": {**value, "config": {"secret": "***"}}}
        await there.client.put_connection("target", None)
        assert await there.client.connections() == {}

    tell(story)


def test_lag_tools_are_told_of_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that can is told where committed checkpoints stand, under the processor's name, and never of an earlier one again."""
    feed = Feed(tmp_path)
    noted: list[tuple[str, int]] = []

    class Noting(FileConnector):  # a class of its own: whether one can be told is remembered of classes
        async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
            noted.append((group, sum(positions.values())))

    monkeypatch.setattr(filesources, "FileConnector", Noting)

    async def story(there: Installed) -> None:
        await there.create(pipeline(source(feed), emit(tmp_path / "out")))
        await there.start()
        feed.add(1)
        await there.committed(20)
        await there.stop()

    tell(story)
    assert {group for group, _ in noted} == {NAME}
    assert noted == sorted(noted)
    assert noted[-1][1] > 0


async def test_a_topic_is_told_by_partition() -> None:
    """What a Kafka source notes lies in the group by topic and partition, in the cluster of the source."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    reader = RawReader(KafkaSettings(bootstrap="nobody:1"))
    kafka = KafkaConnector(KafkaSourceSettings(topics=("a", "b")), log, reader, SystemClock())
    await kafka.note("p", {SplitId("a-0"): Offset(3), SplitId("b-12"): Offset(5)})
    await reader.close()
    assert log.broker.noted == {"p": {TopicPartition("a", 0): 3, TopicPartition("b", 12): 5}}
