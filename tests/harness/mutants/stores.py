"""Mutants of the commit store and of the log's adapters."""
# ruff: noqa: E501 -- a piece of source stands in one line

from tests.harness.mutants.model import Mutant

STORE, RULES = "shared/adapters/commit_store.py", "shared/adapters/commit_rules.py"
TRANSACTIONS, WRITER, MEMORY = (
    "shared/adapters/kafka_transactions.py",
    "shared/adapters/kafka_writer.py",
    "shared/adapters/memory_log.py",
)
ON_STORE = ("tests/contract/test_commit_store.py", "tests/contract/test_commit_trouble.py")
ON_DAMAGE = ("tests/property/test_store_damage.py",)
ON_LOG = ("tests/contract/test_log.py", "tests/contract/test_kafka_trouble.py")

STORES = (
    Mutant("C8", "the leader is not asked for", STORE, "        columns.leader == expected.leader,\n", "", ON_STORE),
    Mutant("C8", "the generation is not asked for", STORE, "        columns.generation == expected.generation,\n", "", ON_STORE),
    Mutant("C8", "the last commit is not asked for", STORE, "        columns.last == expected.last,\n", "", ON_STORE),
    Mutant("C8", "no row need be touched", STORE, "    if written.rowcount != 1:", "    if False:", ON_STORE),
    Mutant("C8", "a drop need not touch its row", STORE, "            if gone.rowcount != 1:", "            if False:", ON_STORE),
    Mutant("C8", "anybody may forget and write connections", STORE, "    if token != leader:\n        raise Stale(leads_no_longer", "    if False:\n        raise Stale(leads_no_longer", ON_STORE),
    Mutant("C8", "leading leaves the rows as they are", STORE, "            await connection.execute(sa.update(schema.processors).values(leader=token))\n", "", ON_STORE),
    Mutant("C8", "a lease that runs is taken", STORE, 'if found.holder not in ("", holder) and not over:', "if False:", ON_STORE),
    Mutant("C8", "a store that counts fewer changes than were told is led", STORE, "            if found.changes < told:", "            if False:", ON_DAMAGE),
    Mutant("C8", "a store that has never named who told of itself is led", STORE, "            if found.token < led:", "            if False:", ON_STORE),
    Mutant("C8", "a file that was taken away is used", STORE, "        if self._file is not None and (how := self._file.changed()):", "        if False:", ON_DAMAGE),
    Mutant("C8", "a file that was cut off is used", "shared/adapters/sqlite.py", "        if found.st_size < self._bytes:", "        if False:", ON_DAMAGE),
    Mutant("C8", "bytes that flipped are taken", "shared/adapters/commit_schema.py", "to_bytes(_CRC_BYTES) != crc:", "to_bytes(_CRC_BYTES) != crc and False:", ON_DAMAGE),
    Mutant("C8", "a backup that is put back is written to", STORE, "        if changes <= self.changes:", "        if False:", ON_STORE),
    Mutant("C8", "a lease is renewed in a backup that was put back", STORE, "            if found is not None and found < self.changes:", "            if False:", ON_STORE),
    Mutant("C8", "changes are not counted", STORE, "values(changes=table.c.changes + 1)", "values(changes=table.c.changes)", ON_STORE),
    Mutant("C8", "flipped columns of the lineage are taken", "shared/adapters/commit_schema.py", "    if row.crc not in (None, _crc(columns)) or", "    if", ON_DAMAGE),
    Mutant("C8", "flipped connections are taken", "shared/adapters/commit_schema.py", "    if row.crc not in (None, _crc((row.name, row.value))):", "    if False:", ON_DAMAGE),
    Mutant("C8", "tables that are gone are made anew", "shared/adapters/commit_schema.py", "    if there and (lacking", "    if False and (lacking", ON_DAMAGE),
    Mutant("C8", "a lost answer is an outage", STORE, "            raise Ambiguous(", "            raise StoreUnavailable(", ON_STORE),
    Mutant("C8", "an unsafe database is used", STORE, 'if (journal, synchronous) != ("wal", 2):', "if False:", ON_STORE),
    Mutant("C8", "SQLite may lose what it confirmed", STORE, '    cursor.execute("PRAGMA synchronous = FULL")\n', '    cursor.execute("PRAGMA synchronous = OFF")\n', ON_STORE),
    Mutant("C9", "a commit need not follow its predecessor", RULES, "    if found != wanted or commit.epoch <= expected.last:", "    if False:", ON_STORE),
    Mutant("R1", "a generation need not be higher", RULES, "    if row.generation <= expected.generation:", "    if False:", ON_STORE),
    Mutant("R1", "lineage may say something else than the row", RULES, "    if (entry.generation, entry.restored_from) != (row.generation, row.last):", "    if False:", ON_STORE),
    Mutant("F2", "calls for one partition overtake each other", MEMORY, "            self._lanes.setdefault(partition, deque()).append((record, future))", "            self._lanes.setdefault(partition, deque()).appendleft((record, future))", ON_LOG),
    Mutant("F2", "a writer goes on after an error", MEMORY, "        if self._error is not None:\n            raise again(self._error)", "        if False:\n            raise again(self._error)", ON_LOG),
)  # fmt: skip
