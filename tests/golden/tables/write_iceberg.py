"""Writes `iceberg/NAME.zip` by Iceberg's own library: the table that the statements of NAME make, and the rows of each of its snapshots.

Not a test: the locked Spark has no Iceberg yet. With pyspark 4.1, pyarrow and pandas in an environment of its own, and in a folder
org.apache.iceberg's iceberg-spark-runtime-4.1_2.13 1.12.0 and a jar of `Upserts.java`: `python write_iceberg.py JARS [NAME …]`. Rows are
those that Spark reads, in Parquet. A statement that is an object is a commit as Flink's upsert sink makes them.
"""

import json
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

HERE = Path(__file__).parent / "iceberg"
LAKE = Path("/tmp/golden-lake")
"""In the metadata of all tables: `tests/harness/goldenlake.py`."""


def session(jars: Path) -> Any:
    """Spark with Iceberg."""
    settings = {
        "spark.jars": ",".join(str(jar) for jar in jars.glob("*.jar")),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(LAKE),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(LAKE / "files"),
        "spark.ui.enabled": "false",
    }
    building = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        building = building.config(name, value)
    return building.getOrCreate()


class Writer:
    """One table."""

    def __init__(self, spark: Any, name: str) -> None:
        self._spark = spark
        self._jvm = spark._jvm
        self._name = name

    def do(self, statement: Any) -> None:
        """Spark's SQL, an upsert, or what neither of them says."""
        name = f"lake.n.{self._name}"
        if isinstance(statement, dict):
            self._upsert(statement)
        elif statement == "ADD DEFAULT":
            literal, types = self._jvm.org.apache.iceberg.expressions.Literal, self._jvm.org.apache.iceberg.types.Types
            adding = self._table().updateSchema().addColumn("n", types.IntegerType.get(), literal.of(7))
            adding.addColumn("s", types.StringType.get(), literal.of("d")).commit()
        elif statement.startswith("ROLLBACK"):
            found = self._spark.sql(f"select snapshot_id from {name}.snapshots order by committed_at").collect()
            version = found[int(statement.split()[1])].snapshot_id
            self._spark.sql(f"call lake.system.rollback_to_snapshot('n.{self._name}', {version})")
        elif statement.startswith("FILES "):
            self._spark.sql(statement.removeprefix("FILES ").replace(" F ", f" files_{self._name} ", 1))
        elif statement.startswith("call"):
            self._spark.sql(statement.replace("n.T", f"n.{self._name}").replace("FILES", f"files_{self._name}"))
        else:
            self._spark.sql(statement.replace(" T", f" {name}", 1))

    def _table(self) -> Any:
        session = self._spark._jsparkSession
        return self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, f"lake.n.{self._name}")

    def _upsert(self, told: dict[str, Any]) -> None:
        part = None if told["partitionOf"] is None else self._list(told["partitionOf"])
        rows, by, keys = (self._list(told[each]) for each in ("rows", "by", "keys"))
        upserts = self._jvm.org.apache.iceberg.data.Upserts
        upserts.commit(self._table(), rows, by, keys, part, told["format"], told["everywhere"])

    def _list(self, values: Iterable[Any]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for value in values:
            made.add(self._list(value) if isinstance(value, list) else value)
        return made

    def keep(self) -> None:
        """The table, and what Spark reads of each of its snapshots."""
        name = f"lake.n.{self._name}"
        asked = f"select snapshot_id from {name}.history where is_current_ancestor order by made_current_at"
        with zipfile.ZipFile(HERE / f"{self._name}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
            for version in dict.fromkeys(row.snapshot_id for row in self._spark.sql(asked).collect()):
                found = self._spark.sql(f"select * from {name} version as of {version}")
                try:
                    pq.write_table(found.toArrow(), LAKE / "rows.parquet", compression="zstd")
                except Exception as error:  # noqa: BLE001 - whatever Spark says
                    sys.stdout.write(f"{self._name}: snapshot {version} is not read: {str(error)[:200]}\n")
                    continue
                packed.write(LAKE / "rows.parquet", f"rows/{version}.parquet")
            for part, folder in (("table", LAKE / "n" / self._name), ("files", LAKE / "files" / f"files_{self._name}")):
                for file in sorted(folder.rglob("*")):
                    if file.is_file() and file.suffix != ".crc":
                        packed.write(file, f"{part}/{file.relative_to(folder)}")


def main() -> None:
    """See the module."""
    shutil.rmtree(LAKE, ignore_errors=True)
    spark = session(Path(sys.argv[1]))
    spark.sql("create namespace if not exists lake.n")
    statements = json.loads((HERE / "statements.json").read_text())
    for name in sys.argv[2:] or statements:
        writer = Writer(spark, name)
        for statement in statements[name]:
            writer.do(statement)
        writer.keep()


if __name__ == "__main__":
    main()
