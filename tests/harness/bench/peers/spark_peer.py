"""Spark Structured Streaming: BOOTSTRAP SOURCE TARGET SHAPE THREADS INTERVAL_MS FOLDER CLASS_PATH.

At least once: its sink for Kafka has no more.
"""

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark code gives it

_HEAP: Final = "2g"
_SCHEMA: Final = "key STRING, ts BIGINT, amount BIGINT"


def _mapped(read: DataFrame) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), _SCHEMA).alias("e")
    doubled = read.select(event).select("e.*", (F.col("e.amount") * 2).alias("double"))
    return doubled.select(F.to_json(F.struct("key", "ts", "amount", "double")).alias("value"))


def _window(shape: str) -> Column:
    time = F.col("time")
    return F.window(time, "1 minute", "10 seconds") if shape == "hop" else F.window(time, "1 minute")


def _counted(read: DataFrame, shape: str) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), _SCHEMA).alias("e")
    events = read.select(event).select("e.key", "e.amount", F.timestamp_millis("e.ts").alias("time"))
    counts = (
        events.withWatermark("time", "5 seconds")
        .groupBy(_window(shape).alias("w"), "key")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    )
    row = F.struct("key", F.unix_millis("w.start").alias("start"), "n", "total")
    return counts.select(F.to_json(row).alias("value"))


def main() -> None:
    """Run until it is ended."""
    bootstrap, source, target, shape, threads, interval_ms, folder, jars = sys.argv[1:]
    session = (
        SparkSession.builder.master(f"local[{threads}]")
        .config("spark.driver.memory", _HEAP)
        .config("spark.driver.extraClassPath", jars)
        .config("spark.sql.shuffle.partitions", threads)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    read = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load()
    )
    made = _mapped(read) if shape == "map" else _counted(read, shape)
    writing = (
        made.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(Path(folder) / f"checkpoint-{target}"))
        .trigger(processingTime=f"{interval_ms} milliseconds")
        .outputMode("append")
    )
    writing.start().awaitTermination()


if __name__ == "__main__":
    main()
