"""Environments drawn at random around the command: variables that a shell may have set, bounds of the system, folders, networks, users.

    python -m tests.harness.machines SEED COUNT

Each runs one job, `tidemark run` of a file through a window on Spark and a computation of the user's own into files, in a folder of its
own. What comes out must be what Python computes, the status 0, and no process may be left. Hazards that change the system need root.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

RECORDS: Final = 6_000
BEGIN_MS: Final = 1_767_225_600_000
"""2026-01-01, the time of the first record; then one a second, out of order by five."""
WINDOW_MS: Final = 300_000
WAIT_S: Final = 900
"""Until a run counts as one that never ends; it takes 20 s on two free cores, and took 300 s where 30 programs wanted them."""
SHARE: Final = 0.15
"""The chance of each hazard to be in a draw."""
COMMAND: Final = str(Path(sysconfig.get_path("scripts")) / "tidemark")

PIPELINE: Final = """
name: machine
pipeline:
  - $source:
      path: in.jsonl
      format: json
      timeField: {$toDate: $at}
      schema: {id: int, at: long, shop: string, amount: int}
      watermark: {strategy: boundedDisorder, maxDelay: {size: 20, unit: second}}
  - $tumblingWindow:
      interval: {size: 5, unit: minute}
      pipeline:
        - $group: {_id: $shop, orders: {$count: {}}, amount: {$sum: $amount}}
        - $project: {_id: 0, shop: $_id, minute: {$toLong: {$meta: stream.window.start}}, orders: 1, amount: 1}
  - $compute: {class: "takings:Running", key: $shop}
  - $emit: {path: out, format: json}
options: {dlq: {path: letters}, checkpoint: {interval: {size: 1, unit: second}}}
"""
COMPUTATION: Final = '''
from dataclasses import dataclass

from tidemark import Computation


@dataclass
class Total:
    orders: int = 0
    amount: int = 0


class Running(Computation):
    """Totals of a shop up to a minute."""

    State = Total

    def process(self, record, state, timers):
        state.orders += record.value["orders"]
        state.amount += record.value["amount"]
        yield {"shop": record.value["shop"], "orders": state.orders, "amount": state.amount}
'''


@dataclass(frozen=True)
class Hazard:
    """One way in which a machine differs from the one that a program was written on."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """`{folder}` is the job's folder."""
    absent: Sequence[str] = ()
    """Variables that are not set."""
    within: Sequence[str] = ()
    """A command that runs the command behind it."""
    prepare: Callable[[Path], object] | None = None
    """Called with the job's folder."""
    kind: str = ""
    """Of two hazards of one kind, a draw has one."""
    root: bool = False


def _under(script: str, *options: str) -> Sequence[str]:
    return ("unshare", *options, "--", "sh", "-c", f'{script} && exec "$@"', "sh")


def _shadow(folder: Path) -> None:
    for name in (
        "json",
        "logging",
        "random",
        "queue",
        "types",
        "yaml",
        "numpy",
        "token",
        "services",
        "shared",
        "tests",
        "faust",
    ):
        (folder / f"{name}.py").write_text('raise SystemExit(f"{__name__} of the folder was imported")\n')


def _other_spark(folder: Path) -> None:
    there = folder / "spark"
    there.mkdir()
    (there / "spark-defaults.conf").write_text(
        "spark.master yarn\nspark.sql.session.timeZone Asia/Tokyo\nspark.serializer none.Such\n"
    )


