# ruff: noqa: N802 -- a test carries its rule's name
"""`initialSync` of MongoDB: each document once, over restarts and whatever is written, and then each change from the beginning."""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId
from bson.codec_options import DatetimeConversion
from bson.timestamp import Timestamp as BsonTimestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient, common

from tests.harness.mongodb.servers import Servers
from tests.harness.mongodb.stand import Stand, documents, events, piece, said, stands
from tests.harness.mongodb.story import STEPS, Story
from tests.harness.mongodb.streaming import order
from tests.property.language_strategies import VALUES
from tidemark.services.source.connectors.changestream import SPLIT, ChangeStream, StreamRefused, _Answers
from tidemark.services.source.connectors.mongosync import CollectionReader, CopyPosition
from tidemark.shared.adapters.mongodb import async_client_at, from_bson, to_bson
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.values import Date, Document, Regex, Timestamp
from tidemark.shared.ports.log import LogDenied, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced

SYNC: dict[str, Any] = {"initial_sync": True}
MIXED: Sequence[Any] = (
    MinKey(), None, float("nan"), float("-inf"), -1, 2.5, Int64(3), Decimal128("9.5"), "", "a", {"a": 1}, {"a": "z"}, {"b": [1]},
    b"q", ObjectId(b"0" * 12), False, True, DatetimeMS(-(2**62)), DatetimeMS(5), BsonTimestamp(1, 1), MaxKey(),
)  # fmt: skip
"""Of each type that an `_id` may have, in MongoDB's order."""
IDS = VALUES.filter(lambda value: type(value) not in (list, Regex)).map(to_bson)

_DATES: bson.CodecOptions[dict[str, Any]] = bson.CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


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


async def copied(source: ChangeStream) -> list[Document]:
    """All documents, and no change."""
    found: list[Document] = []
    while isinstance(source._place, CopyPosition) and not source._place.done:
        found += documents(await piece(source))
    return found


# --- what comes ---------------------------------------------------------------------------------------------------------------


async def test_documents_come_first_as_inserts_and_then_changes(stand: Stand) -> None:
    """In the order of `_id`, in the form of inserts with the time at which the stream begins; a start with a state reads none."""
    for key in (3, 1, 2):
        stand.server.insert("d", "c", key, n=10 * key)
    source = await stand.begun(**SYNC)
    begin = Timestamp(stand.server.now[0], stand.server.now[1] + 1)
    stand.server.update("d", "c", 1, n=11)
    batches = await piece(source)
    rows = documents(batches)
    assert said(rows) == [("insert", 1), ("insert", 2), ("insert", 3)]
    assert rows[1] == {
        "_id": {"clusterTime": begin, "index": 1, "snapshot": True}, "operationType": "insert", "clusterTime": begin,
        "wallTime": Date(begin.seconds * 1000), "fullDocument": {"_id": 2, "n": 20}, "ns": {"db": "d", "coll": "c"},
        "documentKey": {"_id": 2},
    }  # fmt: skip
    assert batches[0].timestamps_ms.tolist() == 3 * [begin.seconds * 1000]
    changes = await events(source)
    assert said(changes) == [("update", 1)]
    assert changes[0]["wallTime"] >= rows[0]["wallTime"]
    again = await stand.resumed(*stands(source), **SYNC)
    assert set(again._known) == {"after"}
    assert await events(again) == []


async def test_a_change_that_a_document_has_already_comes_again(stand: Stand) -> None:
    """Behind the beginning all changes come: those of a document that was read before them, and of one that was read behind them."""
    for key in range(8):
        stand.server.insert("d", "c", key)
    source = await stand.begun(**SYNC)
    rows = documents(await piece(source, 1))
    stand.server.transaction(
        "d", "c", ("update", 0, {"n": 1}), ("update", 7, {"n": 1}), ("delete", 6, None), ("insert", 9, {})
    )
    rows += await copied(source)
    assert [row["documentKey"]["_id"] for row in rows] == [0, 1, 2, 3, 4, 5, 7, 9]
    assert [row["fullDocument"].get("n") for row in rows] == [None] * 6 + [1, None]
    assert said(await events(source)) == [("update", 0), ("update", 7), ("delete", 6), ("insert", 9)]


async def test_full_documents_alone(stand: Stand) -> None:
    """The documents as they are."""
    stand.server.insert("d", "c", 1, n=1)
    source = await stand.begun(full_document_only=True, **SYNC)
    assert documents(await piece(source)) == [{"_id": 1, "n": 1}]


async def test_without_documents_there_are_changes(stand: Stand) -> None:
    """A collection that is not there, too."""
    source = await stand.begun(**SYNC)
    assert await events(source) == []
    stand.server.insert("d", "c", 1)
    assert said(await events(source)) == [("insert", 1)]


