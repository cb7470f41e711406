# ruff: noqa: N802 -- a test carries its rule's name
"""Change streams of MongoDB, against a scripted replica set: each event once, in the order of the oplog, from any position."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from bson import DatetimeMS, ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import common

from tests.harness.mongodb.stand import STAGE, Stand, documents, events, piece, said, stands
from tests.harness.mongodb.story import STEPS, Story
from tests.harness.mongodb.streaming import Entry, StreamingServer, token_of
from tests.harness.source_stand import IDLE_MS, SourceStand
from tests.property.language_strategies import VALUES
from tidemark.services.source.connectors.changestream import SPLIT, ChangeStream, StreamRefused
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.mongodb import to_bson
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import Offset, StatePart
from tidemark.shared.model.values import Date, Document, Timestamp
from tidemark.shared.ports.log import LogDenied, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver waits half a second before it looks for a server again."""
    monkeypatch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.001)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    await made.server.start()
    yield made
    await made.close()


# --- what comes ---------------------------------------------------------------------------------------------------------------


async def test_events_come_as_the_server_has_them(stand: Stand) -> None:
    """All fields with their types; the time of a record is the server's wall clock."""
    source = await stand.begun()
    stand.server.transaction("d", "c", ("insert", 1, {"n": 1}), ("update", 1, {"n": 2}), ("delete", 1, None))
    batches = await piece(source)
    first, second, third = documents(batches)
    time = stand.server.now
    assert first["_id"] == token_of(time, 0)
    assert first["clusterTime"] == Timestamp(*time)
    assert first["wallTime"] == Date(batches[0].timestamps_ms[0])
    assert (first["ns"], first["fullDocument"]) == ({"db": "d", "coll": "c"}, {"_id": 1, "n": 1})
    assert "fullDocument" not in second
    assert second["updateDescription"]["updatedFields"] == {"n": 2}
    assert said([third]) == [("delete", 1)]


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_values_keep_their_types(trees: list[Any]) -> None:
    """Any values of a document are those that were written."""

    async def story() -> None:
        stand = Stand()
        await stand.server.start()
        source = await stand.begun(full_document_only=True)
        for key, tree in enumerate(trees):
            stand.server.insert("d", "c", key, tree=to_bson(tree))
        found = await events(source)
        await stand.close()
        assert [repr(event["tree"]) for event in found] == [repr(tree) for tree in trees]

    asyncio.run(story())


SCOPES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a collection": ({"coll": ("c",)}, ["d.c"]),
    "a list": ({"coll": ("c", "e")}, ["d.c", "d.e"]),
    "a database": ({"coll": ()}, ["d.c", "d.e", "d.other"]),
    "a cluster": ({"db": None, "coll": ()}, ["d.c", "d.e", "d.other", "x.c"]),
}


@pytest.mark.parametrize("scope", list(SCOPES))
async def test_a_scope_has_its_collections_and_no_others(stand: Stand, scope: str) -> None:
    """Also across a restart."""
    options, names = SCOPES[scope]
    source = await stand.begun(**options)
    for key in range(2):
        for db, coll in (("d", "c"), ("d", "e"), ("d", "other"), ("x", "c")):
            stand.server.insert(db, coll, key)
    found = await events(source)
    assert [f"{each['ns']['db']}.{each['ns']['coll']}" for each in found] == 2 * names
    again = await stand.resumed(*stands(source), **options)
    stand.server.insert("d", "c", 2)
    assert said(await events(again)) == [("insert", 2)]


async def test_a_list_tells_what_becomes_of_its_collections(stand: Stand) -> None:
    """A collection is dropped, made anew and renamed away: all is told, and the others go on."""
    source = await stand.begun(coll=("c", "e"))
    stand.server.insert("d", "c", 1)
    stand.server.drop("d", "c")
    stand.server.insert("d", "c", 2)
    stand.server.rename("d", "c", "gone")
    stand.server.insert("d", "gone", 3)
    stand.server.insert("d", "e", 4)
    assert said(await events(source)) == [("insert", 1), ("drop", None), ("insert", 2), ("rename", None), ("insert", 4)]


