"""The doctor: what is missing for a set-up, and what a failed step meant, in a sentence with a remedy."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from services.local import doctor


def test_a_machine_with_all_that_is_needed_has_no_findings() -> None:
    """The machine that runs these tests is fit for the set-up."""
    assert doctor.check() == []


def test_another_python_is_named_with_the_one_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong version is found first, and alone: nothing else can be looked at with it."""
    monkeypatch.setattr(doctor, "PYTHON_WANTED", (3, 99))
    (finding,) = doctor.check()
    assert f"found {sys.version_info[0]}.{sys.version_info[1]}: install it" in finding


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
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "differs from the locked one"),
        ("one\ntwo\n\nthree", "one | two | three"),
        ("", "it printed nothing"),
    ],
)
def test_a_failed_step_is_explained(printed: str, remedy: str) -> None:
    """What the installer printed becomes a sentence that says what to do, or is quoted."""
    assert remedy in doctor.explain(printed)


def test_an_old_python_can_read_the_doctor() -> None:
    """Whatever python the machine has gets as far as the sentence: no syntax newer than 3.7."""
    ast.parse(Path(doctor.__file__).read_text(encoding="utf-8"), feature_version=(3, 7))
