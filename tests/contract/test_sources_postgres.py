# ruff: noqa: N802 -- a test carries its rule's name
"""Changes of PostgreSQL against a real server: what was committed comes once, in the order of commits, from any position."""

import datetime as dt
import json
import threading
from contextlib import suppress
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.harness.shop import Shop, drain, ids, piece, stands
from tidemark.services.source.connectors.pgslot import SlotRefused
from tidemark.services.source.connectors.postgres import SPLIT
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.values import Binary, Date, Document, long
from tidemark.shared.ports.log import LogDenied, LogUnavailable
from tidemark.shared.ports.source import SourceMissing, SourceReplaced

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres]


async def test_changes_have_the_form_of_change_events(shop: Shop) -> None:
    """Inserts, updates, updates of a key, deletions and a truncation; a transaction's events have its LSN, a count and its time."""
    source = await shop.begun()
    with shop.connection.transaction():
        shop.do("INSERT INTO t VALUES (1, 10, 'a')")
        shop.do("UPDATE t SET n = 11")
        shop.do("UPDATE t SET id = 2")
    shop.do("DELETE FROM t")
    shop.do("TRUNCATE t")
    events = await drain(source)
    assert [event["operationType"] for event in events] == ["insert", "update", "update", "delete", "truncate"]
    assert [event["_id"]["index"] for event in events] == [0, 1, 2, 0, 0]
    assert len({event["_id"]["lsn"] for event in events}) == 3
    first, second, moved, deleted, truncated = events
    assert first["fullDocument"] == {"id": 1, "n": 10, "body": "a"}
    assert all(event["ns"] == {"db": shop.database, "coll": "public.t"} for event in events)
    assert all(type(event["wallTime"]) is Date for event in events)
    assert second["fullDocument"]["n"] == 11
    assert "documentKeyBeforeChange" not in second
    assert (moved["documentKey"], moved["documentKeyBeforeChange"]) == ({"id": 2}, {"id": 1})
    assert deleted["documentKey"] == {"id": 2}
    assert "fullDocument" not in deleted
    assert "documentKey" not in truncated
    shop.do("ALTER TABLE t REPLICA IDENTITY FULL")
    shop.do("INSERT INTO t VALUES (1, 10, 'a')")
    shop.do("UPDATE t SET n = NULL")
    assert (await drain(source))[-1]["fullDocumentBeforeChange"] == {"id": 1, "n": 10, "body": "a"}


