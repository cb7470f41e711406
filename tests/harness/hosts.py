"""Programs drawn at random around `import tidemark`: threads, loops, child processes, and what a program sets for all that runs in it.

    python -m tests.harness.hosts SEED COUNT

Each is a program of its own that checks, explains and tries out documents, and tests a computation; with `--run` it runs a pipeline, too.
What it gets must be what a plain program gets. It finds its own settings as it had made them, no thread, file or process more than before,
and no process is left behind it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from tests.harness.host_settings import PLACES, SETTINGS, STARTS
from tests.harness.process_cases import CASES, read_lines

WAIT_S: Final = 400
"""Until a program counts as one that never ends."""
SHARE: Final = 0.2
"""The chance of each setting to be in a draw."""
CASES_EACH: Final = 40
"""Documents that a program tries out."""
JOURNEY: Final = Path(__file__).with_name("host_journey.py")


@dataclass(frozen=True, slots=True)
class Host:
    """A program: how it is started, where in it Tidemark is called, and what it has set before."""

    start: str = "a script"
    place: str = "here"
    settings: Sequence[str] = ()

    def __str__(self) -> str:
        return ", ".join([self.start, self.place, *self.settings])

    def text(self) -> str:
        """The program."""
        settings = [SETTINGS[name].text for name in self.settings]
        return "\n".join(
            [
                "import os, sys, threading",
                "FOLDER = os.path.dirname(os.environ['HOST_ASKED'])",
                *settings,
                PLACES[self.place],
                "",
            ]
        )


def drawn(seed: int) -> Host:
    """A program, by a seed."""
    rng = random.Random(seed)
    settings = [name for name in rng.sample(sorted(SETTINGS), len(SETTINGS)) if rng.random() < SHARE]
    return Host(rng.choice(sorted(STARTS)), rng.choice(sorted(PLACES)), together(settings))


def together(names: Sequence[str]) -> list[str]:
    """Those of the names that are the first of their kind."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(SETTINGS[name].kind or name, name)
    return list(first.values())


def each_alone() -> list[Host]:
    """Each start, each place and each setting by itself."""
    starts, places = [Host(start=name) for name in STARTS], [Host(place=name) for name in PLACES]
    return [*starts, *places, *(Host(settings=(name,)) for name in SETTINGS)]


class Hosts:
    """Runs programs in folders below one, all on the same documents; `runs`: each runs a pipeline, too."""

    def __init__(self, base: Path, seed: int, *, runs: bool, cases: int = CASES_EACH) -> None:
        ids = [case["id"] for case in read_lines()]
        self._base = base
        self._asked = {
            "cases": sorted(random.Random(seed).sample(ids, cases)),
            "file": str(CASES),
            "runs": runs,
        }
        self._plain: Mapping[str, Any] | None = None

    def run(self, host: Host, name: str) -> str:
        """Run it; "" or what is wrong."""
        if self._plain is None:
            self._plain, wrong = self._found(Host(), self._base / "plain")
            if wrong:
                return f"the plain program: {wrong}"
        found, wrong = self._found(host, self._base / name)
        if wrong:
            return wrong
        other = [each for each, result in self._plain["found"].items() if found["found"].get(each) != result]
        if other:
            apart = _apart(self._plain["found"][other[0]], found["found"].get(other[0]))
            return f"{len(other)} results differ, the first is {other[0]}: {apart}"
        if changed := {name: each for name, each in found["changed"].items() if name not in self._plain["changed"]}:
            return f"settings of the program have changed: {json.dumps(changed)[:1500]}"
        return ""

    def _found(self, host: Host, folder: Path) -> tuple[Mapping[str, Any], str]:
        folder.mkdir(parents=True)
        asked = {**self._asked, "folder": str(folder), "found": str(folder / "found.json")}
        (folder / "asked.json").write_text(json.dumps(asked))
        (folder / "journey.py").write_bytes(JOURNEY.read_bytes())
        (folder / "program.py").write_text(host.text(), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["HOST_ASKED"] = str(folder / "asked.json")
        for each in host.settings:
            environment |= SETTINGS[each].variables
        flags = [flag for each in host.settings for flag in SETTINGS[each].flags]
        with (folder / "told").open("wb") as told, (folder / "program.py").open("rb") as text:
            process = subprocess.Popen(
                [sys.executable, *flags, *STARTS[host.start](folder)],
                cwd=folder,
                env=environment,
                stdin=text,
                stdout=told,
                stderr=told,
            )
            try:
                status: int | None = process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                status = None
        # Servers of multiprocessing end by themselves, just behind their program.
        _, left = psutil.wait_procs(_processes_of(str(folder / "asked.json")), timeout=5)
        for process_left in left:
            process_left.kill()
        said = (folder / "told").read_text(encoding="utf-8", errors="replace")
        for name in ("hooked", "failed"):
            with suppress(FileNotFoundError):
                said += (folder / name).read_text(encoding="utf-8")
        if status != 0 or not (folder / "found.json").exists():
            return {}, f"status {'never' if status is None else status}: {' | '.join(said.splitlines()[-8:])}"
        if left:
            return {}, f"{len(left)} processes are left"
        if "Traceback" in said:
            return {}, f"a trace was told: {said[-1500:]}"
        return json.loads((folder / "found.json").read_bytes()), ""


def _apart(wanted: object, found: object) -> str:
    """Where two results begin to differ."""
    one, other = json.dumps(wanted), json.dumps(found)
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, same - 60)
    return f"…{one[begin : same + 120]}… against …{other[begin : same + 120]}…"


def _processes_of(asked: str) -> list[psutil.Process]:
    """Those that have the program's variable: its children have it from it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOST_ASKED") == asked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # it has ended
            continue
    return found


def main(arguments: Sequence[str]) -> int:
    """Draw COUNT programs from SEED on; status 1 when one of them got something else."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.hosts", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--each", action="store_true", help="each start, place and setting alone")
    parser.add_argument("--run", action="store_true", help="each runs a pipeline, too")
    parser.add_argument("--only", default="", help="of --each, those with this in their name")
    asked = parser.parse_args(arguments)
    base = Path("out/hosts").resolve()
    shutil.rmtree(base, ignore_errors=True)
    hosts = Hosts(base, asked.seed, runs=asked.run)
    draws = each_alone() if asked.each else [drawn(seed) for seed in range(asked.seed, asked.seed + asked.count)]
    wrong = 0
    for number, host in enumerate(draws, asked.seed):
        if asked.only not in str(host):
            continue
        begun = datetime.now(UTC)
        finding = hosts.run(host, str(number))
        sys.stdout.write(f"{number}: {host}: {finding or 'right'} ({(datetime.now(UTC) - begun).seconds} s)\n")
        sys.stdout.flush()
        wrong += bool(finding)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
