"""The rules of the house hold, and each rule finds what it is for.

The rules stand in ``tests/tidy_rules.py``; what they bind is described in ``CONTRIBUTING.md`` and ``ARCHITECTURE.md``.
"""

from __future__ import annotations

import pytest

from tests.rule_names import rules_in_name, rules_in_names_of_tests, rules_of_the_protocol
from tests.tidy_rules import MAY_IMPORT, ROOT, RULES, Source, package_of, packages_without_readme, sources

BY_NAME = {rule.name: rule for rule in RULES}
LONG_FUNCTION = "def long() -> None:\n" + "    step()\n" * 70

# Rule, a file that it binds, a snippet that breaks it, one that does not.
SNIPPETS = [
    (
        "import direction",
        "shared/model/a.py",
        "from tidemark.shared.ports import log",
        "from tidemark.shared.model import ids",
    ),
    (
        "import direction",
        "shared/runtime/a.py",
        "import tidemark.shared.adapters.clock",
        "import tidemark.shared.ports.clock",
    ),
    (
        "import direction",
        "shared/adapters/a.py",
        "from tidemark.shared.protocol.task import x",
        "from tidemark.shared.wire import frames",
    ),
    (
        "import direction",
        "shared/computation/a.py",
        "from tidemark.shared.operators import x",
        "from tidemark.shared.model import x",
    ),
    (
        "import direction",
        "shared/operators/a.py",
        "from shared.computation_x import y",
        "from tidemark.shared.computation import y",
    ),
    (
        "import direction",
        "services/sink/a.py",
        "from tidemark.services.source import x",
        "from tidemark.services.sink.body import x",
    ),
    (
        "import direction",
        "services/sink/a.py",
        "from tidemark.spark_stages import x",
        "from tidemark.shared.runtime import x",
    ),
    (
        "import direction",
        "spark_stages/a.py",
        "from tidemark.shared.language import x",
        "from tidemark.shared.operators import x",
    ),
    (
        "import direction",
        "deploy/pipelines/a.py",
        "from tidemark.shared.runtime import x",
        "from tidemark.shared.computation import x",
    ),
    (
        "import direction",
        "deploy/plugins/shelf/a.py",
        "from tidemark.shared.plugins.interface import Sink",
        "from tidemark.plugins import Sink",
    ),
    ("queue without a bound", "shared/runtime/a.py", "q = asyncio.Queue()", "q = asyncio.Queue(settings.waiting_max)"),
    ("queue without a bound", "shared/language/a.py", "@cache\ndef f(x): ...", "@lru_cache(maxsize=9)\ndef f(x): ..."),
    (
        "queue without a bound",
        "services/sink/a.py",
        "@lru_cache(maxsize=None)\ndef f(x): ...",
        "@lru_cache(8)\ndef f(x): ...",
    ),
    ("pyspark", "services/cli/a.py", "def f():\n    import pyspark.sql", "import pyarrow"),
    ("pure", "shared/protocol/a.py", "from time import monotonic", "from enum import Enum"),
    ("pure", "shared/operators/a.py", "import asyncio.events", "import pyarrow.compute"),
    ("pure", "shared/operators/a.py", "x = open('f')", "x = f.open()"),
    ("clock", "shared/runtime/a.py", "import time", "import timeit_of_ours"),
    ("clock", "services/sink/a.py", "x = datetime.datetime.now(UTC)", "x = self.now()"),
    ("clock", "services/sink/a.py", "await asyncio.sleep(1)", "await asyncio.sleep(0)"),
    (
        "pure",
        "shared/operators/a.py",
        "import numpy as np\nr = np.random.default_rng()",
        "import numpy as np\nr = np.zeros(1)",
    ),
    ("pure", "shared/operators/a.py", "from numpy.random import default_rng", "from numpy import zeros"),
    ("pure", "shared/protocol/a.py", "m = __import__('time')", "m = self.time"),
    ("pure", "shared/operators/a.py", "import pyarrow.parquet as pq", "import pyarrow.compute as pc"),
    (
        "clock",
        "shared/runtime/a.py",
        "from asyncio import sleep as nap\nnap(1)",
        "from asyncio import sleep as nap\nnap(0)",
    ),
    (
        "clock",
        "services/sink/a.py",
        "import asyncio as aio\naio.wait_for(f(), 1)",
        "import asyncio as aio\naio.Event()",
    ),
    (
        "clock",
        "services/sink/a.py",
        "from datetime import datetime as dt\ndt.now()",
        "from ours import clock\nclock.now()",
    ),
    ("clock", "shared/runtime/a.py", "t = asyncio.get_running_loop().time()", "t = clock.monotonic_ms()"),
    ("clock", "shared/runtime/a.py", "await asyncio.wait(fs, timeout=1)", "await asyncio.wait(fs)"),
    ("clock", "shared/runtime/a.py", "from time import monotonic as m", "from ours import monotonic as m"),
    ("task", "services/sink/a.py", "await asyncio.gather(f(), g())", "await gather(f(), g())"),
    ("task", "shared/runtime/a.py", "from asyncio import shield\nawait shield(f())", "await handle.join()"),
    ("task", "services/operator/a.py", "loop.run_in_executor(None, f)", "executor.blocking(f)"),
    ("thread", "shared/runtime/a.py", "import threading as t\nt.Thread(target=f)", "import threading as t\nt.Lock()"),
    ("thread", "services/spark/a.py", "from subprocess import run\nrun(['x'])", "from ours import run\nrun()"),
    (
        "thread",
        "services/spark/a.py",
        "from multiprocessing import Pool as P\nP(2)",
        "from ours import Pool as P\nP(2)",
    ),
    ("thread", "shared/runtime/a.py", "import os\nos.fork()", "import os\nos.getpid()"),
    ("task", "shared/runtime/a.py", "asyncio.get_running_loop().create_task(f())", "executor.start(f())"),
    ("task", "services/source/a.py", "async with asyncio.TaskGroup() as g: ...", "async with group as g: ..."),
    ("thread", "shared/adapters/log.py", "threading.Thread(target=f)", "threading.Lock()"),
    (
        "thread",
        "shared/adapters/log.py",
        "from threading import Timer\nTimer(1, f)",
        "from ours import Timer\nTimer(1)",
    ),
    ("thread", "shared/adapters/log.py", "time.sleep(1)", "clock.sleep(1)"),
    ("sleep in a test", "tests/unit/a.py", "await asyncio.sleep(0.1)", "await asyncio.sleep(0)"),
    ("file length", "shared/a.py", "x = 1\n" * 621, "x = 1\n" * 620),
    ("function length", "shared/a.py", LONG_FUNCTION, "def short() -> None:\n" + "    step()\n" * 69),
    ("module docstring", "shared/a.py", "x = 1", '"""What it is for."""\nx = 1'),
    ("test docstring", "tests/unit/a.py", "def test_x(): f()", 'def test_x():\n    """X holds."""'),
    ("print", "shared/a.py", "print(1)", "log.print(1)"),
    (
        "swallowed exception",
        "services/a.py",
        "try:\n    f()\nexcept:\n    g()",
        "try:\n    f()\nexcept OSError:\n    g()",
    ),
    ("swallowed exception", "services/a.py", "try:\n    f()\nexcept OSError:\n    pass", "with suppress(OSError): f()"),
    ("swallowed exception", "services/a.py", "with suppress(Exception): f()", "with suppress(OSError): f()"),
    ("stub", "shared/a.py", "raise NotImplemented" + "Error('later')", "raise ValueError('no')"),
    ("test left out", "tests/a.py", "@pytest.mark.skipif(True)\ndef f(): ...", "@pytest.mark.spark\ndef f(): ..."),
    ("test left out", "tests/a.py", "pytest.xfail('x')", "list.skip()"),
    ("note to self", "Makefile", "# TO" + "DO: later", "# done"),
    ("path of a machine", "deploy/a.yaml", "dir: /ho" + "me/me/data", "dir: ./home/me"),
    ("address in a lock", "requirements.lock", "x @ https:/" + "/host/x.whl", "x==1 --hash=sha256:0"),
]


