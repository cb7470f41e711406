"""Which distributions each image installs: those that its service may import and those that these need, each with its reason."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tidemark.deploy.images.lock import NotSorted, Package, of_parts, packages

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGES: Final = ROOT / "deploy" / "images"
LOCK: Final = (ROOT / "requirements.lock").read_text().splitlines(keepends=True)
PACKAGES: Final = packages((IMAGES / "packages.txt").read_text())
SERVICES: Final = ("coordinator", "source", "operator", "spark", "sink", "control", "gateway")
MORE: Final = {
    "control": ("tidemark.services.cli.__main__",),
    "coordinator": ("tidemark.services.cli.backup",),
    "operator": ("tidemark.deploy.pipelines.departures.zeitgeist",),
}
"""Modules that a container of it runs beside its service: commands that the manual has there, the example's computation."""
NOT_IN_CONTAINERS: Final = {"control": {"pyspark", "py4j"}}
"""Imported for one-machine installations, which no container is: their services are containers of their own."""


def parts_of(service: str) -> set[str]:
    """The parts of packages.txt in a service's image, by its Dockerfile."""
    if service == "spark":
        (words,) = re.findall(r"lock\.py packages\.txt ([\w ]+) <", (IMAGES / "spark.Dockerfile").read_text())
        return set(words.split())
    text = (IMAGES / "service.Dockerfile").read_text()
    stages = {
        name: (base, set(re.findall(r"^COPY --from=build /opt/parts/(\w+) /opt/tidemark/\1$", body, re.MULTILINE)))
        for base, name, body in re.findall(r"^FROM (\S+) AS (\w+)\n(.*?)(?=^FROM )", text, re.MULTILINE | re.DOTALL)
    }
    found, stage = {"all"}, service
    while stage in stages:
        stage, own = stages[stage]
        found |= own
    return found


def installed(service: str) -> set[str]:
    """The distributions of a service's image."""
    return {name for name, package in PACKAGES.items() if package.part in parts_of(service)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


EXTRAS: Final = {
    requirement.name: requirement.extras
    for requirement in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
}
"""What the project asks for, with the extras."""


PYTHON: Final = {"python_version": "3.11", "python_full_version": "3.11.0"}
"""Of the base image that is the default; a newer one needs no package more."""


@cache
def needed_by(name: str) -> set[str]:
    """What a distribution says that it needs, on the Python of the images."""
    found = map(Requirement, requires(name) or [])
    extras = ("", *EXTRAS.get(name, ()))
    return {
        normal(each.name)
        for each in found
        if each.marker is None or any(each.marker.evaluate({**PYTHON, "extra": extra}) for extra in extras)
    } - {normal(name)}


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Names of modules in a file's imports, those in functions too, and those that it names in a text to load them."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(named, names, 0) if named:
                yield named
                yield from (f"{named}.{name.name}" for name in names)
            case ast.Constant(str() as text) if re.fullmatch(r"tidemark(\.\w+)+", text):
                yield text
            case _:
                pass


def file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split(".")[1:])
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


def reached(starts: list[str]) -> dict[str, set[str]]:
    """Distributions that these modules may import, with the modules of ours that do."""
    of_module = packages_distributions()
    found: dict[str, set[str]] = {}
    seen: set[str] = set()
    while starts:
        module = starts.pop()
        path = file_of(module)
        if module in seen or path is None or module == "tidemark":
            continue
        seen.add(module)
        starts.append(module.rpartition(".")[0])
        for name in imported(path):
            top = name.split(".")[0]
            if top == "tidemark":
                starts.append(name)
            elif top in of_module:
                for distribution in of_module[top]:
                    found.setdefault(normal(distribution), set()).add(module)
    return found


def only_opened(service: str) -> set[str]:
    """Where a catalog is opened stands beside what all need; what it needs is in images with Iceberg alone."""
    opened = {"tidemark.shared.adapters.icebergfiles", "tidemark.shared.adapters.icebergsql"}
    return set() if "iceberg" in parts_of(service) else opened


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_what_its_service_may_import(service: str) -> None:
    """Also in a function, which runs only where a document asks for it: a table of a connection, a lookup."""
    starts = [f"tidemark.services.{service}.__main__", f"tidemark.services.{service}.service"]
    found = reached([*starts, "tidemark.services.local.watched", *MORE.get(service, ())])
    lacking = {
        name: sorted(modules - only_opened(service))
        for name, modules in found.items()
        if name in PACKAGES and modules - only_opened(service)
    }
    for name in installed(service) | NOT_IN_CONTAINERS.get(service, set()):
        lacking.pop(name, None)
    assert lacking == {}