async def test_a_state_of_a_stream_begins_no_sync(stand: Stand) -> None:
    """It has a token, or a beginning that the document had named."""
    stand.server.insert("d", "c", 1)
    stand.server.insert("d", "c", 2)
    plain = await stand.begun(start_at_operation_time=Timestamp(*stand.server.now))
    begin = stands(plain)
    assert said(await events(plain)) == [("insert", 2)]
    assert await events(await stand.resumed(*stands(plain), **SYNC)) == []
    again = await stand.resumed(*begin, start_at_operation_time=Timestamp(*stand.server.now), **SYNC)
    assert said(await events(again)) == [("insert", 2)]


SCOPES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "a collection": (("b",), ["b"]),
    "a list, in its order": (("b", "none", "a", "b"), ["b", "a"]),
    "a database, without views and what is the server's": ((), ["a", "b", "c"]),
}


@pytest.mark.parametrize("scope", list(SCOPES))
async def test_a_scope_has_its_collections_and_no_others(stand: Stand, scope: str) -> None:
    """Also over a restart behind each document."""
    coll, names = SCOPES[scope]
    stand.server.views = ("b_view",)
    for db, name in (("d", "c"), ("d", "b"), ("d", "a"), ("x", "b"), ("d", "system.js")):
        for key in range(3):
            stand.server.insert(db, name, key)
    source = await stand.begun(coll=coll, **SYNC)
    wanted = [(name, key) for name in names for key in range(3)]
    found = await copied(source)
    assert [(row["ns"]["coll"], row["documentKey"]["_id"]) for row in found] == wanted
    assert {row["ns"]["db"] for row in found} == {"d"}


# --- where it goes on ---------------------------------------------------------------------------------------------------------


async def test_C6_a_restart_behind_each_document_of_any_id(stand: Stand) -> None:
    """Each goes on with the next one, whatever their types, and then with all changes."""
    for key in reversed(MIXED):
        stand.server.insert("d", "c", key)
        stand.server.insert("d", "e", key)
    stand.server.batch = 5
    options: dict[str, Any] = {"coll": ("c", "e"), **SYNC}
    source = await stand.begun(**options)
    stand.server.insert("d", "c", "later")
    rows = documents(await piece(source))
    assert len(rows) == 2 * len(MIXED) + 1
    wanted = [repr(from_bson(key)) for key in [*MIXED[:10], "later", *MIXED[10:], *MIXED]]
    assert [repr(row["documentKey"]["_id"]) for row in rows] == wanted
    begin = stand.known[SPLIT].begin
    for count in range(len(rows) + 1):
        position = Offset(begin + count)
        again = await stand.resumed(position, source.origins(SPLIT, position), **options)
        rest = await copied(again)
        assert [repr(row) for row in rest] == [repr(row) for row in rows[count:]]
        assert said(await events(again)) == [("insert", "later")]
        await again.close()


async def test_a_place_of_an_earlier_release_is_read(stand: Stand) -> None:
    """The form in a snapshot is promised."""
    for key in (1, Int64(2), "x"):
        stand.server.insert("d", "c", key)
    source = await stand.begun(**SYNC)
    begin, (seconds, increment) = stand.known[SPLIT].begin, stand.server.now
    await piece(source, 1)
    after = base64.b64encode(bson.encode({"_id": 1})).decode()
    kept = f'{{"seconds":{seconds},"increment":{increment + 1},"begin":{begin},"coll":"c","after":"{after}"}}'
    assert stands(source) == (begin + 1, {"sync": kept})
    assert said(await copied(await stand.resumed(Offset(begin + 1), {"sync": kept}))) == [
        ("insert", 2),
        ("insert", "x"),
    ]


async def test_I1_a_read_is_never_older_than_the_streams_beginning(stand: Stand) -> None:
    """By majority, and of members that lag once they have the time of the first look; behind restarts, too."""
    for key in range(9):
        stand.server.insert("d", "c", key)
    source = await stand.begun(**SYNC)
    first = BsonTimestamp(*stand.server.now)
    stand.server.noop(100)
    await piece(source, 1)
    await copied(await stand.resumed(*stands(source), **SYNC))
    assert [each["readConcern"] for each in stand.server.finds] == 2 * [
        {"level": "majority", "afterClusterTime": first}
    ]


async def test_the_stream_begins_in_front_of_the_documents(stand: Stand) -> None:
    """With the first look's time, also in a second of a million operations, whose later ones a position cannot tell."""
    stand.server.tick()
    stand.server._clock = stand.server.now[0], (1 << 20) + 5
    stand.server.insert("d", "c", 1)
    source = await stand.begun(**SYNC)
    stand.server.insert("d", "c", 2)
    assert said(await copied(source)) == [("insert", 1), ("insert", 2)]
    found = said(await events(source))
    assert found[-1] == ("insert", 2)
    assert stand.server.opened[-1]["startAtOperationTime"] <= BsonTimestamp(*stand.server.now)


