"""Something that a processor needs is away for a while: it runs again by itself, and every row is there once (C10).

What is away, for how long, and what `status` says meanwhile is a table in README.md beside this file. Hours pass in virtual time.
"""

import builtins
import errno
import io
import json
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
import structlog
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError

from tests.harness.installation import NAME, Installed, installed, released
from tests.harness.simulation.spark import BOUNDS, InProcess, SimSpark
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.kafka import KafkaSink
from tidemark.services.sink.connectors.sql import SqlSink
from tidemark.services.spark import service as spark_service
from tidemark.services.spark.service import KeptSession, SparkService
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.faults import Fault, Faults, Operation
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.blobs import BlobUnavailable
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.sink import TargetUnavailable
from tidemark.shared.runtime.registry import Registry
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker

TARGETS = {"files": FileSink, "kafka": KafkaSink, "sql": SqlSink}
HOURS_MS = 3_600_000
"""From here on checkpoints and looks at time come less often: a second of a processor that goes on costs 5 ms of a core."""
BACK_MS_MAX = 180_000
"""Longer than the longest wait between two tries, and a generation."""
LOG: Sequence[Operation] = ("admin", "offsets", "fetch", "send", "init", "txn", "commit", "abort")
BROKER = {operation: [operation] for operation in LOG} | {"broker": LOG}
STORE: dict[str, Sequence[Operation]] = {
    "reading": ["store.read"],
    "writing": ["store.write"],
    "store": ["store.read", "store.write"],
}
OF_TARGETS = ("open", "accept", "stage", "release")
OF_BLOBS = ("put", "get", "list", "delete")
_CREATING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class Outage:
    """What is away; `sink`: where the processor writes."""

    what: str
    sink: str
    cut: Callable[[Path], AbstractContextManager[None]]
    """A context in which it is away, of what lies in a folder."""
    begins: bool = False
    """A task begins anew while it is away."""


@contextmanager
def _refused(operations: Sequence[Operation]) -> Iterator[None]:
    real = Faults.draw

    def draw(faults: Faults, operation: Operation) -> Fault:
        return Fault.REFUSED if operation in operations else real(faults, operation)

    Faults.draw = draw  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Faults.draw = real  # type: ignore[method-assign]


@contextmanager
def _raising(kind: Any, names: Sequence[str], error: type[Exception]) -> Iterator[None]:
    real = {name: getattr(kind, name) for name in names}
    away = True

    def wrapped(name: str) -> Any:
        async def call(*given: Any, **named: Any) -> Any:
            if away:  # whoever has taken hold of the method meanwhile comes through when it is over
                raise error("nobody answers")
            return await real[name](*given, **named)

        return call

    for name in names:
        setattr(kind, name, wrapped(name))
    try:
        yield
    finally:
        away = False
        for name, method in real.items():
            setattr(kind, name, method)


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """The disk below a folder: no file is opened there to be written, no folder and no link made, and a database writes nothing."""
    here = str(folder)
    opens, makes, links, low = io.open, os.mkdir, os.link, os.open

    def check(path: Any) -> None:
        if not isinstance(path, int) and os.fspath(path).startswith(here):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def opened(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if set(mode) & set("wxa+"):
            check(path)
        return opens(path, mode, *given, **named)

    def opened_low(path: Any, flags: int, *given: Any, **named: Any) -> Any:
        if flags & _CREATING:
            check(path)
        return low(path, flags, *given, **named)

    def checked(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *given: Any, **named: Any) -> Any:
            check(given[0] if real is links else path)
            return real(path, *given, **named)

        return call

    def written(_cursor: Any, statement: str, _values: Any, context: Any) -> None:
        if statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE", "CREATE") and here in str(
            context.engine.url
        ):
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full

    sa.event.listen(sa.Engine, "do_execute", written)
    io.open = builtins.open = opened  # type: ignore[assignment]
    os.open, os.mkdir, os.link = opened_low, checked(makes), checked(links)
    try:
        yield
    finally:
        io.open = builtins.open = opens
        os.open, os.mkdir, os.link = low, makes, links
        sa.event.remove(sa.Engine, "do_execute", written)


class _Session(InProcess):
    """A session whose JVM, and whose executors, may be away."""

    away: Exception | None = None
    dead = False

    def range(self, begin: int, end: int, step: int, tasks: int) -> Any:
        """See `InProcess`."""
        if _Session.away is not None:
            raise _Session.away
        return super().range(begin, end, step, tasks)


class OutageSpark(SimSpark):
    """The product's own stage and keeping of a session; Spark's work is done in this process, on blobs in a folder."""

    def __init__(self) -> None:
        SparkService.__init__(self, KeptSession("nowhere"), BOUNDS, keeps=True)

    def session(self) -> Any:
        """See `SimSpark.session`."""
        return self._session.get()


def _opened(*_given: Any) -> Any:
    if _Session.dead:
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    return _Session()