async def test_values_that_were_not_sent_are_named_and_never_null(shop: Shop) -> None:
    """A long value that an update leaves as it is lies outside of the row, and is not sent; a full old row has it."""
    shop.do("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    source = await shop.begun()
    long_text = "x" * 100_000
    shop.do("INSERT INTO t VALUES (1, 1, %s)", long_text)
    shop.do("UPDATE t SET n = 2")
    event = (await drain(source))[-1]
    assert event["fullDocument"] == {"id": 1, "n": 2}
    assert event["updateDescription"] == {"notSent": ["body"]}
    shop.do("UPDATE t SET id = 2")
    event = (await drain(source))[-1]
    assert event["fullDocument"] == {"id": 2, "n": 2}
    assert event["updateDescription"] == {"notSent": ["body"]}
    shop.do("ALTER TABLE t REPLICA IDENTITY FULL")
    shop.do("UPDATE t SET n = 3")
    event = (await drain(source))[-1]
    assert event["fullDocument"] == {"id": 2, "n": 3, "body": long_text}
    assert "updateDescription" not in event


VALUES = st.fixed_dictionaries({
    "truth": st.booleans(),
    "small": st.integers(-(2**15), 2**15 - 1),
    "whole": st.integers(-(2**31), 2**31 - 1),
    "wide": st.integers(-(2**63), 2**63 - 1),
    "exact": st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20),
    "double": st.floats(),
    "words": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    "blob": st.binary(),
    "id128": st.uuids(),
    "moment": st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    "day": st.dates(),
    "tree": st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text('ab\u00e9"\\'), lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3))),
    "numbers": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)),
    "texts": st.lists(st.none() | st.text('a,"\\{} \u00e9N')),
})  # fmt: skip
TYPES = {
    "truth": "boolean", "small": "smallint", "whole": "integer", "wide": "bigint", "exact": "numeric", "double": "double precision",
    "words": "text", "blob": "bytea", "id128": "uuid", "moment": "timestamptz", "day": "date", "tree": "jsonb", "numbers": "int[]",
    "texts": "text[]",
}  # fmt: skip
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def own(name: str, value: Any) -> Any:
    """The oracle: what the language has for a value."""
    match name:
        case _ if value is None:
            return None
        case "wide":
            return long(value)
        case "blob":
            return Binary(value)
        case "id128":
            return Binary(value.bytes, 4)
        case "moment":
            return Date((value - EPOCH) // dt.timedelta(milliseconds=1))
        case "day":
            return Date((value - EPOCH.date()) // dt.timedelta(milliseconds=1))
    return value


def typed(value: Any) -> Any:
    """With the types, and so that what is no number equals itself."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value).__name__, repr(value)


async def test_all_values_come_as_they_were_written(shop: Shop) -> None:
    """Any rows, with nulls: each value has the type and value that the table has."""
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    shop.do(f"CREATE TABLE v ({columns})")
    shop.do("ALTER PUBLICATION p ADD TABLE v")
    source = await shop.begun(peek_messages=1000)
    rows: list[dict[str, Any]] = []

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(VALUES, st.sets(st.sampled_from(sorted(TYPES))))
    def write(row: dict[str, Any], absent: set[str]) -> None:
        kept = {name: None if name in absent else value for name, value in row.items()}
        given_values = [Jsonb(v) if n == "tree" and v is not None else v for n, v in kept.items()]
        names = sql.SQL(", ").join(map(sql.Identifier, kept))
        places = sql.SQL(", ").join(sql.SQL("{}").format(sql.Placeholder()) for _ in kept)
        shop.do(sql.SQL("INSERT INTO v ({}) VALUES ({})").format(names, places), *given_values)
        rows.append(kept)

    write()
    events = await drain(source)
    assert len(events) == len(rows) >= 100
    for event, row in zip(events, rows, strict=True):
        assert typed(event["fullDocument"]) == typed({name: own(name, row[name]) for name in TYPES})


@pytest.mark.parametrize(
    ("kind", "literal"),
    [("timestamptz", "infinity"), ("date", "0044-03-15 BC"), ("int4range", "[1,5)"), ("time", "12:00:00"), ("inet", "10.0.0.0/8"),
     ("interval", "1 day"), ("numeric", "1" * 35), ("int4range[]", '{"[1,5)"}'), ("json", '"\\ud800"'), ("json", '{"a\\udfff": 1}'),
     ("json", '{"a": [{"$date": 5}]}'), ("jsonb", '{"$oid": "5f5f5f5f5f5f5f5f5f5f5f5f"}'), ("json", "[1e500]"), ("json", "1" * 400),
     ("jsonb[]", '{"{\\"$numberLong\\": \\"x\\"}"}'), ("jsonb", "[" * 178 + "]" * 178), ("json", "[" * 3000 + "]" * 3000)],
)  # fmt: skip
async def test_values_without_a_counterpart_are_their_text(shop: Shop, kind: str, literal: str) -> None:
    """They are never null, and never another value."""
    shop.do(f"ALTER TABLE t ADD w {kind}")
    source = await shop.begun()
    shop.do(f"INSERT INTO t VALUES (1, 1, '', '{literal}')")
    assert (await drain(source))[0]["fullDocument"]["w"] == literal


NUMBERS = (
    st.integers(-(10**45), 10**45) | st.integers(-(2**66), 2**66) | st.floats(allow_nan=False, allow_infinity=False)
)
KEYS = st.sampled_from(["a", "$ref", "$date", "$numberLong", "$oid", "\x00", "\u00e9", "\ud800"])
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | st.text('a"\\\u00e9\ud800\x00'), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2)))  # fmt: skip


def of_json(text: str) -> Any:
    """The oracle: the document that a text of json is; the text itself if extended JSON cannot tell it."""

    def number(digits: str) -> Any:
        wide = not -(2**63) <= int(digits) < 2**63
        return int(digits) if not wide else Decimal(digits) if len(digits.lstrip("-")) <= 34 else float(digits)

    def told(tree: Any) -> bool:
        if isinstance(tree, str):
            return "\ud800" not in tree
        if isinstance(tree, dict):
            typed_value = len(tree) == 1 and bool({"$date", "$numberLong", "$oid"} & tree.keys())
            return not typed_value and all(told(name) and told(each) for name, each in tree.items())
        return not isinstance(tree, list) or all(map(told, tree))

    found = json.loads(text, parse_int=number)
    return found if told(found) else text


async def test_any_json_comes_as_it_is_alone_and_in_arrays_of_rows_and_of_changes(shop: Shop) -> None:
    """Numbers of any length, keys of typed values, zero characters, halves of surrogate pairs: a document, or the server's text."""
    shop.do("CREATE TABLE v (id serial PRIMARY KEY, alone json, items json[])")
    shop.do("ALTER PUBLICATION p ADD TABLE v")
    texts: list[str] = []

    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(JSON)
    def write(tree: Any) -> None:
        texts.append(json.dumps(tree))
        shop.do("INSERT INTO v (alone, items) VALUES (%s::json, ARRAY[%s::json, '1'])", texts[-1], texts[-1])

    source = await shop.begun(peek_messages=1000)
    write()
    events = await drain(source)
    shop.drop_slot()
    shop.make_slot()
    rows = await drain(await shop.begun(initial_sync=True, fetch_messages=100))
    assert len(rows) == len(events) == len(texts) >= 200
    for event, row, text in zip(events, rows, texts, strict=True):
        found, wanted = event["fullDocument"], of_json(text)
        assert typed(found) == typed(row["fullDocument"])
        assert typed(found["alone"]) == typed(wanted)
        assert type(found["items"]) is str if wanted is text else typed(found["items"]) == typed([wanted, 1])


async def test_values_of_domains_are_those_of_their_types_in_rows_and_changes(shop: Shop) -> None:
    """A query tells the type that a domain is made of, the slot the domain: an update changes no value's type."""
    shop.do("CREATE DOMAIN cents AS bigint CHECK (VALUE >= 0)")
    shop.do("CREATE DOMAIN price AS cents")
    shop.do("CREATE DOMAIN marks AS int[]")
    shop.do("ALTER TABLE t ADD w price, ADD x marks")
    shop.do("INSERT INTO t VALUES (1, 1, '', 5, '{1,2}')")
    source = await shop.begun(initial_sync=True)
    rows = await drain(source)
    shop.do("UPDATE t SET n = 2")
    events = [*rows, *await drain(source)]
    assert [typed({name: event["fullDocument"][name] for name in "wx"}) for event in events] == [
        typed({"w": long(5), "x": [1, 2]})
    ] * 2


async def test_special_decimals_are_decimals(shop: Shop) -> None:
    """NaN is a decimal, too."""
    shop.do("ALTER TABLE t ADD w numeric")
    source = await shop.begun()
    shop.do("INSERT INTO t VALUES (1, 1, '', 'NaN')")
    found = (await drain(source))[0]["fullDocument"]["w"]
    assert type(found) is Decimal
    assert found.is_nan()


async def test_C6_a_restart_resumes_exactly_from_any_position(shop: Shop) -> None:
    """Transactions of all sizes, read in small pieces: behind each, a new source gives exactly the rest, with the slot advanced or not."""
    shop.do("CREATE TABLE other (body text)")
    source = await shop.begun(quiet_bytes=1)
    written = 0
    given_events: list[Document] = []
    sizes = iter((1, 1, 40, 2, 0, 13, 1, 1, 0, 1, 1, 1, 1, 0, 0, 3, 1, 1, 1, 0, 0, 0, 1))
    more: int | None = 0
    while more is not None or not source.status()[0].at_end:
        if source.status()[0].at_end or written % 2:
            more = next(sizes, None)
            shop.do("INSERT INTO other VALUES ('x')")
            shop.do(f"INSERT INTO t SELECT g, g FROM generate_series({written}, {written + (more or 0) - 1}) g")
            written += more or 0
        given_events += await piece(source, 700)
        position, origins = stands(source)
        rest = await drain(await shop.resumed(position, origins, quiet_bytes=1))
        assert len(origins) <= 5
        assert ids([*given_events, *rest]) == list(range(written))
        if len(given_events) % 3 == 0:
            await source.note("p", {SPLIT: position})
    assert ids(given_events) == list(range(written)) == list(range(70))
    shop.do("INSERT INTO t SELECT g FROM generate_series(70, 79) g")
    given_events += await piece(source, 700)
    assert len(given_events) < 80
    assert not source.status()[0].at_end, "there is more of this transaction"


async def test_the_slot_follows_commits_alone(shop: Shop) -> None:
    """It never passes what a checkpoint has not, be that within a transaction, and it does pass what one has."""
    source = await shop.begun()
    begin = shop.confirmed()
    shop.do("INSERT INTO t SELECT g FROM generate_series(1, 30) g")
    shop.do("INSERT INTO t VALUES (31)")
    assert len(await drain(source)) == 31
    assert shop.confirmed() == begin
    await source.note("p", {SPLIT: Offset(begin + 30 - 1)})
    assert await drain(source) == []
    assert shop.confirmed() == begin
    await source.note("p", {SPLIT: Offset(begin + 30)})
    assert await drain(source) == []
    assert begin < shop.confirmed() < int(shop.one("SELECT pg_current_wal_insert_lsn() - '0/0'"))
    assert ids(await drain(await shop.resumed(Offset(begin + 30), source.origins(SPLIT, Offset(begin + 30))))) == [31]


async def test_the_slot_follows_the_commit_behind_the_end(shop: Shop) -> None:
    """A drained source reads no more, and its last checkpoint is committed then: the server keeps no log for a job that has ended."""
    source = await shop.begun()
    shop.do("INSERT INTO t SELECT g FROM generate_series(1, 30) g")
    ends = await source.ends({SPLIT: source.status()[0].next_position})
    source.end_at({split: end for split, end in ends.items() if end is not None})
    while not source.status()[0].finished:
        await piece(source)
    await source.note("p", {SPLIT: source.status()[0].next_position})
    assert shop.confirmed() >= (ends[SPLIT] or 0) > 0
    shop.do("INSERT INTO t VALUES (31)")
    position, origins = stands(source)
    assert ids(await drain(await shop.resumed(position, origins))) == [31]


async def test_the_slot_follows_a_log_without_events(shop: Shop) -> None:
    """Other tables' writes hold no log on the server: the position moves, and commits let the slot follow."""
    shop.do("CREATE TABLE other (body text)")
    source = await shop.begun(quiet_bytes=10_000)
    begin = shop.confirmed()
    shop.do("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 1000)")
    shop.do("SELECT pg_current_xact_id()")
    while (position := source.status()[0].next_position) == begin:
        assert await piece(source) == []
    origins = stands(source)[1]
    await source.note("p", {SPLIT: position})
    await piece(source)
    assert shop.confirmed() - begin >= 10_000
    shop.do("INSERT INTO t VALUES (1)")
    assert ids(await drain(source)) == [1]
    assert ids(await drain(await shop.resumed(position, origins))) == [1]


async def test_transactions_of_concurrent_writers_come_whole_and_once(shop: Shop) -> None:
    """Writers interleave, some roll back; pieces are taken, committed and resumed meanwhile, and connections are broken."""
    source = await shop.begun(quiet_bytes=1)
    stop = threading.Barrier(4)

    def writer(lane: int) -> None:
        with psycopg.connect(shop.url, autocommit=True) as connection:
            for n in range(12):
                with connection.transaction(force_rollback=n % 4 == 3):
                    for i in range(n % 5 + 1):
                        connection.execute("INSERT INTO t VALUES (%s, %s)", (lane * 1000 + n * 10 + i, lane))
        stop.wait()

    threads = [threading.Thread(target=writer, args=(lane,)) for lane in range(3)]
    for thread in threads:
        thread.start()
    events: list[Document] = []
    turn = broken = 0
    while not broken or stop.n_waiting < len(threads) or not source.status()[0].at_end:
        turn += 1
        with suppress(LogUnavailable):  # its connection was broken below, or the killed one still has the slot
            events += await piece(source, 900)
        status, origins = source.status()[0], stands(source)[1]
        if turn % 3 == 0:
            await source.note("p", {SPLIT: status.next_position})
        if turn % 7 == 0:
            source = await shop.resumed(status.next_position, origins, quiet_bytes=1)
        if turn % 5 == 0:
            broken += shop.one(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s",
                f"tidemark {shop.slot}",
            )
    stop.wait()
    for thread in threads:
        thread.join()
    whole = False
    while not whole:
        with suppress(LogUnavailable):  # the last break may be told only now
            events += await piece(source)
            whole = source.status()[0].at_end
    rows = {row[0] for row in shop.connection.execute("SELECT id FROM t")}
    assert sorted(ids(events)) == sorted(rows)
    keys = [event["_id"]["lsn"] for event in events]
    runs = [key for key, after in zip(keys, [*keys[1:], None], strict=True) if key != after]
    assert len(runs) == len(set(keys)), "the events of a transaction come together"


async def test_I3_a_drain_ends_where_the_changes_end_now(shop: Shop) -> None:
    """Later changes are not part of the input; the end is the same for a resumed source."""
    source = await shop.begun()
    shop.do("INSERT INTO t SELECT g FROM generate_series(1, 30) g")
    await piece(source, 10)
    position = source.status()[0].next_position
    origins = stands(source)[1]
    ends = await source.ends({SPLIT: position})
    shop.do("INSERT INTO t VALUES (31)")
    again = await shop.resumed(position, origins)
    end = ends[SPLIT]
    assert end is not None
    again.end_at({SPLIT: end})
    found: list[Document] = []
    while not again.status()[0].finished:
        found += await piece(again)
    assert ids(found)[-1] == 30
    assert again.status()[0].next_position == end


async def test_I2_a_checkpoint_that_the_slot_has_passed_is_named(shop: Shop) -> None:
    """The slot follows the last commit: what lies behind an older checkpoint is gone from the server, and the error tells so."""
    source = await shop.begun()
    shop.do("INSERT INTO t VALUES (1)")
    await drain(source)
    older, origins = source.status()[0].next_position, stands(source)[1]
    shop.do("INSERT INTO t VALUES (2)")
    await drain(source)
    await source.note("g", {SPLIT: source.status()[0].next_position})
    await piece(source)
    again = await shop.resumed(older, origins)
    with pytest.raises(SourceReplaced, match=r"an older checkpoint, which the slot has passed.*Start without state"):
        await drain(again)


@pytest.mark.parametrize("synced", [False, True])
async def test_I2_a_copy_that_is_behind_what_was_read_is_named(shop: Shop, *, synced: bool) -> None:
    """Its next changes would get LSNs that were read before, and would be left out: with the same slot, on the same system."""
    source = await shop.begun(initial_sync=synced)
    shop.do("INSERT INTO t VALUES (1, 1, 'a')")
    await drain(source)
    position, origins = stands(source)
    server_had = shop.one("SELECT (pg_current_wal_insert_lsn() + 10000000)::text")
    behind = await shop.resumed(position, {**origins, str(position): server_had}, initial_sync=synced)
    shop.do("INSERT INTO t VALUES (2, 2, 'b')")
    with pytest.raises(SourceReplaced, match=r"has read up to .*log ends at .*a copy that is behind"):
        await drain(behind)


async def test_I2_what_is_no_longer_there_is_named_with_what_to_order(shop: Shop) -> None:
    """A slot that is gone, or was made anew, or advanced by another; another database; a publication that is missing; a wrong plugin."""
    source = await shop.begun()
    shop.do("INSERT INTO t VALUES (1)")
    await drain(source)
    position, origins = source.status()[0].next_position, stands(source)[1]
    shop.do("INSERT INTO t VALUES (2)")
    shop.drop_slot()
    with pytest.raises(
        SourceMissing, match=f"expected a replication slot {shop.slot}, found none.*start without state"
    ):
        await source.check(shop.known)
    shop.make_slot()
    again = await shop.resumed(position, origins)
    with pytest.raises(
        SourceReplaced, match=r"another reader has advanced it, or it was dropped and made anew.*Start without state"
    ):
        await drain(again)
    other = {SPLIT: KnownSplit(0, f"1/{shop.database}/{shop.slot}", Offset(1))}
    with pytest.raises(SourceReplaced, match=r"system identifier.*start without state"):
        await source.check(other)
    with pytest.raises(SourceMissing, match="CREATE PUBLICATION absent"):
        await shop.source(publication="absent").state()
    shop.do("SELECT pg_create_physical_replication_slot(%s)", f"{shop.slot}_b")
    with pytest.raises(SlotRefused, match=r"expected slot .* of pgoutput .*, found a physical one"):
        await shop.source(slot=f"{shop.slot}_b").state()
    shop.do("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", f"{shop.slot}_c")
    with pytest.raises(
        SlotRefused, match=r"as they commit, found one with two_phase, which gives them as they are prepared"
    ):
        await shop.source(slot=f"{shop.slot}_c").state()
    with pytest.raises(SlotRefused, match="reads PostgreSQL"):
        await shop.source(url="sqlite:///x").state()
    with pytest.raises(LogDenied, match="does not exist"):
        await shop.source(url=shop.url.replace("postgres:", "nobody:")).state()
    with pytest.raises(LogUnavailable):
        await shop.source(url="postgresql://localhost:1/none").state()