@pytest.mark.parametrize("asked", ["updateLookup", "required", "whenAvailable"])
async def test_full_documents_and_images(stand: Stand, asked: str) -> None:
    """An update has the document as it is now, or its image; the image in front of a change where it is asked for."""
    source = await stand.begun(full_document=asked, full_document_before_change="whenAvailable")
    stand.server.insert("d", "c", 1, n=1)
    stand.server.update("d", "c", 1, n=2)
    stand.server.update("d", "c", 1, n=3)
    _, second, third = await events(source)
    assert second["fullDocument"]["n"] == (3 if asked == "updateLookup" else 2)
    assert third["fullDocumentBeforeChange"]["n"] == 2


@pytest.mark.parametrize("option", ["full_document", "full_document_before_change"])
async def test_an_image_that_is_required_and_lacks_is_lasting(stand: Stand, option: str) -> None:
    """The processor fails at once, and the words say what to set."""
    stand.server.images = False
    source = await stand.begun(**{option: "required"})
    stand.server.insert("d", "c", 1)
    stand.server.update("d", "c", 1, n=1)
    with pytest.raises(StreamRefused, match="changeStreamPreAndPostImages"):
        await events(source)


async def test_full_documents_alone_and_letters_for_what_has_none(stand: Stand) -> None:
    """A deletion has no fullDocument: it is no record, and its reason and event are told."""
    source = await stand.begun(full_document="updateLookup", full_document_only=True)
    stand.server.transaction("d", "c", ("insert", 1, {"n": 1}), ("update", 1, {"n": 2}), ("delete", 1, None))
    (batch,) = await piece(source)
    found = documents([batch])
    assert found[0] == {"_id": 1, "n": 1}
    assert batch.unread.keys() == {1, 2}  # by now there is no document that an update could be looked up in
    assert "the event (delete) has no fullDocument" in batch.unread[2]
    assert said(found[2:]) == [("delete", 1)]


async def test_the_server_carries_out_the_documents_stages(stand: Stand) -> None:
    """What they leave out is no event; what they take away is not there."""
    stages = ({"$match": {"operationType": {"$ne": "delete"}}}, {"$unset": "updateDescription"})
    source = await stand.begun(server_stages=stages)
    stand.server.transaction("d", "c", ("insert", 1, {"n": 1}), ("update", 1, {"n": 2}), ("delete", 1, None))
    found = await events(source)
    assert said(found) == [("insert", 1), ("update", 1)]
    assert "updateDescription" not in found[1]


# --- where it begins and goes on ----------------------------------------------------------------------------------------------


async def test_I1_now_is_one_place(stand: Stand) -> None:
    """Decided at the first look: whichever source begins there, and whenever, reads what came behind that look."""
    stand.server.insert("d", "c", 0)
    first = await stand.begun()
    stand.server.insert("d", "c", 1)
    second = await stand.source()
    assert await second.found([SPLIT], first=True) != stand.known
    stand.server.insert("d", "c", 2)
    assert said(await events(first)) == [("insert", 1), ("insert", 2)]
    again = await stand.resumed(stand.known[SPLIT].begin, {})
    assert said(await events(again)) == [("insert", 1), ("insert", 2)]


async def test_I1_now_in_a_second_of_a_million_operations(stand: Stand) -> None:
    """A first position has room for 20 bits of an increment: the last such place is taken, so nothing that follows is lost."""
    second = stand.server.now[0]
    stand.server.entries.append(Entry((second, 1 << 20)))
    source = await stand.begun()
    assert stand.known[SPLIT].begin == (second + 1 << 20) - 1 < 1 << 52
    stand.server._clock = second, 1 << 20
    stand.server.insert("d", "c", 1)
    assert said(await events(source)) == [("insert", 1)]


@pytest.mark.parametrize("place", ["token", "time"])
async def test_a_beginning_that_the_document_names(stand: Stand, place: str) -> None:
    """Behind a token, or with a time's own events; a restart in front of the first event begins there again."""
    for key in range(3):
        stand.server.insert("d", "c", key)
    second = stand.server.entries[1].time
    named: dict[str, Any] = (
        {"start_after": token_of(second, 0)} if place == "token" else {"start_at_operation_time": Timestamp(*second)}
    )
    source = await stand.begun(**named)
    position, origins = stands(source)
    wanted = [("insert", key) for key in ([2] if place == "token" else [1, 2])]
    assert said(await events(source)) == wanted
    assert said(await events(await stand.resumed(position, origins, **named))) == wanted


