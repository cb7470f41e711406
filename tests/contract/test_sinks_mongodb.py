# ruff: noqa: N802 -- a test carries its rule's name
"""What the MongoDB sink adds to the contract of all sinks: `$merge` and `$emit` into collections, with transactions and without."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from decimal import Decimal
from typing import Any

import pytest
from pymongo import MongoClient, errors
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.contract.sinks_targets import MongoWorld, expression
from tests.harness.mongodb.servers import Passage, Servers
from tidemark.services.library.release_world import IDENTITY, Task, World, row_of
from tidemark.services.sink.connectors.mongodb import MARKERS
from tidemark.shared.adapters.mongodb import has_transactions, is_denied, is_passing
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import MIN_KEY, Binary, Date, Document, ObjectId, Regex, Timestamp, long
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.sink import Rejected, TargetRefused, TargetUnavailable

pytestmark = [pytest.mark.asyncio, pytest.mark.mongodb]
Make = Callable[..., MongoWorld]


def stage_of(**options: Any) -> dict[str, Any]:
    """The options of a parsed `$merge`, as they stand in a document."""
    merge = {"into": {"connectionName": "c", "db": "d", "coll": "rows"}, **options}
    pipeline = [{"$source": {"connectionName": "k", "topic": "t"}}, {"$merge": merge}]
    connections = {"c": {"type": "mongodb", "url": "mongodb://h/"}, "k": {"type": "kafka", "bootstrapServers": "h:1"}}
    (stage,) = parse({"pipeline": pipeline, "connections": connections}).sinks
    assert isinstance(stage, Merge)
    return {
        "on": stage.on,
        "let": stage.let,
        "when_matched": stage.when_matched,
        "when_not_matched": stage.when_not_matched,
    }


@pytest.fixture
def passage_to() -> Iterator[Callable[[str], Passage]]:
    """Makes ways to servers that can break."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(Passage(url)))


@pytest.fixture
def made(passage_to: Callable[[str], Passage]) -> Iterator[list[MongoWorld]]:
    """Worlds, which are closed in the end, by ways that are still there."""
    worlds: list[MongoWorld] = []
    yield worlds
    for world in worlds:
        world.close()


@pytest.fixture(params=["alone", "replicas"])
def world_of(request: pytest.FixtureRequest, mongodb_servers: Servers, made: list[MongoWorld]) -> Make:
    """Makes a world on either server."""
    url = getattr(mongodb_servers, request.param)

    def make(**options: Any) -> MongoWorld:
        made.append(MongoWorld(url, **options))
        return made[-1]

    return make


@pytest.fixture
def replicas(mongodb_servers: Servers, made: list[MongoWorld]) -> Make:
    """Makes a world on the server with transactions."""

    def make(**options: Any) -> MongoWorld:
        made.append(MongoWorld(mongodb_servers.replicas, **options))
        return made[-1]

    return make


class Written:
    """One task that writes documents, an epoch a call."""

    def __init__(self, world: MongoWorld) -> None:
        self.world = world
        self.sink = world.sink()
        self.epoch = 0

    async def staged(self, documents: Sequence[Document]) -> tuple[bytes, Sequence[Rejected]]:
        if not self.epoch:
            await self.sink.open(IDENTITY, Epoch(0))
        rejected = await self.sink.accept(batch_of(documents))
        self.epoch += 1
        return await self.sink.stage(Epoch(self.epoch), Epoch(self.epoch - 1)), rejected

    async def release(self, staged: bytes) -> None:
        await self.sink.release(row_of(self.epoch, self.epoch - 1, staged), staged)

    async def write(self, documents: Sequence[Document]) -> Sequence[Rejected]:
        staged, rejected = await self.staged(documents)
        await self.release(staged)
        return rejected


def merged(rows: Mapping[bytes, Document], document: Document, matched: str, not_matched: str) -> dict[bytes, Document]:
    """The oracle: what the words mean, a document at a time."""
    key = canonical_key(document["id"])
    after = dict(rows)
    if key not in rows:
        if not_matched == "insert":
            after[key] = document
    elif matched == "replace":
        after[key] = document
    elif matched == "merge":
        after[key] = {**rows[key], **document}
    elif matched == "delete":
        del after[key]
    return after


