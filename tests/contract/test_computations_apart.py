"""A computation in a process of its own gives what it gives in the worker's; and whatever it does to its process, this one lives.

Each class of harm is a module that is written for the test: at import, and in a callback.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tidemark.services.operator import child
from tidemark.services.operator.apart import ComputationEnded, Computations, ComputeApart
from tidemark.services.operator.deaths import Deaths
from tidemark.services.operator.rockskeys import Scratch
from tidemark.services.operator.settings import OperatorSettings
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.children import ForkedChildren
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.computation.problems import ComputationError
from tidemark.shared.language.documents import parse
from tidemark.shared.model.failures import is_outage
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import Assign, RunningPlan
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import Operator, Out, ScratchUnavailable
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.computation import batch_of_rows, row_of
from tidemark.shared.operators.compute import ComputeOperator
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import ComputeSpec
from tidemark.shared.runtime.settings import DeathSettings, RuntimeSettings

JOB, VERTEX = JobId("0" * 32), VertexId("compute-1")
MIB = 1 << 20
SETTINGS = OperatorSettings(build_ms_max=60_000, call_ms_max=60_000, memory_bytes_max=1024 * MIB)
SOON = replace(SETTINGS, build_ms_max=2_000, call_ms_max=2_000)
"""For what never answers."""
RUNTIME = RuntimeSettings(deaths=DeathSettings(deaths_max=2))
HEAD = """
import ctypes, os, signal, subprocess, sys, time
from dataclasses import dataclass
from tidemark.shared.computation import Computation, ComputationError

@dataclass
class Seen:
    n: int = 0
    kept: str = ""

"""
CLASS = """
class Any(Computation):
    State = Seen

    def process(self, record, state, timers):
        if record.value.get("deadly"):
            HARM
        state.n += 1
        timers.set("t", record.timestamp + 5)
        yield {"id": record.value["id"], "n": state.n}

    def on_timer(self, timer, state, timers):
        yield {"fired": timer.time, "n": state.n}
"""
THREADS = """
import subprocess, threading
import concurrent.futures as threads

CLONE = 56 if os.uname().machine == "x86_64" else 220


