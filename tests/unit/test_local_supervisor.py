# ruff: noqa: N802 -- a test carries its rule's name
"""A worker that cannot begin is started again and again, and keeps nobody else from being started."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.harness.sealing import KEY
from tidemark.services.cli.installation import while_kept
from tidemark.services.local.broker import BrokerError, LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.services.local.folder_lock import FolderLock
from tidemark.services.local.folders import ADDRESS_FILE
from tidemark.services.local.forking import Forking
from tidemark.services.local.limits import limited
from tidemark.services.local.logs import bound
from tidemark.services.local.supervisor import LocalCluster, LocalSettings, SupervisedProcess, restart_wait_ms
from tidemark.services.local.vouching import Voucher, runs
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import Offset, Place, WorkerIncarnation
from tidemark.shared.model.messages import Deregister
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.process.host import GIVES_UP
from tidemark.shared.runtime.reading import reading
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_report


async def test_a_worker_that_ends_again_and_again_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it may be on its way a wish waits for it; once it has ended early three times the wish gets another place."""
    ended = asyncio.Semaphore(0)
    settings = LocalSettings(data_dir=tmp_path, restart_wait_ms=1)
    cluster = LocalCluster(settings, lambda _place, _status: ended.release())
    (tmp_path / "logs").mkdir()

    async def spawn(_cluster: LocalCluster, child: SupervisedProcess, *_: object) -> asyncio.subprocess.Process:
        does = "raise SystemExit(1)" if child.place == "operator-0" else "import signal; signal.pause()"
        return await asyncio.create_subprocess_exec(sys.executable, "-c", does)

    monkeypatch.setattr(LocalCluster, "_spawn", spawn)
    cluster.add("operator", "operator-0")
    wish = cluster._follow_wish
    wish("operator", frozenset())
    for _ in range(settings.early_ends_max):
        assert set(cluster._children) == {"operator-0"}
        await ended.acquire()
        wish("operator", frozenset())
    assert set(cluster._children) == {"operator-0", "operator-1"}
    wish("operator", frozenset())
    assert "operator-2" not in cluster._children, "the second is on its way"
    await cluster.stop()


def test_a_process_that_had_lived_is_started_again_at_once(tmp_path: Path) -> None:
    """A kill costs no wait; ends in a row that come early are waited for longer and longer, up to the limit."""
    settings = LocalSettings(data_dir=tmp_path)
    waits = [restart_wait_ms(settings, early_ends) for early_ends in (0, 1, 2, 3, 10_000)]
    assert waits == [0, 400, 800, 1_600, settings.restart_wait_ms_max]


@pytest.mark.parametrize(("service", "added"), [("coordinator", 0), ("source", 0), ("spark", 5)])
async def test_what_takes_from_sources_yields_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, added: int
) -> None:
    """Its processes are as nice as the settings say: five more than the supervisor behind sources, unless told otherwise."""
    asked: list[int] = []

    async def fork(_forking: Forking, _service: str, _environment: object, _log: Path, niceness: int) -> NoReturn:
        asked.append(niceness)
        raise OSError

    monkeypatch.setattr(Forking, "fork", fork)
    for variable in ("{}", '{"niceness": 0}'):
        cluster = LocalCluster(limited(LocalSettings(data_dir=tmp_path), {"TIDEMARK_LOCAL": variable}))
        with pytest.raises(OSError, match=r"^$"):
            await cluster._spawn(SupervisedProcess(service, service), tmp_path / "log", WorkerIncarnation("w"))
    assert asked == [added, 0]


async def test_a_second_run_on_a_folder_is_refused_and_takes_nothing_from_the_first(tmp_path: Path) -> None:
    """What tells where the first is reached, and who it is, stays as it was; when it has ended the folder is free."""
    first, second = FolderLock(tmp_path), LocalCluster(LocalSettings(data_dir=tmp_path))
    first.take()
    for name in (ADDRESS_FILE, "processes.json"):
        (tmp_path / name).write_text("the first one's")
    with pytest.raises(BrokerError, match=f"found a run on it \\(pid {os.getpid()}\\)"):
        await second.start()
    await second.stop()
    assert [(tmp_path / name).read_text() for name in (ADDRESS_FILE, "processes.json")] == ["the first one's"] * 2
    first.release()
    third = FolderLock(tmp_path)
    third.take()
    third.release()


