"""Changes of tables as no textbook has them: names, types, partitions, and databases with settings of their own."""

from decimal import Decimal
from typing import Any, Final

import pytest

from tests.harness.shop import Shop, drain
from tidemark.shared.model.values import Binary, Date, Document, long
from tidemark.shared.ports.log import LogUnavailable

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres]
_TABLE: Final = '"My.Schema ""q"" %s"."Odd.Table ""x"" {}"'
_TYPES: Final = (
    'CREATE SCHEMA "My.Schema ""q"" %s"',
    "CREATE TYPE mood AS ENUM ('sad', 'O''k, \"x\"', '')",
    'CREATE TYPE pair AS (a int, "B c" text, m mood)',
    "CREATE TYPE nest AS (p pair, ps pair[], d date)",
    "CREATE DOMAIN above_0 AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN domain_of_one AS above_0",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE DOMAIN price AS numeric(10, 2) NOT NULL",
)
_COLUMNS: Final[dict[str, tuple[str, str, Any]]] = {
    '"a.b"': ("int", "3", 3),
    '"$d"': ("text", "'x'", "x"),
    '"q""q"': ("int", "1", 1),
    '"sp ace"': ("int", "2", 2),
    '"UPPER"': ("text", "'U'", "U"),
    '"select"': ("int", "4", 4),
    "m": ("mood", "'O''k, \"x\"'", 'O\'k, "x"'),
    "ms": ("mood[]", "ARRAY['sad', NULL, '']::mood[]", '{sad,NULL,""}'),
    "mo": ("moods", "ARRAY['sad']::mood[]", "{sad}"),
    "c": ("pair", "ROW(1, 'a,\"b\"', 'sad')", '(1,"a,""b""",sad)'),
    "n": ("nest", "ROW(ROW(1, NULL, NULL), ARRAY[]::pair[], '1969-12-31')", '("(1,,)",{},1969-12-31)'),
    "cs": ("pair[]", "ARRAY[ROW(1, 'z', 'sad')::pair, NULL]", '{"(1,z,sad)",NULL}'),
    "p": ("above_0", "5", 5),
    "dp": ("domain_of_one", "6", 6),
    "dn": ("price", "1.10", Decimal("1.10")),
    "mat": ("int[][]", "'{{1,2},{3,NULL}}'", [[1, 2], [3, None]]),
    "lb": ("int[]", "'[0:1]={7,8}'", [7, 8]),
    "r": ("int4range", "'[1,5)'", "[1,5)"),
    "t": ("time", "'23:59:59.999999'", "23:59:59.999999"),
    "ts": ("timestamp", "'0001-01-01 BC'", "0001-01-01 00:00:00 BC"),
    "tz": ("timestamptz", "'infinity'", "infinity"),
    "bits": ("bit varying(9)", "B'101'", "101"),
    "h": ("char(5)", "'ab'", "ab   "),
    "o": ("oid", "4294967295", 4294967295),
    "texts": ("text[]", '\'{NULL,"NULL","a,b",""}\'', [None, "NULL", "a,b", ""]),
    "js": ("json", '\'{"a":1,"a":2}\'', {"a": 2}),
}
"""Columns by their quoted names: a type, a value in SQL, and what documents have."""
_READS: Final = ("initial_sync", "changes")


async def read(shop: Shop, table: str, how: str, *rows: str) -> list[Document]:
    """The documents of rows that are inserted behind the slot, as rows that were there or as changes."""
    shop.connection.execute(f"ALTER PUBLICATION p ADD TABLE {table}")
    shop.drop_slot()
    if how == "changes":
        shop.make_slot()
    for row in rows:
        shop.connection.execute(f"INSERT INTO {table} {row}")
    if how != "changes":
        shop.make_slot()
    events = await drain(await shop.begun(initial_sync=how != "changes"))
    assert all(event["operationType"] == "insert" for event in events)
    return [event["fullDocument"] for event in events]


@pytest.mark.parametrize("how", _READS)
async def test_any_name_and_any_type(shop: Shop, how: str) -> None:
    """Quotes, dots, blanks and case in names; enums, domains, composites, arrays of them; what the database computes does not come."""
    for statement in _TYPES:
        shop.connection.execute(statement)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in _COLUMNS.items())
    computed = 'gen int GENERATED ALWAYS AS ("a.b" * 2) STORED'
    shop.connection.execute(
        f'CREATE TABLE {_TABLE} ("Id" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {computed}, {columns})'
    )
    values = ", ".join(value for _, value, _ in _COLUMNS.values())
    (found,) = await read(shop, _TABLE, how, f"({', '.join(_COLUMNS)}) VALUES ({values})")
    assert found == {"Id": 1} | {name.strip('"').replace('""', '"'): value for name, (_, _, value) in _COLUMNS.items()}


@pytest.mark.parametrize("how", _READS)
async def test_a_database_with_a_path_and_settings_of_its_own(shop: Shop, how: str) -> None:
    """Names of the server's are the server's, whatever schema users look into first, and values have one text."""
    shop.do("CREATE SCHEMA own")
    for name in (
        "class",
        "publication",
        "replication_slots",
        "attribute",
        "index",
        "type",
        "namespace",
        "publication_tables",
    ):
        shop.do(f"CREATE TABLE own.pg_{name} (oid oid, x int)")
    shop.do("CREATE FUNCTION own.pg_current_wal_insert_lsn() RETURNS pg_lsn LANGUAGE sql AS $$ SELECT '0/1'::pg_lsn $$")
    settings = {
        "search_path": "own, pg_catalog, public", "datestyle": "'SQL, DMY'", "bytea_output": "'escape'", "extra_float_digits": "-3",
        "timezone": "'Asia/Kolkata'", "intervalstyle": "'iso_8601'", "standard_conforming_strings": "off",
    }  # fmt: skip
    shop.do("CREATE TABLE public.v (id int PRIMARY KEY, d date, tz timestamptz, b bytea, f float8, i interval, s text)")
    for name, value in settings.items():
        shop.do(f"ALTER DATABASE {shop.database} SET {name} = {value}")
    row = r"(1, '2020-02-01', '2020-02-01 00:00:00+00', '\x00ff5c', 0.1::float8 + 0.2, '1 day', 'a\b')"
    (found,) = await read(shop, "public.v", how, f"VALUES {row}")
    day = 1_580_515_200_000
    assert found == {
        "id": 1, "d": Date(day), "tz": Date(day), "b": Binary(b"\x00\xff\x5c"), "f": 0.1 + 0.2, "i": "1 day", "s": r"a\b"
    }  # fmt: skip


