"""The fork server: what it forks is what an own start would have made, and ends as such a process does."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tidemark.services.local.forking import _NO_THREADS, ForkedProcess, Forking
from tidemark.services.local.tether import tethered

SERVICES = """
import os
import tidemark.services
from tidemark.shared.adapters.children import forbid_processes
tidemark.services.__path__.append({folder!r})
if "ALONE" in os.environ:
    forbid_processes()
"""
TELLS = """
import json, os, signal, sys
print("said", file=sys.stderr, flush=True)
json.dump({
    "argv": sys.argv[1:], "environment": dict(os.environ), "input": os.read(0, 1).decode(), "niceness": os.nice(0),
    "folder": os.getcwd(), "main": __spec__.name, "open": sorted(os.listdir("/proc/self/fd")),
    "signals": {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGTERM", "SIGCHLD")},
    "group": os.getpgrp(), "path": sys.path, "wakes": signal.set_wakeup_fd(-1),
}, sys.stdout)
sys.exit(3)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Of processes to which services of the test's own are services: `tells` says what it is, `stays` waits to be ended."""
    for service, program in (("tells", TELLS), ("stays", "import signal; signal.pause()")):
        (tmp_path / service).mkdir()
        (tmp_path / service / "__init__.py").touch()
        (tmp_path / service / "__main__.py").write_text(program)
    (tmp_path / "sitecustomize.py").write_text(SERVICES.format(folder=str(tmp_path)))
    return {"PYTHONPATH": str(tmp_path), "A": "b", "NAME": "\udcff", "LC_ALL": "C.UTF-8"}


@pytest.fixture
async def forking() -> AsyncIterator[Forking]:
    """Without modules that it has loaded."""
    forking = Forking([])
    yield forking
    await forking.stop()


@pytest.mark.parametrize("interrupted", [signal.default_int_handler, signal.SIG_IGN])
async def test_a_forked_process_is_what_an_own_start_makes(
    environment: Mapping[str, str], forking: Forking, tmp_path: Path, *, interrupted: Any
) -> None:
    """Folder, environment, niceness, files, signals, arguments; also of the second, whose server has another environment.

    A shell without job control has SIGINT ignored in what it runs in the background.
    """
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        await _is_what_an_own_start_makes(environment, forking, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_program_may_have_another_encoder_of_json(
    environment: Mapping[str, str], forking: Forking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order is one line, also where `json.dumps` gives several."""
    monkeypatch.setattr(json, "_default_encoder", json.JSONEncoder(indent=4))
    process = await forking.fork("tells", environment, tmp_path / "log", 0)
    assert await process.wait() == 3  # as the service says


async def _is_what_an_own_start_makes(environment: Mapping[str, str], forking: Forking, tmp_path: Path) -> None:
    own = await asyncio.create_subprocess_exec(
        *tethered([sys.executable, "-P", "-m", "tidemark.services.tells"]),
        stdin=-3,
        stdout=-1,
        stderr=-3,
        env=environment,
    )
    expected = json.loads((await own.communicate())[0])
    for number in range(2):
        given = {**environment, f"ONLY_{number}": "c"}
        log = tmp_path / f"{number}.log"
        log.write_text("before\n")
        process = await forking.fork("tells", given, log, 1)
        assert await process.wait() == own.returncode == 3
        *said, told = log.read_text().splitlines()
        assert said == ["before", "said"]
        assert json.loads(told) == {
            **expected,
            "niceness": expected["niceness"] + 1,
            "path": [*expected["path"], str(Path.cwd())],  # a user's modules, behind all others
            "environment": {**expected["environment"], **given},
        }


async def _stays(forking: Forking, environment: Mapping[str, str], tmp_path: Path) -> ForkedProcess:
    return await forking.fork("stays", environment, tmp_path / "log", 0)


async def test_the_server_has_no_threads(environment: Mapping[str, str], tmp_path: Path) -> None:
    """Whatever its modules load: a lock that another thread holds at a fork stays locked for good in what was forked."""
    forking = Forking(["coordinator", "operator", "sink", "source"])
    process = await _stays(forking, {**environment, "OPENBLAS_NUM_THREADS": "4"}, tmp_path)
    server = psutil.Process(process.pid).parent()
    assert server is not None
    assert server.num_threads() == 1
    await forking.stop()


async def test_it_ends_by_signals(environment: Mapping[str, str], forking: Forking, tmp_path: Path) -> None:
    """The status is the signal's, as of a process of one's own; a later signal is for nobody."""
    for number, end in ((signal.SIGTERM, ForkedProcess.terminate), (signal.SIGKILL, ForkedProcess.kill)):
        process = await _stays(forking, environment, tmp_path)
        end(process)
        assert await process.wait() == -number
        end(process)


async def test_when_the_server_ends_its_processes_end_and_the_next_has_another(
    environment: Mapping[str, str], forking: Forking, tmp_path: Path
) -> None:
    """However it ends: a supervisor sees ends of processes, and starts them again."""
    first = await _stays(forking, environment, tmp_path)
    running = psutil.Process(first.pid)
    server = running.ppid()
    os.kill(server, signal.SIGKILL)
    assert await first.wait() == -signal.SIGKILL
    running.wait(60)
    second = await _stays(forking, environment, tmp_path)
    assert psutil.Process(second.pid).ppid() not in (server, os.getpid())
    running = psutil.Process(second.pid)
    await forking.stop()
    assert await second.wait() == -signal.SIGKILL
    running.wait(60)


async def test_of_a_server_that_does_not_come_up_a_process_has_the_end(tmp_path: Path) -> None:
    """Why is said in the process' log, and the next one is another try."""
    forking = Forking(["nothing"])
    for _ in range(2):
        process = await forking.fork("nothing", os.environ, tmp_path / "log", 0)
        assert await process.wait() == 1
    assert (tmp_path / "log").read_text().count("No module named 'tidemark.services.nothing'") == 2
    await forking.stop()


async def test_a_system_without_room_for_a_process_is_an_error(
    environment: Mapping[str, str], forking: Forking, tmp_path: Path
) -> None:
    """The kernel's words; the server has not ended, nor have its processes."""
    for _ in range(2):
        with pytest.raises(OSError, match=r"^no process could be started: Operation not permitted$"):
            await _stays(forking, {**environment, "ALONE": "yes"}, tmp_path)
    assert forking._server is not None
    assert not forking._server.ended


async def test_a_process_that_nobody_waits_for_is_ended(
    environment: Mapping[str, str], forking: Forking, tmp_path: Path
) -> None:
    """Its place was removed while it was forked."""
    process = await _stays(forking, environment, tmp_path)
    removed = asyncio.create_task(_stays(forking, environment, tmp_path))
    await asyncio.sleep(0)  # it has asked
    removed.cancel()
    processes = {process.pid, (await _stays(forking, environment, tmp_path)).pid}
    server = psutil.Process(process.pid).parent()
    assert server is not None
    psutil.wait_procs([child for child in server.children() if child.pid not in processes])
    assert {child.pid for child in server.children()} == processes


async def test_ends_are_heard_though_all_tasks_were_cancelled(
    environment: Mapping[str, str], forking: Forking, tmp_path: Path
) -> None:
    """As a loop does that an error ends: what cleans up waits for its processes then."""
    process = await forking.fork("stays", environment, tmp_path / "log", 0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    process.kill()
    async with asyncio.timeout(20):
        assert await process.wait() == -signal.SIGKILL


def test_a_process_uses_libraries_that_survive_no_fork(tmp_path: Path) -> None:
    """That of Delta Lake makes a thread as it is loaded, and refuses a child of a process that has used it: the server does not load it."""
    program = (
        "import os, sys\n"
        "import pyarrow as pa\n"
        "from tidemark.services.local import fork_server\n"
        "fork_server.load(['coordinator', 'control', 'gateway', 'source', 'operator', 'sink', 'spark'])\n"
        "assert not {'deltalake', 'pyiceberg'} & sys.modules.keys()\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "import deltalake\n"
        "deltalake.write_deltalake(sys.argv[1], pa.table({'n': [1]}))\n"
        "assert deltalake.DeltaTable(sys.argv[1]).version() == 0\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "table")]
    env = {**os.environ, **_NO_THREADS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
