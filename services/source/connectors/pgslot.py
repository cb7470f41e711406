"""What a source of PostgreSQL's changes reads by: its settings, and as the server describes them its slot and the identity of rows."""

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.shared.model.failures import Lasting
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.ports.source import SourceMissing, SourceReplaced

_STATE: Final = """
SELECT s.slot_type, s.plugin, s.database, s.confirmed_flush_lsn - '0/0', s.wal_status,
       EXISTS (SELECT FROM pg_publication WHERE pubname = %(publication)s),
       (SELECT system_identifier FROM pg_control_system()), current_database(), pg_is_in_recovery(),
       CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() - '0/0' END, to_jsonb(s) -> 'two_phase' = 'true'
FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = %(slot)s
"""

_IDENTITIES: Final = """
WITH names AS (
    SELECT c.oid, array_agg(a.attname) FILTER (WHERE a.attname IS NOT NULL) AS columns
    FROM pg_class c
         LEFT JOIN pg_index i ON i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
    WHERE c.relkind IN ('p', 'r') GROUP BY c.oid)
SELECT root.oid::regclass::text, leaf.oid::regclass::text
FROM pg_publication p
     JOIN pg_publication_tables t ON t.pubname = p.pubname
     JOIN pg_class root ON root.oid = format('%%I.%%I', t.schemaname, t.tablename)::regclass AND root.relkind = 'p'
     JOIN names whole ON whole.oid = root.oid
     CROSS JOIN LATERAL pg_partition_tree(root.oid) tree
     JOIN pg_class leaf ON leaf.oid = tree.relid AND tree.isleaf
     JOIN names part ON part.oid = leaf.oid
WHERE p.pubname = %(publication)s AND (p.pubupdate OR p.pubdelete) AND to_jsonb(p) -> 'pubviaroot' = 'true'
      AND leaf.relreplident <> 'f'
      AND (root.relreplident = 'f' OR NOT coalesce(whole.columns, '{}') <@ coalesce(part.columns, '{}'))
ORDER BY 1, 2 LIMIT 1
"""
"""A table that comes as one, and a partition whose identity lacks columns of the table's. Inserts and truncations have no old rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """The slot, the tables to read, and bounds."""

    url: str
    publication: str
    slot: str
    connection_name: str
    initial_sync: bool = False
    """Without state, the tables' rows come first."""
    poll_ms: int = 250
    """How long to wait before a silent database is asked again, at most."""
    peek_messages: int = 10_000
    """After so many messages a peek ends with the next commit."""
    fetch_messages: int = 200
    """In memory at once, besides the events of a batch."""
    anchors_max: int = 64
    """In a snapshot; with fewer, more is decoded again after a restore."""
    quiet_bytes: int = 1024 * 1024
    """The slot is advanced over so much of the server's log without events."""
    lock_wait_ms: int = 10_000
    """How long a lock is waited for, until that is told and tried again."""


class SlotRefused(LogError, Lasting):
    """The slot is there, and cannot be read as the document says."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot that can be read."""

    origin: str
    """System identifier, database and slot: what positions belong to."""
    confirmed: int
    """LSN: what was committed before it comes no more."""
    database: str
    end: int
    """LSN: the end of the server's log."""


def slot_state(connection: psycopg.Connection[Any], settings: PostgresSettings) -> SlotState:
    """The slot as it is. SourceMissing, SourceReplaced, SlotRefused."""
    where, publication, slot = f"connection {settings.connection_name}", settings.publication, settings.slot
    row = connection.execute(_STATE, {"slot": slot, "publication": publication}).fetchone()
    assert row is not None, "the join has a row always"
    kind, plugin, database, confirmed, wal_status, published, system, current, standby, end, two_phase = row
    if standby:
        raise SlotRefused(f"{where}: the server is a standby; give the url of the primary")
    if not published:
        raise SourceMissing(
            f"{where}: expected a publication {publication} in database {current}, found none. CREATE PUBLICATION"
            f" {publication} FOR TABLE …; then make the slot, for a slot does not know publications that are younger than it"
        )
    if kind is None:
        raise SourceMissing(
            f"{where}: expected a replication slot {slot}, found none. If it was dropped, what was not read is lost."
            f" SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput') makes one (the server needs wal_level=logical);"
            " then start without state"
        )
    if (kind, plugin, database) != ("logical", "pgoutput", current):
        found = f"a {kind} one" + (f" of {plugin} in database {database}" if plugin else "")
        raise SlotRefused(
            f"{where}: expected slot {slot} to be a logical one of pgoutput in database {current}, found {found}"
        )
    if two_phase:
        raise SlotRefused(
            f"{where}: expected slot {slot} to give transactions as they commit, found one with two_phase, which gives them as they are"
            " prepared, whether they commit or not. Drop it, make it anew without two_phase, and start without state"
        )
    if wal_status == "lost" or confirmed is None:
        raise SourceReplaced(
            f"{where}: slot {slot} was invalidated: the server has removed changes that were not read (max_slot_wal_keep_size). Drop the"
            " slot, make it anew, and start without state"
        )
    return SlotState(f"{system}/{current}/{slot}", int(confirmed), current, int(end))


def check_identities(connection: psycopg.Connection[Any], publication: str) -> None:
    """See that partitions which come as one table tell of old rows what the table does. LogUnavailable: it is looked for again.

    The server does not hand the table's identity on. Of a partition with another it sends nulls, as if they were values.
    """
    found = connection.execute(_IDENTITIES, {"publication": publication}).fetchone()
    if found is not None:
        whole, part = found
        raise LogUnavailable(
            f"publication {publication}: expected partitions of {whole} to have its REPLICA IDENTITY, as it tells their old rows,"
            f" found another of {part}. ALTER TABLE {part} REPLICA IDENTITY FULL; it is looked for again"
        )
