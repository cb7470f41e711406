"""Mutants of drivers, workers, exchange, state and the wire."""
# ruff: noqa: E501 -- a piece of source stands in one line

from tests.harness.mutants.model import Mutant

DRIVER, OUTBOX, WORKER = "shared/runtime/driver.py", "shared/runtime/outbox.py", "shared/runtime/worker.py"
INPUT, ON_INPUT = "shared/protocol/source/machine.py", ("tests/unit/test_protocol_source.py",)
FRAMES_IN, SOURCE_IN = "shared/runtime/intake.py", "shared/runtime/source_intake.py"
EXCHANGE, STATE, SETTINGS = "shared/runtime/exchange.py", "shared/runtime/state.py", "shared/runtime/settings.py"
READING = "shared/runtime/reading.py"
FRAMES, ARROW = "shared/wire/frames.py", "shared/wire/arrow.py"
ON_DRIVER = ("tests/unit/test_runtime_driver.py",)
ON_FAILURES = ("tests/unit/test_runtime_failures.py",)
ON_LASTING = (*ON_FAILURES, "tests/integration/test_lasting.py")
ON_WORKER = ("tests/unit/test_runtime_worker.py",)
ON_FLOW = ("tests/unit/test_runtime_flow.py",)
ON_EXCHANGE = ("tests/unit/test_runtime_exchange.py",)
ON_STATE = ("tests/unit/test_runtime_state.py",)
ON_WIRE = ("tests/unit/test_wire.py",)
ON_BOUNDS = ("tests/unit/test_runtime_bounds.py",)
SWEEPING, ON_SWEEPING = "shared/runtime/sweeping.py", ("tests/unit/test_runtime_sweeping.py",)
COORDINATOR, TELLING, FENCING = (
    "shared/runtime/coordinator.py",
    "shared/runtime/telling.py",
    "shared/runtime/fencing.py",
)
ON_LEADERS = ("tests/integration/test_two_leaders.py",)
ON_GATHERED = ("tests/integration/test_gathered.py",)
ON_LOOK = ("tests/unit/test_source_gathering.py",)
ON_PACED = ("tests/integration/test_paced.py",)
ON_LOST = ("tests/unit/test_runtime_coordinator.py",)

SEALS, SEALED_LOG, UNDECIDED = "shared/wire/seals.py", "shared/runtime/sealed_log.py", "shared/runtime/upkeep.py"
ON_SEALS, ON_COPIES = ("tests/unit/test_wire_seals.py",), ("tests/unit/test_runtime_undecided.py",)