@contextmanager
def spark_in_process() -> Iterator[None]:
    """What the keeping of a session asks of PySpark."""
    names: dict[str, Callable[..., Any]] = {
        "open_session": _opened,
        "warm_up": lambda _: None,
        "forget_ended": lambda: _Session.dead,
    }
    real = {name: getattr(spark_service, name) for name in names}
    for name, made in names.items():
        setattr(spark_service, name, made)
    try:
        yield
    finally:
        for name, method in real.items():
            setattr(spark_service, name, method)


@contextmanager
def _spark(error: Exception, *, dead: bool) -> Iterator[None]:
    """Jobs end with an error; dead: the JVM has ended, and none begins."""
    _Session.away, _Session.dead = error, dead
    try:
        yield
    finally:
        _Session.away, _Session.dead = None, False


def _always(
    cut: Callable[..., AbstractContextManager[None]], *given: Any, **named: Any
) -> Callable[[Path], AbstractContextManager[None]]:
    """A cut that is the same whatever the folder."""
    return lambda _folder: cut(*given, **named)


def _of_spark() -> list[Outage]:
    gone = Py4JNetworkError("Answer from Java side is empty")
    disk = PySparkException(
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: org.apache.spark.api.python.PythonException: Traceback"
        " (most recent call last):\nOSError: [Errno 28] No space left on device"
    )
    return [
        Outage("spark", "spark", _always(_spark, gone, dead=True)),
        Outage("spark: disk", "spark", _always(_spark, disk, dead=False)),
    ]


def _together(log: Sequence[Operation], target: Sequence[str]) -> Callable[[Path], AbstractContextManager[None]]:
    """Brokers, store, blobs and target, in these calls."""
    return _all_of(
        [
            _always(_refused, (*log, "store.read", "store.write")),
            _always(_raising, SqlSink, target, TargetUnavailable),
            _always(_raising, MemoryBlobs, OF_BLOBS, BlobUnavailable),
        ]
    )


def _all_of(
    cuts: Sequence[Callable[[Path], AbstractContextManager[None]]],
) -> Callable[[Path], AbstractContextManager[None]]:
    """Several at once."""

    @contextmanager
    def cut(folder: Path) -> Iterator[None]:
        with ExitStack() as all_of_them:
            for each in cuts:
                all_of_them.enter_context(each(folder))
            yield

    return cut


def outages() -> dict[str, Outage]:
    """By name."""
    found = [Outage(_named("broker", name), "kafka", _always(_refused, ops)) for name, ops in BROKER.items()]
    found += [Outage(_named("store", name), "files", _always(_refused, ops)) for name, ops in STORE.items()]
    for sink, kind in TARGETS.items():
        calls = {name: [name] for name in OF_TARGETS} | {sink: OF_TARGETS}
        found += [
            Outage(_named(sink, n), sink, _always(_raising, kind, c, TargetUnavailable)) for n, c in calls.items()
        ]
    calls = {name: [name] for name in OF_BLOBS} | {"blobs": OF_BLOBS}
    found += [
        Outage(_named("blobs", n), "sql", _always(_raising, MemoryBlobs, c, BlobUnavailable)) for n, c in calls.items()
    ]
    found += _of_spark()
    # Where names resolve no more, what is connected goes on, and nothing connects anew.
    found += [Outage("names", "sql", _together(["admin", "init"], ["open"]))]
    found += [Outage("everything", "sql", _together(LOG, OF_TARGETS))]
    found += [
        Outage(f"full: {name}", sink, lambda folder, name=name: _full(folder / name))  # type: ignore[misc]
        for name, sink in (("out", "files"), ("table.db", "sql"), ("blobs", "kafka"))
    ]
    begins = [
        replace(outage, what=f"{outage.what}, begins", begins=True)
        for outage in found
        if ":" not in outage.what or outage.what.endswith((": open", ": get", ": init", ": admin", ": offsets"))
    ]
    return {outage.what: outage for outage in (*found, *begins)}


def _named(what: str, name: str) -> str:
    return what if name == what else f"{what}: {name}"


def document(folder: Path, sink: str, interval_ms: int) -> dict[str, Any]:
    """From a file that grows to a target of this kind, by way of an operator that keeps state; a checkpoint each `interval_ms`."""
    source = {
        "$source": {
            "path": str(folder / "in.json"),
            "format": "json",
            "follow": True,
            "timeField": {"$toDate": {"$toLong": "$t"}},
            "recordId": {"$toString": "$n"},
        }
    }
    window = {
        "$tumblingWindow": {
            "interval": {"size": 1, "unit": "second"},
            "allowedLateness": {"size": 0, "unit": "second"},
            "pipeline": [{"$match": {"n": {"$gt": 0}}}, {"$group": {"_id": "$n"}}],
        }
    }
    middle = [window, {"$project": {"n": "$_id"}}] if sink == "spark" else [{"$project": {"n": 1}}]
    ends: dict[str, dict[str, Any]] = {
        "files": {"$emit": {"path": str(folder / "out"), "format": "json"}},
        "kafka": {"$emit": {"connectionName": "k", "topic": "out"}},
        "sql": {"$merge": {"into": {"connectionName": "t", "table": "seen"}, "on": ["n"]}},
    }
    return {
        "connections": {
            "k": {"type": "kafka", "bootstrapServers": "memory:1"},
            "t": {"type": "sql", "url": f"sqlite:///{folder / 'table.db'}"},
        },
        "pipeline": [source, *middle, ends[sink if sink in ends else "kafka"]],
        "options": {"checkpoint": {"interval": {"size": interval_ms, "unit": "ms"}}},
    }


