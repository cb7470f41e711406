"""An environment whose packages are not those that Tidemark asks for: what is wrong is said, with the command that mends it."""

import os
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from tidemark.services.cli.packages import fits, unfit


def _installed(folder: Path, name: str, module: str, version: str) -> None:
    """A package of that version, in front of the environment's own, that fails as it is loaded."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / f"{module}.py").write_text("from sys import no_such_name\n")


@pytest.mark.parametrize(
    "program",
    [
        "import sys; import tidemark.__main__ as m; sys.argv[1:] = ['explain', 'a.yaml']; m.main()",
        "import tidemark; tidemark.try_out",
    ],
)
def test_a_package_of_another_version_is_named_where_it_fails(program: str, tmp_path: Path) -> None:
    """Found, needed, command: from the command line in place of a trace, from Python as a note at the error."""
    _installed(tmp_path, "pyyaml", "yaml", "5.4.1")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pyyaml is 5.4.1 (needed: >=6.0); run: " in done.stderr
    assert done.stderr.rstrip().endswith("-m pip install 'pyyaml>=6.0'")
    assert ("Traceback" in done.stderr) == ("try_out" in program)


def test_this_environment_fits() -> None:
    """Each bound of the product's is understood, and kept here."""
    assert not [each for each in requires("tidemark") or () if any(sign in each for sign in ("~=", "!=", "<=", "==="))]
    assert list(unfit()) == []


@pytest.mark.parametrize(
    ("found", "bounds", "right"),
    [
        ("2.3", ">=2.3,<3", True),
        ("2.2.9", ">=2.3,<3", False),
        ("3.0.1", "<3,>=2.3", False),
        ("2.9.post0", ">=2.7", True),
        ("1.1.20251105", ">=1.1", True),
        ("0.0.3", "==0.0.3", True),
        ("26.0.0+local.1", "<27,>=26", True),
        ("6.10", ">=6.9", True),
        ("7", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(found: str, bounds: str, right: bool) -> None:
    """As pip compares releases."""
    assert fits(found, bounds) is right
