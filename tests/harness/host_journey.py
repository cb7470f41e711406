"""What each program of `hosts.py` does with Tidemark; a copy of this file lies beside it as `journey.py`."""

import contextlib
import decimal
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa

import tidemark
from tidemark.testing import Harness

ASKED: dict[str, Any] = json.loads(Path(os.environ["HOST_ASKED"]).read_text(encoding="utf-8"))
SELDOM = ("ResourceTracker",)


@dataclass
class Total:
    """Of a key."""

    amount: decimal.Decimal = decimal.Decimal(0)


class Running(tidemark.Computation[Total, tidemark.NoConfig]):
    """Sums of a key, in the context of Python that a computation has."""

    State = Total

    def process(self, record: Any, state: Total, timers: Any) -> Any:
        """See Computation."""
        state.amount += record.value["amount"] / 3
        yield {"amount": state.amount, "double": float(np.float64(record.value["n"]) / 3)}


def state() -> dict[str, object]:
    """What a program has set or made, for all that runs in this process."""
    here = psutil.Process()
    return {
        "signals": [_handler(number) for number in range(1, 32)],
        "wakeup": sys.version_info >= (3, 11) and threading.current_thread() is threading.main_thread() and _wakeup(),
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "environment": dict(os.environ),
        "path": [each for each in sys.path if each != ASKED["folder"]],
        "hooks": [repr(each) for each in (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook)],
        "streams": [repr(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "warnings": [str(each) for each in warnings.filters],
        "logging": [logging.root.level, logging.root.manager.disable, list(map(repr, logging.root.handlers)), logging.raiseExceptions],
        "locale": locale.setlocale(locale.LC_ALL),
        "zone": time.tzname,
        "decimal": repr(decimal.getcontext()),
        "decimal of threads": repr(decimal.DefaultContext),
        "numpy": [np.geterr(), np.get_printoptions()],
        "pandas": {name: repr(pd.get_option(name)) for name in ("mode.copy_on_write", "display.precision", "future.infer_string")},
        "arrow": [pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name],
        "random": [hash(random.getstate())],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA, resource.RLIMIT_CORE)],
        "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
        "traces": [repr(sys.gettrace()), repr(sys.getprofile())],
        "sockets": socket.getdefaulttimeout(),
        "temporary": tempfile.tempdir,
        "processes": multiprocessing.get_start_method(allow_none=True),
        "folder": _folder(),
        "mask": _mask(),
        "threads": sorted(each.name for each in threading.enumerate()),
        "children": sorted(" ".join(each.cmdline()) for each in here.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE),
        "files": _files(),
    }  # fmt: skip


def _handler(number: int) -> int:
    found = signal.getsignal(number)
    return found if isinstance(found, int) else id(found)


def _wakeup() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "gone"


def _mask() -> int:
    found = os.umask(0o77)
    os.umask(found)
    return found


def _files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()).partition(":[")[0])
    return sorted(each for each in found if not each.endswith(".pyz"))  # the archive that the program is in


def tell(document: object) -> object:
    """A plain form of results: what is equal is written equally."""
    return json.loads(json.dumps(document, default=repr, sort_keys=True), object_hook=_timeless)


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "dlqTime"}


def look() -> dict[str, object]:
    """Check, explain, try out and test."""
    found: dict[str, object] = {}
    with Path(ASKED["file"]).open("rb") as lines:
        cases = [case for line in lines if (case := json.loads(line))["id"] in ASKED["cases"]]
    for case in cases:
        document = {name: case[name] for name in ("pipeline", "options", "connections") if name in case}
        found[case["id"]] = [tried(document), checked(document)]
    rows = pd.DataFrame(
        {"at": pd.to_datetime(["2026-01-01 08:00:10", "2026-01-01 08:01:10"], utc=True), "n": [0.1, 0.2]}
    )
    window = {"interval": {"size": 1, "unit": "minute"}, "pipeline": [{"$group": {"_id": None, "sum": {"$sum": "$n"}}}]}
    given = tidemark.try_out(
        {"pipeline": [{"$source": {"documents": [], "timeField": "$at"}}, {"$tumblingWindow": window}]}, rows
    )
    found["a data frame"] = tell([given.documents, given.to_pandas().to_dict("list"), given.to_arrow().to_pydict()])
    compute = {"$compute": {"class": f"{Running.__module__}:Running", "key": "$key"}}
    thirds = [{"key": "a", "amount": decimal.Decimal("0.1234567890123456789"), "n": n} for n in range(3)]
    found["a computation"] = tell(tidemark.try_out({"pipeline": [compute]}, thirds).documents)
    harness = Harness(Running, key="key")
    harness.record({"key": "a", "amount": decimal.Decimal(3), "n": 3}, at=1)
    harness.restart()
    harness.end()
    found["a computation in its harness"] = tell(harness.documents)
    return found


def tried(document: dict[str, Any]) -> object:
    """Output and dead letters, or what is wrong."""
    try:
        result = tidemark.try_out(document)
    except tidemark.TryOutFailed as error:
        return str(error)
    return tell([result.documents, result.dead_letters])


def checked(document: dict[str, Any]) -> object:
    """What is wrong, and how it would run."""
    emitted = {**document, "pipeline": [*document["pipeline"], {"$emit": {"path": "nowhere", "format": "json"}}]}
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", tidemark.DocumentWarning)
        wrong = tidemark.validate(emitted)
    told = wrong or tidemark.explain(emitted)
    return tell(
        [
            [str(each) for each in wrong],
            str(told),
            [str(each.message) for each in doubts if issubclass(each.category, tidemark.DocumentWarning)],
        ]
    )


def run_one(name: str) -> object:
    """A pipeline on processes of its own: its rows."""
    folder = Path(ASKED["folder"])
    document = {
        "pipeline": [
            {"$source": {"documents": [{"n": n, "text": f"{n} \u00f6"} for n in range(200)]}},
            {"$match": {"n": {"$gte": 100}}},
            {"$addFields": {"third": {"$divide": ["$n", 3]}}},
            {"$emit": {"path": str(folder / name / "out"), "format": "json"}},
        ]
    }
    with tidemark.run(document, folder / name / "run") as running:
        ended = running.wait(timeout_s=300).state
    rows = [line for path in (folder / name / "out").glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    return [ended, sorted(rows)]


def journey() -> None:
    """All of it, and what it has changed. What it fails by is also in a file: a program may have closed its streams, or be a thread."""
    try:
        _journey()
    except BaseException:
        (Path(ASKED["folder"]) / "failed").write_text(traceback.format_exc(), encoding="utf-8")
        raise


def _journey() -> None:
    before = state()
    found = look()
    if ASKED["runs"]:
        found["run"] = run_one("one")
    after = state()
    changed = {name: [before[name], after[name]] for name in before if repr(before[name]) != repr(after[name])}
    Path(ASKED["found"]).write_text(json.dumps({"found": found, "changed": tell(changed)}), encoding="utf-8")