async def test_I3_a_drain_while_documents_are_read(stand: Stand) -> None:
    """All documents, and all changes up to the time of the drain."""
    for key in range(5):
        stand.server.insert("d", "c", key)
    source = await stand.begun(**SYNC)
    rows = documents(await piece(source, 1))
    stand.server.update("d", "c", 1)
    end = (await source.ends({SPLIT: stands(source)[0]}))[SPLIT]
    assert end is not None
    stand.server.update("d", "c", 2)
    source.end_at({SPLIT: end})
    while not source.status()[0].finished:
        rows += documents(await piece(source))
    assert said(rows) == [*(("insert", key) for key in range(5)), ("update", 1)]
    assert source.status()[0].next_position == end


async def test_a_collection_that_is_dropped_while_it_is_read(stand: Stand) -> None:
    """What was read, then what the stream tells of its end; and the error says how to go on."""
    for key in range(5):
        stand.server.insert("d", "c", key)
    source = await stand.begun(**SYNC)
    rows = documents(await piece(source, 1))
    stand.server.drop("d", "c")
    rows += await copied(source)
    rows += await events(source)
    assert said(rows)[-2:] == [("drop", None), ("invalidate", None)]
    position, _ = stands(source)
    await source.note("g", {SPLIT: position})
    with pytest.raises(SourceReplaced, match="was dropped or renamed"):
        await source.fetch(1000, 1)


async def test_a_list_that_lost_the_present_collection_is_refused(stand: Stand) -> None:
    """What is left to be read is not known."""
    for key in range(5):
        stand.server.insert("d", "c", key)
        stand.server.insert("d", "e", key)
    source = await stand.begun(coll=("c", "e"), **SYNC)
    await piece(source, 1)
    again = await stand.resumed(*stands(source), coll=("e",), **SYNC)
    with pytest.raises(SourceReplaced, match="has read collection c last"):
        await copied(again)


@pytest.mark.parametrize(
    ("command", "code", "kind"),
    [
        ("find", 13, LogDenied),
        ("find", 2, StreamRefused),
        ("find", 50, LogUnavailable),
        ("getMore", 43, LogUnavailable),
    ],
)
async def test_errors_of_a_read_by_their_codes(stand: Stand, command: str, code: int, kind: type[Exception]) -> None:
    """Outages, and cursors that are gone, may be tried again; others need a user. No document is lost or repeated."""
    for key in range(9):
        stand.server.insert("d", "c", key)
    source = await stand.begun(**SYNC)
    if command == "getMore":
        assert said(documents(await piece(source, 1))) == [("insert", 0)]
    stand.server.fail(command, code)
    with pytest.raises(kind):
        await source.fetch(1 << 20, 20)
    assert [key for _, key in said(await copied(source))] == list(range(command == "getMore", 9))


# --- drawn stories ------------------------------------------------------------------------------------------------------------


def replayed(found: Sequence[Document]) -> Mapping[tuple[str, Any], Document]:
    """The documents that events make, in their order."""
    made: dict[tuple[str, Any], Document] = {}
    for event in found:
        coll, kind = event["ns"]["coll"], event["operationType"]
        if kind == "drop":
            made = {place: document for place, document in made.items() if place[0] != coll}
            continue
        place = coll, repr(event["documentKey"]["_id"])
        if kind == "insert":
            made[place] = event["fullDocument"]
        elif kind == "delete":
            made.pop(place, None)
        elif place in made:
            made[place] = {**made[place], **event["updateDescription"]["updatedFields"]}
    return made


@settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(IDS, max_size=12, unique_by=order),
    st.integers(0, 12),
    st.lists(STEPS, max_size=25),
    st.sampled_from([("c",), ("c", "e"), ("e", "c")]),
)
def test_C6_I3_drawn_stories_make_the_servers_documents(
    keys: list[Any], there: int, steps: list[tuple[Any, ...]], colls: tuple[str, ...]
) -> None:
    """Documents once each in order, then all changes from the beginning once each; together they make what the server has."""

    async def story() -> None:
        stand = Stand()
        await stand.server.start()
        for number, key in enumerate(keys[:there]):
            stand.server.insert("d", "ce"[number % 2], key, pad="x" * 50)
        told = Story(stand, keys[there:], coll=colls, **SYNC)
        begin = len(stand.server.entries)
        await told.begin()
        for step in steps:
            await told.step(step)
        before, has = stand.server.entries[begin:], deepcopy(stand.server.stored)
        await told.drain()
        await stand.close()
        rows = [event for event in told.taken if "snapshot" in event["_id"]]
        changes = told.taken[len(rows) :]
        assert [event["_id"]["_data"] for event in changes] == [
            entry.token for entry in before if entry.event is not None and entry.event["ns"]["coll"] in colls
        ]
        assert [row["_id"]["index"] for row in rows] == list(range(len(rows)))
        places = [(colls.index(row["ns"]["coll"]), order(to_bson(row["documentKey"]["_id"]))) for row in rows]
        assert all(a < b for a, b in itertools.pairwise(places))
        made = {place: repr(each) for place, each in replayed(told.taken).items()}
        made.pop(
            ("c", repr(from_bson(told.behind))), None
        )  # what comes behind a drain's time may be there when documents are read
        assert made == {
            (coll, repr(from_bson(each["_id"]))): repr(from_bson(each))
            for coll in colls
            for each in has.get(("d", coll), {}).values()
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.001)
        asyncio.run(story())