@pytest.mark.parametrize("not_matched", ["insert", "discard"])
@pytest.mark.parametrize("matched", ["replace", "merge", "keepExisting", "delete"])
async def test_words_mean_what_they_say(replicas: Make, matched: str, not_matched: str) -> None:
    """Any documents, in any epochs and parts, leave what they leave one after the other; keys are equal as the language has it."""
    chooser = random.Random(f"{matched} {not_matched}")
    world = replicas(when_matched=matched, when_not_matched=not_matched)
    writing, rows = Written(world), dict[bytes, Document]()
    for number in range(3):
        world.collection.insert_one({"id": number, "old": number})
        rows[canonical_key(number)] = {"id": number, "old": number}
    for _ in range(3):
        documents: list[Document] = [
            {"id": chooser.choice([0, 1, 2, 3, 1.0, long(2), "x"]), chooser.choice("abc"): n, "n": n}
            for n in range(chooser.randint(1, 12))
        ]
        assert not await writing.write(documents)
        for document in documents:
            rows = merged(rows, document, matched, not_matched)
    assert {canonical_key(d["id"]): d for d in world.documents()} == rows


async def test_a_server_alone_writes_what_may_be_repeated_alike(
    mongodb_servers: Servers, made: list[MongoWorld]
) -> None:
    """Without transactions the words that may be repeated leave the same documents as with them."""
    for matched in ("replace", "merge", "keepExisting"):
        for not_matched in ("insert", "discard"):
            found = []
            for url in (mongodb_servers.alone, mongodb_servers.replicas):
                made.append(MongoWorld(url, when_matched=matched, when_not_matched=not_matched))
                made[-1].collection.insert_one({"id": 1, "old": 1})
                documents: list[Document] = [{"id": 1, "a": 1}, {"id": 2, "a": 2}, {"id": 2, "b": 3}, {"id": 1, "b": 4}]
                await Written(made[-1]).write(documents)
                found.append(made[-1].documents())
            assert found[0] == found[1]
            assert len(found[0]) == (2 if not_matched == "insert" else 1)


PIPELINE: dict[str, Any] = {
    "on": "id",
    "let": {"new": "$$ROOT"},
    "whenMatched": [{"$set": {"total": {"$add": ["$total", "$$new.total"]}}}, {"$unset": "old"}],
}


async def test_a_pipeline_computes_the_document_that_is_there(replicas: Make) -> None:
    """`whenMatched: [...]` sees the document and the variables; repeats in one epoch see what was written before them."""
    world = replicas(**stage_of(**PIPELINE))
    world.collection.insert_one({"id": 1, "total": 10, "old": True})
    writing = Written(world)
    await writing.write([{"id": 1, "total": 1}, {"id": 1, "total": 2}, {"id": 2, "total": 5}, {"id": 2, "total": 5}])
    assert world.documents() == [{"id": 1, "total": 13}, {"id": 2, "total": 10}]


