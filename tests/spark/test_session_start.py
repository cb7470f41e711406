"""A session comes up on machines that are not set up as a server is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.services.local.java import find_java
from tidemark.spark_stages.session import LOCAL_ADDRESS

pytestmark = pytest.mark.spark

_SCRIPT = """
import sys
from tidemark.spark_stages.session import LOCAL, OPTIONS, open_session
session = open_session("test", settings={OPTIONS: LOCAL[OPTIONS] + " -Djdk.net.hosts.file=" + sys.argv[1]})
assert session.range(3).count() == 3
session.stop()
"""
_READ = """
import os, sys
from tidemark.spark_stages.session import open_session
session = open_session("test")
assert session.read.json(sys.argv[1]).selectExpr("upper('i')").first()[0] == "I"
session.stop()
"""

_COUNT = """
import os, sys
from tidemark.spark_stages.session import open_session
session = open_session("test")
assert session.range(3).mapInArrow(lambda batches: batches, "id bigint").count() == 3
assert session.sparkContext.master == "local[2]" and session.conf.get("spark.sql.session.timeZone") == "UTC"
session.stop()
"""


_REFUSED = """
import sys
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.services.spark.body import outage_of
from tidemark.spark_stages.session import LOCAL, OPTIONS, open_session
try:
    open_session("test", settings={OPTIONS: LOCAL[OPTIONS] + sys.argv[1], "spark.driver.memory": sys.argv[2]})
except Exception as error:
    print(is_lasting(error), is_outage(outage_of(error) or error), error)
"""


_NEVER = "True False Spark's JVM cannot begin: "
_NOW = "False True Spark's JVM cannot begin now: "


@pytest.mark.parametrize(
    ("options", "memory", "home", "said"),
    [
        (" -XX:MaxMetaspaceSize=abc", "1g", None, _NEVER + "{java}: Improperly specified VM option 'MaxMetaspaceSize=abc'; correct `conf`"),
        ("", "1k", None, _NEVER + "{java}: Too small maximum heap; correct `conf`"),
        ("", "1g", "/no/java", _NEVER + "JAVA_HOME is /no/java, which holds no bin/java; install"),
        (" -XX:ErrorFile=/dev/null -Xms8000000m", "9000000m", None, _NOW + "{java}: There is insufficient memory"),
    ],
)  # fmt: skip
def test_a_jvm_that_can_never_begin_is_told_from_one_that_finds_no_room(
    options: str, memory: str, home: str | None, said: str
) -> None:
    """By its own words, which PySpark leaves on the process' output: the one ends the processor, the other is waited for."""
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED, options, memory],
        env=os.environ | ({} if home is None else {"JAVA_HOME": home}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.format(java=find_java().executable) in done.stdout, done.stdout + done.stderr[-1000:]


def test_a_machine_that_cannot_resolve_its_own_name_has_a_session(tmp_path: Path) -> None:
    """Spark looks up no name: a JVM that knows none runs a job in local mode."""
    hosts = tmp_path / "hosts"
    hosts.touch()
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL_ADDRESS}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, hosts], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_locale_without_a_folders_letters_has_a_session_that_reads_it(tmp_path: Path) -> None:
    """The JVM takes names of files from its locale, and PySpark passes them as they are: Spark's is none of the user's."""
    folder = tmp_path / "Dätä ş"
    folder.mkdir()
    (folder / "rows.json").write_text('{"a": 1}')
    done = subprocess.run(
        [sys.executable, "-c", _READ, folder],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_another_spark_of_the_machine_has_no_say(tmp_path: Path) -> None:
    """Its home, settings, interpreter, file system and server are named by variables of the user's; local mode is of the locked package."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master yarn\nspark.sql.session.timeZone Asia/Tokyo\nspark.serializer none.Such\n"
    )
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nowhere:1</value></property></configuration>"
    )
    others = {
        "SPARK_HOME": str(tmp_path),
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_DIST_CLASSPATH": str(tmp_path),
        "SPARK_REMOTE": "sc://127.0.0.1:1",
        "SPARK_API_MODE": "connect",
        "HADOOP_CONF_DIR": str(tmp_path),
        "PYSPARK_PYTHON": "/nonexistent/python",
        "PYSPARK_DRIVER_PYTHON": "jupyter",
        "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    }
    done = subprocess.run(
        [sys.executable, "-c", _COUNT], env=os.environ | others, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_user_without_a_name_has_a_session() -> None:
    """As in a container that was started for a number alone: Java knows neither a name nor a home of its own."""
    command = ["unshare", "--user", "--map-user=54321", "--", sys.executable, "-c", _COUNT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_process_whose_folder_was_removed_has_a_session(tmp_path: Path) -> None:
    """Neither PySpark nor a JVM begins there: the process goes elsewhere."""
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", gone + _COUNT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
