"""Mutants of sinks: the task, and its connectors."""
# ruff: noqa: E501 -- a piece of source stands in one line

from tests.harness.mutants.model import Mutant

BODY, MARKERS, STAGING = (
    "services/sink/body.py",
    "services/sink/connectors/markers.py",
    "services/sink/connectors/staging.py",
)
KAFKA, READ_BACK = "services/sink/connectors/kafka.py", "services/sink/connectors/kafkamarkers.py"
PARTS, TOPICS = "services/sink/connectors/parts.py", "services/sink/connectors/kafkatopics.py"
FILES, MANIFESTS = "services/sink/connectors/files.py", "services/sink/connectors/manifests.py"
FOLDER, SQL = "services/sink/connectors/destination.py", "services/sink/connectors/sql.py"
DELTA = "services/sink/connectors/delta.py"
ICEBERG = "services/sink/connectors/iceberg.py"
COMMITS = "services/sink/connectors/tablereleases.py"
RECORDS, TRANSACTIONS = "services/sink/connectors/kafkarecords.py", "shared/adapters/kafka_transactions.py"
ON_TASK = ("tests/unit/test_sink_tasks.py",)
ON_ALL = ("tests/contract/test_sinks_contract.py",)
ON_KAFKA = ("tests/contract/test_sinks_kafka.py", *ON_ALL)
ON_FILES = ("tests/contract/test_sinks_files.py", *ON_ALL)
ON_EFFECTS = ("tests/integration/test_stable_input.py",)
ON_TABLES = ("tests/contract/test_sinks_tables.py", "tests/contract/test_deletions.py", *ON_FILES)
ON_POWER = ("tests/property/test_loss_of_power.py",)
ON_SQL = ("tests/contract/test_sinks_sql.py", *ON_ALL)
ON_CHANGES = ("tests/contract/test_sinks_sql_changes.py",)
ON_HTTPS = ("tests/contract/test_sinks_https.py", *ON_ALL)
HTTPS = "services/sink/connectors/https.py"
ON_MONGODB = ("tests/contract/test_sinks_mongodb.py",)
MONGODB, COLLECTIONS = "services/sink/connectors/mongodb.py", "services/sink/connectors/mongodbwrites.py"
PLUGIN, ON_PLUGINS = "services/sink/connectors/plugin.py", ("tests/contract/test_plugins.py",)
PIPELINES = "services/sink/connectors/sqlpipelines.py"

