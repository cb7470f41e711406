"""What a first step would otherwise wait for: a compiled plan, Python's workers with the product's packages loaded."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def warm_up(session: SparkSession) -> None:
    """Run a job of the shape that most steps have: one task, which runs an Arrow function in Python."""
    session.range(0, 1, 1, 1).mapInArrow(_load, "id bigint").collect()


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import tidemark.spark_stages.executing  # noqa: F401, PLC0415 - to have it loaded where the steps will run

    yield from batches