RUNTIME = (
    Mutant("F2", "what was unanswered is not sent again", OUTBOX, "            self._unsent.extendleft(parcel for parcel, _ in reversed(given_up))", "            pass", ON_DRIVER),
    Mutant("F2", "what was unanswered is sent in reverse", OUTBOX, "extendleft(parcel for parcel, _ in reversed(given_up))", "extendleft(parcel for parcel, _ in given_up)", ON_DRIVER),
    Mutant("F2", "what was unanswered goes behind the rest", OUTBOX, "self._unsent.extendleft(parcel for parcel, _ in reversed(given_up))", "self._unsent.extend(parcel for parcel, _ in given_up)", ON_DRIVER),
    Mutant("F2", "the broken writer is kept", OUTBOX, "        writer, self._writer = self._writer, None\n        if writer is not None:\n            await writer.close()", "        writer = self._writer\n        if writer is not None:\n            await writer.close()", ON_DRIVER),
    Mutant("F4", "the watermark passes rows that wait for more", SOURCE_IN, "return ev.Produced(emissions, gathered.watermark_ms,", "return ev.Produced(emissions, self._body.output_watermark(),", ON_GATHERED),
    Mutant("C2", "what lies at the source waits for the next epoch", WORKER, "                    driver.source.before_barrier(started)", "                    started()\n                    driver.source.before_barrier(lambda: None)", ON_LOOK),
    Mutant("C2", "a source that is away keeps the barrier back", SOURCE_IN, "            self._leaves = False\n            self._begin()\n            raise", "            raise", ON_LOOK),
    Mutant("F9", "a fetch is taken whole", SOURCE_IN, "there.divided(room_rows)", "there.divided(2**62)", ON_PACED),
    Mutant("F9", "a source works at once on all that an epoch has room for", SOURCE_IN, "min(machine.pace.room_rows(), self._pieces.items)", "machine.pace.room_rows()", ON_PACED),
    Mutant("F9", "pieces stay as small as the first", "shared/runtime/pieces.py", "elif more and 2 * took_ms < most_ms:", "elif False:", ON_PACED),
    Mutant("F9", "pieces that take long stay as large", "shared/runtime/pieces.py", "if took_ms > most_ms:", "if False:", ON_PACED),
    Mutant("F6", "what cannot be read is passed over", FRAMES_IN, '            message = f"{self.place_of(edge, record.offset)}: {error}"\n            raise PeerError(message) from error\n', "            return await self.take()\n", ON_DRIVER),
    Mutant("F6", "the place is not named", FRAMES_IN, '        except WireError as error:\n            message = f"{self.place_of(edge, record.offset)}: {error}"', '        except WireError as error:\n            message = f"{error}"', ON_DRIVER),
    Mutant("F6", "frames have no size limit", FRAMES, '    if len(data) > limits.frame_bytes_max:\n        message = (\n            f"expected a frame', '    if False:\n        message = (\n            f"expected a frame', ON_WIRE),
    Mutant("F6", "frames of any size are written", FRAMES, '    if len(data) > limits.frame_bytes_max:\n        message = (\n            f"a frame of', '    if False:\n        message = (\n            f"a frame of', ON_WIRE),
    Mutant("F6", "any version is read", FRAMES, "        check_version(FRAME, data)\n", "        pass\n", ON_WIRE),
    Mutant("F6", "fields of any type", FRAMES, "not _well_typed(fields):", "False:", ON_WIRE),
    Mutant("F6", "errors of the decoder escape", FRAMES, "except (ValueError, msgpack.UnpackException) as error:", "except msgpack.UnpackException as error:", ON_WIRE),
    Mutant("F6", "batches are not split", ARROW, "if len(data) <= bytes_max or part.num_rows <= 1:", "if True:", (*ON_WIRE, *ON_EXCHANGE)),
    Mutant("F6", "errors of Arrow escape", ARROW, "except (pa.ArrowException, StopIteration, OSError) as error:", "except StopIteration as error:", ON_WIRE),
    Mutant("F7", "nothing is told as read", FRAMES_IN, "                        self.read_offsets[edge] = max(self.read_offsets.get(edge, Offset(0)), Offset(record.offset + 1))\n", "", ON_DRIVER),
    Mutant("F7", "a restored task tells nothing before it reads", FRAMES_IN, "            for edge, offset in start.items():\n                self.read_offsets[edge]", "            for edge, offset in {}.items():\n                self.read_offsets[edge]", ON_DRIVER),
    Mutant("F7", "frames are taken though receivers are behind", FRAMES_IN, "return bool(self._frames) and self.site.machine.may_read()", "return bool(self._frames)", ON_DRIVER),
    Mutant("F7", "what was told in an outage is lost", READING, "            await clock.sleep_ms(settings.retry_ms)\n        except OffsetOutOfRange", "            await clock.sleep_ms(settings.retry_ms)\n            position = (await log.end_offsets([partition]))[partition]\n        except OffsetOutOfRange", ON_FLOW),
    Mutant("F7", "positions of other edges count", WORKER, "if position.incarnation in edges:", "if edges:", ON_FLOW),
    Mutant("F7", "W is not checked", SETTINGS, "if work_ms >= checkpoint_timeout_ms:", "if False:", ON_FLOW),
    Mutant("F7", "much is told with the next look alone", "shared/runtime/driver.py", "                self.wiring.ways.on_taken()\n", "", ON_FLOW),
    Mutant("L2", "a zombie's body keeps it from noticing", FRAMES_IN, "return bool(self._frames) and self.site.machine.may_read()", "return bool(self._frames) and self.site.machine.may_read() and not self.site.working", ON_DRIVER),
    Mutant("L2", "a zombie's queue is sent", OUTBOX, "        self._dropped = True\n        self._unsent.clear()\n", "        pass\n", ON_DRIVER),
    Mutant("L2", "a zombie goes on", DRIVER, "                raise ZombieError(message)", "                self.site.log.warning(message)", ON_DRIVER),
    Mutant("L2", "a zombie reports a failure", WORKER, "if not isinstance(error, ZombieError):", "if True:", ON_WORKER),
    Mutant("P1", "nothing is read while the step runs", FRAMES_IN, "return bool(self._frames) and self.site.machine.may_read()", "return bool(self._frames) and self.site.machine.may_read() and not self.site.working", ON_DRIVER),
    Mutant("C5", "nothing is heard while the body waits", DRIVER, "            if self._inbox:\n                self._handle(", "            if self._inbox and (not site.working or not isinstance(self._inbox[0], ev.CheckpointAborted)):\n                self._handle(", ON_DRIVER),
    Mutant("C4", "what was read ahead stays behind a seek", FRAMES_IN, "        self._frames = deque(item for item in self._frames if item[0] != edge)\n", "", ON_DRIVER),
    Mutant("C4", "a seek is forgotten", FRAMES_IN, "                    await reader.seek(places[edge], offset)", "                    pass", ON_DRIVER),
    Mutant("C12", "a log that does not reach back is read from where it begins", READING, "            return await ask()\n        except LogUnavailable as error:\n            if most_ms is not None and", "            return await ask()\n        except Exception as error:\n            if most_ms is not None and", ON_DRIVER),
    Mutant("C7", "the ack does not wait for the state", DRIVER, "                parts = await self.wiring.state.store(epoch, changed)\n", "                self.post(ev.StateDurable(epoch, (), blobs, staged))\n                parts = await self.wiring.state.store(epoch, changed)\n", ON_DRIVER),
    Mutant("C7", "what was handed over counts as acknowledged", OUTBOX, "                offset = await pending\n                self._unacked.popleft()\n                self._on_acked(parcel, offset)", "                self._on_acked(parcel, Offset(parcel.seq))\n                offset = await pending\n                self._unacked.popleft()", ON_DRIVER),
    Mutant("C7", "the ack lists no blobs of the state", DRIVER, "named = (*blobs_of(parts), *blobs, ", "named = (*blobs, ", ON_DRIVER),
    Mutant("C7", "state of any size travels inline", STATE, "if sum(map(len, inline.values())) > self._bounds.inline_bytes_max:", "if False:", ON_STATE),
    Mutant("C7", "every state makes a blob", STATE, "if sum(map(len, inline.values())) > self._bounds.inline_bytes_max:", "if inline:", ON_STATE),
    Mutant("C7", "names are used by several attempts", STATE, "return blob_name(self._job, self._vertex, self._generation, epoch, self._unique())", 'return blob_name(self._job, self._vertex, Generation(0), epoch, "state")', ON_STATE),
    Mutant("C7", "parts are never gathered", STATE, "        if beyond <= 0:", "        if True:", ON_STATE),
    Mutant("C7", "all parts are gathered", STATE, "[: beyond + 1]", "", ON_STATE),
    Mutant("C7", "the largest blobs are gathered", STATE, "key=lambda blob: (sizes[blob], blob.name))", "key=lambda blob: (-sizes[blob], blob.name))", ON_STATE),
    Mutant("C7", "any number of parts travels", STATE, "        if sum(part.blob is not None for part in parts) <= self._bounds.parts_max:", "        if True:", ON_STATE),
    Mutant("C7", "every list is a blob", STATE, "        if sum(part.blob is not None for part in parts) <= self._bounds.parts_max:", "        if not parts:", ON_STATE),
    Mutant("C7", "a list leaves out what is inline", STATE, "        rows = [(p.part, p.inline, ", "        rows = [(p.part, None, ", ON_STATE),
    Mutant("C7", "a list names the wrong blobs", STATE, "places = {blob: at for at, blob in enumerate(blobs)}", "places = dict.fromkeys(blobs, 0)", ON_STATE),
    Mutant("C7", "the ack has the list and its parts", DRIVER, "parts=command.parts if command.listed is None else (),", "parts=command.parts,", ON_DRIVER),
    Mutant("C12", "the list of parts is not named", DRIVER, "named = (*blobs_of(parts), *blobs, *(() if listed is None else (listed,)))", "named = (*blobs_of(parts), *blobs)", ON_DRIVER),
    Mutant("C7", "parts are found at the wrong place", STATE, "offset=end - len(data),", "offset=0,", ON_STATE),
    Mutant("C5", "a checkpoint holds only what changed", STATE, "        for part, data in changed.items():\n            if data", "        self._handles = {}\n        for part, data in changed.items():\n            if data", ON_STATE),
    Mutant("C5", "what was taken away comes back", STATE, "                self._handles.pop(part, None)", "                pass", ON_STATE),
    Mutant("C12", "names do not say their epoch", STATE, "return blob_name(self._job, self._vertex, self._generation, epoch, self._unique())", "return blob_name(self._job, self._vertex, self._generation, Epoch(0), self._unique())", ON_STATE),
    Mutant("C12", "segments are not named for their job, edge, generation and epoch", EXCHANGE, 'return f"{job}/{owner}/{generation}/{epoch}/{unique}"', 'return f"{job}/{owner}/{epoch}/{generation}/{unique}"', (*ON_EXCHANGE, *ON_STATE)),
    Mutant("C12", "own topics lose old records", "shared/runtime/topics.py", 'KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}', 'KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}', ON_WORKER),
    Mutant("C12", "what tells of now is kept for ever", "shared/runtime/upkeep.py", "await self._outside.log.delete_records(self._seen[0])", "pass", ON_BOUNDS),
    Mutant("C12", "rows are read before what is there", SWEEPING, "        folders, topics = await outside.blobs.folders(), await outside.log.list_topics()\n        living = _ids(mark, (_words(row) for row in await store.processors()))\n", "        living = _ids(mark, (_words(row) for row in await store.processors()))\n        folders, topics = await outside.blobs.folders(), await outside.log.list_topics()\n", ON_SWEEPING),
    Mutant("C12", "a store that lost rows is believed", SWEEPING, "if not dead or not await store.renew(token, self._lease_ms, outside.clock.now_ms()):", "if not dead:", ON_SWEEPING),
    Mutant("C12", "whoever was deposed sweeps on", SWEEPING, "if not dead or not await store.renew(token, self._lease_ms, outside.clock.now_ms()):", "if not dead or await store.renew(token, self._lease_ms, outside.clock.now_ms()) is None:", ON_SWEEPING),
    Mutant("C12", "old jobs are taken for nobody's", SWEEPING, "(row.job, decode_kept(row.extra), decode_plan(row.plan))", "(row.job, decode_plan(row.plan))", ON_SWEEPING),
    Mutant("C12", "edges are taken for nobody's", SWEEPING, "(row.job, decode_kept(row.extra), decode_plan(row.plan))", "(row.job, decode_kept(row.extra))", ON_SWEEPING),
    Mutant("C12", "another installation's are its own", SWEEPING, 're.compile(f"{mark}[0-9a-f]{{{UNIQUE_DIGITS}}}")', 're.compile(f"[0-9a-f]{{{2 * UNIQUE_DIGITS}}}")', ON_SWEEPING),
    Mutant("C12", "nobody's topics stay", SWEEPING, "        await outside.log.delete_topics([t for t in topics if _ids(mark, (t,)) & dead])\n", "", ON_SWEEPING),
    Mutant("C12", "what was told just now goes", "shared/runtime/upkeep.py", "delete_records(self._seen[0])", "delete_records(ends)", ON_BOUNDS),
    Mutant("F6", "a row that no frame holds goes in one", EXCHANGE, "            if len(data) > self._inline_bytes_max:", "            if False:", ON_BOUNDS),
    Mutant("C8", "what a leader reads may be of an older copy", COORDINATOR, "            await self._store.renew(token, self._lease_ms, self._outside.clock.now_ms())\n", "", ON_LOST),
    Mutant("C8", "readers heed a lower token", FENCING, "        if token < self.token:", "        if False:", (*ON_LEADERS, *ON_WORKER)),
    Mutant("C8", "tokens are not told", FENCING, "    told: Headers = ((HEADER, str(token).encode()),)", "    told: Headers = ()", (*ON_LEADERS, *ON_WORKER)),
    Mutant("C8", "workers obey any leader", WORKER, "            if self._fence.admits(record):", "            if True:", ON_WORKER),
    Mutant("C8", "the registry takes any leader's word", "shared/runtime/registry.py", "        if not self._fence.admits(record) or record.key in (None, LEADS_KEY):\n            return None", "        if record.key in (None, LEADS_KEY):\n            return None", ON_LEADERS),
    Mutant("C8", "what was overwritten stays so", COORDINATOR, "                    await found(term, [name], overtaken=True)", "                    pass", ON_LEADERS),
    Mutant("C8", "what a dead leader left stays", COORDINATOR, "                await found(term, list(before), overtaken=False)", "                pass", ON_LEADERS),
    Mutant("C8", "a term begins without a word", TELLING, "            self.tell(topic, LEADS_KEY, str(token).encode())", "            pass", ON_LEADERS),
    Mutant("C8", "nobody looks what leaders have told of", COORDINATOR, "now_ms, most, self._told.leader, self._now())", "now_ms, looked_ms=self._now())", ON_LOST),
    Mutant("C8", "nobody looks what commands have told of", TELLING, "(self._outside.topics.registry, self._outside.topics.commands)", "(self._outside.topics.registry,)", ON_LOST),
    Mutant("C9", "a mirror above the store is overlooked", COORDINATOR, "            if one.mirrored > one.row.last:", "            if False:", ON_LOST),
    Mutant("C9", "an older copy is told of before its loss is noticed", COORDINATOR, "        mark, stored, connections = found\n", "        mark, stored, connections = found\n        self._teller.begin(token)\n", ON_LOST),
    Mutant("C8", "a leader that the store still names stands down", "shared/runtime/telling.py", "            if renewed:\n                raise", "            if False:\n                raise", ON_LOST),
    Mutant("C8", "how many changes there were is not told before an answer", TELLING, "        if request:\n            self.count()\n", "", ON_LOST),
    Mutant("C8", "how many changes there were is not told", TELLING, "signed(self._token, changes)", "signed(self._token)", ON_LOST),
    Mutant("C8", "requests are decided though the store cannot be asked", COORDINATOR, "self._now() - self._renewed_ms >= self._lease_ms", "False", ON_LEADERS),
    Mutant("C8", "a request goes before its answer is told", COORDINATOR, "        self._teller.tell(self._outside.topics.answers, None, answer, request=request)", "        self._teller.tell(self._outside.topics.answers, None, answer, request=request)\n        self._undecided.decided(request, Offset(0))", ON_LEADERS),
    Mutant("F10", "a seal is not of its place", SEALS, "_pack((place, key, digest, list(headers)))", "_pack((key, digest, list(headers)))", ON_SEALS),
    Mutant("F10", "headers are not sealed", SEALS, "_pack((place, key, digest, list(headers)))", "_pack((place, key, digest))", ON_SEALS),
    Mutant("F10", "any MAC will do", SEALS, "if not hmac.compare_digest(seal.mac, _mac(secret, place, key, value, others)):", "if False:", ON_SEALS),
    Mutant("F10", "one key alone is taken", SEALS, "{_id(secret): secret for secret in secrets}", "{_id(secret): secret for secret in secrets[:1]}", ON_SEALS),
    Mutant("F10", "what is not sealed is read", SEALED_LOG, "[record for record in await self._inner.fetch(max_records, timeout_ms) if self._sealing.admits(record)]", "await self._inner.fetch(max_records, timeout_ms)", ON_SEALS),
    Mutant("F10", "transactions are not sealed", SEALED_LOG, "            records = [self._sealing.sealed(partition, record) for record in records]", "            pass", ON_SEALS),
    Mutant("F10", "a copied request is carried out", UNDECIDED, "        if (answer := self._answers.get(request)) is not None:\n            return answer.error", "        if False:\n            return None", ON_COPIES),
    Mutant("F10", "the next leader knows no answers", UNDECIDED, "                self._keep(told.request, RequestAnswer(told.name, told.error, record.offset))", "                pass", ON_COPIES),
    Mutant("C8", "the lease runs out while a leader reads", COORDINATOR, "            if await self._store.renew(held, self._lease_ms, now_ms):", "            if self._token is None or await self._store.renew(held, self._lease_ms, now_ms):", ON_LEADERS),
    Mutant("F7", "who is ahead of a full receiver goes on", INPUT, "return self._until is None and not any(reached_ms < output_ms for reached_ms in self._full.values())", "return self._until is None", ON_INPUT),
    Mutant("F7", "who is waited for waits", INPUT, "reached_ms < output_ms", "reached_ms <= output_ms", ON_INPUT),
    Mutant("P2", "a segment is named before it is durable", EXCHANGE, "        ref = await self._blobs.put(name, parquet_bytes(batch))\n", "        ref = BlobRef(name, len(parquet_bytes(batch)), digest_of(parquet_bytes(batch)))\n", ON_EXCHANGE),
    Mutant("P2", "segments are taken without their digest", "shared/adapters/blobs.py", "        if (size, digest) != (ref.size_bytes, ref.digest):", "        if size != ref.size_bytes:", ON_EXCHANGE),
    Mutant("C12", "state is taken without its digest", "shared/adapters/blobs.py", "        if (size, digest) != (ref.size_bytes, ref.digest):", "        if size != ref.size_bytes:", ON_STATE),
    Mutant("P2", "an executor's file is not forced to disk", "spark_stages/segments.py", "                os.fsync(out.fileno())\n", "", ON_EXCHANGE),
    Mutant("P2", "new folders are not forced to disk", "spark_stages/segments.py", "        _force(folder)\n        if folder == root:", "        if folder == path.parent:\n            _force(folder)\n        if folder == root:", ON_EXCHANGE),
    Mutant("P2", "an executor writes over what is there", "spark_stages/segments.py", 'path.open("xb")', 'path.open("wb")', ON_EXCHANGE),
    Mutant("R1", "sources take input at once", SOURCE_IN, "        await self._started.wait()\n", "", ON_WORKER),
    Mutant("R1", "another generation's word starts sources", WORKER, "if hosted.assign.job == command.job and hosted.assign.generation == command.generation:", "if hosted.assign.job == command.job:", ON_WORKER),
    Mutant("R2", "an assignment for anybody is obeyed", WORKER, "if assign.to != self.incarnation or ", "if ", ON_WORKER),
    Mutant("R2", "a task starts again in its generation", WORKER, "        self._started[key] = assign.generation\n", "", ON_WORKER),
    Mutant("R2", "what was stopped may start", WORKER, "assign.generation <= max(begun, self._ended.get(assign.job, Generation(0))):", "assign.generation <= begun:", ON_WORKER),
    Mutant("R2", "a stop of an older generation stops the newer", WORKER, "if k[0] == job and h.assign.generation <= generation]", "if k[0] == job]", ON_WORKER),
    Mutant("R2", "old tasks run beside the new", WORKER, "if k[0] == assign.job and h.assign.generation < assign.generation]", "if False]", ON_WORKER),
    Mutant("R2", "what is still being built goes on beside its successor", WORKER, "            hosted.starting.cancel()\n            await hosted.starting.join()\n", "            pass\n", ON_WORKER),
    Mutant("R2", "who closes old tasks takes the new ones, too", WORKER, "        if self._tasks.get(key) is not hosted:\n            return\n        del self._tasks[key]\n", "        if key not in self._tasks:\n            return\n        hosted = self._tasks.pop(key)\n", ON_WORKER),
    Mutant("R2", "silence is endured", WORKER, "if clock.monotonic_ms() - self._heard_ms > settings.coordinator_silence_ms_max and self._tasks:", "if False:", ON_WORKER),
    Mutant("R2", "only assignments count as a word", WORKER, "    async def _command(self, command: Command) -> None:\n        self._heard_ms = self._outside.clock.monotonic_ms()\n", "    async def _command(self, command: Command) -> None:\n", ON_WORKER),
    Mutant("R4", "a part that two tasks have is taken from one", STATE, "            if part.part in seen:", "            if False:", ON_STATE),
    Mutant("R4", "all parts are everybody's", STATE, "            if not wanted(part.part):\n                continue\n", "", ON_STATE),
    Mutant("C10", "errors of what is away count", "shared/model/failures.py", "return isinstance(error, Outage)", "return False", ON_FAILURES),
    Mutant("C10", "who adds a place to an error makes it another", "shared/model/failures.py", "        found = found.__cause__", "        found = None", ON_FAILURES),
    Mutant("C10", "a format that is not read is tried again", "shared/model/formats.py", "class FormatError(ValueError, Lasting):", "class FormatError(ValueError):", ON_LASTING),
    Mutant("C10", "an unset variable is tried again", "shared/language/problems.py", "class InvalidDocument(ValueError, Lasting):", "class InvalidDocument(ValueError):", ON_LASTING),
    Mutant("C10", "what is not there is tried again", "shared/model/failures.py", "class WrongSetup(Lasting):", "class WrongSetup(Exception):", ON_LASTING),
    Mutant("S6", "a refusal is a failure like others", "shared/model/failures.py", "isinstance(each, Lasting)", "False", ON_FAILURES),
)  # fmt: skip