# --- on another server --------------------------------------------------------------------------------------------------------

PLAIN_IDS = st.one_of(
    st.sampled_from([each for each in MIXED if each != {"b": [1]}]),
    st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(allow_nan=False),
    st.text("abé\U0001f600", max_size=3),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**40), 2**40).map(DatetimeMS),
    st.dictionaries(st.sampled_from("ab"), st.integers(-2, 2) | st.text("ab", max_size=2), max_size=2),
)
"""Those that mongo-java-server keeps."""


@pytest.mark.mongodb
@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(PLAIN_IDS, max_size=14, unique_by=order),
    st.lists(st.tuples(st.sampled_from(["insert", "delete", "break"]), st.integers(0, 13)), max_size=14),
    st.integers(0, 14),
)
def test_documents_of_a_server_that_has_its_own_order(
    mongodb_servers: Servers,
    unique_name: Callable[[str], str],
    keys: list[Any],
    steps: list[tuple[str, int]],
    there: int,
) -> None:
    """One by one, with breaks and writes between them: those that nobody touches once each, in that order, and none twice."""
    url, db = mongodb_servers.replicas, unique_name("d")
    with MongoClient[dict[str, Any]](url, datetime_conversion="DATETIME_MS") as writer:
        collection = writer[db]["c"]

        def ids() -> list[str]:
            return [repr(each["_id"]) for each in collection.find().sort("_id", 1)]

        async def story() -> tuple[list[str], list[str]]:
            first, rest = keys[:there], iter(keys[there:])
            for key in first:
                collection.insert_one({"_id": key})
            touched: list[str] = []
            client = async_client_at(url, 10_000, _Answers(), readConcernLevel="majority")
            reader = CollectionReader(client, db, ["none", "c"])
            found: list[str] = []
            place, ops = CopyPosition(1_700_000_000, 1, 0), iter(steps)
            while not place.done:
                rows, places, place = await reader.read(place, len(found), 1, None)
                found += [repr(bson.decode(row.raw, _DATES)["documentKey"]["_id"]) for row in rows]
                assert places[-1:] in ([], [place])
                match next(ops, ("", 0)):
                    case ("insert", _) if (key := next(rest, None)) is not None:
                        collection.insert_one({"_id": key})
                        touched.append(repr(key))
                    case ("delete", which) if first:
                        key = first[which % len(first)]
                        collection.delete_one({"_id": key})
                        touched.append(repr(key))
                    case ("break", _):
                        await reader.close()
            await reader.close()
            await client.close()
            return found, touched

        found, touched = asyncio.run(story())
        assert len(found) == len(set(found))
        assert [each for each in found if each not in touched] == [each for each in ids() if each not in touched]
        writer.drop_database(db)


@pytest.mark.mongodb
def test_a_restart_behind_each_document_of_another_server(
    mongodb_servers: Servers, unique_name: Callable[[str], str]
) -> None:
    """Of each type of `_id` that it keeps, and in its own order."""
    url, db = mongodb_servers.replicas, unique_name("d")
    with MongoClient[dict[str, Any]](url, datetime_conversion="DATETIME_MS") as writer:
        writer[db]["c"].insert_many([{"_id": key, "n": number} for number, key in enumerate(MIXED)])
        wanted = [each["n"] for each in writer[db]["c"].find().sort("_id", 1)]

    async def story() -> None:
        client = async_client_at(url, 10_000, _Answers(), readConcernLevel="majority")
        reader = CollectionReader(client, db, [])
        rows, places, behind = await reader.read(CopyPosition(1_700_000_000, 1, 0), 0, 1 << 20, None)
        assert behind.done
        for count, place in enumerate(places):
            rest, _, _ = await CollectionReader(client, db, []).read(place, 0, 1 << 20, None)
            found = [bson.decode(row.raw, _DATES)["fullDocument"]["n"] for row in [*rows[: count + 1], *rest]]
            assert found == wanted
        await reader.close()
        await client.close()

    asyncio.run(story())