def test_the_tree_keeps_the_rules() -> None:
    """No file of the project breaks a rule. All rules look at a file in turn, so each is parsed once."""
    findings = [finding for source in sources() for rule in RULES for finding in rule.findings(source)]
    assert not findings, "\n" + "\n".join(findings)


def test_each_package_has_a_readme_of_a_page() -> None:
    """Whoever opens a package finds in a page what is where."""
    findings = packages_without_readme()
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize(("name", "path", "bad", "good"), SNIPPETS)
def test_each_rule_finds_what_it_is_for(name: str, path: str, bad: str, good: str) -> None:
    """The rule fires on the bad snippet, with file, line and remedy, and not on the good one."""
    rule = BY_NAME[name]
    findings = rule.findings(Source(path, bad))
    assert findings
    assert findings[0].startswith(f"{path}:")
    assert findings[0].endswith(rule.remedy)
    assert rule.findings(Source(path, good)) == []


def test_each_rule_has_a_snippet() -> None:
    """No rule is in the table that was never seen to fire."""
    assert {name for name, *_ in SNIPPETS} == set(BY_NAME)


def test_the_import_table_knows_every_package() -> None:
    """A new package takes its place in the table before anything is in it."""
    unknown = {
        package_of(source.path)
        for source in sources()
        if source.is_python and not source.path.startswith(("services/", "tests/")) and source.path.count("/") > 1
    } - set(MAY_IMPORT)
    assert not unknown, f"not in MAY_IMPORT: {sorted(unknown)}"


@pytest.mark.parametrize(
    ("path", "bound"),
    [
        ("shared/adapters/executor.py", False),
        ("services/local/supervisor.py", False),
        ("shared/runtime/worker.py", True),
        ("services/sink/body.py", True),
    ],
)
def test_only_the_ports_and_the_supervisor_start_threads(path: str, bound: bool) -> None:
    """The exceptions to the rules of time and threads are those that are named, and no others."""
    assert bool(BY_NAME["thread"].findings(Source(path, "threading.Thread(target=f)"))) is bound


def test_the_tree_is_looked_at() -> None:
    """The rules see the product: its settings, its locks, its code."""
    seen = {source.path for source in sources()}
    assert {"pyproject.toml", "Makefile", ".ci/run", "requirements.lock", "services/local/broker.py"} <= seen
    assert (ROOT / "pyproject.toml").exists()


def test_every_rule_of_the_protocol_is_carried_by_a_test() -> None:
    """A rule of PROTOCOL.md stands in the name of a test at least, so that whoever breaks it reads which promise it was."""
    unguarded = rules_of_the_protocol() - rules_in_names_of_tests()
    assert not unguarded, f"no test is named after {sorted(unguarded)}: write test_{min(unguarded)}_…"


def test_rules_are_found_where_they_stand() -> None:
    """The lists are read from the text: all families of rules, and tests whose names carry one rule or several."""
    assert {"F1", "F8", "L2", "C1", "C13", "R4", "S6", "W6", "P4", "E3"} <= rules_of_the_protocol()
    assert rules_in_name("test_S3_S4_what_exceeds") == {"S3", "S4"}
    assert rules_in_name("test_C10_timers") == {"C10"}
    assert rules_in_name("test_every_S3_is_not_one") == set()