def rows_of(there: Installed, folder: Path, sink: str) -> Counter[int]:
    """What a reader of the target sees, by number."""
    if sink == "files":
        return _positive(row["n"] for row in released(folder / "out"))
    if sink != "sql":
        return _positive(json.loads(r.value or b"null")["n"] for r in there.broker.dump("out")[0])
    with closing(sqlite3.connect(folder / "table.db")) as table:
        return _positive(n for (n,) in table.execute("SELECT n FROM seen"))


def _positive(numbers: Iterable[int]) -> Counter[int]:
    """Without those of rows that close windows."""
    return Counter(number for number in numbers if number > 0)


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one outage. Times in virtual ms."""

    during: str
    """State and reason at its end, as a client would be told; of the registry as it was last."""
    back_ms: int
    """From its end to the release of what came during it."""
    generations: int


def endure(outage: Outage, away_ms: int, folder: Path) -> Seen:
    """Run through one. AssertionError where the processor does not go on by itself, or a row is missing or twice."""

    async def main(world: VirtualWorld) -> Seen:
        source = folder / "in.json"
        source.write_text(_row(1))
        if outage.sink == "sql":
            with closing(sqlite3.connect(folder / "table.db")) as table:
                table.execute("CREATE TABLE seen (n BIGINT PRIMARY KEY)")
        of_spark = outage.sink == "spark"
        engine: Literal["spark", "local"] = "spark" if of_spark else "local"
        # State goes into blobs; and in hours of nothing time is looked at less often.
        rare = 10 if away_ms >= HOURS_MS else 1
        settings = RuntimeSettings(
            engine=engine,
            state_inline_bytes_max=1,
            tick_interval_ms=500 * rare,
            fetch_timeout_ms=2_000,
            origins_interval_ms=1_000 * rare,
            flow_interval_ms=100 * rare,
            flow_silence_ms_max=1_000 * rare,
        )
        async with installed(
            world.clock,
            world.executor,
            services=("source", "operator", *(["spark"] if of_spark else []), "sink"),
            settings=settings,
            spark=OutageSpark if of_spark else None,
            folder=folder / "blobs" if of_spark or outage.what.startswith("full: blobs") else None,
        ) as there:
            there.broker.create_topic("out", 1)
            await there.create(document(folder, outage.sink, interval_ms=1_000 * rare))
            await there.start()
            await there.committed()
            with outage.cut(folder):
                if outage.begins:
                    _fail_one(there)
                with source.open("a") as more:
                    more.write(_row(2))
                await there.clock.sleep_ms(away_ms)
                told = Registry()
                for record in there.broker.dump(Topics().registry)[0]:
                    told.take(record)
                during = f"{told.statuses[NAME].state}: {told.statuses[NAME].reason}"
            begin_ms = there.clock.monotonic_ms()
            while rows_of(there, folder, outage.sink) != Counter([1, 2]):
                assert there.store.rows[NAME].state != "FAILED", there.store.rows[NAME].reason
                assert there.clock.monotonic_ms() - begin_ms < BACK_MS_MAX, rows_of(there, folder, outage.sink)
                await there.clock.sleep_ms(1_000)
            back_ms = there.clock.monotonic_ms() - begin_ms
            await there.when(lambda status: status.state == "RUNNING" and not status.reason)
            await there.committed()
            assert rows_of(there, folder, outage.sink) == Counter([1, 2])
            return Seen(during, back_ms, there.store.rows[NAME].generation)

    configured = structlog.get_config()
    if away_ms >= HOURS_MS:  # a line for each try makes a million of them
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with spark_in_process():
            return run_virtual(main)
    finally:
        structlog.configure(**configured)


def _fail_one(there: Installed) -> None:
    """The sink's task."""
    worker = there.parts["sink"]
    assert isinstance(worker, Worker)
    for hosted in worker._tasks.values():
        assert hosted.driver is not None
        hosted.driver.site.fail(LogUnavailable("a hiccup"))


def _row(number: int) -> str:
    """A row, and one that closes its window: none of it comes out, for numbers begin with one."""
    at_ms = 1_700_000_000_000 + 10_000 * number
    rows = [{"n": number, "t": at_ms}, {"n": -number, "t": at_ms + 5_000}]
    return "".join(json.dumps(row) + "\n" for row in rows)
