# ruff: noqa: N802 -- a test carries its rule's name
"""What every sink must keep, whatever it writes to (protocol, section 6)."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.sinks_targets import (
    AvroWorld,
    FilesWorld,
    HttpsWorld,
    KafkaWorld,
    MemoryWorld,
    MongoWorld,
    ObjectsWorld,
    PluginWorld,
    ProtobufWorld,
    SqlWorld,
)
from tests.harness.mongodb.servers import Servers
from tests.harness.share import share
from tidemark.services.library.release_world import (
    IDENTITY,
    JOB,
    PHASES,
    Target,
    Task,
    World,
    batch_of,
    row_of,
    story_of_two_crashes,
)
from tidemark.services.sink.connectors.staging import decode_handle
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.ids import Epoch, VertexId
from tidemark.shared.ports.sink import Identity, MarkerAhead, ReleaseGap, TargetRefused

TARGETS: dict[str, Callable[[Path], Target]] = {
    "memory": lambda _: MemoryWorld(),
    "parquet": lambda path: FilesWorld(path, "parquet"),
    "parquet-by-even": lambda path: FilesWorld(path, "parquet", partition_by=("even",)),
    "iceberg": lambda path: FilesWorld(path, "iceberg", partition_by=("even",)),
    "json": lambda path: FilesWorld(path, "json"),
    "json-listed": lambda path: FilesWorld(path, "json", handle_bytes_max=1),
    "csv": lambda path: FilesWorld(path, "csv"),
    "objects": lambda _: ObjectsWorld(),
    "kafka": lambda _: KafkaWorld(),
    "kafka-avro": lambda _: AvroWorld(),
    "kafka-protobuf": lambda _: ProtobufWorld(),
    "https": lambda _: HttpsWorld(),
    "plugin": PluginWorld,
    # Inserting what is there would fail: so a row released twice is an error, not an invisible update.
    "sqlite": lambda path: SqlWorld(f"sqlite:///{path}/t.db", when_matched="fail"),
    "sqlite-merge": lambda path: SqlWorld(f"sqlite:///{path}/t.db"),
}
VARIANTS = frozenset({"parquet-by-even", "json-listed", "csv", "kafka-avro", "kafka-protobuf", "sqlite-merge"})
"""Release as another target does, and differ in what a row becomes: in CI they go through a smaller share of the orders of crashes."""
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
MONGODB = [pytest.param(f"mongodb-{kind}", marks=pytest.mark.mongodb) for kind in ("alone", "replicas")]


EVERY = [*map(pytest.param, TARGETS), POSTGRES, *MONGODB]
CRASHES = list(itertools.product(PHASES, PHASES, ("killed", "zombie")))
# Each phase is there as the first and as the second, with and without the old object going on.
ORDERS = [
    pytest.param(*target.values, *crashes, marks=target.marks)
    for target in EVERY
    for crashes in share(CRASHES, 10 if target.values[0] in VARIANTS else 6)
]


@pytest.fixture(params=EVERY)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param.startswith("mongodb"):
        servers: Servers = request.getfixturevalue("mongodb_servers")
        # A server without transactions takes no `fail`: there a row released twice would be an invisible update.
        alone = request.param == "mongodb-alone"
        collection = MongoWorld(servers.alone if alone else servers.replicas, when_matched="merge" if alone else "fail")
        yield collection
        collection.close()
        return
    if request.param != "postgres":
        yield TARGETS[request.param](tmp_path)
        return
    url: str = request.getfixturevalue("postgres_url")
    world = SqlWorld(url.replace("postgresql://", "postgresql+psycopg://"), when_matched="fail")
    yield world
    world.engine.dispose()


@pytest.mark.parametrize(("target", "first", "second", "old"), ORDERS, indirect=["target"])
async def test_exactly_once_whatever_the_order_of_crashes(target: Target, first: str, second: str, old: str) -> None:
    """Two crashes, each between any two phases, with or without the old object going on: all that is committed is visible once."""
    await story_of_two_crashes(target, first, second, zombies=old == "zombie")


async def test_S2_staged_output_is_not_visible(target: Target) -> None:
    """What is staged, but not released, is seen by no reader."""
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.accept()
    await task.stage()
    assert await target.visible() == []


async def test_S2_release_is_idempotent(target: Target) -> None:
    """Releasing a commit again, by the same object or a later one, changes nothing."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await task.sink.release(*world.commits[0])
    later = target.sink()
    assert await later.open(IDENTITY, world.last) == world.last
    await later.release(*world.commits[0])
    await world.complete()


async def test_S2_a_gap_is_refused(target: Target) -> None:
    """A commit whose predecessor is not released yet is not released."""
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(2):
        await task.accept()
        await task.stage()
        await task.commit()
    with pytest.raises(ReleaseGap, match=r"marker .* is 0, but commit 2 follows 1"):
        await task.sink.release(*world.commits[1])
    assert await target.visible() == []
    await task.release()
    await world.complete()


async def test_S2_a_marker_ahead_of_the_restored_checkpoint_is_refused_with_both_numbers(target: Target) -> None:
    """Restoring an older checkpoint than what is released is refused at open; nothing is written."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await task.epoch()
    with pytest.raises(MarkerAhead, match=r"checkpoint 2, but checkpoint 1 is being restored"):
        await target.sink().open(IDENTITY, Epoch(1))
    await world.complete()


async def test_S2_a_commit_of_another_history_is_refused(target: Target) -> None:
    """A commit whose predecessor lies below the marker, while itself lies above, is of another history."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await task.epoch()
    with pytest.raises(MarkerAhead, match=r"marker .* is 2, but commit 3 follows 1"):
        await task.sink.release(row_of(3, 1, b""), b"")
    await world.complete()