SINKS = (
    Mutant("S2", "a table that has come begins anywhere", COMMITS, "                at = self._manifests.marker(manifest.identity)\n", "                pass\n", ON_TABLES),
    Mutant("S4", "a folder that is there is taken for durable", "shared/adapters/creating.py", "            return self._durable.get(folder) == folder.stat().st_ino", "            return folder.is_dir()", ON_POWER),
    Mutant("C7", "a folder of blobs that is there is taken for durable", "shared/adapters/creating.py", "            return self._durable.get(folder) == folder.stat().st_ino", "            return folder.is_dir()", ON_POWER),
    Mutant("S4", "a file is not forced to disk", FOLDER, "            if self._fsync:\n                os.fsync(file.fileno())\n", "", ON_POWER),
    Mutant("C7", "a blob is not forced to disk", "shared/adapters/directory_blobs.py", "                    os.fsync(file.fileno())\n", "", ON_POWER),
    Mutant("S4", "the name of a file is not forced to disk", "shared/adapters/creating.py", "        self.make(folder)\n        self.force(folder)\n", "        self.make(folder)\n", ON_POWER),
    Mutant("S1", "the task works before all is released", BODY, "        await self._follow(lambda: all(r.machine.marker >= assign.last for r in self._releases))\n", "", ON_TASK),
    Mutant("S1", "identities of earlier generations are left alone", BODY, "identities = [(assign.vertex, assign.index), *assign.retired]", "identities = [(assign.vertex, assign.index)]", ON_TASK),
    Mutant("S1", "one marker for all identities", SQL, "        query = sa.select(_RELEASED.c.released).where(_RELEASED.c.identity == str(identity))\n", "        query = sa.select(sa.func.max(_RELEASED.c.released))\n", ON_SQL),
    Mutant("S2", "releases go on at a gap", MARKERS, "    if row.predecessor == marker:\n        return True", "    if True:\n        return True", ON_ALL),
    Mutant("S2", "what is released is released again", MARKERS, "    if row.epoch <= marker:\n        return False", "    if False:\n        return False", ON_ALL),
    Mutant("S2", "a marker ahead of what is restored is taken", MARKERS, "    if marker > restored_from:", "    if False:", ON_ALL),
    Mutant("S2", "a marker that is gone is guessed", MARKERS, "        if restored_from > NO_EPOCH and not joins:", "        if False:", ON_ALL),
    Mutant("S2", "a new identity begins at nothing", FILES, "        if marker is None or (joins and marker < restored_from):", "        if marker is None:\n            marker = Epoch(0)\n        if joins and marker < restored_from:", ON_FILES),
    Mutant("S2", "a retired identity that joins keeps its old marker", FILES, "        if marker is None or (joins and marker < restored_from):", "        if marker is None:", ON_FILES),
    Mutant("S2", "the mirror's rows are released in any order", "shared/protocol/release.py", "        if row.predecessor != self.marker:", "        if False:", ON_TASK),
    Mutant("C9", "another job's rows count", "shared/protocol/release.py", "        if row.job != self.job:", "        if False:", ON_TASK),
    Mutant("C9", "handles are released without their digest", BODY, "    if digest_of(handle.staged) != handle.digest:", "    if False:", ON_TASK),
    Mutant("C7", "the ack does not hold what was staged", BODY, "        return Copied(blobs=blobs_of(staged, self._settings.staging.handle_bytes_max) if staged else (), staged=staged)", "        return Copied(blobs=blobs_of(staged, self._settings.staging.handle_bytes_max) if staged else ())", ON_TASK),
    Mutant("R3", "effects do not wait for the commit of their input", BODY, '        self._context.passing("staged", epoch)\n', '        await sink.release(MirrorRow(self._context.assign.job, epoch, committed, self._context.assign.generation, ()), staged)\n        self._context.passing("staged", epoch)\n', ON_EFFECTS),
    Mutant("R3", "what an attempt without a commit has answered is used", "shared/protocol/lineage.py", "        return Verdict.COUNTS if epoch <= self.ceilings.get(generation, -1) else Verdict.DISCARDED", "        return Verdict.COUNTS", ON_EFFECTS),
    Mutant("C5", "a handle covers its own epoch alone", STAGING, "        self._staged = [entry for entry in self._staged if entry[0] > committed]", "        self._staged = []", ON_ALL),
    Mutant("C5", "a handle covers what was committed", STAGING, "        self._staged = [entry for entry in self._staged if entry[0] > committed]\n", "", ON_ALL),
    Mutant("S3", "markers are not read back after an initialisation", KAFKA, "            self._marker = await last_marker(self._log, markers_of(identity), self._settings.reading)\n", "            if self._marker is None:\n                self._marker = await last_marker(self._log, markers_of(identity), self._settings.reading)\n", ON_KAFKA),
    Mutant("S3", "silence is the end of the markers", READ_BACK, "            if silent > reading.silent_fetches_max:\n                raise TargetUnavailable(", "            if silent > reading.silent_fetches_max:\n                break\n                raise TargetUnavailable(", ON_KAFKA),
    Mutant("S3", "markers of aborted transactions count", READ_BACK, "reader = await log.reader(committed_only=True)", "reader = await log.reader(committed_only=False)", ON_KAFKA),
    Mutant("S3", "deleted markers are guessed", READ_BACK, "        if found is None and start == begin > 0:", "        if False:", ON_KAFKA),
    Mutant("S3", "markers go up to one that is not the newest's", KAFKA, "for newest in (w.first for w in written if w.partition == place):", "for newest in (w.first + 1 for w in written if w.partition == place):", ON_KAFKA),
    Mutant("S3", "only the end of the markers is looked at", READ_BACK, "        if found is not None or start == begin:", "        if True:", ON_KAFKA),
    Mutant("S3", "every part is written again", READ_BACK, "    return marker.part + 1", "    return 1", ON_KAFKA),
    Mutant("S3", "another division is taken for the same", READ_BACK, "    if (marker.parts, marker.digest) != (total, digest):", "    if False:", ON_KAFKA),
    Mutant("S3", "a plug-in's markers are those that it was made with", PLUGIN, "beaten = [] if self._newest is None else [self._newest.data]\n                await self._throw_away()\n", "beaten = []\n", ON_PLUGINS),
    Mutant("S6", "a plug-in's refusals are staged", PLUGIN, "if row not in refused]", "if True]", ON_PLUGINS),
    Mutant("C10", "a plug-in that is away has failed", "shared/runtime/plugged.py", '            case Away():\n                raise self._away(f"{where}: {error}") from error\n', "", ON_PLUGINS),
    Mutant("S3", "the first part is the whole", PARTS, "parts=total, digest", "parts=number, digest", ON_KAFKA),
    Mutant("S3", "a fenced holder takes its identity back", KAFKA, "        if self._fenced is not None:\n            raise self._fenced\n", "", ON_KAFKA),
    Mutant("S3", "the marker goes alone", KAFKA, "in records.items():\n", "in list(records.items())[:0]:\n", ON_KAFKA),
    Mutant("S3", "records go without their marker", KAFKA, "        await transaction.send_batch(place, [marker_record(marker)])\n", "", ON_KAFKA),
    Mutant("S3", "a commit need not await its sends", TRANSACTIONS, "                if committed and self._sent:\n                    await self._answered()\n                    self._take_answers()\n", "", ("tests/contract/test_kafka_trouble.py",), real=True),
    Mutant("S3", "a commit is told before its partitions are", TRANSACTIONS, "                if is_somewhere:\n", "                if False:\n", ("tests/contract/test_kafka_trouble.py",), real=True),
    Mutant("S4", "files are not forced to disk", FOLDER, "                os.fsync(file.fileno())", "                pass", ON_FILES),
    Mutant("S4", "a staged file that is gone is released", FILES, "        if size != file.size_bytes:", "        if False:", ON_FILES),
    Mutant("S4", "the summary lags at the end", FILES, "        if due or (row.final and row.epoch == self._marker):", "        if due:", ON_FILES),
    Mutant("S4", "the summary is not rebuilt by who opens", FILES, "        # A predecessor may have died between its last manifest and the summary.\n        self._releases.settle()\n", "", ON_FILES),
    Mutant("S4", "a listing that is not whole is taken for one", MANIFESTS, "        if self._begin(manifests) is None or manifests[-1].epoch < marker:", "        if False:", ON_TABLES),
    Mutant("C12", "a listing without the first manifests is taken for whole", MANIFESTS, "whole = at == 0 and first.predecessor is None", "whole = at == 0", ON_TABLES),
    Mutant("S4", "manifests of a listing that is not whole are bound", MANIFESTS, "        while begin is not None and len(", "        begin = begin or 0\n        while len(", ON_FILES),
    Mutant("S4", "the newest manifest goes into a volume", MANIFESTS, "len(manifests) - begin >= 2 * count:", "len(manifests) - begin >= count:", ON_FILES),
    Mutant("S4", "what was bound is not deleted", MANIFESTS, "            self.forget([manifest_name(identity, Epoch(m.epoch)) for m in manifests[: begin + count]])\n", "", ON_FILES),
    Mutant("S4", "a folder that cannot be read is empty", FOLDER, ", onerror=raise_unless_gone):", "):", ON_TABLES),
    Mutant("S4", "staged files keep their names", MANIFESTS, "            destination.publish(file.name, visible_name(file.name))", "            pass", ON_TABLES),
    Mutant("S2", "a table's commit has no marker", DELTA, "                    app_transactions=[Transaction(app_of(manifest.identity), manifest.epoch)],\n", "", ON_TABLES),
    Mutant("S2", "an Iceberg table's commit has no marker", ICEBERG, ", properties={app_of(manifest.identity): str(manifest.epoch)}", "", ON_TABLES),
    Mutant("S2", "the table library tries a commit again by itself", ICEBERG, 'TableProperties.COMMIT_NUM_RETRIES: "0"', 'TableProperties.COMMIT_NUM_RETRIES: "4"', ON_TABLES),
    Mutant("S2", "a table's marker of another history is taken", COMMITS, "            if at not in (None, manifest.predecessor):", "            if False:", ON_TABLES),
    Mutant("C11", "a release that waits keeps the task from staging", BODY, "        stage = partial(sink.stage, epoch, committed)\n", "        while self._releases[0].machine.releasing is not None:\n            await self._context.outside.clock.sleep_ms(10)\n        stage = partial(sink.stage, epoch, committed)\n", ON_TASK),
    Mutant("S4", "the summary misses what came meanwhile", MANIFESTS, "            if self.names() == names:\n                return", "            return", ON_FILES),
    Mutant("C12", "staged files of a later generation are removed", FILES, "label is not None and label < self._restored_from]", "label is not None and label <= self._restored_from]", ON_FILES),
    Mutant("C12", "a table's log keeps what a checkpoint has", DELTA, '                configuration={"delta.logRetentionDuration": LOG_KEPT},\n', "", ON_TABLES),
    Mutant("C12", "versions without rows are kept", ICEBERG, "        return len(table.metadata.snapshots)", "        return 0", ON_TABLES),
    Mutant("C12", "released files are removed", FILES, "self._releases.clear([name for name in old if name not in listed])", "self._releases.clear(old)", ON_TABLES),
    Mutant("C12", "what waits for its release is removed", FILES, "        if self._collected or self._marker < self._restored_from:", "        if self._collected:", ON_FILES),
    Mutant("S5", "the marker moves whatever it is", SQL, "sa.update(_RELEASED).where(mine, _RELEASED.c.released == row.predecessor)", "sa.update(_RELEASED).where(mine)", ON_SQL),
    Mutant("S5", "no marker need be touched", SQL, "            if moved.rowcount == 1:\n                return None", "            if moved.rowcount >= 0:\n                return None", ON_SQL),
    Mutant("S5", "rows and marker are two transactions", SQL, "            if moved.rowcount == 1:\n                return None", "            if moved.rowcount == 1:\n                connection.commit()\n                return None", ON_SQL),
    Mutant("S5", "what a failed commit left open is gone on with", SQL, '    sa.event.listen(engine, "reset", _roll_back)\n', "", ON_SQL),
    Mutant("S5", "a lock is a refusal", "shared/adapters/sql.py", "            return any(word in said for word in _SQLITE_PASSING)", "            return False", ON_SQL),
    Mutant("S7", "documents and marker are not one transaction", MONGODB, "                    self._write(rows, session)", "                    self._write(rows, None)", ON_MONGODB, real=True),
    Mutant("S7", "the marker is moved outside of the transaction", MONGODB, "markers.update_one(marker, step, session=session)", "markers.update_one(marker, step)", ON_MONGODB, real=True),
    Mutant("S7", "the marker moves whatever it is", MONGODB, '        before = {"released": row.predecessor, "parts": number}', "        before: dict[str, int] = {}", ON_MONGODB, real=True),
    Mutant("S7", "without transactions the marker moves first", MONGODB, "            self._write(rows, None)\n            return bool(markers.update_one(marker, step).matched_count)", "            markers.update_one(marker, step)\n            self._write(rows, None)\n            return True", ON_MONGODB, real=True),
    Mutant("S7", "a server alone takes what must not be repeated", MONGODB, "    if not transactions and needs_transactions(stage):", "    if False:", ON_MONGODB, real=True),
    Mutant("S7", "the marker is read wherever the url says", MONGODB, "get_collection(MARKERS, None, ReadPreference.PRIMARY, _MAJORITY, concern)", "get_collection(MARKERS, None, None, _MAJORITY, concern)", ON_MONGODB, real=True),
    Mutant("S7", "an _id is given at release", MONGODB, "        row = StagedChange(data, *_rest(row)) if isinstance(row, StagedChange) else data\n", "", ON_MONGODB, real=True),
    Mutant("S8", "each release makes keys of its own", HTTPS, 'staged["key"])', 'f"{id(staged)}")', ON_HTTPS),
    Mutant("S8", "what was answered is sent again behind an outage", HTTPS, "[each for each in found if each.key not in answered]", "found", ON_HTTPS),
    Mutant("S8", "a request without an answer counts as answered", HTTPS, " for each in left if each.answer is not None}", " for each in left}", ON_HTTPS),
    Mutant("S8", "a part is marked without its requests", HTTPS, "            await self._asking.ask_all(left, passing=self._passing)\n", "            pass\n", ON_HTTPS),
    Mutant("S6", "what no server takes is staged", MONGODB, "    stored(document)\n    for name", "    for name", ON_MONGODB, real=True),
    Mutant("S6", "another record is named", COLLECTIONS, 'raise DocumentRefused(writes[first["index"]][0],', "raise DocumentRefused(writes[0][0],", ON_MONGODB, real=True),
    Mutant("S6", "what the table would refuse is staged", SQL, "if n not in misfits and not isinstance(data, NoChange)])", "if not isinstance(data, NoChange)])", ON_SQL),
    Mutant("S6", "the record is not named", SQL, "            half = len(numbers) // 2", "            half = 0", ON_SQL),
    Mutant("S6", "a pipeline moves a row to another key", PIPELINES, "        if moved:", "        if False:", ON_CHANGES),
    Mutant("S6", "a pipeline that fails leaves the row as it is", PIPELINES, '                    raise Unwanted(f"{path}: {reason}")', "                    return row", ON_CHANGES),
    Mutant("S6", "records of any size are staged", RECORDS, "        for row in np.flatnonzero(sizes > self.takes.record_bytes_max).tolist():", "        for row in ():", ON_KAFKA),
    Mutant("S6", "topics that are not there are staged for", TOPICS, "            if topic not in known and not self._takes.new_topic_partitions:", "            if False:", ON_KAFKA),
    Mutant("S6", "a record names an internal topic", RECORDS, "            if reason is None and (internal := refusal(name, self.takes.prefix)):", '            if reason is None and (internal := ""):', ON_KAFKA),
    Mutant("E1", "rows are held beyond the end", BODY, "        return await self._rest() if watermark_ms == MAX_TIME else ()\n", "        return ()\n", ON_TASK),
    Mutant("S6", "refused rows vanish", BODY, "        return list(dead_letters(batch, failures,", "        return list(dead_letters(batch, [],", ON_TASK),
    Mutant("S6", "a refused dead letter vanishes", BODY, "        if rejected and not self._rejected_to_dlq:", "        if False:", ON_TASK),
    Mutant("S6", "a sink skips without an order", BODY, "        skips = (identity.vertex, identity.index, row.epoch) in self._context.assign.skips", "        skips = True", ON_TASK),
    Mutant("S6", "an order is not obeyed", BODY, "        skips = (identity.vertex, identity.index, row.epoch) in self._context.assign.skips", "        skips = False", ON_TASK),
    Mutant("S6", "an order for one commit is for all", BODY, "        skips = (identity.vertex, identity.index, row.epoch) in self._context.assign.skips", "        skips = bool(self._context.assign.skips)", ON_TASK),
    Mutant("S6", "a skip leaves the rest out", SQL, "            self._write_rows(connection, commit, writer, rows.taken(slice(half, None)), numbers[half:], skipped)\n", "", ON_SQL),
    Mutant("S6", "a skip passes over the order of commits", "services/sink/connectors/memory.py", "        if is_due(identity, self._target.markers[identity], row, PLACE):\n            for", "        if True:\n            for", ON_ALL),
)  # fmt: skip
