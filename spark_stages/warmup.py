"""What a first step would otherwise wait for: compiled plans, Python's workers with the product's packages loaded."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark code gives it


def warm_up(session: SparkSession) -> None:
    """Run a job of the shape that steps have: read Parquet, filter, group, repartition, an Arrow function in Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(pa.table({"window": [1, 2, 3, 4], "key": ["a", "b", "c", "d"], "n": [1, 2, 3, 4]}), path)
        rows = session.read.schema("window bigint, key string, n bigint").parquet(str(path))
        grouped = rows.where(F.col("window") > 0).groupBy("window", "key").agg(F.sum("n").alias("n"))
        grouped.repartition("window").mapInArrow(_load, "n bigint").collect()


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import spark_stages.step  # noqa: F401, PLC0415 - to have it loaded where the steps will run

    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column("n")], names=["n"])
