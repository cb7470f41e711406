"""A session comes up on machines that are not set up as a server is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.spark_stages.session import LOCAL_ADDRESS

pytestmark = pytest.mark.spark

_SCRIPT = """
import sys
from tidemark.spark_stages.session import LOCAL, OPTIONS, open_session
session = open_session("test", settings={OPTIONS: LOCAL[OPTIONS] + " -Djdk.net.hosts.file=" + sys.argv[1]})
assert session.range(3).count() == 3
session.stop()
"""


def test_a_machine_that_cannot_resolve_its_own_name_has_a_session(tmp_path: Path) -> None:
    """Spark looks up no name: a JVM that knows none runs a job in local mode."""
    hosts = tmp_path / "hosts"
    hosts.touch()
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL_ADDRESS}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, hosts], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
