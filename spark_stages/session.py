"""The Spark session of a stage: local mode, a master's URL or a Spark Connect address.

Settings are those that short, frequent jobs need: few shuffle partitions, no adaptive planning (it runs a job a stage), UTC.

Prepared here, so that a first step need not wait for it: a compiled plan, Python's workers with the product's packages loaded.
"""

import os
import pwd
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidemark.spark_stages.beginning import leave_removed, why_not


def warm_up(session: SparkSession) -> None:
    """Run a job of the shape that most steps have: one task, which runs an Arrow function in Python."""
    session.range(0, 1, 1, 1).mapInArrow(_load, "id bigint").collect()


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import tidemark.spark_stages.executing  # noqa: F401, PLC0415 - to have it loaded where the steps will run

    yield from batches


ARCHIVE: Final = "TIDEMARK_SPARK_CLASSES"
"""Names the archive of the JVM's classes (archive.py), where it is not in the project's own folder."""
_MEMORY: Final = "spark.driver.memory"
_NOT_BEGUN: Final = "JAVA_GATEWAY_EXITED"
"""PySpark's word for a JVM that ended as it began."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    _MEMORY: "1g",
    "spark.python.worker.reuse": "true",
    # Files are few and small: no listing jobs, no speculative metadata.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.codegen.cache.maxEntries": "1000",
}
SESSION: Final = frozenset(key for key in SETTINGS if key.startswith("spark.sql.") and "codegen" not in key)
"""Settings of a session alone: the others are its server's on Spark Connect."""
OPTIONS: Final = "spark.driver.extraJavaOptions"
CLASS_PATH: Final = "spark.driver.extraClassPath"
_OTHERS: Final = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
"""How variables begin that tell of another Spark of the machine: its version, settings, interpreter, file system or master. In local mode
Spark is a part of this process, of the locked version; on a cluster they are the operator's."""
_SCRATCH: Final = "SPARK_LOCAL_DIRS"
"""The one of them that local mode keeps: it names a disk."""
LOCAL: Final[Mapping[str, str]] = {
    # Steps are many and short: the second compiler would take more time than the steps, and never be done.
    OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    "spark.python.daemon.module": "tidemark.spark_stages.daemon",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Of local mode, where driver and executor are one JVM beside everything else of the machine."""
LOCAL_ADDRESS: Final[Mapping[str, str]] = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
"""Variables of local mode: without them Spark looks up the machine's own name, which many a machine cannot resolve."""

LOCALE: Final = "C.UTF-8"
"""Of the JVM of local mode: in the user's own, names of files may lack letters, and the capital of an i may have a dot."""


def archive_path() -> Path:
    """Where the archive of the JVM's classes lies, or would."""
    named = os.environ.get(ARCHIVE)
    return Path(named) if named else Path(__file__).resolve().parents[1] / ".tidemark" / "classes" / "spark.jsa"


def class_path_option() -> str:
    """A class path with each of PySpark's jars once, for the JVM of an archive; "" where Spark is not the package as it was installed.

    Spark's launcher names slf4j's jar in front of the folder that it is in, and Java 21 leaves an archive aside where a jar is named twice.
    Of two class paths a JVM takes the last, and this one knows nothing of what those variables add.
    """
    package = Path(pyspark.__file__).parent
    if (package / "conf").exists():
        return ""
    folder = package / "jars"
    jars = sorted(folder.glob("*.jar"), key=lambda jar: (not jar.name.startswith("slf4j-api-"), jar.name))
    return f" -cp {shlex.quote(os.pathsep.join(map(str, jars)))}"


def archive_options() -> str:
    """The JVM's options to use the archive; "" where there is none. Quoted, for Spark divides options at blanks, as a shell does.

    The log of archives is off: from Java 24 on it tells on standard output that Spark's options open modules.
    """
    path = archive_path()
    if not path.exists():
        return ""
    return f"{class_path_option()} -XX:SharedArchiveFile={shlex.quote(str(path))} -Xlog:cds=off"


def open_session(name: str, master: str = "local[2]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session; started when there is none yet. `master`: `local[n]`, `spark://…`, or `sc://…` for Spark Connect.

    NoJvm, NotBegun where a JVM of this process does not begin.
    """
    if master.startswith("local"):
        _leave_others_aside()
    leave_removed()
    # Executors on this machine are of the same environment as the driver; elsewhere PYSPARK_PYTHON names theirs.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    own: dict[str, str] = {}
    if master.startswith("local"):
        archived = "" if CLASS_PATH in (settings or {}) else archive_options()
        own = {**LOCAL, OPTIONS: LOCAL[OPTIONS] + archived}
        os.environ |= {**LOCAL_ADDRESS, "LC_ALL": LOCALE}
    ours = SETTINGS if not master.startswith("sc://") else {k: v for k, v in SETTINGS.items() if k in SESSION}
    all_settings = {**ours, **own, **(settings or {})}
    if not master.startswith("sc://") and _is_nameless():
        all_settings[OPTIONS] = (
            f"{all_settings.get(OPTIONS, '')} -Duser.home={shlex.quote(tempfile.gettempdir())}".strip()
        )
        _launch_for_nameless({**all_settings, "spark.master": master})
    for key, value in all_settings.items():
        builder = builder.config(key, value)
    # Python workers import the product's packages, wherever the driver was started.
    paths = os.environ.get("PYTHONPATH")
    if paths and not master.startswith("sc://"):
        builder = builder.config("spark.executorEnv.PYTHONPATH", paths)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        told = why_not(all_settings.get(OPTIONS, ""), all_settings[_MEMORY]) if _NOT_BEGUN in str(error) else None
        if told is None:
            raise
        raise told from error
    if not master.startswith("sc://"):
        session.sparkContext.setLogLevel("ERROR")
    return session


def _leave_others_aside() -> None:
    for variable in [name for name in os.environ if name.startswith(_OTHERS) and name != _SCRATCH]:
        del os.environ[variable]


def _is_nameless() -> bool:
    """Whether this process' user stands in no list of the machine's, as in a container that was given a number alone."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return True
    return False


def _launch_for_nameless(settings: Mapping[str, str]) -> None:
    """Launch the JVM, and tell Hadoop's library a name, without which it logs nobody in.

    Java has "?" as the home of such a user, and no name.
    """
    if SparkContext._gateway is not None:
        return
    os.environ["SPARK_USER"] = name = f"uid{os.getuid()}"
    launch: Any = launch_gateway  # PySpark gives it no types
    gateway = launch(SparkConf(loadDefaults=False).setAll(list(settings.items())))
    SparkContext._ensure_initialized(gateway=gateway)
    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(name))


def forget_ended() -> str:
    """Let go of what has ended without our asking, so that `open_session` starts it anew; says what it was, "" for nothing.

    That is this process' JVM; or, in a JVM that lives, the application, where a cluster's master was lost, or has ended it, or has taken
    its last executor away. PySpark would give out the dead one for ever, also one that ended while its session was being started.
    """
    gateway: Any = SparkContext._gateway  # PySpark tells of its JVM's process nowhere else
    if gateway is None:  # none yet, or of Spark Connect
        return ""
    context: Any = SparkContext._active_spark_context
    if gateway.proc.poll() is None:
        if context is None or not is_lost(context):
            return ""
        context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        return "the application on the cluster"
    gateway.proc.stdin.close()  # by this pipe the JVM would hear of our end
    if context is not None:
        context._jsc = None  # a stop would ask the JVM
        context.stop()
    with SparkContext._lock:  # what PySpark keeps for the process' next context
        SparkContext._gateway, SparkContext._jvm = None, None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    return "Spark's JVM (killed, or out of memory)"


def is_lost(context: Any) -> bool:
    """Whether an application has been stopped, or has no executor on its cluster any more: a master that was started anew gives it none."""
    java = context._jsc  # PySpark tells of neither
    if java is None or java.sc().isStopped():
        return True
    with_driver = java.sc().statusTracker().getExecutorInfos()
    return not context.master.startswith("local") and len(with_driver) <= 1


def end_application(context: Any) -> None:
    """End it while others work with it; `forget_ended` finds it ended."""
    if context._jsc is not None:  # PySpark would forget the session with it, and say so to nobody
        context._jsc.sc().stop()
