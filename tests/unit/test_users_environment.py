"""What a user's shell, or who starts it, has set: Python's own variables, bounds of the system, folders with long names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.shared.model.failures import words_of

_CHILD = """
import os
from tidemark.shared.adapters.children import ForkedChildren

def work(connection):
    connection.send_bytes(b"alive")
    connection.recv_bytes()

if __name__ == "__main__":
    child = ForkedChildren(work, [], memory_bytes_max=1 << 30).start()
    print(child.receive(10_000).decode())
    child.end()
"""
_FILES = """
import resource, sys
from tidemark.shared.process.host import open_many_files
open_many_files(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def _ran(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("options", [[], ["-O"], ["-OO"]])
def test_the_package_is_a_command(options: list[str]) -> None:
    """Also where Python drops assertions, and documentation with them."""
    assert _ran(sys.executable, *options, "-m", "tidemark", "--version").startswith("tidemark ")
    assert "$source" in _ran(sys.executable, *options, "-m", "tidemark", "schema")


def test_children_begin_where_temporary_files_have_a_long_name(tmp_path: Path) -> None:
    """The name of a socket has 107 bytes, and such a folder's may have more."""
    folder = tmp_path / ("l" * 100)
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(_CHILD)
    assert _ran(sys.executable, script, environment={"TMPDIR": str(folder)}) == "alive\n"


@pytest.mark.parametrize(
    ("soft", "hard", "most", "then"), [(256, 800, 65_536, 800), (256, 800, 512, 512), (600, 800, 512, 600)]
)
def test_a_service_opens_as_many_files_as_it_may(soft: int, hard: int, most: int, then: int) -> None:
    """A shell's own bound is a small one."""
    told = _ran("prlimit", f"--nofile={soft}:{hard}", sys.executable, "-c", _FILES, str(most))
    assert told.split() == [str(then), str(hard)]


def test_a_reason_has_no_stack_of_a_jvm() -> None:
    """What it says stands, with what caused it."""
    error = ValueError(
        "An error occurred while calling None.Context.\n: spark.Illegal: Insufficient memory: 202768384.\nPlease increase it."
        "\n\tat org.apache.spark.Manager$.max(Manager.scala:478)\n        at java.base/java.lang.Thread.run(Thread.java:840)"
        "\nCaused by: java.io.IOException: at the disk (full)\n\tat a.B.<init>(B.java:1)\n\t... 12 more\n"
    )
    assert words_of(error).splitlines() == [
        "ValueError: An error occurred while calling None.Context.",
        ": spark.Illegal: Insufficient memory: 202768384.",
        "Please increase it.",
        "Caused by: java.io.IOException: at the disk (full)",
    ]


def test_settings_of_numba_are_for_other_programs() -> None:
    """A user who turns compilation off, or checks of bounds on, has the same readers."""
    script = (
        "import tidemark.shared.compiled.building, numba; print(numba.config.DISABLE_JIT, numba.config.BOUNDSCHECK)"
    )
    settings = {"NUMBA_DISABLE_JIT": "1", "NUMBA_BOUNDSCHECK": "1"}
    assert _ran(sys.executable, "-c", script, environment=settings) == _ran(sys.executable, "-c", script)
