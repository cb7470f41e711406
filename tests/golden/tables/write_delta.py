"""Writes `delta/NAME.zip` by Delta Lake's own writer: the table that the statements of NAME make, and the rows of each of its versions.

Not a test: the locked Spark has no Delta Lake yet. With pyspark 4.2.0, pyarrow and pandas in an environment of its own, and io.delta's
delta-spark_2.13 4.4.0 with what it needs in a folder: `python write_delta.py JARS [NAME …]`. Rows are those that Spark reads, in Parquet.
"""

import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

HERE = Path(__file__).parent / "delta"


def session(jars: Path) -> Any:
    """Spark with Delta Lake."""
    settings = {
        "spark.jars": ",".join(str(jar) for jar in jars.glob("*.jar")),
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    building = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        building = building.config(name, value)
    return building.getOrCreate()


def keep_rows(spark: Any, table: Path, rows: Path) -> None:
    """What Spark reads of each version that is still there."""
    rows.mkdir()
    for entry in sorted((table / "_delta_log").glob("[0-9]" * 20 + ".json")):
        version = int(entry.stem)
        try:
            found = spark.read.format("delta").option("versionAsOf", version).load(str(table)).toArrow()
        except Exception as error:  # noqa: BLE001 - whatever Spark says of a version that was vacuumed
            sys.stdout.write(f"{table.name}: version {version} is not read: {str(error)[:200]}\n")
            continue
        pq.write_table(found, rows / f"{version}.parquet", compression="zstd")


def main() -> None:
    """See the module."""
    spark = session(Path(sys.argv[1]))
    statements = json.loads((HERE / "statements.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder) / name for name in statements}
        for name in sys.argv[2:] or statements:
            shutil.rmtree(places[name], ignore_errors=True)
            for statement in statements[name]:
                for other, place in {**places, "T": places[name]}.items():
                    statement = statement.replace(f"{{{other}}}", f"delta.`{place}`")  # noqa: PLW2901
                spark.sql(statement)
            keep_rows(spark, places[name], Path(folder) / f"{name}.rows")
            with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
                for part, below in (("table", places[name]), ("rows", Path(folder) / f"{name}.rows")):
                    for file in sorted(below.rglob("*")):
                        if file.is_file() and file.suffix != ".crc":
                            packed.write(file, f"{part}/{file.relative_to(below)}")


if __name__ == "__main__":
    main()