@pytest.mark.parametrize("root", [True, False])
async def test_partitions_and_children(shop: Shop, *, root: bool) -> None:
    """A partition has its columns in another order; rows that move are deleted here and inserted there."""
    shop.do("CREATE TABLE pt (id bigint, k text, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)")
    shop.do("CREATE TABLE pt_a PARTITION OF pt FOR VALUES IN ('a')")
    shop.do("CREATE TABLE pt_b PARTITION OF pt FOR VALUES IN ('b') PARTITION BY RANGE (id)")
    shop.do("CREATE TABLE pt_b1 (v int, id bigint NOT NULL, k text NOT NULL)")
    shop.do("ALTER TABLE pt_b ATTACH PARTITION pt_b1 FOR VALUES FROM (0) TO (10)")
    shop.do("CREATE TABLE parent (id int PRIMARY KEY)")
    shop.do("CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (parent)")
    shop.do("DROP PUBLICATION p")
    shop.do(f"CREATE PUBLICATION p FOR TABLE pt, parent WITH (publish_via_partition_root = {root})")
    shop.drop_slot()
    shop.make_slot()
    source = await shop.begun()
    shop.do("INSERT INTO pt VALUES (1, 'a', 1), (2, 'b', 2)")
    shop.do("INSERT INTO child VALUES (7, 8)")
    shop.do("UPDATE pt SET k = 'b' WHERE id = 1")
    shop.do("UPDATE pt SET v = 9 WHERE id = 2")
    found = [
        (
            event["operationType"],
            event["ns"]["coll"].removeprefix("public."),
            event.get("fullDocument", event["documentKey"]),
        )
        for event in await drain(source)
    ]
    a, b = ("pt", "pt") if root else ("pt_a", "pt_b1")
    assert found == [
        ("insert", a, {"id": long(1), "k": "a", "v": 1}),
        ("insert", b, {"id": long(2), "k": "b", "v": 2}),
        ("insert", "child", {"id": 7, "extra": 8}),
        ("delete", a, {"id": long(1), "k": "a"}),
        ("insert", b, {"id": long(1), "k": "b", "v": 1}),
        ("update", b, {"id": long(2), "k": "b", "v": 9}),
    ]


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX other"])
async def test_partitions_of_another_identity_than_the_whole(shop: Shop, identity: str) -> None:
    """The server does not hand the identity on to partitions: of old rows it would send the key, and nulls as values of other columns."""
    shop.do('CREATE TABLE "P t" (id bigint PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id)')
    shop.do('CREATE TABLE pt_a PARTITION OF "P t" FOR VALUES FROM (0) TO (10)')
    shop.do('CREATE UNIQUE INDEX other ON "P t" (id, v)')
    shop.do(f'ALTER TABLE "P t" REPLICA IDENTITY {identity}')
    shop.do("DROP PUBLICATION p")
    shop.do('CREATE PUBLICATION p FOR TABLE "P t" WITH (publish_via_partition_root)')
    shop.drop_slot()
    shop.make_slot()
    with pytest.raises(
        LogUnavailable, match=r'of public\."P t" to have .* found another of public\.pt_a\. ALTER TABLE'
    ):
        await shop.begun()
    shop.do("ALTER TABLE pt_a REPLICA IDENTITY FULL")
    source = await shop.begun()
    shop.do('INSERT INTO "P t" VALUES (1, 5)')
    shop.do('UPDATE "P t" SET v = 6')
    shop.do('DELETE FROM "P t"')
    _, changed, gone = await drain(source)
    before = "fullDocumentBeforeChange" if identity == "FULL" else "documentKey"
    assert [changed["documentKey"]["v"], gone[before]["v"]] == [6, 6]
    assert gone["documentKey"] == {"id": long(1), "v": 6}
    shop.do('CREATE TABLE pt_b PARTITION OF "P t" FOR VALUES FROM (10) TO (20)')
    with pytest.raises(LogUnavailable, match=r"found another of public\.pt_b"):
        await source.state()


async def test_where_inserts_alone_are_published_any_identity_will_do(shop: Shop) -> None:
    """They have no old rows, of which a partition could tell less than its table."""
    shop.do("CREATE TABLE log (id bigint, v int) PARTITION BY RANGE (id)")
    shop.do("CREATE TABLE log_a PARTITION OF log FOR VALUES FROM (0) TO (10)")
    shop.do("ALTER TABLE log REPLICA IDENTITY FULL")
    shop.do("DROP PUBLICATION p")
    shop.do("CREATE PUBLICATION p FOR TABLE log WITH (publish_via_partition_root, publish = 'insert, truncate')")
    shop.drop_slot()
    shop.make_slot()
    source = await shop.begun()
    shop.do("INSERT INTO log VALUES (1, 5)")
    assert [event["fullDocument"] for event in await drain(source)] == [{"id": long(1), "v": 5}]