async def test_a_silent_stream_follows_the_oplog(stand: Stand) -> None:
    """Others write and the oplog forgets: a snapshot of a collection that nobody writes has a place that is still there."""
    source = await stand.begun()
    await events(source)
    first, _ = stands(source)
    for key in range(3):
        stand.server.noop(20)
        stand.server.insert("d", "other", key)
    await events(source)
    position, origins = stands(source)
    assert position > first
    stand.server.forget(stand.server.entries[-2].time)
    again = await stand.resumed(position, origins)
    stand.server.insert("d", "c", 1)
    assert said(await events(again)) == [("insert", 1)]


async def test_a_read_waits_for_nothing_once_it_has_events(stand: Stand) -> None:
    """The events of an answer are given out without another question: it would wait for the next event."""
    source = await stand.begun(max_await_ms=60_000)
    await events(source)
    stand.server.asked.clear()
    stand.server.insert("d", "c", 1)
    assert said(documents(await piece(source))) == [("insert", 1)]
    assert stand.server.asked == ["getMore"]


# --- how it ends --------------------------------------------------------------------------------------------------------------


def _drop(server: StreamingServer) -> None:
    server.drop("d", "c")


def _rename(server: StreamingServer) -> None:
    server.rename("d", "c", "old")


def _drop_database(server: StreamingServer) -> None:
    server.drop_database("d")


@pytest.mark.parametrize("end", [_drop, _rename, _drop_database])
@pytest.mark.parametrize("shown", [True, False])
async def test_a_stream_that_ends_is_told_once_a_checkpoint_has_all(stand: Stand, end: Any, shown: bool) -> None:
    """Its events come first, and wait for their checkpoint; then, and after each restore, the error says how to go on. That goes on."""
    coll = () if end is _drop_database else ("c",)
    stages = () if shown else ({"$match": {"operationType": {"$in": ["insert"]}}},)
    source = await stand.begun(coll=coll, server_stages=stages)
    stand.server.insert("d", "c", 1)
    end(stand.server)
    stand.server.insert("d", "c", 2)
    found = said(await events(source))
    assert found[0] == ("insert", 1)
    assert (found[-1] == ("invalidate", None)) == shown
    assert await source.fetch(1000, 1) == []
    position, origins = stands(source)
    await source.note("g", {SPLIT: position})
    again = await stand.resumed(position, origins, coll=coll, server_stages=stages)
    with pytest.raises(SourceReplaced, match="was dropped or renamed"):
        await source.fetch(1000, 1)
    with pytest.raises(SourceReplaced, match="was dropped or renamed") as caught:
        await again.fetch(1000, 1)
    named = parse_json(str(caught.value).partition("startAfter: ")[2].partition("};")[0].encode())
    new = await stand.begun(coll=coll, server_stages=stages, start_after=named)
    assert said(await events(new)) == [("insert", 2)]


async def test_I3_a_drain_ends_at_the_servers_time(stand: Stand) -> None:
    """What came behind it is not read, by later sources neither; a silent stream ends, too."""
    source = await stand.begun()
    stand.server.insert("d", "c", 1)
    stand.server.insert("d", "other", 1)
    ends = await source.ends({SPLIT: stands(source)[0]})
    end = ends[SPLIT]
    assert end is not None
    stand.server.transaction("d", "c", ("insert", 2, None), ("insert", 3, None))
    for each in (source, await stand.resumed(stand.known[SPLIT].begin, {})):
        each.end_at({SPLIT: end})
        found: list[Document] = []
        while not each.status()[0].finished:
            found += documents(await piece(each))
        assert said(found) == [("insert", 1)]
        assert each.status()[0].next_position == end


async def test_I3_a_silent_stream_ends_with_a_drain(stand: Stand) -> None:
    """An empty answer says that nothing comes in front of the end."""
    source = await stand.begun(coll=("nothing",))
    stand.server.insert("d", "c", 1)
    end = (await source.ends({SPLIT: Offset(0)}))[SPLIT]
    assert end is not None
    source.end_at({SPLIT: end})
    assert await events(source) == []
    assert source.status()[0].finished