@pytest.mark.parametrize("service", SERVICES)
def test_no_package_of_an_image_needs_one_that_it_lacks(service: str) -> None:
    """The installer would refuse it, or it would fail when it is used."""
    there = installed(service)
    needed = {f"{name} needs {other}" for name in there for other in needed_by(name) & PACKAGES.keys() - there}
    assert needed == set()


@pytest.mark.parametrize(("name", "package"), PACKAGES.items(), ids=PACKAGES)
def test_each_package_is_there_for_the_reason_that_is_told(name: str, package: Package) -> None:
    """The project asks for it, and a person says why; or those need it that are named."""
    if package.reason.startswith("of "):
        users = package.reason.removeprefix("of ").split(", ")
        assert all(name in needed_by(user) for user in users), f"{name}: {package.reason}"
        assert name not in {normal(asked) for asked in EXTRAS}, f"{name}: the project asks for it: say why"
    else:
        assert name in {normal(asked) for asked in EXTRAS}, f"{name}: the project does not ask for it: say whose it is"


def test_tables_and_plots_are_in_the_images_that_open_them() -> None:
    """They are half of what is installed; the rest is one layer that all services but Spark's share."""
    having = {service: parts_of(service) for service in SERVICES}
    assert having == {
        "coordinator": {"all"},
        "gateway": {"all"},
        "operator": {"all", "frames"},
        "source": {"all", "iceberg"},
        "sink": {"all", "iceberg", "delta"},
        "control": {"all", "iceberg", "delta", "frames", "plots"},
        "spark": {"all", "frames", "spark"},
    }


@pytest.mark.parametrize(
    "services",
    [("coordinator", "gateway"), ("operator",), ("source",), ("sink",), ("control",), ("spark",)],
    ids="-".join,
)
def test_services_load_without_the_packages_that_their_image_lacks(services: tuple[str, ...]) -> None:
    """All their modules, and all that are shared but for one that opens catalogs, where none are."""
    (having,) = {frozenset(installed(service)) for service in services}
    modules = {
        module
        for module, owners in packages_distributions().items()
        if (PACKAGES.keys() - having) & {*map(normal, owners)}
    }
    rooms = [f"tidemark.services.{service}" for service in services] + ["tidemark.shared"]
    rooms += ["tidemark.spark_stages"] if "spark" in services else []
    more = ["tidemark.services.local.watched", *(module for service in services for module in MORE.get(service, ()))]
    program = (
        "import sys\n"
        "class Lacking:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {modules}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Lacking)\n"
        "import importlib, pkgutil\n"
        f"for room in map(importlib.import_module, {rooms}):\n"
        "    for module in pkgutil.walk_packages(room.__path__, f'{room.__name__}.'):\n"
        f"        if not module.name.endswith('.__main__') and module.name not in {only_opened(services[0])}:\n"
        "            importlib.import_module(module.name)\n"
        f"for more in {more}:\n"
        "    importlib.import_module(more)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_is_thinned_by_whole_packages() -> None:
    """What is left out is left out with its digests; all else stays as it is."""
    kept = list(of_parts(LOCK, PACKAGES, {"all", "iceberg", "delta", "frames", "plots"}))
    names = [{line.split("==")[0] for line in lines if re.match(r"[\w.-]+(\[.*\])?==", line)} for lines in (LOCK, kept)]
    assert names[0] - names[1] == {"pyspark", "py4j"}
    at = next(i for i, line in enumerate(LOCK) if line.startswith("pyspark=="))
    assert LOCK[at + 1] not in kept
    assert list(of_parts(LOCK, PACKAGES, {package.part for package in PACKAGES.values()})) == LOCK


@pytest.mark.parametrize(
    ("lock", "text", "parts", "words"),
    [
        ("a==1\nb==2\n", "a all why", ["all"], "'b'"),
        ("a==1\n", "a all why\nb all why", ["all"], "'b'"),
        ("a==1\n", "a all why", ["al"], "'al'"),
        ("a==1\n", "a all", ["all"], "'a all'"),
    ],
)
def test_a_package_on_one_side_alone_is_an_error(lock: str, text: str, parts: list[str], words: str) -> None:
    """An image would grow, or lack something, unnoticed."""
    with pytest.raises(NotSorted, match=words):
        list(of_parts(lock.splitlines(keepends=True), packages(text), parts))
