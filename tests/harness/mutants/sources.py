"""Mutants of the source's task, its connectors and its front."""
# ruff: noqa: E501 -- a piece of source stands in one line

from tests.harness.mutants.model import Mutant

BODY, KAFKA, SERVICE = "services/source/body.py", "services/source/connectors/kafka.py", "services/source/service.py"
FRONT, STRATEGIES = "shared/operators/source_front.py", "shared/operators/watermarks.py"
ON_TASK = ("tests/contract/test_source_tasks.py",)
ON_KAFKA = ("tests/contract/test_sources_kafka.py",)
ON_ALL = ("tests/contract/test_sources_contract.py", *ON_KAFKA, *ON_TASK)
CURSORS, ON_FILES = "services/source/connectors/filecursors.py", ("tests/contract/test_sources_files.py",)
INPUT, SPLIT, RULE = (
    "shared/protocol/source/machine.py",
    "shared/protocol/source/split.py",
    "shared/protocol/watermarks.py",
)
ON_INPUT = ("tests/unit/test_protocol_source.py",)
ON_HISTORY = ("tests/integration/test_history.py",)
ON_ADDED = "tests/integration/test_added_partitions.py"
ON_WORKER = ("tests/unit/test_runtime_worker.py",)
ON_FRONT = ("tests/unit/test_operators_front.py",)
FILES, DEDUPE, REMEMBERED, ON_IDS = (
    "services/source/connectors/files.py",
    "shared/operators/dedupe.py",
    "shared/operators/remembered.py",
    ("tests/property/test_operators_dedupe.py",),
)

PLUGIN, ON_PLUGINS = "services/source/connectors/plugin.py", ("tests/contract/test_plugins.py",)