async def test_I3_shards_end_with_a_drain_once_all_are_behind_it(stand: Stand) -> None:
    """An empty answer with the time of the end itself says nothing of a shard that may have an event of that time yet."""
    stand.server.sharded, stand.server.replica_set = True, None
    source = await stand.source(url=stand.server.url.partition("?")[0])
    known = await source.found([SPLIT], first=True)
    assert known[SPLIT].origin == f"shards/{stand.server.identity}"
    await source.open({SPLIT: known[SPLIT].begin})
    stand.server.insert("d", "other", 1)
    end = (await source.ends({SPLIT: Offset(0)}))[SPLIT]
    assert end is not None
    source.end_at({SPLIT: end})
    assert await piece(source) == []
    assert not source.status()[0].finished
    stand.server.noop()
    assert await piece(source) == []
    assert source.status()[0].finished


async def test_I3_a_drain_of_a_stream_that_has_ended(stand: Stand) -> None:
    """There is nothing more to read: it is finished."""
    source = await stand.begun()
    stand.server.insert("d", "c", 1)
    stand.server.drop("d", "c")
    await events(source)
    end = (await source.ends({SPLIT: Offset(0)}))[SPLIT]
    assert end is not None
    source.end_at({SPLIT: end})
    assert [(s.next_position, s.finished) for s in source.status()] == [(end, True)]
    other = await stand.resumed(stand.known[SPLIT].begin, {})
    other.end_at({SPLIT: end})
    assert said(await events(other)) == [("insert", 1), ("drop", None), ("invalidate", None)]
    assert other.status()[0].finished


# --- what breaks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [286, 280, 260])
async def test_a_history_that_is_lost_is_lasting(stand: Stand, code: int) -> None:
    """Nothing is passed over: the processor fails, and the words say what a user may order."""
    source = await stand.begun()
    stand.server.insert("d", "c", 1)
    await events(source)
    position, origins = stands(source)
    stand.server.insert("d", "c", 2)
    if code == 286:
        stand.server.forget(stand.server.tick(100))
    else:
        stand.server.fail("aggregate", code)
    with pytest.raises(SourceReplaced, match=r"no longer has the events.*Start without state"):
        await events(await stand.resumed(position, origins))


@pytest.mark.parametrize(
    ("code", "labels", "kind"),
    [
        (11600, ("ResumableChangeStreamError",), None), (43, (), None), (91, (), None), (234, (), LogUnavailable),
        (13, (), LogDenied), (10334, (), StreamRefused), (2, (), StreamRefused),
    ],
)  # fmt: skip
async def test_errors_of_a_read_by_their_codes(
    stand: Stand, code: int, labels: tuple[str, ...], kind: type[Exception] | None
) -> None:
    """Those that the driver resumes are not seen; outages may be tried again; others need a user. No event is lost or repeated."""
    source = await stand.begun()
    stand.server.insert("d", "c", 1)
    found = said(await events(source))
    stand.server.fail("getMore", code, "scripted", *labels)
    stand.server.insert("d", "c", 2)
    if kind is not None:
        with pytest.raises(kind):
            await source.fetch(1000, 20)
    found += said(await events(source))
    assert found == [("insert", 1), ("insert", 2)]