_PROXIES: Final = {
    each: "http://127.0.0.1:1"
    for name in ("http", "https", "all")
    for each in (f"{name}_proxy", f"{name.upper()}_PROXY")
}
HAZARDS: Final[Mapping[str, Hazard]] = {
    "documentation dropped": Hazard({"PYTHONOPTIMIZE": "2"}),
    "warnings are errors": Hazard({"PYTHONWARNINGS": "error"}, kind="warnings"),
    "developer's mode": Hazard({"PYTHONDEVMODE": "1", "PYTHONASYNCIODEBUG": "1"}, kind="warnings"),
    "safe path": Hazard({"PYTHONSAFEPATH": "1"}),
    "nothing compiled": Hazard({"NUMBA_DISABLE_JIT": "1", "NUMBA_CACHE_DIR": "/nonexistent"}),
    "options for each Java": Hazard({"JAVA_TOOL_OPTIONS": "-Dx=y", "JDK_JAVA_OPTIONS": "-Dx=y", "CLASSPATH": "/nonexistent.jar"}),
    "another Spark": Hazard(
        {"SPARK_HOME": "{folder}/spark", "SPARK_CONF_DIR": "{folder}/spark", "PYSPARK_PYTHON": "/nonexistent/python", "SPARK_REMOTE": "sc://x:1"},
        prepare=_other_spark,
    ),
    "a proxy": Hazard(_PROXIES),
    "a far zone": Hazard({"TZ": "Asia/Kathmandu"}, kind="zone"),
    "a zone that is none": Hazard({"TZ": "Mars/Base"}, kind="zone"),
    "no locale": Hazard({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}, kind="locale"),
    "Turkish": Hazard({"LC_ALL": "tr_TR.UTF-8"}, kind="locale"),
    "a home that is not there": Hazard({"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}, kind="home"),
    "no home": Hazard(absent=("HOME",), kind="home"),
    "no folder of temporary files": Hazard({"TMPDIR": "/nonexistent"}, kind="temporary"),
    "temporary files far down": Hazard(
        {"TMPDIR": "{folder}/" + "t" * 100}, prepare=lambda folder: (folder / ("t" * 100)).mkdir(), kind="temporary"
    ),
    "temporary files where nothing is executed": Hazard(
        within=_under('mount -t tmpfs -o noexec,size=1m none "$PWD/small" && export TMPDIR="$PWD/small"', "-m"),
        prepare=lambda folder: (folder / "small").mkdir(),
        kind="temporary",
        root=True,
    ),
    "hardly any shared memory": Hazard(within=_under("mount -t tmpfs -o size=64k none /dev/shm", "-m"), root=True),
    "few open files": Hazard(within=("prlimit", "--nofile=512:1024")),
    "a small stack": Hazard(within=("prlimit", "--stack=1048576")),
    "one core": Hazard(within=("taskset", "-c", "0")),
    "a name that leads nowhere": Hazard(within=_under("hostname no-such-host", "-u"), root=True),
    "no network": Hazard(within=_under("ip link set lo up", "-n"), kind="network", root=True),
    "no IPv6": Hazard(within=_under("ip link set lo up && sysctl -q -w net.ipv6.conf.all.disable_ipv6=1", "-n"), kind="network", root=True),
    "process 1": Hazard(within=("unshare", "-p", "-f", "--mount-proc", "--"), root=True),
    "children are not waited for": Hazard(within=("env", "--ignore-signal=CHLD,PIPE,HUP")),
    "a user without a name": Hazard(within=("unshare", "--user", "--map-user=54321", "--"), kind="user"),
    "signals are blocked": Hazard(within=("env", "--block-signal=TERM,INT,CHLD,USR1")),
    "files for nobody else": Hazard(within=("sh", "-c", 'umask 077; exec "$@"', "sh"), kind="umask"),
    "files for all": Hazard(within=("sh", "-c", 'umask 000; exec "$@"', "sh"), kind="umask"),
    "modules of the same names in the folder": Hazard(prepare=_shadow),
    "another memory": Hazard(
        {"MALLOC_ARENA_MAX": "1", "PYTHONMALLOC": "malloc", "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    ),
    "other programs' variables": Hazard(
        {"AWS_PROFILE": "nobody", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "PGHOST": "nowhere", "PGSSLMODE": "require", "CI": "1"}
        | {"KAFKA_OPTS": "-Dx", "KAFKA_HEAP_OPTS": "-Xmx1t", "KAFKA": "nowhere:1", "PORT": "80", "HOST": "nowhere", "DEBUG": "1"}
    ),
    "a narrow terminal": Hazard({"TERM": "dumb", "COLUMNS": "20", "NO_COLOR": "1"}),
    "a low priority": Hazard(within=("nice", "-n", "19")),
}  # fmt: skip


def drawn(seed: int) -> list[str]:
    """Names of hazards that go together, by a seed."""
    rng = random.Random(seed)
    able = possible(HAZARDS)
    return together([name for name in rng.sample(able, len(able)) if rng.random() < SHARE] or [rng.choice(able)])


def possible(names: Iterable[str]) -> list[str]:
    """Those of the names that this process' user can bring about."""
    return [name for name in names if os.geteuid() == 0 or not HAZARDS[name].root]


def together(names: Sequence[str]) -> list[str]:
    """Those of the names that are the first of their kind."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(HAZARDS[name].kind or name, name)
    return list(first.values())


def expected(records: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """The documents of the job, as sorted JSON."""
    windows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for record in records:
        windows[record["at"] // WINDOW_MS, record["shop"]].append(record["amount"])
    totals: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    found: Counter[str] = Counter()
    for (_, shop), amounts in sorted(windows.items()):
        orders, amount = totals[shop]
        totals[shop] = orders + len(amounts), amount + sum(amounts)
        found[_line({"shop": shop, "orders": totals[shop][0], "amount": totals[shop][1]})] += 1
    return found


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True)


def run(names: Sequence[str], folder: Path, seed: int = 0, program: str = COMMAND) -> str:
    """Run the job in a new folder under these hazards, by this `tidemark`; "" or what is wrong."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    records = [
        {"id": n, "at": BEGIN_MS + n * 1000 + rng.randrange(-5000, 5000), "shop": f"s\u00f6{n % 7}", "amount": n % 13}
        for n in range(RECORDS)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    (folder / "job.yaml").write_text(PIPELINE, encoding="utf-8")
    (folder / "takings.py").write_text(COMPUTATION, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command: list[str] = []
    for name in sorted(names, key=lambda name: not HAZARDS[name].root):  # a user without a name has no rights
        hazard = HAZARDS[name]
        if hazard.prepare is not None:
            hazard.prepare(folder)
        environment |= {variable: value.format(folder=folder) for variable, value in hazard.variables.items()}
        environment = {variable: value for variable, value in environment.items() if variable not in hazard.absent}
        command += hazard.within
    with (folder / "told").open("wb") as told:
        process = subprocess.Popen(
            [*command, program, "run", "job.yaml"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
        )
        try:
            status: int | None = process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            status = None
    return _judged(folder, status, expected(records))


def _judged(folder: Path, status: int | None, wanted: Counter[str]) -> str:
    left = _processes_of(folder)
    for pid in left:
        os.kill(pid, 9)
    told = (folder / "told").read_text(encoding="utf-8", errors="replace")
    end = " | ".join(told.splitlines()[-3:])
    if status != 0:
        return f"status {'never' if status is None else status}: {end}"
    rows = Counter(
        _line(json.loads(line))
        for path in (folder / "out").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    if rows != wanted:
        return f"expected {wanted.total()} documents, {(wanted - rows).total()} are missing, {(rows - wanted).total()} too many: {end}"
    if left:
        return f"{len(left)} processes are left"
    return f"a trace was told: {told[-1500:]}" if "Traceback" in told else ""


def _processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            where = (entry / "cwd").readlink()
        except OSError:  # it has ended
            continue
        if where.is_relative_to(folder):
            found.append(int(entry.name))
    return found


def main(arguments: Sequence[str]) -> int:
    """Draw COUNT environments from SEED on; status 1 when one of them was too much."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.machines", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--each", action="store_true", help="each hazard alone")
    asked = parser.parse_args(arguments)
    base = Path("out/machines").resolve()
    shutil.rmtree(base, ignore_errors=True)
    draws = (
        [[name] for name in HAZARDS]
        if asked.each
        else [drawn(seed) for seed in range(asked.seed, asked.seed + asked.count)]
    )
    wrong = 0
    for number, names in enumerate(draws, asked.seed):
        begun = datetime.now(UTC)
        finding = run(names, base / str(number), number)
        took = (datetime.now(UTC) - begun).seconds
        sys.stdout.write(f"{number}: {', '.join(names)}: {finding or 'right'} ({took} s)\n")
        sys.stdout.flush()
        wrong += bool(finding)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