class Beside(CommandListener):
    """Another task: it asks on a connection of its own while an answer is on its way to who asked first."""

    def __init__(self) -> None:
        self.asks: Callable[[], object] | None = None

    def started(self, event: CommandStartedEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass

    def succeeded(self, event: CommandSucceededEvent) -> None:
        asks, self.asks = self.asks, None
        if asks is not None:
            asks()


async def test_a_way_that_breaks_makes_no_replica_set_a_server_that_stands_alone(
    mongodb_servers: Servers, passage_to: Callable[[str], Passage]
) -> None:
    """The driver forgets what a server is when a connection of another task breaks; a job that needs transactions would fail for good."""
    passage, beside = passage_to(mongodb_servers.replicas), Beside()
    with closing(MongoClient[Mapping[str, Any]](passage.url, event_listeners=[beside])) as client:

        def asks() -> None:
            client.admin.command("ping")

        def breaks() -> None:
            passage.close()
            with pytest.raises(errors.AutoReconnect):
                client.admin.command("ping")
            (server,) = client.topology_description.server_descriptions().values()
            assert server.server_type_name == "Unknown"

        beside.asks = asks
        assert has_transactions(client)
        beside.asks = breaks
        assert has_transactions(client)
        assert beside.asks is None


async def test_S7_a_commit_whose_answer_was_lost_is_not_written_twice(
    mongodb_servers: Servers, made: list[MongoWorld], passage_to: Callable[[str], Passage]
) -> None:
    """The transaction is done, the answer lost: the release is tried again, finds the marker, and adds nothing a second time."""
    passage = passage_to(mongodb_servers.replicas)
    made.append(world := MongoWorld(passage.url, part_bytes=1_000, **stage_of(**PIPELINE)))
    writing = Written(world)
    await writing.write([{"id": 1, "total": 1}])
    staged, _ = await writing.staged([{"id": 1, "total": 10}])
    passage.lose_answer(b"commitTransaction")
    with pytest.raises(TargetUnavailable):
        await writing.release(staged)
    await writing.release(staged)
    assert world.documents() == [{"id": 1, "total": 11}]


async def test_S7_a_part_that_broke_off_within_its_transaction_left_nothing(
    mongodb_servers: Servers, made: list[MongoWorld], passage_to: Callable[[str], Passage]
) -> None:
    """Documents and marker come together or not at all: what was written before the connection broke is not there, and comes once."""
    passage = passage_to(mongodb_servers.replicas)
    made.append(world := MongoWorld(passage.url, part_bytes=1_000, **stage_of(**PIPELINE)))
    writing = Written(world)
    await writing.write([{"id": 1, "total": 1}])
    staged, _ = await writing.staged([{"id": 1, "total": 10}])
    passage.lose_answer(b"update", b"rows")
    with pytest.raises(TargetUnavailable):
        await writing.release(staged)
    assert world.documents() == [{"id": 1, "total": 1}]
    await writing.release(staged)
    assert world.documents() == [{"id": 1, "total": 11}]


async def test_S7_a_release_that_broke_off_goes_on_behind_its_last_part(
    mongodb_servers: Servers, made: list[MongoWorld], passage_to: Callable[[str], Passage]
) -> None:
    """Each part moves the marker with it: a repeat, by this object or the next, writes no part twice."""
    passage = passage_to(mongodb_servers.replicas)
    made.append(world := MongoWorld(passage.url, part_bytes=1, **stage_of(**PIPELINE)))
    writing = Written(world)
    documents: list[Document] = [{"id": 1, "total": 2**n} for n in range(4)]
    staged, _ = await writing.staged([{"id": 1, "total": 0}, *documents])
    for _ in range(2):
        passage.lose_answer(b"commitTransaction")
        with pytest.raises(TargetUnavailable):
            await writing.release(staged)
    later = world.sink()
    await later.open(IDENTITY, Epoch(1))
    await later.release(row_of(1, 0, staged), staged)
    assert world.documents() == [{"id": 1, "total": 15}]


async def test_S7_without_transactions_a_repeat_leaves_the_same(
    mongodb_servers: Servers, made: list[MongoWorld], passage_to: Callable[[str], Passage]
) -> None:
    """The documents are written, and neither the answer nor the marker came to be: all is written again, and is the same."""
    for lost in (b"rows", MARKERS.encode()):
        passage = passage_to(mongodb_servers.alone)
        made.append(world := MongoWorld(passage.url, part_bytes=1_000, when_matched="merge"))
        writing = Written(world)
        staged, _ = await writing.staged([{"id": 1, "a": 1}, {"id": 1, "b": 2}, {"id": 2, "a": 3}])
        passage.lose_answer(b"update", lost)
        with pytest.raises(TargetUnavailable):
            await writing.release(staged)
        await writing.release(staged)
        assert world.documents() == [{"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 3}]
        assert (await world.sink().open(IDENTITY, Epoch(1))) == 1


async def test_S7_a_transaction_of_another_holder_is_waited_for(replicas: Make) -> None:
    """A zombie has the marker in an open transaction: the release is an outage until that ends, and then finds the marker moved."""
    world = replicas(when_matched="fail")
    writing = Written(world)
    await writing.write([{"id": 1}])
    staged, _ = await writing.staged([{"id": 2}])
    markers = world.client[world.database][MARKERS]
    with world.client.start_session() as session, session.start_transaction():
        markers.update_one({"_id": str(IDENTITY), "released": 1}, {"$set": {"released": 2}}, session=session)
        with pytest.raises(TargetUnavailable):
            await writing.release(staged)
    await writing.release(staged)
    assert world.documents() == [{"id": 1}]


async def test_an_outage_is_waited_for(
    mongodb_servers: Servers, made: list[MongoWorld], passage_to: Callable[[str], Passage]
) -> None:
    """A server that is away is TargetUnavailable, at any step, and the same call is answered when it is back."""
    passage = passage_to(mongodb_servers.replicas)
    made.append(world := MongoWorld(passage.url, answer_ms=1_500))
    writing = Written(world)
    await writing.write([{"id": 1}])
    staged, _ = await writing.staged([{"id": 2}])
    passage.closed = True
    passage.break_off()
    with pytest.raises(TargetUnavailable):
        await writing.release(staged)
    with pytest.raises(TargetUnavailable):
        await world.sink().open(IDENTITY, Epoch(1))
    passage.closed = False
    await writing.release(staged)
    assert [d["id"] for d in world.documents()] == [1, 2]


POISON: list[tuple[Document, str]] = [
    ({"id": 1, "big": "x" * 17_000_000}, "16777216 bytes"),
    ({"id": 1, "$set": 1}, "begins with"),
    ({"id": 1, "in": {"$deep": 1}}, "begins with"),
    ({"id": 1, "a.b": 1}, "without dots"),
    ({"id": 1, "": 1}, "without dots"),
    ({"id": None}, "found type null"),
    ({"id": [1]}, "found type array"),
    ({"id": Regex("a")}, "found type regex"),
    ({"other": 1}, "found nothing"),
    ({"id": 1, "_id": [1]}, "_id"),
    ({"id": 1, "half": "\ud800"}, "halves"),
]


@pytest.mark.parametrize(("document", "why"), POISON, ids=[why for _, why in POISON])
async def test_S6_what_no_server_takes_is_found_before_staging(replicas: Make, document: Document, why: str) -> None:
    """Such a document goes to the dead letters with the reason; those beside it are written."""
    world = replicas(part_bytes=1_000_000)
    (rejected,) = await Written(world).write([{"id": 5}, document, {"id": 6}])
    assert rejected.row == 1
    assert why in rejected.reason
    assert [d["id"] for d in world.documents()] == [5, 6]


async def test_S6_a_refusal_at_release_names_commit_and_record(world_of: Make) -> None:
    """Nothing of the part is written with transactions; a skip passes over that record alone, and the marker goes on."""
    world = world_of(part_bytes=1_000)
    world.collection.create_index("name", unique=True)
    writing = Written(world)
    documents = [{"id": n, "name": "twice" if n in (2, 3) else f"n{n}"} for n in range(5)]
    staged, rejected = await writing.staged(documents)
    assert not rejected
    with pytest.raises(TargetRefused, match=r"commit 1, record 3: .*duplicate"):
        await writing.release(staged)
    assert await writing.sink.skip(row_of(1, 0, staged), staged) == 1
    assert [d["id"] for d in world.documents()] == [0, 1, 2, 4]
    assert not await writing.write([{"id": 7, "name": "n7"}])


@pytest.mark.parametrize("server", ["alone", "replicas"])
async def test_S6_a_document_at_which_the_server_ends_the_connection_is_named(
    mongodb_servers: Servers, made: list[MongoWorld], passage_to: Callable[[str], Passage], server: str
) -> None:
    """As of one that does not know a type: it is no outage, to be waited for without end. A skip passes over such documents alone."""
    passage = passage_to(getattr(mongodb_servers, server))
    passage.ends_at = b"unknown"
    made.append(world := MongoWorld(passage.url, part_bytes=1_000))
    writing = Written(world)
    staged, rejected = await writing.staged([{"id": n, "name": "unknown" if n in (1, 2) else "n"} for n in range(4)])
    assert not rejected
    with pytest.raises(TargetRefused, match=r"commit 1, record 1: the server ends the connection"):
        await writing.release(staged)
    assert await writing.sink.skip(row_of(1, 0, staged), staged) == 2
    assert [d["id"] for d in world.documents()] == [0, 3]
    assert not await writing.write([{"id": 7}])


async def test_fail_refuses_the_release(replicas: Make) -> None:
    """`fail` on a document that is there, or is not, refuses the commit and names the record."""
    there = replicas(when_matched="fail")
    await (writing := Written(there)).write([{"id": 1}])
    with pytest.raises(TargetRefused, match=r"commit 2, record 1: .*is there"):
        await writing.write([{"id": 2}, {"id": 1}])
    assert there.documents() == [{"id": 1}]
    absent = replicas(when_not_matched="fail")
    with pytest.raises(TargetRefused, match=r"commit 1, record 0: .*not there"):
        await Written(absent).write([{"id": 1}])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table": "rows"}, "a database and a collection"),
        ({"table": "admin.rows"}, "server's own"),
        ({"table": "d.system.views"}, "server's own"),
        ({"table": "a b.rows"}, "no name"),
        ({"on": ("id", "other")}, "no unique key"),
        ({"on": ("id.deep",)}, "fields at the top"),
    ],
)
async def test_what_can_never_be_written_is_refused_at_open(world_of: Make, options: dict[str, Any], why: str) -> None:
    """A target that is none, or whose key finds no document for certain, is said before a record is read."""
    with pytest.raises(TargetRefused, match=why):
        await world_of(**options).sink().open(IDENTITY, Epoch(0))


@pytest.mark.parametrize(
    "options",
    [
        {"whenMatched": "delete"},
        {"whenMatched": "fail"},
        {"whenNotMatched": "fail"},
        {"whenMatched": {"$cond": ["$old", "replace", "keepExisting"]}},
        {"whenNotMatched": {"$cond": ["$old", "insert", "discard"]}},
        PIPELINE,
    ],
)
async def test_S7_a_server_alone_refuses_what_must_not_be_repeated(
    mongodb_servers: Servers, made: list[MongoWorld], options: dict[str, Any]
) -> None:
    """Without transactions such stages would not be exactly once: they are refused, with the remedy."""
    made.append(MongoWorld(mongodb_servers.alone, **{**stage_of(**options), "on": ("id",)}))
    with pytest.raises(TargetRefused, match="replica set"):
        await made[-1].sink().open(IDENTITY, Epoch(0))


@pytest.mark.parametrize("options", [{}, PIPELINE])
async def test_S7_the_primary_is_asked_wherever_a_url_would_read(
    mongodb_servers: Servers, made: list[MongoWorld], options: dict[str, Any]
) -> None:
    """A secondary may lag: its marker would be an older one, and a transaction takes no other reads than the primary's."""
    url = f"{mongodb_servers.replicas}?readPreference=secondary"  # the set has none
    made.append(MongoWorld(url, answer_ms=500, **{**stage_of(**options), "on": ("id",)}))
    written = Written(made[-1])
    assert not await written.write([{"id": 1, "n": 1}])
    assert not await written.write([{"id": 1, "n": 2}])


async def test_an_expression_names_the_collection(world_of: Make) -> None:
    """Documents go where the expression says; one that names no collection, or a closed one, is a dead letter."""
    world = world_of(on=("_id",))
    table = expression({"$concat": ["$db", ".", "$coll"]})
    world.stage = Merge(path="$merge", connection_name="c", table=table)
    name = world.database
    rejected = await Written(world).write(
        [{"_id": 1, "db": name, "coll": "a"}, {"_id": 2, "db": name, "coll": "b.c"}, {"_id": 3, "db": "admin", "coll": "a"}, {"_id": 4}]
    )  # fmt: skip
    assert [(r.row, why in r.reason) for r, why in zip(rejected, ["server's own", "name of a table"], strict=True)] == [
        (2, True),
        (3, True),
    ]
    assert [world.client[name][c].count_documents({}) for c in ("a", "b.c")] == [1, 1]


async def test_S7_documents_without_an_id_get_one_that_stays(world_of: Make) -> None:
    """It is given before staging: a commit that is released again writes the same document, and not another."""
    world = world_of(on=("_id",), when_matched="replace")
    writing = Written(world)
    staged, rejected = await writing.staged([{"a": 1}, {"a": 1}, {"_id": "mine", "a": 2}])
    assert not rejected
    await writing.release(staged)
    first = world.documents()
    world.client[world.database][MARKERS].update_one({}, {"$set": {"released": 0}})
    later = world.sink()
    await later.open(IDENTITY, Epoch(0))
    await later.release(row_of(1, 0, staged), staged)
    assert world.documents() == first
    assert sorted(str(d["a"]) for d in first) == ["1", "1", "2"]


async def test_values_keep_their_types(replicas: Make) -> None:
    """Each value of the language comes back as it went."""
    values: Document = {
        "id": 1, "int": -5, "long": long(5), "wide": 2**40, "double": 1.0, "decimal": Decimal("1.50"), "text": "ä\x00", "truth": True,
        "none": None, "date": Date(10**15), "oid": ObjectId(b"0123456789ab"), "bin": Binary(b"0123456789abcdef", 4), "plain": Binary(b"ab"),
        "pattern": Regex("a+", "im"), "time": Timestamp(7, 8), "least": MIN_KEY, "list": [1, [2, {"x": []}]], "deep": {"a.b": {"c": 1.5}},
    }  # fmt: skip
    world = replicas(part_bytes=10_000)
    assert not await Written(world).write([values])
    (found,) = world.documents()
    assert repr(found) == repr(values)


async def test_a_holder_that_goes_on_after_a_take_over_writes_nothing(replicas: Make) -> None:
    """A release by an object that knows nothing of its successor finds the marker above its commit."""
    world = World(replicas(when_matched="fail"))
    old = Task(world)
    await old.start()
    await old.epoch()
    await old.accept()
    await old.stage()
    await old.commit()
    new = Task(world)
    await new.start()
    await new.epoch()
    await old.release()
    await world.complete()


async def test_errors_are_told_apart() -> None:
    """A refused client is no outage, an outage no refusal."""
    denied = errors.OperationFailure("Authentication failed.", 18)
    assert is_denied(denied)
    assert not is_passing(denied)
    assert is_passing(errors.ServerSelectionTimeoutError("none"))
    assert is_passing(errors.OperationFailure("stepping down", 10107))
    assert not is_passing(errors.OperationFailure("failed validation", 121))