SOURCES = (
    Mutant("I1", "positions of a plug-in that do not grow are taken", PLUGIN, "            if each <= last:", "            if False:", ON_PLUGINS),
    Mutant("I2", "another origin of a plug-in's split is taken", PLUGIN, "now.origin != was.origin", "False", ON_PLUGINS),
    Mutant("F5", "the broker's time is the event time", FRONT, "        batch = with_column(batch, TS, pa.array(times))\n", "", ON_FRONT),
    Mutant("C6", "the front forgets its clocks", FRONT, "if stored is None else _CODEC.decode(stored)", "if True else _CODEC.decode(stored)", ON_FRONT),
    Mutant("C6", "the front forgets its ids", FRONT, '            ids.restore({p: self._restored.pop(p) for p in list(self._restored) if p.startswith(f"{part}#")})\n', "", ON_FRONT),
    Mutant("W2", "the highest of the splits", RULE, "            any_active, active = True, min(active, progress.watermark_ms)", "            any_active, active = True, max(active if any_active else MIN_TIME, progress.watermark_ms)", ON_INPUT),
    Mutant("W2", "a new split lowers it", INPUT, "self.watermark_ms = max(self.watermark_ms, found_ms)", "self.watermark_ms = found_ms", (*ON_INPUT, *ON_FRONT)),
    Mutant("W2", "a new split does not hold it", INPUT, "combined_watermark(split.progress for split in self.splits.values())", "combined_watermark(s.progress for s in self.splits.values() if s.progress.watermark_ms > MIN_TIME)", (*ON_INPUT, *ON_FRONT)),
    Mutant("W2", "the delay is not taken off", STRATEGIES, "        case BoundedDisorder(max_delay_ms):\n            return max_delay_ms", "        case BoundedDisorder(_):\n            return 0", ON_FRONT),
    Mutant("W2", "the watermark depends on how batches are cut", STRATEGIES, "seen = np.maximum.accumulate(np.concatenate(([clock.highest_ms], times_ms)))", "seen = np.maximum.accumulate(np.concatenate(([times_ms[0]], times_ms)))", ON_FRONT),
    Mutant("W2", "strategies are not restored", FRONT, "if stored is None else _CODEC.decode(stored)", "if True else _CODEC.decode(stored)", ON_FRONT),
    Mutant("W3", "the lowest of the idle", RULE, "max(idle, default=MAX_TIME)", "min(idle, default=MAX_TIME)", (*ON_INPUT, *ON_FRONT)),
    Mutant("W3", "idle splits hold it", RULE, "        elif progress.idle:\n            idle.append(progress.watermark_ms)\n", "        elif False:\n            pass\n", (*ON_INPUT, *ON_FRONT)),
    Mutant("W3", "a task without splits is not idle", RULE, "    return all(p.idle or p.ended for p in seen) and", "    return bool(seen) and all(p.idle or p.ended for p in seen) and", (*ON_INPUT, *ON_FRONT)),
    Mutant("W3", "ended splits are idle", RULE, " and not (seen and all(p.ended for p in seen))", "", (*ON_INPUT, *ON_FRONT)),
    Mutant("W4", "idle at once", INPUT, "timeout_ms is not None and now_ms - split.at_end_since_ms >= timeout_ms:", "timeout_ms is not None:", (*ON_INPUT, *ON_TASK)),
    Mutant("W4", "never idle", INPUT, "timeout_ms is not None and now_ms - split.at_end_since_ms >= timeout_ms:", "False:", (*ON_INPUT, *ON_TASK)),
    Mutant("W4", "silence is the end", INPUT, "        if rows or not status.at_end:", "        if rows:", (*ON_INPUT, *ON_TASK)),
    Mutant("W4", "the last stable offset is the end", KAFKA, "        return not split.finished and end is not None and split.position < end", "        return False", ON_TASK),
    Mutant("W4", "what is on its way wakes nobody", INPUT, '                # Something is coming that cannot be read yet, such as an open transaction: the split was idle, and is no longer.\n                split.become("active")\n', "                pass\n", (*ON_INPUT, *ON_TASK)),
    Mutant("W4", "time held back counts", INPUT, "                split.at_end_since_ms += held_ms", "                pass", (*ON_INPUT, *ON_TASK)),
    Mutant("W4", "the position need not be at the high watermark", KAFKA, "return split.finished or (end is not None and split.position >= end)", "return split.finished or end is not None", ON_KAFKA),
    Mutant("W4", "old answers count", KAFKA, "if split.answered_ms is None or now_ms - split.answered_ms > self._settings.answer_age_ms_max:", "if split.answered_ms is None:", ON_KAFKA),
    Mutant("W4", "an outage is an end", KAFKA, "        except LogUnavailable:\n            self._forget_answers()\n            raise", "        except LogUnavailable:\n            raise", ON_KAFKA),
    Mutant("E1", "a bounded task without splits goes on", INPUT, "return self.bounded or self._draining", "return self._draining", (*ON_INPUT, *ON_TASK)),
    Mutant("E1", "every task without splits ends", INPUT, "return self.bounded or self._draining", "return True", (*ON_INPUT, *ON_TASK)),
    Mutant("E1", "`latest` is not settled before anything is read", KAFKA, "self._until(p, starts[p], ends[p], late=not first)", "None", ON_KAFKA),
    Mutant("E1", "records behind the end are read", KAFKA, "            count = int(np.searchsorted(records.offsets, split.until))\n", "            pass\n", ON_ALL),
    Mutant("E1", "one ended split ends the task", INPUT, "return all(split.progress.ended for", "return any(split.progress.ended for", (*ON_INPUT, *ON_TASK)),
    Mutant("E2", "a drain forgets the named offsets", INPUT, "self._until = until\n", "self._until = {}\n", ON_TASK),
    Mutant("E2", "what comes after the end is looked for", INPUT, "settled = self._draining or self._are_listed()", "settled = self._are_listed()", ON_TASK),
    Mutant("I1", "what is found is read at once", INPUT, "        self.found, self._looked_ms, self._to_tell = found, now_ms, True\n", "        self.found, self._looked_ms, self._to_tell = found, now_ms, True\n        self.listed(found)\n", (*ON_INPUT, *ON_TASK)),
    Mutant("I1", "each task lists its own of what is decided once", INPUT, "(0 if self.one_lists else ordinal % self.tasks)", "(ordinal % self.tasks)", ON_INPUT),
    Mutant("I1", "what was decided once is looked for again", INPUT, "(self.bounded or self.one_lists) and self.listed_once", "self.bounded and self.listed_once", ON_INPUT),
    Mutant("I1", "what came since begins where the document says", BODY, "first=not self.input.listed_once)", "first=True)", ON_TASK),
    Mutant("I1", "a split without a position begins at its first record", SPLIT, "known.begin if checkpoint is None else checkpoint", "Offset(0) if checkpoint is None else checkpoint", ON_TASK),
    Mutant("I1", "an end comes before what was told", INPUT, "all(split.progress.ended for split in self.splits.values())", "all(split.progress.ended for split in self.splits.values() if split.opened)", ON_INPUT),
    Mutant("I2", "a restore compares nothing", BODY, "        await self._source.check(known)\n", "", ON_TASK),
    Mutant("I2", "a look compares nothing", BODY, "            await self._source.check(given.known())\n            given.compared(now_ms)\n", "            given.compared(now_ms)\n", ON_TASK),
    Mutant("I2", "what is there after an outage is read at once", BODY, "            given.away()\n            raise", "            raise", ON_TASK),
    Mutant("I2", "the name is enough", KAFKA, "            if topic.id != was.origin or", "            if", ON_TASK),
    Mutant("I2", "what was taken since the last look is acknowledged", BODY, "        await self._compare_taken()\n", "", ON_TASK),
    Mutant("I2", "later files of a sequence are forgotten", BODY, "            self._source.know({split: position.origins for split, position in saved.items()})\n", "            pass\n", ("tests/integration/test_source_changes.py",)),
    Mutant("I2", "files that were passed are not compared", FILES, "                await self._executor.blocking(cursor.origins.check_all)\n", "", ON_FILES),
    Mutant("I2", "a file may be replaced while it is read", CURSORS, "        self.origins.check(self._name)\n", "", ON_FILES),
    Mutant("I2", "a file of a sequence may be replaced while it is read", CURSORS, "            self.origins.check(self._names[place])\n", "", ON_FILES),
    Mutant("I2", "a file's name is enough", CURSORS, "        if known and found != known:", "        if False:", ON_FILES),
    Mutant("I3", "a drain ends where the task stands", SPLIT, "end = Offset(max(there, self.position))", "end = self.position", (*ON_INPUT, *ON_TASK)),
    Mutant("I3", "an end in front of what was read", SPLIT, "end = Offset(max(named, self.position))", "end = Offset(named)", (*ON_INPUT, *ON_TASK)),
    Mutant("I3", "each asking finds other ends", INPUT, "        if self._ends is not None:\n            return [ReportEnds(self._ends)]\n        if self._until is None or self._taking or self._finding:", "        if self._until is None or self._taking or self._finding:", ON_INPUT),
    Mutant("I3", "a restored task goes on behind the end", BODY, "        self._source.end_at(self.input.opened(positions))\n", "        self.input.opened(positions)\n", (*ON_TASK, *ON_ALL)),
    Mutant("I3", "input is taken while the ends are decided", INPUT, "return self._until is None and not any(", "return not any(", (*ON_INPUT, *ON_WORKER)),
    Mutant("I3", "ends are told beside what is worked on", INPUT, "if self._until is None or self._taking or self._finding:", "if self._until is None or self._finding:", (*ON_INPUT, *ON_WORKER)),
    Mutant("W4", "a return is judged by any report", INPUT, "read >= split.returned:", "True:", ON_INPUT),
    Mutant("W4", "one receiver speaks for all", INPUT, "read = min((", "read = max((", ON_INPUT),
    Mutant("W4", "a split that came since is with the others", INPUT, "away=self.listed_once)", "away=False)", (*ON_INPUT, ON_ADDED)),
    Mutant("W4", "all splits come late", INPUT, "away=self.listed_once)", "away=True)", ON_INPUT),
    Mutant("W4", "a split that came behind the snapshot is with the others", SPLIT, "noted.away or (checkpoint is None and not first)", "noted.away", ON_INPUT),
    Mutant("W4", "a split that nothing was read of is forgotten to be away", BODY, "        self._assign(listed)  # those that nothing was taken of yet are away, too\n", "", (ON_ADDED,)),
    Mutant("W4", "a second return is the first", SPLIT, "self.away, self.returned, self.catch_up_ms = True, None, None", "self.away, self.returned, self.catch_up_ms = True, self.returned, None", ON_INPUT),
    Mutant("I1", "what was told is told with each fetch", INPUT, "        told, self._to_tell = self._to_tell or again, False\n", "        told = self._to_tell or again\n", ON_INPUT),
    Mutant("I3", "a drain lets go on what is read", INPUT, "[EndAt(self._until_of([name for name, split in self.splits.items() if split.opened]))]", "[]", (*ON_INPUT, *ON_TASK)),
    Mutant("C6", "a split that changed is not written", INPUT, "for name, split in self.splits.items() if split.changed}", "for name, split in self.splits.items() if split.opened and split.more}", ON_INPUT),
    Mutant("C6", "a file is read from its beginning again", FILES, "cursor = self._cursor(split, position)\n                await", "cursor = self._cursor(split, 0)\n                await", ON_ALL),
    Mutant("C6", "a partition is read from its beginning again", KAFKA, "_Split(partition, self._ordinal(partition), positions[split])", "_Split(partition, self._ordinal(partition), begins[partition])", ON_ALL),
    Mutant("DD1", "ids are kept for ever", DEDUPE, "    return np.where(ends, MIN_TIME, (highest - span) // (BUCKET_MS if by_time else POSITIONS_A_BUCKET))", "    return np.full(len(highest), MIN_TIME)", ON_IDS),
    Mutant("DD1", "an id lives as long as its own bucket", DEDUPE, "(highest - span) // (BUCKET_MS", "highest // (BUCKET_MS", ON_IDS),
    Mutant("DD1", "the highest time is not restored", DEDUPE, "            self._highest = CODEC.decode(parts[head]).highest\n", "", ON_IDS),
    Mutant("DD2", "the horizon is behind the task's watermark", DEDUPE, "_oldest(int64s(batch.column(WM))[rows], self._spec.horizon)", "np.full(len(rows), int(_oldest(np.array([self._watermark_ms]), self._spec.horizon)[0]))", ON_IDS),
    Mutant("DD2", "ids of a source are not restored", DEDUPE, '        """The key groups of this task."""\n        self._ids.restore(parts)\n', '        """The key groups of this task."""\n', ON_IDS),
    Mutant("DD2", "the copy that came first counts", "shared/operators/in_order.py", "    order = np.lexsort(keys)\n", "    order = np.arange(len(keys[0]))\n", ON_IDS),
    Mutant("DD3", "records without an id repeat each other", DEDUPE, "None if v is None or v is MISSING else canonical_key(v)", "canonical_key(v)", ON_IDS),
    Mutant("RI1", "the filter and the hashes decide", REMEMBERED, "                hit = left[same.to_numpy(zero_copy_only=False)]\n", "                hit = left\n", ON_IDS),
    Mutant("RI1", "the second of two ids with one hash is not found", REMEMBERED, "            while len(left := _still(run.places, places, at, left)):", "            if len(left := _still(run.places, places, at, left)):", ON_IDS),
    Mutant("RI1", "nothing is remembered", REMEMBERED, "        self._remember(ids, hashes, buckets, np.flatnonzero(fresh))\n", "", ON_IDS),
    Mutant("RI1", "an id that expires within a batch stays a repeat", REMEMBERED, "        if again.any():", "        fresh &= ~again\n        if False:", ON_IDS),
    Mutant("RI2", "every run is written each time", REMEMBERED, "            if not run.parts:\n", "            if True:\n", ON_IDS),
    Mutant("RI2", "runs are never merged", REMEMBERED, "        _merge_alike(self._stored)\n", "", ON_IDS),
    Mutant("RI2", "what expired stays in a run that still counts", REMEMBERED, "    return run if 2 * len(rows) > len(run.buckets) else run.rows(rows, run.level)", "    return run", ON_IDS),
    Mutant("RI3", "a run is no longer parted by key group", REMEMBERED, "    groups = run.places >> _HASH_BITS\n", "    groups = np.zeros_like(run.places)\n", ON_IDS),
    Mutant("RI4", "memory has no bound", REMEMBERED, "left > self.memory_bytes:", "left > 1 << 40:", ON_IDS),
    Mutant("RI4", "a restore takes all at once", REMEMBERED, "            while parts and size <= RESTORED_BYTES:\n", "            while parts:\n", ON_IDS),
    Mutant("IO1", "rows come out as they came", "shared/operators/in_order.py", "    order = np.lexsort(keys)\n", "    order = np.arange(len(keys[0]))\n", ON_IDS),
    Mutant("IO2", "the watermark passes what is held", "shared/operators/in_order.py", "        return self._sent_ms\n", "        return self._watermark_ms\n", ON_IDS),
    Mutant("IO3", "any number of rows is held", "shared/operators/in_order.py", "self._given() if self._held_bytes > self._context.ordered_bytes_max else ()", "()", ON_IDS),
    Mutant("W2", "a repeat moves no watermark", FRONT, "        if self.spec.key_groups:\n", "        if False:\n", ON_FRONT),
    Mutant("W2", "a silent topic holds up the history", FRONT, "            raise_to(state.clock, self.spec.source.from_ms)\n", "            pass\n", ON_HISTORY),
    Mutant("W2", "records on both sides of the switch count", FRONT, "        batch = self._own_side(batch)\n", "", ON_HISTORY),
    Mutant("W2", "the record at the switch is lost", FRONT, "            own &= times >= begin_ms\n", "            own &= times > begin_ms\n", ON_HISTORY),
    Mutant("W2", "the record at the switch comes twice", FRONT, "            own &= times < end_ms\n", "            own &= times <= end_ms\n", ON_HISTORY),
    Mutant("W3", "a task that holds rows is idle", "shared/protocol/task/machine.py", "        idle = not self._batching and all_idle(", "        idle = all_idle(", ("tests/unit/protocol_task/test_task_time.py",)),
)  # fmt: skip
