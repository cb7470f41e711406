"""Mutants of the source's task, its connectors and its front."""
# ruff: noqa: E501 -- a piece of source stands in one line

from tests.harness.mutants.model import Mutant

BODY, KAFKA, SERVICE = "services/source/body.py", "services/source/connectors/kafka.py", "services/source/service.py"
FRONT, STRATEGIES = "shared/operators/source_front.py", "shared/operators/watermarks.py"
ON_TASK = ("tests/contract/test_source_tasks.py",)
ON_KAFKA = ("tests/contract/test_sources_kafka.py",)
ON_ALL = ("tests/contract/test_sources_contract.py", *ON_KAFKA, *ON_TASK)
CURSORS, ON_FILES = "services/source/connectors/filecursors.py", ("tests/contract/test_sources_files.py",)
DRIVER, ON_WORKER = "shared/runtime/driver.py", ("tests/unit/test_runtime_worker.py",)
ON_FRONT = ("tests/unit/test_operators_front.py",)
FILES, DEDUPE, ON_IDS = (
    "services/source/connectors/files.py",
    "shared/operators/dedupe.py",
    ("tests/property/test_operators_dedupe.py",),
)

SOURCES = (
    Mutant("F5", "the broker's time is the event time", FRONT, "        batch = with_column(batch, TS, pa.array(times))\n", "", ON_FRONT),
    Mutant("C6", "the front forgets its clocks", FRONT, "        return _Split(_CODEC.decode(stored), ids, dirty=False)", "        return _Split(SplitState(ordinal, SplitClock()), ids)", ON_FRONT),
    Mutant("C6", "the front forgets its ids", FRONT, '            ids.restore({p: self._restored.pop(p) for p in list(self._restored) if p.startswith(f"{part}#")})\n', "", ON_FRONT),
    Mutant("W2", "the highest of the splits", STRATEGIES, "    if active:\n        return min(active)", "    if active:\n        return max(active)", ON_FRONT),
    Mutant("W2", "a new split lowers it", FRONT, "        self._watermark = max(self._watermark, found)", "        self._watermark = found", ON_FRONT),
    Mutant("W2", "a new split does not hold it", STRATEGIES, "active = [w for w, idle, ended in watermarks if not idle and not ended]", "active = [w for w, idle, ended in watermarks if not idle and not ended and w != MIN_TIME]", ON_FRONT),
    Mutant("W2", "the delay is not taken off", STRATEGIES, "        case BoundedDisorder(max_delay_ms):\n            return max_delay_ms", "        case BoundedDisorder(_):\n            return 0", ON_FRONT),
    Mutant("W2", "the watermark depends on how batches are cut", STRATEGIES, "np.concatenate(([clock.highest_ms], times_ms))", "np.concatenate(([times_ms[0]], times_ms))", ON_FRONT),
    Mutant("W2", "strategies are not restored", FRONT, "        return _Split(_CODEC.decode(stored), ids, dirty=False)", "        return _Split(SplitState(ordinal, SplitClock()), ids)", ON_FRONT),
    Mutant("W3", "the lowest of the idle", STRATEGIES, "        return max(idle_ones)", "        return min(idle_ones)", ON_FRONT),
    Mutant("W3", "idle splits hold it", STRATEGIES, "active = [w for w, idle, ended in watermarks if not idle and not ended]", "active = [w for w, _idle, ended in watermarks if not ended]", ON_FRONT),
    Mutant("W3", "a task without splits is not idle", FRONT, '        return all(held.state.status != "active" for held in self._splits.values()) and not self.ended()', '        return bool(self._splits) and all(held.state.status != "active" for held in self._splits.values()) and not self.ended()', ON_FRONT),
    Mutant("W3", "ended splits are idle", FRONT, '        return all(held.state.status != "active" for held in self._splits.values()) and not self.ended()', '        return all(held.state.status != "active" for held in self._splits.values())', ON_FRONT),
    Mutant("W4", "idle at once", BODY, "timeout_ms is not None and monotonic_ms - split.at_end_since_ms >= timeout_ms:", "timeout_ms is not None:", ON_TASK),
    Mutant("W4", "never idle", BODY, "timeout_ms is not None and monotonic_ms - split.at_end_since_ms >= timeout_ms:", "False:", ON_TASK),
    Mutant("W4", "silence is the end", BODY, "        if rows or not status.at_end:", "        if rows:", ON_TASK),
    Mutant("W4", "the last stable offset is the end", KAFKA, "        return not split.finished and end is not None and split.position < end", "        return False", ON_TASK),
    Mutant("W4", "what is on its way wakes nobody", BODY, '                self._front.on_status(status.split, "active")\n', "                pass\n", ON_TASK),
    Mutant("W4", "time held back counts", BODY, "                split.at_end_since_ms += held_ms", "                pass", ON_TASK),
    Mutant("W4", "the position need not be at the high watermark", KAFKA, "return split.finished or (end is not None and split.position >= end)", "return split.finished or end is not None", ON_KAFKA),
    Mutant("W4", "old answers count", KAFKA, "if split.answered_ms is None or now_ms - split.answered_ms > self._settings.answer_age_ms_max:", "if split.answered_ms is None:", ON_KAFKA),
    Mutant("W4", "an outage is an end", KAFKA, "        except LogUnavailable:\n            self._forget_answers()\n            raise", "        except LogUnavailable:\n            raise", ON_KAFKA),
    Mutant("E1", "a bounded task without splits goes on", BODY, "self._bounded or self._draining\n", "self._draining\n", ON_TASK),
    Mutant("E1", "every task without splits ends", BODY, "self._bounded or self._draining\n", "True\n", ON_TASK),
    Mutant("E1", "`latest` is not settled before anything is read", KAFKA, "self._until(p, starts[p], ends[p], late=not first)", "None", ON_KAFKA),
    Mutant("E1", "records behind the end are read", KAFKA, "            count = int(np.searchsorted(records.offsets, split.until))\n", "            pass\n", ON_ALL),
    Mutant("E1", "one ended split ends the task", FRONT, "return bool(self._splits) and all(held.state.status", "return bool(self._splits) and any(held.state.status", (*ON_TASK, *ON_FRONT)),
    Mutant("E2", "a drain forgets the named offsets", BODY, "    if named is not None:\n", "    if named is not None and named < 0:\n", ON_TASK),
    Mutant("E2", "what comes after the end is looked for", BODY, " and not bounded and not self._draining:", " and not bounded:", ON_TASK),
    Mutant("I1", "what is found is read at once", BODY, "        self._to_tell = bool(self._found or self._gone) or not self._listed\n\n    def found", "        self._to_tell = bool(self._found or self._gone) or not self._listed\n        self._unopened |= self._found\n\n    def found", ON_TASK),
    Mutant("I1", "what came since begins where the document says", BODY, "first=not self._listed))", "first=True))", ON_TASK),
    Mutant("I1", "a split without a position begins at its first record", BODY, "self._committed.get(split, each.begin)", "self._committed.get(split, Offset(0))", ON_TASK),
    Mutant("I1", "an end comes before what was told", BODY, "        if self._unopened or self._come or self._handed_out:\n            return False\n", "", ON_TASK),
    Mutant("I2", "a restore compares nothing", BODY, "        await self._source.check(known)\n", "", ON_TASK),
    Mutant("I2", "a look compares nothing", BODY, "            await self._source.check(self._known)\n            self._checked_ms = now_ms\n", "            self._checked_ms = now_ms\n", ON_TASK),
    Mutant("I2", "what is there after an outage is read at once", BODY, "            self._checked_ms = MIN_TIME  # what is there afterwards may be another topic\n", "", ON_TASK),
    Mutant("I2", "the name is enough", KAFKA, "            if topic.id != was.origin or", "            if", ON_TASK),
    Mutant("I2", "what was taken since the last look is acknowledged", BODY, "        await self._compare_taken()\n", "", ON_TASK),
    Mutant("I2", "later files of a sequence are forgotten", BODY, "            self._source.know({split: position.origins for split, position in saved.items()})\n", "            pass\n", ("tests/integration/test_source_changes.py",)),
    Mutant("I2", "files that were passed are not compared", FILES, "                await self._executor.blocking(cursor.origins.check_all)\n", "", ON_FILES),
    Mutant("I2", "a file may be replaced while it is read", CURSORS, "        self.origins.check(self._name)\n", "", ON_FILES),
    Mutant("I2", "a file of a sequence may be replaced while it is read", CURSORS, "            self.origins.check(self._names[place])\n", "", ON_FILES),
    Mutant("I2", "a file's name is enough", CURSORS, "        if known and found != known:", "        if False:", ON_FILES),
    Mutant("I3", "a drain ends where the task stands", BODY, "    return None if now is None else Offset(max(now, read))", "    return read", ON_TASK),
    Mutant("I3", "an end in front of what was read", BODY, "        return Offset(max(named, read))", "        return Offset(named)", ON_TASK),
    Mutant("I3", "each asking finds other ends", BODY, "        if self._ending is None:\n", "        if True:\n", ON_TASK),
    Mutant("I3", "a restored task goes on behind the end", BODY, "        self._source.end_at({split: each.end for split, each in splits.items() if each.end is not None})", "        pass", (*ON_TASK, *ON_ALL)),
    Mutant("I3", "input is taken while the ends are decided", DRIVER, "        waits = self._ending is not None and not self._ends_told\n", "        waits = False\n", ON_WORKER),
    Mutant("I3", "ends are told beside what is worked on", DRIVER, "            while self._taking:\n                self._taken.clear()\n                await self._taken.wait()\n", "", ON_WORKER),
    Mutant("C6", "a file is read from its beginning again", FILES, "cursor = self._cursor(split, position)\n                await", "cursor = self._cursor(split, 0)\n                await", ON_ALL),
    Mutant("C6", "a partition is read from its beginning again", KAFKA, "_Split(partition, self._ordinal(partition), positions[split])", "_Split(partition, self._ordinal(partition), begins[partition])", ON_ALL),
    Mutant("DD1", "ids are kept for ever", DEDUPE, "            if number < oldest:\n                continue\n", "", ON_IDS),
    Mutant("DD1", "an id lives as long as its own bucket", DEDUPE, "        return np.where(highest == MIN_TIME, MIN_TIME, (highest - span) // self._width)", "        return np.where(highest == MIN_TIME, MIN_TIME, highest // self._width)", ON_IDS),
    Mutant("DD2", "the filter and the hashes decide", DEDUPE, "                there = pc.is_in(ids.take(pa.array(maybe)), value_set=bucket.whole()).to_numpy(zero_copy_only=False)\n", "                there = np.ones(len(maybe), dtype=np.bool_)\n", ON_IDS),
    Mutant("DD2", "repeats within a batch pass", DEDUPE, " & ~_repeated(codes, buckets >= oldest)", "", ON_IDS),
    Mutant("DD2", "nothing is remembered", DEDUPE, "        self._remember(ids, hashes, buckets, fresh & (buckets >= oldest))\n", "", ON_IDS),
    Mutant("DD3", "every bucket is written each time", DEDUPE, "                if number in dirty or str(number) not in self._written:\n", "                if number in self._buckets:\n", ON_IDS),
    Mutant("DD4", "records without an id repeat each other", DEDUPE, "None if v is None or v is MISSING else canonical_key(v)", "canonical_key(v)", ON_IDS),
)  # fmt: skip