async def test_a_process_that_ended_is_told_to_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name that it was started under and its status, so that nobody waits for its heartbeats; of a coordinator nothing is told."""
    names: dict[str, list[str]] = {"coordinator-0": [], "source-0": []}

    async def spawn(
        _cluster: LocalCluster, child: SupervisedProcess, _log: object, name: str
    ) -> asyncio.subprocess.Process:
        does = "import signal; signal.pause()" if names[child.place] else "raise SystemExit(3)"
        names[child.place].append(name)
        return await asyncio.create_subprocess_exec(sys.executable, "-c", does)

    monkeypatch.setattr(LocalCluster, "_spawn", spawn)
    restarts: asyncio.Queue[str] = asyncio.Queue()
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path), lambda place, _status: restarts.put_nowait(place))
    (tmp_path / "logs").mkdir()
    log = MemoryLog(MemoryBroker(SystemClock()))
    cluster._voucher = Voucher(log, Topics(), RuntimeSettings(), tuple)
    reports = TopicPartition(Topics().reports, 0)
    await log.create_topic(reports.topic, 1)
    for place in names:
        cluster.add(place.removesuffix("-0"), place)
        assert await restarts.get() == place
    async with reading(log) as reader:
        await reader.assign({reports: Offset(0)})
        while not (found := await reader.fetch(10, 100)):
            pass
    await cluster.stop()
    told = [decode_report(record.value or b"") for record in found]
    assert told == [Deregister(WorkerIncarnation(names["source-0"][0]), "has ended with status 3")]


def test_log_files_are_bounded_while_they_are_written(tmp_path: Path) -> None:
    """What is too long is kept once beside, and the process that has it open writes on at its beginning; others are left alone."""
    long, short = tmp_path / "source-0.log", tmp_path / "sink-0.log"
    short.write_bytes(b"few\n")
    with long.open("ab", buffering=0) as process:
        for number in range(3):
            process.write(b"line %d\n" % number * 100)
            bound([short, long, tmp_path / "gone.log"], 500)
            process.write(b"more\n")
    assert long.read_bytes() == b"more\n"
    assert (tmp_path / "source-0.log.1").read_bytes() == b"more\n" + b"line 2\n" * 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sink-0.log", "source-0.log", "source-0.log.1"]


async def test_only_the_process_that_is_meant_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late wish does not end the process that took the place of the one that hosted nothing; one that comes twice ends once."""
    started = asyncio.Event()
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path))
    (tmp_path / "logs").mkdir()

    async def spawn(_cluster: LocalCluster, child: SupervisedProcess, *_: object) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
        started.set()
        return process

    monkeypatch.setattr(LocalCluster, "_spawn", spawn)
    cluster.add("sink", "sink-1")
    await started.wait()
    child = cluster._children["sink-1"]
    assert child.incarnation is not None
    cluster._follow_unwish(Place("sink-1"), WorkerIncarnation("the one before"))
    cluster._follow_unwish(Place("sink-2"), child.incarnation)
    assert cluster._beside == set()
    cluster._follow_unwish(Place("sink-1"), child.incarnation)
    (removing,) = cluster._beside
    await asyncio.sleep(0)
    cluster._follow_unwish(Place("sink-1"), child.incarnation)
    assert cluster._beside == {removing}
    await removing
    assert cluster._children == {}
    await cluster.stop()


async def test_R1_a_process_that_runs_is_told_from_one_that_was_stopped_or_has_ended() -> None:
    """What a supervisor says of its workers: busy or not makes no difference."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(1, flush=True)\nwhile True: pass", stdout=-1
    )
    assert process.stdout is not None
    await process.stdout.readline()
    assert runs(process)
    process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert not runs(process)
    process.kill()
    await process.wait()
    assert not runs(process)


async def _forever(cluster: LocalCluster) -> None:
    async with while_kept(cluster):
        await asyncio.Event().wait()


async def test_a_process_that_gives_up_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sentence is what the supervisor says; a block of a command that waits ends with it. One that only fails is started again."""
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, restart_wait_ms=1))
    (tmp_path / "logs").mkdir()

    async def spawn(
        _cluster: LocalCluster, child: SupervisedProcess, log: Path, *_: object
    ) -> asyncio.subprocess.Process:
        says = "failed" if child.starts < 2 else f"{GIVES_UP}the store is lost"
        does = f"import sys; print({says!r}, file=sys.stderr); sys.exit(1)"
        with log.open("ab") as errors:
            return await asyncio.create_subprocess_exec(sys.executable, "-c", does, stderr=errors)

    monkeypatch.setattr(LocalCluster, "_spawn", spawn)
    cluster.add("coordinator", "coordinator-0")
    with pytest.raises(BrokerError, match=r"^coordinator-0: the store is lost$"):
        await _forever(cluster)
    assert cluster._children["coordinator-0"].starts == 3
    assert "coordinator-0: the store is lost" in cluster.troubles()
    await cluster.stop()


def _process(does: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", does])


async def test_a_broker_that_ends_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed again before it answers, or without room for its files: until one start succeeds."""
    fails = [BrokerError("it ended with status -9"), OSError("No space left on device")]
    started = asyncio.Event()

    async def start(broker: LocalBroker) -> str:
        broker.kill()  # as a start does that fails
        if fails:
            raise fails.pop()
        broker._process = _process("import signal; signal.pause()")
        started.set()
        return ""

    monkeypatch.setattr(LocalBroker, "start", start)
    broker = LocalBroker(BrokerSettings(data_dir=tmp_path))
    broker._process = _process("")
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, restart_wait_ms=1, restart_wait_ms_max=1))
    cluster._watch("broker", cluster._keep_broker(broker))
    async with asyncio.timeout(30):
        await started.wait()
    assert cluster.failure is None
    await cluster.stop()
    broker.kill()


def test_C8_a_coordinator_on_a_file_that_is_no_database_ends_with_a_sentence(tmp_path: Path) -> None:
    """The process, as it is started by anybody: status 1, a last line that says what to do, and no traceback."""
    store = tmp_path / "coordinator.db"
    store.write_bytes(b"no database" * 1_000)
    environment = {
        **os.environ,
        "TIDEMARK_STORE": f"sqlite:///{store}",
        "TIDEMARK_KAFKA": "127.0.0.1:1",
        "TIDEMARK_BLOBS": str(tmp_path / "blobs"),
        "TIDEMARK_PLACE": "coordinator-0",
        "TIDEMARK_SIGNING_KEYS": KEY,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tidemark.services.coordinator"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"{GIVES_UP}store ")
    assert "file is not a database" in ended.stderr
    assert "--data" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_users_cluster_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`KAFKA` reaches documents as the user has set it; the run's own broker has a name of its own."""
    monkeypatch.setenv("KAFKA", "theirs:9092")
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, workers={}))
    cluster._start_beside("127.0.0.1:1")
    environment = cluster._environment(SupervisedProcess("source-0", "source"))
    assert (environment["KAFKA"], environment["LOCAL_KAFKA"]) == ("theirs:9092", "127.0.0.1:1")