def checked(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


assert threads.ThreadPoolExecutor().submit(os.getpid).result() == os.getpid()
"""
HARMS = {
    "leaves": ("sys.exit(3)", "ended with status 3"),
    "leaves at once": ("os._exit(4)", "ended with status 4"),
    "ends well": ("os._exit(0)", "ended with status 0"),
    "reads nowhere": ("ctypes.string_at(0)", "was killed by signal 11"),
    "aborts": ("os.abort()", "was killed by signal 6"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9"),
    "never ends": ("while True: pass", "did not answer within 2000 ms"),
    "hears no signal": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n            while True: signal.pause()",
        "did not answer within 2000 ms",
    ),
    "closes all": ("os.closerange(3, 1000); signal.pause()", "closed its connection"),
}


@pytest.fixture(scope="module")
def children() -> ForkedChildren:
    """A server that has loaded what the children need."""
    return ForkedChildren(child.work, [child.__name__], memory_bytes_max=SETTINGS.memory_bytes_max)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module; gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = itertools.count()

    def written(text: str) -> str:
        name = f"hostile_{tmp_path.name.replace('-', '_')}_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        return name

    return written


class Task:
    """A task of generations that restore nothing: each sees the notes of those before."""

    def __init__(self, children: ForkedChildren, scratch: Path) -> None:
        self._children = children
        self._scratch = Scratch(scratch, "operator-0")
        self._blobs = MemoryBlobs(AsyncExecutor())
        self._numbers = itertools.count()
        self.generation = 0

    def begin(self, settings: OperatorSettings = SETTINGS) -> Computations:
        """The next generation's."""
        self.generation += 1
        plan = RunningPlan(1, "{}", {VERTEX: 1}, ())
        worker, name, generation = WorkerIncarnation("w"), ProcessorName("p"), Generation(self.generation)
        assign = Assign(worker, name, JOB, generation, (), Epoch(0), plan, VERTEX, 0)
        self.deaths = Deaths(self._blobs, assign, lambda: f"u{next(self._numbers)}", RUNTIME.deaths)
        asyncio.run(self.deaths.open())
        return Computations(self._children, self.deaths, self._scratch, settings, RUNTIME)


@pytest.fixture
def task(children: ForkedChildren, tmp_path: Path) -> Task:
    """A task."""
    return Task(children, tmp_path / "scratch")


def spec(name: str, **more: Any) -> ComputeSpec:
    """A computation of this class."""
    stage = {"class": f"{name}:Any", "key": "$k", **more}
    sink = {"$emit": {"path": "/x", "format": "json"}}
    (compute,) = parse({"pipeline": [{"$source": {"documents": []}}, {"$compute": stage}, sink]}).pipeline[1:2]
    return ComputeSpec(compute, from_source=True)  # type: ignore[arg-type]


def rows(*ids: int, deadly: int = -1) -> pa.RecordBatch:
    """Records of three keys, a second apart."""
    documents = [{"id": i, "k": i % 3, "deadly": i == deadly} for i in ids]
    return batch_of_rows([row_of(i % 3, d, 1_000 * i, (3, i)) for i, d in zip(ids, documents, strict=True)])


def found(outs: list[Out]) -> list[tuple[str, Any]]:
    """What came out, by port."""
    return [(out.port, document) for out in outs for document in documents_of(out.batch)]


def lived(operator: Operator, *, cut: Callable[[Operator], Operator] = lambda o: o) -> list[Any]:
    """A life of a computation, and what could be seen of it at each step."""
    seen: list[Any] = []
    for first in range(0, 30, 10):
        outs = [*operator.on_batch(rows(*range(first, first + 10)), "rows", "")]
        outs += operator.on_watermark(first * 1_000)
        outs += operator.on_processing_time(first * 1_000)
        seen.append((found(outs), operator.output_watermark(), operator.next_processing_time(), operator.counters()))
        operator = cut(operator)
    return [*seen, found([*operator.on_watermark(MAX_TIME)])]


CONTEXT = TaskContext("p", topic="t")


def test_a_computation_gives_the_same_in_a_process_of_its_own(task: Task, write: Callable[[str], str]) -> None:
    """Rows, timers, letters, watermarks, counts; also where a snapshot is restored into another process at each step."""
    stage = spec(write(CLASS.replace("HARM", "raise ValueError")))
    here = lived(ComputeOperator(stage, CONTEXT))
    apart = task.begin()
    assert lived(apart.make(stage, CONTEXT)) == here
    kept: dict[Any, bytes] = {}

    def cut(operator: Operator) -> Operator:
        for part, data in operator.snapshot().items():
            kept.pop(part, None)
            if data is not None:
                kept[part] = data
        other = apart.make(stage, CONTEXT)
        other.restore(dict(kept))
        other.on_watermark(operator.output_watermark())
        return other

    again = lived(apart.make(stage, CONTEXT), cut=cut)
    assert [(step[0] if isinstance(step, tuple) else step) for step in again] == [
        (step[0] if isinstance(step, tuple) else step) for step in here
    ]
    apart.close()


@pytest.mark.parametrize("harm", HARMS)
def test_a_class_that_ends_its_process_at_import_fails_its_task_with_the_reason(
    task: Task, write: Callable[[str], str], harm: str
) -> None:
    """The error names the stage, the class and how the process ended; no process of it is left."""
    what, said = HARMS[harm]
    apart = task.begin(SOON if "2000 ms" in said else SETTINGS)
    stage = spec(write(what.replace("\n            ", "\n") + CLASS.replace("HARM", "pass")))
    with pytest.raises(
        ComputationEnded, match=rf"^pipeline\[1\]\.\$compute: the process of .*{said}.* while its class was loaded"
    ):
        apart.make(stage, CONTEXT)
    left = apart.pids()
    apart.close()
    assert not [pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def survives(apart: Computations, stage: ComputeSpec) -> list[Out] | None:
    """What comes out of six records of which the fifth is deadly; None if the process died."""
    try:
        operator = apart.make(stage, CONTEXT)
        return [*operator.on_batch(rows(*range(6), deadly=4), "rows", ""), *operator.on_watermark(MAX_TIME)]
    except ComputationEnded:
        return None
    finally:
        apart.close()


@pytest.mark.parametrize("harm", ["leaves", "reads nowhere", "never ends"])
def test_a_record_that_ends_the_process_becomes_a_letter(task: Task, write: Callable[[str], str], harm: str) -> None:
    """After one death that names nobody and two in the same callback; all other records are applied."""
    stage = spec(write(CLASS.replace("HARM", HARMS[harm][0])))
    outs: list[Out] | None = None
    while outs is None:
        apart = task.begin(SOON if harm == "never ends" else SETTINGS)
        outs = survives(apart, stage)
        task.deaths.close()
    assert task.generation == 4
    assert sorted(d["id"] for port, d in found(outs) if port == OUT and "id" in d) == [0, 1, 2, 3, 5]
    (letter,) = [d for port, d in found(outs) if port == DLQ]
    assert letter["doc"]["id"] == 4
    assert "ended 2 times" in letter["errInfo"]["reason"]


STARTS = {
    "forks": "while True: os.fork()",
    "forks in a thread": "threads.ThreadPoolExecutor().submit(os.fork).result()",
    "leaves its session": "os.fork() or os.setsid()",
    "runs a program": "subprocess.run(['true'], check=True)",
    "runs a program by vfork": "os.posix_spawn('/bin/true', ['true'], {})",
    "asks the kernel": "checked(ctypes.CDLL(None, use_errno=True).syscall(CLONE, 17, 0, 0, 0, 0))",
    "asks the kernel anew": "checked(ctypes.CDLL(None, use_errno=True).syscall(435, (ctypes.c_uint64 * 8)(), 64))",
}


@pytest.mark.parametrize("start", STARTS)
def test_a_callback_that_starts_a_process_fails_as_one_that_raises(
    task: Task, write: Callable[[str], str], start: str
) -> None:
    """By whichever call: no process is there, the record is a letter, and the computation goes on; threads are free."""
    stage = spec(write(THREADS + CLASS.replace("HARM", STARTS[start])))
    apart = task.begin()
    operator = apart.make(stage, CONTEXT)
    (pid,) = apart.pids()
    outs = [*operator.on_batch(rows(*range(6), deadly=4), "rows", ""), *operator.on_watermark(MAX_TIME)]
    assert psutil.Process(pid).children() == []
    apart.close()
    assert sorted(d["id"] for port, d in found(outs) if port == OUT and "id" in d) == [0, 1, 2, 3, 5]
    (letter,) = [d for port, d in found(outs) if port == DLQ]
    assert "Operation not permitted" in letter["errInfo"]["reason"] or "not implemented" in letter["errInfo"]["reason"]


def test_a_callback_that_wants_too_much_memory_fails_as_one_that_raises(
    task: Task, write: Callable[[str], str]
) -> None:
    """It is tried again, then a letter; the process and its neighbours go on."""
    stage = spec(write(CLASS.replace("HARM", "bytearray(1 << 31)")))
    outs = survives(task.begin(), stage)
    assert outs is not None
    (letter,) = [d for port, d in found(outs) if port == DLQ]
    assert "MemoryError" in letter["errInfo"]["reason"]


def test_what_is_wrong_with_a_class_is_said_as_in_the_worker(task: Task, write: Callable[[str], str]) -> None:
    """The same kinds of errors, with the same words."""
    stages = [
        (spec(write(CLASS.replace("HARM", "pass")), config={"x": 1}), ComputationError),
        (spec(write("import no_such_module\n" + CLASS.replace("HARM", "pass"))), ComputationError),
        (spec(write("1 / 0\n" + CLASS.replace("HARM", "pass"))), ComputationError),
        (spec("no.such.module"), ComputationError),
    ]
    apart = task.begin()
    for stage, kind in stages:
        with pytest.raises(kind) as here:
            ComputeOperator(stage, CONTEXT)
        with pytest.raises(kind) as there:
            apart.make(stage, CONTEXT)
        assert str(there.value) == str(here.value)
    apart.close()


def test_a_task_that_is_closed_ends_a_call_that_does_not_end(task: Task, write: Callable[[str], str]) -> None:
    """Who waits for its answer hears of it, and nothing is left on the disk."""
    stage = spec(write(CLASS.replace("HARM", "signal.pause()")))
    apart = task.begin()
    operator = apart.make(stage, CONTEXT)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            operator.on_batch(rows(0, deadly=0), "rows", "")
            operator.on_watermark(MAX_TIME)
        except ComputationEnded as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    apart.close()
    waiting.join(30)
    assert len(raised) == 1
    assert "was ended with its task" in str(raised[0])


def test_cold_keys_of_a_process_that_died_leave_nothing_on_the_disk(
    children: ForkedChildren, tmp_path: Path, write: Callable[[str], str]
) -> None:
    """Keys beyond memory lie in a folder that the worker removes, however the process ended."""
    scratch = tmp_path / "scratch"
    few = replace(RUNTIME, keys_in_memory=1)
    task = Task(children, scratch)
    task.begin()
    apart = Computations(children, task.deaths, Scratch(scratch, "operator-0"), SETTINGS, few)
    assert survives(apart, spec(write(CLASS.replace("HARM", "os._exit(1)")))) is None
    assert not list(scratch.iterdir())


def test_a_full_disk_below_cold_keys_is_an_outage_there_as_here(
    children: ForkedChildren, task: Task, tmp_path: Path, write: Callable[[str], str]
) -> None:
    """The generation fails, and the failure does not count: time or its owner mends the disk."""
    limit = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))  # files are made, and take no bytes\n"
    )
    stage = spec(write(limit + CLASS.replace("HARM", "pass")))
    task.begin()
    apart = Computations(children, task.deaths, Scratch(tmp_path / "full", "operator-0"), SETTINGS, RUNTIME)
    with pytest.raises(ScratchUnavailable, match=r"keyed state in .*full") as seen:
        apart.make(stage, CONTEXT).on_batch(rows(0), "rows", "")
    assert is_outage(seen.value)
    apart.close()


def test_processes_of_other_computations_live_on(task: Task, write: Callable[[str], str]) -> None:
    """Each has its own: the end of one is nothing to another."""
    well, apart = spec(write(CLASS.replace("HARM", "pass"))), task.begin()
    neighbour: ComputeApart = apart.make(well, CONTEXT)
    assert survives(task.begin(), spec(write(CLASS.replace("HARM", "os.abort()")))) is None
    assert found([*neighbour.on_batch(rows(1), "rows", ""), *neighbour.on_watermark(MAX_TIME)])
    apart.close()
