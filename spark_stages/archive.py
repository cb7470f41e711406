"""Writes the archive of the classes that Spark loads (the JVM's class data sharing): with it a session is there in half the time.

`python -m tidemark.spark_stages.archive`: a session runs jobs of the shapes that steps have, and its JVM writes the classes it has loaded
as it ends. A JVM of another version, or with other jars, leaves an archive aside and loads classes as ever; so does one that finds none.
"""

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark code gives it

from tidemark.spark_stages.session import LOCAL, OPTIONS, archive_path, class_path_option, open_session, warm_up


def write_archive(path: Path) -> bool:
    """Write it anew, by a session of its own; False where this JVM writes none, and says why."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        option = f"-Xlog:disable -XX:ArchiveClassesAtExit={shlex.quote(str(made))}"
        session = open_session("archive", settings={OPTIONS: f"{LOCAL[OPTIONS]}{class_path_option()} {option}"})
        _work(session, str(Path(folder) / "rows"))
        _end(session)
        if made.exists():
            made.replace(path)
    return path.exists()


def _work(session: SparkSession, folder: str) -> None:
    warm_up(session)
    session.range(0, 100, 1, 2).withColumn("key", F.col("id") % 7).write.parquet(folder)
    rows = session.read.schema("id bigint, key bigint").parquet(folder).where(F.col("id") > F.col("key"))
    merged = rows.groupBy("key").agg(F.sum("id"), F.min("id"), F.max("id"))
    merged.repartition(2, "key").mapInArrow(lambda batches: batches, merged.schema).collect()


def _end(session: SparkSession) -> None:
    """The session's JVM ends when nobody writes to it any more, and not before it has written its archive."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def main() -> int:
    """Write it; without one everything works as well, so that is no failure."""
    path = archive_path()
    if write_archive(path):
        sys.stdout.write(f"Archive of Spark's classes: {path.stat().st_size / 2**20:.0f} MiB\n")
    else:
        sys.stdout.write("No archive of Spark's classes: this Java wrote none; sessions start without\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
