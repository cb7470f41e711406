"""The doctor: what is missing for a set-up, and what a failed step meant, in a sentence with a remedy."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tidemark.services.local import doctor, hints


def test_a_machine_with_all_that_is_needed_has_no_findings() -> None:
    """The machine that runs these tests is fit for the set-up."""
    assert doctor.check() == []


@pytest.mark.parametrize(("least", "most"), [((3, 98), (3, 99)), ((3, 1), (3, 2))])
def test_another_python_is_named_with_those_that_fit(
    monkeypatch: pytest.MonkeyPatch, least: tuple[int, int], most: tuple[int, int]
) -> None:
    """A wrong version, too old or too new, is found first, and alone: nothing else can be looked at with it."""
    monkeypatch.setattr(doctor, "PYTHON_MIN", least)
    monkeypatch.setattr(doctor, "PYTHON_MAX", most)
    (finding,) = doctor.check()
    assert finding.startswith(f"Python 3.{least[1]} to 3.{most[1]} is needed, found 3.{sys.version_info[1]}: install")


@pytest.mark.parametrize(
    ("told", "python", "java"),
    [
        ('ID=debian\nVERSION_ID="12"', "apt-get install python3 python3-venv", "apt-get install default-jre-headless"),
        ('ID=debian\nVERSION_ID="13"', "apt-get install python3 python3-venv", "apt-get install default-jre-headless"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"', "python3.11 python3.11-venv", "openjdk-17-jre-headless"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"', "apt-get install python3", "apt-get install default-jre-headless"),
        ("ID=fedora\nVERSION_ID=42", "dnf install python3", "dnf install java-latest-openjdk-headless"),
        ("ID=something", "", ""),
        (None, "", ""),
    ],
)
def test_a_hint_names_packages_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str | None, python: str, java: str
) -> None:
    """What is to be installed has the name that it has here; where no name is known, none is told."""
    if told is not None:
        (tmp_path / "os-release").write_text(told, encoding="utf-8")
    monkeypatch.setattr(hints, "OS_RELEASE", tmp_path / "os-release")
    assert python in hints.to_install_python()
    assert java in hints.to_install_java()
    assert bool(hints.to_install_python()) == bool(python)


def test_a_full_disk_is_found_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room is told with both figures."""
    monkeypatch.setattr(doctor, "FREE_DISK_MIB_MIN", 2**40)
    (finding,) = doctor.check()
    assert f"needs {2**40} MiB of disk" in finding
    assert "free some space" in finding


def test_a_missing_java_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The broker's own check is asked."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (finding,) = doctor.check()
    assert finding.startswith("Java is missing: JAVA_HOME is")


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        ("ERROR: … [Errno 28] No space left on device", "the disk is full"),
        ("… Failed to establish … [Errno -3] Temporary failure in name resolution", "no network"),
        ("… 'ProxyError('Cannot connect to proxy.', NewConnectionError('… [Errno 111] Connection refused", "the proxy"),
        ("… 'ProxyError('Cannot connect to proxy.', NewConnectionError('… Name or service not known", "the proxy"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "differs from the locked one"),
        ("one\ntwo\n\nthree", "one | two | three"),
        ("", "it printed nothing"),
    ],
)
def test_a_failed_step_is_explained(printed: str, remedy: str) -> None:
    """What the installer printed becomes a sentence that says what to do, or is quoted."""
    assert remedy in doctor.explain(printed)


@pytest.mark.parametrize("script", [doctor.__file__, hints.__file__])
def test_an_old_python_can_read_the_doctor(script: str) -> None:
    """Whatever python the machine has gets as far as the sentence: no syntax newer than 3.7."""
    ast.parse(Path(script).read_text(encoding="utf-8"), feature_version=(3, 7))


def test_the_doctor_takes_what_the_package_takes() -> None:
    """The range of Pythons stands in two places, for the doctor runs before anything can read the other."""
    least, most = doctor.PYTHON_MIN, doctor.PYTHON_MAX
    told = tomllib.loads((doctor.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert told == f">={least[0]}.{least[1]},<{most[0]}.{most[1] + 1}"


def test_each_locked_package_takes_each_python_that_the_package_takes() -> None:
    """Whoever locks has one Python, and a new release may refuse another: Debian 12 still has 3.11.2."""
    locked = re.findall(
        r"^([\w.-]+)==", (doctor.ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(locked) > 100
    taken = {name: SpecifierSet(distribution(name).metadata["Requires-Python"] or "") for name in locked}
    least, most = doctor.PYTHON_MIN, doctor.PYTHON_MAX
    pythons = [f"{least[0]}.{minor}.0" for minor in range(least[1], most[1] + 1)]
    assert [(name, python) for name, spec in taken.items() for python in pythons if python not in spec] == []