async def test_S2_empty_epochs_move_the_marker(target: Target) -> None:
    """An epoch without rows has an empty handle and is released like any other."""
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(3):
        await task.stage()
        assert task.staged is not None
        assert task.staged[1] == b""
        await task.commit()
        await task.release()
    later = Task(world)
    await later.start()
    assert later.marker == 3
    await later.epoch()
    await world.complete()


async def test_C5_an_aborted_epochs_output_is_released_with_the_next_commit(target: Target) -> None:
    """A handle covers all that was staged after the checkpoint that is named as committed, and nothing before it."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await task.accept()
    await task.stage()  # aborted
    await task.accept()
    await task.stage()  # aborted
    await task.accept()
    await task.stage()
    await task.commit()
    await task.release()
    await world.complete()
    await task.epoch()
    await world.complete()
    assert world.committed_rows == 5 * 3


async def test_S2_a_new_identity_begins_at_what_was_restored(target: Target) -> None:
    """An identity without a marker gets marker `restored_from`; its first release follows it."""
    sink = target.sink()
    identity = Identity(JOB, VertexId("emit"), 7)
    assert await sink.open(identity, Epoch(4), joins=True) == 4
    await sink.accept(batch_of([1, 2]))
    staged = await sink.stage(Epoch(5), Epoch(4))
    await sink.release(row_of(5, 4, staged, identity=identity), staged)
    assert sorted(await target.visible()) == [1, 2]
    assert await target.sink().open(identity, Epoch(5)) == 5


async def test_S2_a_marker_that_is_gone_is_not_guessed(target: Target) -> None:
    """An identity of the generation before has a marker: without it nobody knows what is released, and nothing is."""
    with pytest.raises(TargetRefused, match=r"marker of .* is gone, and checkpoint 4 is being restored"):
        await target.sink().open(IDENTITY, Epoch(4))
    assert await target.sink().open(IDENTITY, Epoch(0)) == 0


async def test_S2_a_retired_identity_that_joins_again_begins_at_what_was_restored(target: Target) -> None:
    """A marker left behind by a retired identity is raised when it joins; without that it stays, and its commits are awaited."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await sink.release(row_of(1, 0, b""), b"")
    assert await target.sink().open(IDENTITY, Epoch(9)) == 1
    assert await target.sink().open(IDENTITY, Epoch(9), joins=True) == 9
    assert await target.sink().open(IDENTITY, Epoch(9)) == 9


async def test_S1_identities_have_markers_of_their_own(target: Target) -> None:
    """What one identity releases moves no other's marker, and one's staged output is not another's."""
    sinks = []
    for index in range(2):
        identity = Identity(JOB, VertexId("emit"), index)
        sink = target.sink()
        await sink.open(identity, Epoch(0))
        await sink.accept(batch_of([index]))
        sinks.append((identity, sink, await sink.stage(Epoch(1), Epoch(0))))
    identity, sink, staged = sinks[1]
    await sink.release(row_of(1, 0, staged, identity=identity), staged)
    await sinks[0][1].close()  # what it has written ahead would hide the other's records for a while
    assert await target.visible() == [1]
    assert await target.sink().open(sinks[0][0], Epoch(1)) == 0


async def test_S3_S4_what_exceeds_the_buffer_is_spilled_and_released_whole(target: Target) -> None:
    """Many batches in one epoch, more than the buffer holds, come out complete."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    for start in range(0, 500, 25):
        assert not await sink.accept(batch_of(range(start, start + 25)))
    staged = await sink.stage(Epoch(1), Epoch(0))
    assert decode_handle(staged)
    await sink.release(row_of(1, 0, staged), staged)
    assert sorted(await target.visible()) == list(range(500))


async def test_a_release_and_what_follows_it_go_on_side_by_side(target: Target) -> None:
    """Epochs are accepted and staged while earlier commits are released, on threads of their own where they block."""
    world = World(target)
    if hasattr(target, "executor"):
        target.executor = AsyncExecutor()
    task = Task(world)
    await task.start()
    await task.accept()
    await task.stage()
    for _ in range(12):
        await task.commit()
        releasing = asyncio.ensure_future(task.release())
        await task.accept()
        await task.accept()
        await task.stage()
        await releasing
        await world.check()
    await task.commit()
    await task.release()
    await world.complete()


async def test_another_jobs_commit_is_our_own_mistake(target: Target) -> None:
    """A commit of another job never reaches a sink: the driver filters; if it does, it is refused as a bug."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    other = Identity(VertexId("x" * 32), IDENTITY.vertex, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="of job"):
        await sink.release(row_of(1, 0, b"", identity=other), b"")


async def test_what_was_committed_by_someone_else_is_refused_not_guessed(target: Target) -> None:
    """A handle that does not decode is a permanent refusal."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    with pytest.raises(TargetRefused, match="handle"):
        await sink.release(row_of(1, 0, b"\xc1"), b"\xc1")
    assert await target.visible() == []


async def test_S6_a_skip_of_what_nobody_refuses_is_a_release(target: Target) -> None:
    """A user's order passes over what is refused, and nothing else; a repeat changes nothing, and the next commit follows."""
    world = World(target)
    task = Task(world)
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    assert await task.sink.skip(*world.commits[0]) == 0
    await world.complete()
    assert await task.sink.skip(*world.commits[0]) == 0
    task.marker = world.last
    await task.epoch()
    await world.complete()


async def test_S6_a_skip_keeps_the_order_of_commits(target: Target) -> None:
    """Not even by order is a commit released before its predecessor."""
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(2):
        await task.accept()
        await task.stage()
        await task.commit()
    with pytest.raises(ReleaseGap):
        await task.sink.skip(*world.commits[1])
    assert await target.visible() == []
