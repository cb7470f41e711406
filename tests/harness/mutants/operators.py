"""Mutants of windows and computations."""
# ruff: noqa: E501 -- a piece of source stands in one line

from tests.harness.mutants.model import Mutant

PARTIAL, STEP, CLOSING = "shared/operators/partial.py", "shared/operators/step.py", "shared/operators/closing.py"
LATENESS, TAKING, COMPUTATION = (
    "shared/operators/windows.py",
    "shared/operators/aggregation.py",
    "shared/operators/computation.py",
)
ON_WINDOWS = ("tests/unit/test_operators_window_rules.py",)
ON_COMPUTATION = ("tests/unit/test_computation_operator.py",)
JOINED, ON_JOINS = "shared/operators/join_rows.py", ("tests/property/test_joins_in_pieces.py",)
ON_JOINED = ("tests/unit/test_operators_joins.py",)

PARTS, ON_PARTS = "shared/operators/computation_parts.py", ("tests/property/test_computation_parts.py",)
KEYS = "shared/operators/computation_keys.py"
RUN_SIZES = "shared/operators/run_sizes.py"

SPARK, ON_SPARK = "services/spark/body.py", ("tests/unit/test_spark_tasks.py",)
SPARK_STEP, ON_REAL_SPARK = "spark_stages/step.py", ("tests/spark/test_spark_step_rules.py",)
ON_PATHS = ("tests/spark/test_step_paths.py",)

