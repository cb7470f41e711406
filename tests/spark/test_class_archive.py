"""Archives of classes: what the broker's and Spark's JVMs load is taken from them, and a start without one works as ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.services.local import archive as broker_archive
from tidemark.services.local.broker_settings import BrokerSettings, java_arguments
from tidemark.services.local.jars import ensure_jars
from tidemark.services.local.java import find_java
from tidemark.spark_stages.session import ARCHIVE, archive_options, archive_path

pytestmark = pytest.mark.spark

_SESSION = """
import sys
from tidemark.spark_stages import session
session.LOCAL = {**session.LOCAL, session.OPTIONS: session.LOCAL[session.OPTIONS] + " -Xlog:class+load:file=" + sys.argv[1]}
print(session.open_session("archived").range(3).count())
"""

_ARCHIVE = """
from tidemark.spark_stages import archive
archive._work = lambda *_: None
raise SystemExit(archive.main())
"""
"""Without the jobs, whose classes take most of the time: a session alone loads those that are asked for here."""


def _session(loaded: Path, archive: Path) -> tuple[str, str]:
    """(what a session counts, which classes its JVM loaded from where)."""
    environment = {**os.environ, ARCHIVE: str(archive)}
    command = [sys.executable, "-c", _SESSION, str(loaded)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), loaded.read_text(encoding="utf-8")


def test_spark_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    """The one that `make setup` wrote serves a session."""
    assert archive_path().exists(), f"{archive_path()} is not there; make setup writes it"
    counted, loaded = _session(tmp_path / "loaded", archive_path())
    assert counted == "3"
    assert "org.apache.spark.sql.classic.SparkSession source: shared objects file (top)" in loaded


def test_a_broken_archive_is_left_aside(tmp_path: Path) -> None:
    """A session starts all the same, with the classes of its jars."""
    broken = tmp_path / "broken.jsa"
    broken.write_bytes(b"no archive")
    counted, loaded = _session(tmp_path / "loaded", broken)
    assert counted == "3"
    assert "shared objects file (top)" not in loaded


def test_no_option_without_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is added where there is none."""
    monkeypatch.setenv(ARCHIVE, str(tmp_path / "none.jsa"))
    assert not archive_options()


_FINDS = """
import sys
from tidemark.spark_stages.session import CLASS_PATH, open_session
session = open_session("found", settings={CLASS_PATH: sys.argv[1]})
print(session._jvm.java.lang.ClassLoader.getSystemResource("own.properties") is not None)
"""


def test_a_class_path_of_ones_own_counts(tmp_path: Path) -> None:
    """What an operator adds by a setting is found beside an archive."""
    (tmp_path / "own.properties").touch()
    command = [sys.executable, "-c", _FINDS, str(tmp_path)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"


def test_an_archive_lies_in_whatever_folder(tmp_path: Path) -> None:
    """It is written, and used, below a name with blanks, quotes and letters beyond ASCII, under a locale without them."""
    archive = tmp_path / "Dätä 'ş' x" / "spark.jsa"
    environment = {**os.environ, ARCHIVE: str(archive), "LC_ALL": "C", "PYTHONUTF8": "1"}
    subprocess.run([sys.executable, "-c", _ARCHIVE], env=environment, check=True)
    counted, loaded = _session(tmp_path / "loaded", archive)
    assert counted == "3"
    assert "org.apache.spark.sql.classic.SparkSession source: shared objects file (top)" in loaded


@pytest.mark.kafka
def test_the_broker_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    """As written by a broker that ends; told by the JVM itself."""
    archive = tmp_path / "broker.jsa"
    assert broker_archive.write_archive(archive)
    settings = BrokerSettings(data_dir=tmp_path, jvm_options=(f"-XX:SharedArchiveFile={archive}", "-Xlog:class+load"))
    command = java_arguments(settings, find_java().executable, ensure_jars(), "kafka.Kafka")
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "kafka.Kafka$ source: shared objects file (top)" in told