async def test_C10_an_outage_is_told_and_waited_for(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is away, at a read and at a look; when it is back all goes on where it was."""
    monkeypatch.setattr("tidemark.services.source.connectors.changestream._ANSWER_MS", 100)
    source = await stand.begun()
    stand.server.insert("d", "c", 1)
    found = said(await events(source))
    await stand.server.stop()
    with pytest.raises(LogUnavailable):
        await source.fetch(1000, 20)
    with pytest.raises(LogUnavailable):
        await source.check(stand.known)
    stand.server.insert("d", "c", 2)
    await stand.server.start()
    await source.check(stand.known)
    assert found + said(await events(source)) == [("insert", 1), ("insert", 2)]


async def test_I2_another_replica_set_is_noticed(stand: Stand) -> None:
    """By its id; where that may not be asked for, which is tried once, by its name. A right that comes or goes changes nothing."""
    source = await stand.begun()
    identity, stand.server.identity = stand.server.identity, None
    stand.server.asked.clear()
    await source.check(stand.known)
    await source.check(stand.known)
    assert stand.server.asked == ["replSetGetConfig"]
    stand.server.identity = identity
    source = await stand.source()
    await source.check(stand.known)
    other = await StreamingServer(replica_set="rs1", identity=None).start()
    with pytest.raises(SourceReplaced, match="now the connection leads to rs1"):
        await (await stand.source(url=other.url)).check(stand.known)
    await other.stop()
    stand.server.identity = ObjectId()
    with pytest.raises(SourceReplaced, match="Bring the old servers back"):
        await source.check(stand.known)


async def test_a_server_alone_is_refused(stand: Stand) -> None:
    """Only replica sets and shards have change streams."""
    stand.server.replica_set = None
    source = await stand.source(url=stand.server.url.partition("?")[0])
    with pytest.raises(StreamRefused, match=r"expected a replica set or shards.*rs\.initiate"):
        await source.found([SPLIT], first=True)


async def test_a_url_of_another_kind_is_refused() -> None:
    """It is not shown: there may be a password in it."""
    executor = AsyncExecutor()
    source = ChangeStream(STAGE, "postgresql://u:secret@h/", executor, SystemClock())
    with pytest.raises(StreamRefused, match="expected mongodb://") as caught:
        await source.found([SPLIT], first=True)
    assert "secret" not in str(caught.value)
    await executor.close()


# --- the task -----------------------------------------------------------------------------------------------------------------


async def test_W4_a_silent_stream_is_idle_and_a_restored_task_goes_on(stand: Stand) -> None:
    """Idle after the time-out at its end, active with the next event; a snapshot has all that a task needs, and a drain ends it."""
    stage = replace(STAGE, full_document_only=True)

    async def task(parts: dict[StatePart, bytes] | None = None, row: Any = None) -> SourceStand:
        made = SourceStand(MemoryLog(MemoryBroker(SystemClock())), None, "in", source=await stand.source(stage))
        return await made.open(parts, row)

    first = await task()
    stand.server.insert("d", "c", 1, t=DatetimeMS(1000))
    assert await first.take() == [1000]
    assert await first.take(IDLE_MS) == []
    assert not first.body.input.is_idle()
    assert await first.take(IDLE_MS) == []
    assert first.body.input.is_idle()
    stand.server.transaction("d", "c", ("insert", 2, {"t": DatetimeMS(2000)}), ("insert", 3, {"t": DatetimeMS(3000)}))
    assert await first.take() == [2000, 3000]
    assert not first.body.input.is_idle()
    second = await task(await first.copy(), first.row)
    stand.server.insert("d", "c", 4, t=DatetimeMS(4000))
    assert await second.take() == [4000]
    await second.drain()
    stand.server.insert("d", "c", 5, t=DatetimeMS(5000))
    assert await second.take() == []
    assert second.body.input.has_ended()
    assert {name: known.end for name, known in second.row.items()} == second.body.input.read()


# --- drawn stories ------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=25), st.sampled_from([("c",), ("c", "e")]))
def test_C6_I3_drawn_stories_give_each_event_once(steps: list[tuple[Any, ...]], colls: tuple[str, ...]) -> None:
    """Writes, breaks, elections, restarts from snapshots anywhere, a shrinking oplog; then a drain: the oplog's events up to its end."""

    async def story() -> None:
        stand = Stand()
        await stand.server.start()
        told = Story(stand, coll=colls)
        await told.begin()
        for step in steps:
            await told.step(step)
        before = [entry for entry in stand.server.entries if entry.event is not None]
        await told.drain()
        await stand.close()
        wanted = [entry.token for entry in before if entry.event is not None and entry.event["ns"]["coll"] in colls]
        assert [event["_id"]["_data"] for event in told.taken] == wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.001)
        asyncio.run(story())


def test_the_scripted_server_sorts_tokens_as_times() -> None:
    """A mark comes in front of its time's events, these in their order, and all of it in front of the next time."""
    last = token_of((5, 1), 1, invalidates=True)
    row = [token_of((5, 1)), token_of((5, 1), 0), token_of((5, 1), 1), last, token_of((5, 2))]
    assert sorted(row, key=lambda each: each["_data"]) == row