OPERATORS = (
    Mutant("CP1", "a key that is gone is no change", KEYS, "            entries.append(data if entry is None else msgspec.Raw(entry))\n", "            if entry is not None:\n                entries.append(msgspec.Raw(entry))\n", ON_PARTS),
    Mutant("CP1", "the first part that has a key counts", PARTS, "own.keys.sort(reverse=True)", "own.keys.sort(key=lambda each: (each[0] < 0, each[0]))", ON_PARTS),
    Mutant("CP1", "what a later part says is gone comes back", KEYS, "                seen.update(changes[number])\n", "                seen.update(found)\n", ON_PARTS),
    Mutant("CP1", "a key that waits packed is not in its part", KEYS, "cold = None if self._cold is None or key is not None else self._cold.get(group, data)\n", "cold = None\n", ON_PARTS),
    Mutant("CP2", "parts of changes are never merged", PARTS, "while of.changes and len(of.changes[-1][1]) < _AS_LARGE * len(keys):", "while False:", ON_PARTS),
    Mutant("CP2", "a merged part has only what changed last", PARTS, "            keys.update(names.to_pylist())\n", "", ON_PARTS),
    Mutant("CP2", "merged parts stay", PARTS, "            gone = (*gone, part)\n", "", ON_PARTS),
    Mutant("CP2", "a restored part's keys are forgotten", PARTS, "pa.array(sorted(keys), pa.binary()))\n            for number, keys in sorted(changes.items())", "pa.array([], pa.binary()))\n            for number, keys in sorted(changes.items())", ON_PARTS),
    Mutant("CP2", "a restored group counts from 0 again", PARTS, "max(changes, default=-1) + 1, parts)", "0, parts)", ON_PARTS),
    Mutant("CP3", "the whole part is never written anew", PARTS, "        if _AS_LARGE * (len(keys) + sum(len(names) for _, names in of.changes)) > of.whole:", "        if not of.whole:", ON_PARTS),
    Mutant("CP3", "parts of changes stay beside the whole one", PARTS, "            gone = tuple(part for part, _ in of.changes)\n", "            gone = ()\n", ON_PARTS),
    Mutant("CP3", "a part of changes is restored alone", KEYS, "            if lacks_whole(names.keys):\n", "            if False:\n", ON_PARTS),
    Mutant("CP4", "rows that were taken come back", COMPUTATION, "                key.taken_ms = below_ms\n", "", ON_PARTS),
    Mutant("CP4", "an entry does not say what was taken", KEYS, "key.highest, key.taken_ms)", "key.highest)", ON_PARTS),
    Mutant("CP4", "a restored key forgets what was taken", KEYS, "        key.taken_ms = item.taken_ms\n", "", ON_PARTS),
    Mutant("CP4", "a key that comes again has rows from before", KEYS, "            key.taken_ms = self._passed_ms\n", "", ON_PARTS),
    Mutant("CP4", "rows of keys without an entry wait", PARTS, "taken_ms.get(key, MAX_TIME)", "taken_ms.get(key, 0)", ON_PARTS),
    Mutant("CP4", "rows that lie in runs are written again", PARTS, "self._restored, self._arrived = (), waiting.arrived", "self._restored = ()", ON_PARTS),
    Mutant("CP4", "a merged run has only what came last", PARTS, "since = gone[0].since if gone else self._arrived", "since = self._arrived", ON_PARTS),
    Mutant("CP4", "restored runs stay", PARTS, "dict.fromkeys(self._restored)\n", "{}\n", ON_PARTS),
    Mutant("RS1", "runs are never merged", RUN_SIZES, "    while kept and sizes[kept - 1] < _AS_LARGE * new:\n", "    while False:\n", ON_PARTS),
    Mutant("RS2", "runs of rows that are gone stay", RUN_SIZES, "    if sum(sizes) + new > _AS_LARGE * there:\n", "    if False:\n", ON_PARTS),
    Mutant("C13", "rows of a join that lie in a run and may not be in a new one are in none", JOINED, "slots[may | (run_of >= 0)], run_of[may | (run_of >= 0)]", "slots[may], run_of[may]", ON_JOINS),
    Mutant("C13", "a run of a join has rows that are left of a time", JOINED, "times < self._next_ms() if which else times >= self._taken[self.slots.groups[rows[slots, KEY]]]", "times < MAX_TIME", ON_JOINS),
    Mutant("C13", "rows of a join that were taken from a run wait again", JOINED, "            self._took(np.unique(in_runs), below_ms)", "            _ = in_runs", ON_JOINS),
    Mutant("C13", "rows of a join that came out alone do so again", JOINED, " | (self._run_of[run.slots] != run.number)", "", ON_JOINS),
    Mutant("E1", "a timer that sets itself for the same time stays", COMPUTATION, ".difference(pending)\n", "\n", ON_COMPUTATION),
    Mutant("P1", "every frame is a step", SPARK, "            else:\n                self._inline.append(body)\n        return ()", "            else:\n                self._inline.append(body)\n        return await self._run(self._epoch)", ON_SPARK),
    Mutant("P1", "what came inline is lost", SPARK, "        added += await self._written(loose, epoch)\n", "", ON_SPARK),
    Mutant("P1", "the next epoch's step takes this one's input again", SPARK, "        self._segments, self._inline, self._rows = [], [], []\n", "", ON_SPARK),
    Mutant("P1", "the last step waits for a barrier", SPARK, "return await self._run(self._epoch) if watermark_ms == MAX_TIME else ()", "return ()", ON_SPARK),
    Mutant("P1", "lateness is judged by the watermark of this step", SPARK, "times = Times(self._stepped_ms, self._input_ms,", "times = Times(self._input_ms, self._input_ms,", ON_SPARK),
    Mutant("P2", "the snapshot does not say what it lists", SPARK, "        blobs = tuple({s.name: BlobRef(s.name, s.size_bytes, s.digest) for s in self._state.segments}.values())\n", "        blobs: tuple[BlobRef, ...] = ()\n", ON_SPARK),
    Mutant("P2", "a restored segment is taken whatever it is", SPARK_STEP, "        if found:\n            raise SegmentDiffers(found[0][0])\n", "", ON_PATHS, real=True),
    Mutant("P2", "attempts share names", SPARK, "prefix = blob_name(assign.job, assign.vertex, assign.generation, epoch, outside.unique())", 'prefix = blob_name(assign.job, assign.vertex, Generation(0), Epoch(0), "step")', ON_SPARK),
    Mutant("P2", "a task that Spark runs twice writes to one name", "spark_stages/executing.py", '        attempt = f"{task.partitionId()}-{task.taskAttemptId()}" if task is not None else "0-0"', '        attempt = "0-0"', ON_REAL_SPARK, real=True),
    Mutant("P3", "Spark takes late partials of many rows in", "spark_stages/executing.py", "_within(order, segment, order.above_ms, order.up_to_ms)", "_within(order, segment, MIN_TIME, order.up_to_ms)", ON_REAL_SPARK, real=True),
    Mutant("P3", "Spark takes late partials of few rows in", "spark_stages/executing.py", "pc.greater(ends, above_ms)", "pc.greater(ends, -(2**62))", ON_REAL_SPARK, real=True),
    Mutant("P3", "Spark does not count late partials", SPARK_STEP, "        return int(found or 0)", "        return 0", ON_REAL_SPARK, real=True),
    Mutant("P4", "Spark forgets what was open", SPARK_STEP, "        live = [s for s in (*state.segments, *added) if whole or s.max_end_ms > closed_before]", "        live = [s for s in added if whole or s.max_end_ms > closed_before]", ON_REAL_SPARK, real=True),
    Mutant("R4", "keys of other tasks count, too", "spark_stages/executing.py", "    return table if segment.only is None else counted(plan, table, segment.only, order.key_groups)\n", "    return table\n", ON_PATHS, real=True),
    Mutant("R4", "key groups become one state as they stand", SPARK, "            self._apart = shares\n", "            pass\n", ON_SPARK),
    Mutant("R4", "parts of other numbers of tasks stay", SPARK, ", **dict.fromkeys(self._gone)}", "}", ON_SPARK),
    Mutant("R4", "a segment goes to every task", "spark_stages/manifest.py", "            kept.append(structs.replace(segment, only=only))\n", "            kept.append(segment)\n", ON_SPARK),
    Mutant("W5", "a step goes back in time", SPARK, "self._now_ms, self._stepped_now_ms, outside.clock.now_ms()", "self._now_ms, outside.clock.now_ms()", ON_SPARK),
    Mutant("W6", "the end is not the last instant inside", CLOSING, "    if name is None:\n        return ends - 1", "    if name is None:\n        return ends", ON_WINDOWS),
    Mutant("W6", "earliest and latest are not looked at", CLOSING, "    if name is None:\n        return ends - 1", "    if True:\n        return ends - 1", ON_WINDOWS),
    Mutant("W6", "elements behind the watermark are earliest", LATENESS, "pa.array(raised, mask=behind)", "pa.array(raised)", ON_WINDOWS),
    Mutant("W6", "overlapping windows wait for each other", LATENESS, "    return starts - stage.hop_size_ms + stage.interval_ms", "    return starts", ON_WINDOWS),
    Mutant("W6", "an early row is late behind its own watermark", STEP, "        return min([reached, *holds])", "        return reached", ON_WINDOWS),
    Mutant("P3", "rows that may be late travel aggregated", PARTIAL, "            loose |= entered.there & (entered.firsts + entered.size_ms <= ends)\n", "", ON_WINDOWS),
    Mutant("P3", "rows of a split that was idle travel aggregated", PARTIAL, "            loose = entered.in_time & away\n", "", ON_WINDOWS),
    Mutant("P3", "a late partial is not counted", STEP, "            counts = replace(counts, late_partials=counts.late_partials + late)\n", "", ON_WINDOWS),
    Mutant("P3", "a late partial opens its window again", STEP, "        fine = batch.column(WEND).to_numpy() > closed_to_ms", "        fine = batch.column(WEND).to_numpy() > -(2**62)", ON_WINDOWS),
    Mutant("P4", "lateness is judged where the row arrives", PARTIAL, "enter(plan, batch, split_limits(plan, batch) if plan.judged_at_source else MIN_TIME)", "enter(plan, batch, MIN_TIME)", ON_WINDOWS),
    Mutant("P4", "lateness is judged by the watermark behind the batch", LATENESS, "    before: Int64s = batch.column(WM).fill_null(MIN_TIME).to_numpy()\n", "    before: Int64s = np.full(batch.num_rows, int(batch.column(TS).to_numpy().max()), dtype=np.int64)\n", ON_WINDOWS),
    Mutant("P4", "a step forgets what was open", STEP, "        tables = [] if state.partials is None else [state.partials]", "        tables: list[pa.Table] = []", ON_WINDOWS),
    Mutant("P4", "a closed window emits again", STEP, "left.append(None if table is None else table.filter(pc.invert(mask)))", "left.append(table)", ON_WINDOWS),
    Mutant("W5", "timers fire before their time", COMPUTATION, 'if p.domain == "processing" and p.due_ms <= now_ms]', 'if p.domain == "processing"]', ON_COMPUTATION),
    Mutant("E1", "processing-time timers fire first", COMPUTATION, 'for domain in ("event", "processing"):', 'for domain in ("processing", "event"):', ON_COMPUTATION),
    Mutant("E1", "what the end sets stays", COMPUTATION, "                key.timers.take(timer)\n                self.counters.timers_discarded += 1", "                pass", ON_COMPUTATION),
    Mutant("E1", "pending timers are forgotten at the end", COMPUTATION, "                self._end(floor_ms, done)", "                pass", ON_COMPUTATION),
    Mutant("C13", "a piece of a join reaches the whole watermark", JOINED, "reached_ms = int(rows[self._due[0], TIME]) if len(self._due) else self._due_below_ms", "reached_ms = watermark_ms", ON_JOINS),
    Mutant("C13", "a snapshot of a join forgets what a piece has left", JOINED, "np.concatenate((self._due, self._waiting.slots()))", "self._waiting.slots()", ON_JOINS),
    Mutant("C13", "a piece of a join finds any number of pairs", JOINED, "min(items_max, most + 1)", "most + 1", ON_JOINS),
    Mutant("C13", "a piece brings back any number of rows", JOINED, "(np.cumsum(counts) > items_max) & ", "(np.cumsum(counts) < 0) & ", ON_JOINED),
    Mutant("C13", "rows in the midst of their time leave memory", JOINED, "return queue.take(min(last_ms + 1, self._next_ms()))", "return queue.take(last_ms + 1)", ON_JOINS),
    Mutant("C13", "a snapshot forgets the last number of a key's time", JOINED, 'there.given = given.astype("<i8").tobytes()', "pass", ON_JOINS),
    Mutant("C13", "what was taken from a run waits again", JOINED, 'there = batch.column("time").to_numpy() >= self._taken[groups[-1]]', 'there = batch.column("time").to_numpy() >= MIN_TIME', ON_JOINS),
    Mutant("C13", "a match on the disk is forgotten", JOINED, "                each.run.met[each.places] |= met\n", "", ON_JOINS),
    Mutant("C13", "a snapshot forgets matches on the disk", JOINED, "met.setdefault(group, {})[run.number] = bits", "pass", ON_JOINS),
    Mutant("C13", "rows on the disk do not hold the watermark", JOINED, "        return min(*hot, *cold)", "        return min(hot)", ON_JOINS),
)  # fmt: skip
