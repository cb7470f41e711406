"""The set-up by make: an environment that cannot be used any more is made anew."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
OLD: Final = "#!/bin/sh\nexit 1\n"
"""A Python that says that it does not fit."""


def settled(folder: Path) -> dict[str, str]:
    """The environment of a shell that went to the folder."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | {"PWD": str(folder)}


def planned(folder: Path, target: str = "setup", **environment: str) -> str:
    """What `make setup`, or another target, would do there."""
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=folder,
        env=settled(folder) | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A checkout behind its set-up, as far as make looks."""
    folder = tmp_path / "a b"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    for source in (
        "requirements-build.lock",
        "requirements-dev.lock",
        "pyproject.toml",
        "deploy/broker/jars.lock",
        "services/local/archive.py",
        "spark_stages/archive.py",
        "spark_stages/session.py",
    ):
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        (folder / source).touch()
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(Path(sys.executable).resolve())
    (folder / ".venv/bin/tidemark").write_text(f'#!/bin/sh\n\'\'\'exec\' "{folder}/.venv/bin/python" "$0" "$@"\n')
    for stamp in (
        ".venv/.packages-installed",
        ".venv/.readers-compiled",
        ".tidemark/kafka/.jars-verified",
        ".tidemark/classes/.archived",
    ):
        (folder / stamp).parent.mkdir(parents=True, exist_ok=True)
        (folder / stamp).touch()
    return folder


def test_modules_are_compiled_once_whatever_the_shell_has_set() -> None:
    """What make starts keeps the bytecode of the modules it loads."""
    command = ["make", "--eval", "told: ; @env", "told"]
    environment = settled(ROOT) | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "PWD=" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout


def test_the_lock_has_all_that_its_packages_need() -> None:
    """They are installed without a look at what each asks for."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("by_link", [False, True])
def test_a_set_up_that_can_be_used_is_kept(installed: Path, by_link: bool) -> None:
    """A second run does nothing; by whichever name the folder is entered."""
    link = installed.with_name("link")
    link.symlink_to(installed)
    assert "venv" not in planned(link if by_link else installed)


def test_changed_locks_are_installed_into_the_environment_that_is_there(installed: Path) -> None:
    """One that fits is not thrown away."""
    (installed / ".venv/.packages-installed").unlink()
    told = planned(installed)
    assert "--requirement requirements-dev.lock" in told or "-r requirements-dev.lock" in told
    assert "--clear" not in told.split("||")[0]


def test_python_is_looked_for_once(installed: Path, tmp_path: Path) -> None:
    """By make, and by the one that it starts for the doctor; those behind the first that runs are not asked."""
    (installed / ".venv/.packages-installed").unlink()
    names = ("python3.11", "python3.12", "python3.13", "python3.14")
    for name in names:
        command = tmp_path / name
        works = f'echo "{command}"' if name != names[0] else "exit 1"
        command.write_text(f'#!/bin/sh\necho {name} >> "{tmp_path}/asked"\n{works}\n')
        command.chmod(0o755)
    assert f"{tmp_path}/python3.12 -m venv" in planned(installed, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (tmp_path / "asked").read_text().split() == [names[0], names[1]] * 2


@pytest.mark.parametrize("why", ["gone", "old", "moved"])
def test_an_environment_that_cannot_be_used_is_made_anew(installed: Path, why: str) -> None:
    """Its Python went with an upgrade of the machine, or does not fit; or the folder has another name than its programs say."""
    python = installed / ".venv/bin/python"
    if why == "moved":
        installed = installed.rename(installed.with_name("c"))
    else:
        python.unlink()
        python.symlink_to("/no/such/python") if why == "gone" else python.write_text(OLD)
        if why == "old":
            python.chmod(0o755)
    assert "-m venv --clear .venv" in planned(installed)


def test_a_failed_archive_says_why(installed: Path) -> None:
    """In a sentence, with what the failed program said last."""
    (installed / ".tidemark/classes/.archived").unlink()
    (installed / "services/local").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "services/local/doctor.py", installed / "services/local")
    python = installed / ".venv/bin/python"
    python.unlink()
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "no space for it" >&2; exit 1; }\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "setup"], cwd=installed, env=settled(installed), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "The set-up failed: no space for it" in done.stderr


def test_a_first_demo_begins_before_the_archives_are_written(installed: Path) -> None:
    """They save it some seconds, and take a minute."""
    (installed / ".tidemark/classes/.archived").unlink()
    plan = planned(installed, "demo")
    assert 0 <= plan.index("tidemark demo") < plan.index("archives of the classes")


@pytest.mark.parametrize("example", ["weather", "sessions", "counts", "validation", "weblog"])
def test_an_example_runs_in_a_folder_with_a_blank(installed: Path, example: str) -> None:
    """The places of its data and results come whole."""
    python = installed / ".venv/bin/python"
    python.unlink()
    python.write_text("#!/bin/sh\n")
    command = installed / ".venv/bin/tidemark"
    command.write_text(f'#!/bin/sh\n# {installed}/.venv/bin/python\necho "$DATA|$OUT"\n')
    for file in (python, command):
        file.chmod(0o755)
    done = subprocess.run(
        ["make", example], cwd=installed, env=settled(installed), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{installed}/out/{example}/data|{installed}/out/{example}"
