"""Ways to take a rule out of the task machine, and how to apply one: each must make one of its rule's tests fail.

A mutation is a piece of a module's source and what stands in its place. It is applied in memory: the module is compiled anew with the
replacement, and functions that differ get the new code, wherever they have been imported to.
"""

# ruff: noqa: E501 -- a piece of source stands in one line

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType

MACHINE = "shared.protocol.task.machine"
RECEIVER = "shared.protocol.task.receiver"
SENDER = "shared.protocol.task.sender"
START = "shared.protocol.task.start"
LINEAGE = "shared.protocol.lineage"
WATERMARKS = "shared.protocol.watermarks"
RELEASE = "shared.protocol.release"


@dataclass(frozen=True, slots=True)
class Mutation:
    """`rule` is what is taken out; the tests named after it are to notice."""

    rule: str
    what: str
    module: str
    old: str
    new: str


MUTATIONS = (
    Mutation("F1", "repeats count", RECEIVER, "if header.seq < channel.next_seq:", "if False:"),
    Mutation("F1", "gaps are read over", RECEIVER, "if header.seq > channel.next_seq:", "if False:"),
    Mutation(
        "F1",
        "what ran ahead counts in the snapshot",
        RECEIVER,
        "next_seq=c.seq_behind_barrier,",
        "next_seq=c.next_seq,",
    ),
    Mutation(
        "F1",
        "a repeat of a newer generation is a repeat",
        RECEIVER,
        "header.seq < channel.restored_seq and header.generation > self.lineage.snapshot_generation",
        "False",
    ),
    Mutation(
        "F1",
        "a repeat of the snapshot's own generation is an error",
        RECEIVER,
        "and header.generation > self.lineage.snapshot_generation",
        "and True",
    ),
    Mutation(
        "F1",
        "seq begins anew",
        START,
        "PartitionSender(seq, watermark_ms, idle)",
        "PartitionSender(FIRST_SEQ, watermark_ms, idle)",
    ),
    Mutation(
        "F1",
        "a snapshot forgets own seqs",
        SENDER,
        "tuple(p.next_seq for p in o.partitions)",
        "tuple(0 for p in o.partitions)",
    ),
    Mutation(
        "F2",
        "a seq is used twice",
        SENDER,
        "Seq(partition.next_seq + 1)",
        "Seq(partition.next_seq + (self.epoch == 1))",
    ),
    Mutation("F3", "epochs do not go on", SENDER, "self.epoch = Epoch(epoch + 1)", "self.epoch = epoch"),
    Mutation("F3", "epochs go on by one", SENDER, "        self.epoch = epoch\n", "        epoch = self.epoch\n"),
    Mutation("F3", "rows of any epoch", RECEIVER, "(header.epoch != channel.last_barrier + 1)", "(header.epoch < 0)"),
    Mutation("F3", "any barrier", RECEIVER, "(header.epoch <= channel.last_barrier) if", "(header.epoch < 0) if"),
    Mutation(
        "F4",
        "the watermark counts in front of the rows",
        MACHINE,
        "progress.idle = False\n",
        "progress.idle = bool(progress.raise_to(frame.header.watermark_ms))\n",
    ),
    Mutation(
        "F4",
        "every frame says the newest watermark",
        SENDER,
        "self.watermark_ms if number == len(batches) else partition.watermark_ms",
        "self.watermark_ms",
    ),
    Mutation("F7", "never held back by receivers", SENDER, "partition.unread_bytes > self.ahead_bytes_max", "False"),
    Mutation(
        "F7",
        "the quickest reader counts",
        SENDER,
        "return any(partition.unread_bytes",
        "return all(partition.unread_bytes",
    ),
    Mutation(
        "F7",
        "a report before the answer is lost",
        SENDER,
        "unacked.popleft().offset = offset\n        self._forget_read(partition)",
        "unacked.popleft().offset = offset\n        pass",
    ),
    Mutation(
        "F7", "held even when read", SENDER, "partition.unread_bytes -= unread.popleft().size_bytes", "unread.popleft()"
    ),
    Mutation("F7", "barriers wait too", MACHINE, "if epoch > self.receiver.ended_up_to:", "if self.may_read():"),
    Mutation(
        "F8",
        "never held back by commits",
        SENDER,
        "return sum(self.uncommitted_bytes.values()) > self.uncommitted_bytes_max",
        "return False",
    ),
    Mutation("F8", "a commit frees everything", SENDER, "if e <= epoch]", "]"),
    Mutation("F8", "a commit frees nothing", SENDER, "if e <= epoch]", "if False]"),
    Mutation("F8", "does not ask", MACHINE, "self._out.append(do.AskCheckpoint())", "pass"),
    Mutation(
        "F8", "asks again and again", MACHINE, "            self._asked = True\n", "            self._asked = False\n"
    ),
    Mutation(
        "F8",
        "asks once and never again",
        MACHINE,
        "            self._asked = False\n",
        "            self._asked = True\n",
    ),
    Mutation("F8", "C11 does not hold", MACHINE, "not self._input_held", "True"),
    Mutation(
        "L1",
        "the next generation alone is the ceiling",
        LINEAGE,
        "lowest = min(lowest, entry.restored_from)",
        "lowest = entry.restored_from - (entry.generation == 3) * -4",
    ),
    Mutation("L1", "everything counts", LINEAGE, "epoch <= self.ceilings.get(generation, -1)", "True"),
    Mutation(
        "L1",
        "unknown generations count",
        LINEAGE,
        "self.ceilings.get(generation, -1)",
        "self.ceilings.get(generation, 99)",
    ),
    Mutation("L1", "later generations lower the ceiling", LINEAGE, "if entry.generation > current:", "if False:"),
    Mutation(
        "L1",
        "a discarded frame counts in seq",
        RECEIVER,
        'return Drop("discarded_by_lineage")',
        'partition.channels[header.sender].next_seq = Seq(header.seq + 1); return Drop("discarded_by_lineage")',
    ),
    Mutation("L2", "a zombie goes on", MACHINE, "self.stopped = True", "self.stopped = False"),
    Mutation("L2", "newer frames are judged as mine", LINEAGE, "if generation > self.current:", "if False:"),
    Mutation(
        "L2",
        "a zombie writes what it was about to",
        MACHINE,
        "self._out = [do.StopAsZombie(generation)]",
        "self._out.append(do.StopAsZombie(generation))",
    ),
    Mutation(
        "L2",
        "not noticed while a snapshot is taken",
        MACHINE,
        "return self._work is None or self._taking()",
        "return self._work is None",
    ),
    Mutation(
        "C2",
        "a barrier on one partition",
        SENDER,
        "for output, index, partition in self._every():\n            yield Send(output.edge, index, BarrierFrame",
        "for output, index, partition in list(self._every())[:1]:\n            yield Send(output.edge, index, BarrierFrame",
    ),
    Mutation(
        "C2",
        "input during the snapshot",
        MACHINE,
        "return self._work is None and not self.ended",
        "return not self.ended",
    ),
    Mutation("C2", "every start is taken", MACHINE, "if epoch > self.receiver.ended_up_to:", "if True:"),
    Mutation("C3", "later epochs are applied", RECEIVER, "if not channel.blocked:", "if True:"),
    Mutation(
        "C3",
        "one barrier is enough",
        RECEIVER,
        "all(c.blocked for c in self.channels())",
        "any(c.blocked for c in self.channels())",
    ),
    Mutation(
        "C3",
        "one partition is enough",
        RECEIVER,
        "all(c.blocked for c in self.channels())",
        "all(c.blocked for c in next(p for p in self.partitions.values() if any(x.blocked for x in p.channels.values())).channels.values())",
    ),
    Mutation(
        "C3",
        "the barrier's watermark comes late",
        MACHINE,
        "                self._settle()\n\n    def _start",
        "                pass\n\n    def _start",
    ),
    Mutation("C4", "no bound", RECEIVER, "self.waiting_bytes + candidate.size_bytes > self.waiting_bytes_max", "False"),
    Mutation(
        "C4",
        "what fits is taken though others were left",
        RECEIVER,
        "if partition.left_behind is not None and channel.blocked:",
        "if False:",
    ),
    Mutation("C4", "no seek back", MACHINE, "self._out.append(do.Seek(edge, offset))", "pass"),
    Mutation("C4", "what was left is not where to resume", RECEIVER, "candidates.append(self.left_behind)", "pass"),
    Mutation("C4", "what waits is not where to resume", RECEIVER, "candidates.append(self.waiting[0].offset)", "pass"),
    Mutation(
        "C4",
        "a later barrier that waits ends nothing",
        RECEIVER,
        "        self.waiting_bytes += candidate.size_bytes\n        return Wait(self._ended_by(candidate.frame))",
        "        self.waiting_bytes += candidate.size_bytes\n        return Wait(None)",
    ),
    Mutation(
        "C4",
        "a later barrier that is left ends nothing",
        RECEIVER,
        "        if partition.left_behind is not None and channel.blocked:\n            return Wait(self._ended_by(frame))",
        "        if partition.left_behind is not None and channel.blocked:\n            return Wait(None)",
    ),
    Mutation(
        "C4",
        "a partition is paused",
        MACHINE,
        "return self._work is None or self._taking()",
        "return self.receiver.aligning is None",
    ),
    Mutation("C5", "an ended barrier blocks", RECEIVER, "if epoch <= self.ended_up_to:", "if False:"),
    Mutation(
        "C5",
        "a later barrier does not end the epoch",
        RECEIVER,
        "                self._unblock()\n        self.aligning = epoch",
        "                pass\n        self.aligning = epoch",
    ),
    Mutation(
        "C5", "an abort ends nothing", RECEIVER, "        self._unblock()\n        return True", "        return False"
    ),
    Mutation("C5", "an aborted checkpoint is begun", MACHINE, "if epoch > self.receiver.ended_up_to:", "if True:"),
    Mutation("C5", "an abort in mid-snapshot unblocks", MACHINE, "if not taken and self._taking():", "if False:"),
    Mutation(
        "C5",
        "an ended checkpoint is acknowledged",
        MACHINE,
        "self._pending.epoch <= epoch:\n            self._pending = None",
        "self._pending.epoch <= epoch:\n            pass",
    ),
    Mutation(
        "C5",
        "p is what hints told",
        MACHINE,
        "do.TakeSnapshot(self._ticket, epoch, committed)",
        "do.TakeSnapshot(self._ticket, epoch, self.committed)",
    ),
    Mutation(
        "C5",
        "an old abort unblocks",
        RECEIVER,
        "if self.aligning is None or self.aligning > epoch:",
        "if self.aligning is None:",
    ),
    Mutation(
        "C5",
        "an old abort drops the ack",
        MACHINE,
        "self._pending is not None and self._pending.epoch <= epoch:",
        "True:",
    ),
    Mutation(
        "C5",
        "frames are put off while a snapshot is taken",
        MACHINE,
        "self._taking() and not self.is_source and self._step()",
        "False",
    ),
    Mutation(
        "C6",
        "processing time is forgotten",
        MACHINE,
        "processing_time_ms=self.processing_time_ms,",
        "processing_time_ms=0,",
    ),
    Mutation(
        "C6",
        "the input watermark is forgotten",
        MACHINE,
        "input_watermark_ms=self.input_watermark_ms,",
        "input_watermark_ms=0,",
    ),
    Mutation(
        "C6",
        "the output watermark is forgotten",
        MACHINE,
        "output_watermark_ms=self.sender.watermark_ms,",
        "output_watermark_ms=0,",
    ),
    Mutation("C6", "idleness is forgotten", MACHINE, "            idle=self.idle,\n", "            idle=False,\n"),
    Mutation("C6", "the end is forgotten", MACHINE, "            ended=self.ended,\n", "            ended=False,\n"),
    Mutation(
        "C6",
        "own seqs in front of the barrier",
        MACHINE,
        "outputs=self.sender.state(),",
        "outputs=tuple(type(o)(o.edge, o.incarnation, tuple(s - 1 for s in o.next_seq)) for o in self.sender.state()),",
    ),
    Mutation("C6", "channels' idleness is forgotten", RECEIVER, "idle=c.progress.idle,", "idle=False,"),
    Mutation("C6", "channels' end is forgotten", RECEIVER, "ended=c.progress.ended,", "ended=False,"),
    Mutation(
        "C6", "channels' watermark is forgotten", RECEIVER, "watermark_ms=c.progress.watermark_ms,", "watermark_ms=0,"
    ),
    Mutation(
        "C7", "not durable", MACHINE, "pending is None or pending.durable is None or not", "pending is None or not"
    ),
    Mutation("C7", "not at the broker", MACHINE, "or not self.sender.all_acked(pending.behind)", ""),
    Mutation("C7", "one partition is enough", SENDER, "return all(self.edges[edge]", "return any(self.edges[edge]"),
    Mutation("C7", "the barrier need not be there", SENDER, "acked_seq >= seq - 1", "acked_seq >= seq - 2"),
    Mutation("C9", "repeats are released", RELEASE, "if row.epoch <= max(self.marker, self.seen):", "if False:"),
    Mutation("C9", "what waits is released twice", RELEASE, "max(self.marker, self.seen)", "self.marker"),
    Mutation("C11", "no bound", RELEASE, "if len(self.waiting) >= self.waiting_max:", "if False:"),
    Mutation("S2", "any predecessor", RELEASE, "if row.predecessor != self.marker:", "if False:"),
    Mutation(
        "S2", "two at once", RELEASE, "if self.releasing is not None or not self.waiting:", "if not self.waiting:"
    ),
    Mutation("S2", "the marker stands still", RELEASE, "self.marker = epoch", "pass"),
    Mutation(
        "S2",
        "a release out of the blue",
        RELEASE,
        "if self.releasing is None or self.releasing.epoch != epoch:",
        "if False:",
    ),
    Mutation(
        "W1",
        "input watermarks fall",
        MACHINE,
        "if final or self.input_watermark_ms < watermark < MAX_TIME:",
        "if final or self.input_watermark_ms != watermark < MAX_TIME:",
    ),
    Mutation("W1", "a channel's watermark falls", WATERMARKS, "max(self.watermark_ms, watermark_ms)", "watermark_ms"),
    Mutation(
        "W1",
        "output watermarks fall",
        MACHINE,
        "max(self.sender.watermark_ms, output_watermark_ms)",
        "output_watermark_ms",
    ),
    Mutation(
        "W1",
        "the watermark goes first",
        MACHINE,
        "        grouped: dict",
        "        self._out += self.sender.watermarks()\n        grouped: dict",
    ),
    Mutation(
        "W1",
        "restored below the snapshot",
        START,
        "watermark_ms = max((p.output_watermark_ms for p in previous), default=MIN_TIME)",
        "watermark_ms = MIN_TIME",
    ),
    Mutation(
        "W1",
        "operators do not hear the restored watermark",
        MACHINE,
        "self._start(Advancing(final=False))\n        out",
        "pass\n        out",
    ),
    Mutation(
        "W3",
        "ended inputs hold back",
        WATERMARKS,
        "if progress.ended or progress.watermark_ms == MAX_TIME:",
        "if progress.watermark_ms == MAX_TIME:",
    ),
    Mutation(
        "W3",
        "an input at the end of time outruns the idle",
        WATERMARKS,
        "if progress.ended or progress.watermark_ms == MAX_TIME:",
        "if progress.ended:",
    ),
    Mutation(
        "W3",
        "the end of time without the end of input",
        MACHINE,
        "if final or self.input_watermark_ms < watermark < MAX_TIME:",
        "if final or self.input_watermark_ms < watermark:",
    ),
    Mutation("W3", "idle inputs hold back", WATERMARKS, "        if progress.idle:", "        if False:"),
    Mutation(
        "W3",
        "the lowest of the idle",
        WATERMARKS,
        "max(idle, progress.watermark_ms)",
        "progress.watermark_ms if idle == MIN_TIME else min(idle, progress.watermark_ms)",
    ),
    Mutation("W3", "idle inputs end the time", WATERMARKS, "return idle if any_idle else MAX_TIME", "return MAX_TIME"),
    Mutation("W3", "ended makes idle", WATERMARKS, "and not (seen and all(p.ended for p in seen))", ""),
    Mutation("W3", "idleness is not handed on", MACHINE, "self.idle = self.sender.idle = idle\n", "self.idle = idle\n"),
    Mutation(
        "W3",
        "a source's idleness is not handed on",
        MACHINE,
        "self.idle = self.sender.idle = event.idle\n",
        "self.idle = event.idle\n",
    ),
    Mutation("W3", "rows do not make a sender active", MACHINE, "progress.idle = False\n", "pass\n"),
    Mutation("W3", "rows do not make a partition active", SENDER, "        partition.idle = False\n", "        pass\n"),
    Mutation(
        "W3",
        "END derives nothing",
        MACHINE,
        "progress.ended = True\n                self._settle()",
        "progress.ended = True",
    ),
    Mutation(
        "W3",
        "unknown at the barrier",
        MACHINE,
        "                self._out += self.sender.watermarks()\n                self._start(Copying",
        "                self._start(Copying",
    ),
    Mutation("W5", "processing time falls", MACHINE, "max(self.processing_time_ms, now_ms)", "now_ms"),
    Mutation(
        "W5", "a restore forgets the time", START, "processing_time_ms=processing_time_ms,", "processing_time_ms=0,"
    ),
    Mutation(
        "W5",
        "restored timers are not asked for",
        START,
        "processing_time_ms if previous and not start.is_source else MAX_TIME",
        "MAX_TIME",
    ),
    Mutation("W5", "timers fire early", MACHINE, "self._next_processing_ms <= self.processing_time_ms and", "True and"),
    Mutation(
        "E1",
        "END on one channel is enough",
        MACHINE,
        "final = all(p.ended for p in inputs)",
        "final = any(p.ended for p in inputs)",
    ),
    Mutation("E1", "no END", MACHINE, "self._out += self.sender.ends()", "pass"),
    Mutation(
        "E1",
        "END in front of the watermark",
        MACHINE,
        "        self._out += self.sender.watermarks()\n        self._out += self.sender.ends()",
        "        self._out += self.sender.ends()\n        self._out += self.sender.watermarks()",
    ),
    Mutation(
        "E1",
        "timers fire behind END",
        MACHINE,
        "self._next_processing_ms <= self.processing_time_ms and not self.ended",
        "self._next_processing_ms <= self.processing_time_ms",
    ),
    Mutation("E1", "a peer's rows behind END", MACHINE, "if progress.ended:", "if False:"),
    Mutation(
        "E1",
        "own rows behind END",
        SENDER,
        "        if self.ended:\n            message",
        "        if False:\n            message",
    ),
    Mutation(
        "E1",
        "input behind the end",
        MACHINE,
        "return self._work is None and not self.ended and",
        "return self._work is None and",
    ),
    Mutation(
        "E1",
        "a restored end is forgotten",
        START,
        "ended = bool(previous) and all(p.ended for p in previous)",
        "ended = False",
    ),
    Mutation(
        "E1",
        "a source produces behind the end",
        MACHINE,
        "self._work is not None or self.ended:",
        "self._work is not None:",
    ),
    Mutation(
        "E1",
        "no barriers behind the end",
        MACHINE,
        "if epoch > self.receiver.ended_up_to:",
        "if epoch > self.receiver.ended_up_to and not self.ended:",
    ),
    Mutation(
        "R4",
        "no introduction",
        MACHINE,
        "self._out += self.sender.introduce(self.sender.edges[edge], ended=self.ended)",
        "pass",
    ),
    Mutation("R4", "introduced without END", SENDER, "            if ended:\n", "            if False:\n"),
    Mutation(
        "R4",
        "introduced as active",
        SENDER,
        "            partition.idle = self.idle\n            yield Send(\n                output.edge, index, WatermarkFrame(self._header(output, partition, self.watermark_ms), self.idle)\n            )\n            if ended",
        "            yield Send(\n                output.edge, index, WatermarkFrame(self._header(output, partition, self.watermark_ms), False)\n            )\n            if ended",
    ),
    Mutation(
        "R4", "what stays is introduced too", START, "start.restored and b.incarnation not in known", "start.restored"
    ),
    Mutation(
        "R4",
        "the lowest watermark",
        START,
        "max((p.output_watermark_ms for p in previous)",
        "min((p.output_watermark_ms for p in previous)",
    ),
    Mutation(
        "R4",
        "the lowest input watermark",
        START,
        "max((p.input_watermark_ms for p in previous)",
        "min((p.input_watermark_ms for p in previous)",
    ),
    Mutation(
        "R4", "everybody's watermark", START, "if owner_of(point, start.tasks, scale) == start.task.index", "if True"
    ),
    Mutation(
        "R4",
        "a source takes its predecessors' watermark",
        START,
        "[_without_watermark(p) for p in start.restored.values()]",
        "list(start.restored.values())",
    ),
    Mutation("R4", "old channels live on", START, "if i.incarnation == binding.incarnation), None)", "), None)"),
    Mutation(
        "R4",
        "a restored sender forgets what it told",
        START,
        "PartitionSender(seq, watermark_ms, idle)",
        "PartitionSender(seq)",
    ),
)


@cache
def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """All functions and methods of a module, by qualified name."""
    found: dict[str, FunctionType] = {}
    owners = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    for owner in (module, *owners):
        for member in vars(owner).values():
            function = member.__func__ if isinstance(member, staticmethod) else member
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                found[function.__qualname__] = function
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of functions, of methods, and of nothing further in."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


@cache
def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The product without the rule, as long as the context is open. AssertionError if it would be the same product."""
    module = importlib.import_module(mutation.module)
    source = _source(module)
    assert source.count(mutation.old) >= 1, f"{mutation.module} has no {mutation.old!r}: the mutation is out of date"
    mutant = compile(source.replace(mutation.old, mutation.new), str(module.__file__), "exec")
    functions = _functions(module)
    changed: dict[FunctionType, CodeType] = {}
    for code in _codes(mutant):
        function = functions.get(code.co_qualname)
        if (
            function is not None
            and function.__code__ != code
            and function.__code__.co_firstlineno == code.co_firstlineno
        ):
            changed[function] = function.__code__
            function.__code__ = code
    try:
        assert changed, f"{mutation.rule}, {mutation.what}: changes no function"
        yield
    finally:
        for function, code in changed.items():
            function.__code__ = code
