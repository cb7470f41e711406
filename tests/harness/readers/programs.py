"""Readers, each called as its users call it. A program of its own, for the environments that have them: `programs.py NAME …` takes jobs.

A line of standard input is a job: `{"form", "root", "glob", "catalog", "by", "delimiter", "readers", "out"}`. The answer is a pickle at
`out`: by reader the rows, as plain Python values, or the text of its error. An instant is `("stamp", µs)`. It imports nothing of Tidemark.
"""

import csv
import glob
import json
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

Job = dict[str, Any]
READERS: dict[str, Callable[[Job], list[dict[str, Any]]]] = {}


def reader(form: str) -> Callable[[Callable[[Job], Any]], Callable[[Job], Any]]:
    """Of a form, under its name."""

    def put(function: Callable[[Job], Any]) -> Callable[[Job], Any]:
        READERS[f"{form}: {function.__name__.removeprefix('_')}"] = function
        return function

    return put


# --- values


def of_arrow(table: Any) -> list[dict[str, Any]]:
    """Rows of an Arrow table, whatever its types."""
    import pyarrow as pa

    if not isinstance(table, pa.Table):
        table = pa.table(table)
    names = table.column_names
    columns = [of_column(column.combine_chunks()) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else []


def of_column(cells: Any) -> Any:
    import pyarrow as pa

    t = pa.types
    kind = cells.type
    if isinstance(cells, pa.ChunkedArray):
        return [value for chunk in cells.chunks for value in of_column(chunk)]
    if t.is_dictionary(kind):
        return of_column(cells.dictionary_decode())
    if isinstance(cells, pa.ExtensionArray):
        return of_column(cells.storage)
    if t.is_timestamp(kind):
        times, per = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}[kind.unit]
        return [None if v is None else ("stamp", v * times // per) for v in cells.cast(pa.int64()).to_pylist()]
    if t.is_date32(kind):
        return [None if v is None else ("day", v) for v in cells.cast(pa.int32()).to_pylist()]
    if t.is_struct(kind):
        inner = [of_column(cells.field(at)) for at in range(kind.num_fields)]
        names, valid = [field.name for field in kind], cells.is_valid().to_pylist()
        return [dict(zip(names, (c[at] for c in inner), strict=True)) if ok else None for at, ok in enumerate(valid)]
    if t.is_map(kind):
        return cells.to_pylist()
    if t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        valid = cells.is_valid().to_pylist()
        offsets = cells.offsets.to_pylist()
        sizes = cells.sizes.to_pylist() if hasattr(cells, "sizes") else [b - a for a, b in pairwise(offsets)]
        flat = of_column(cells.values)
        return [flat[offsets[at] : offsets[at] + sizes[at]] if ok else None for at, ok in enumerate(valid)]
    return cells.to_pylist()


def of_frame(frame: Any) -> list[dict[str, Any]]:
    """Rows of a frame of pandas, with what it has for null as None where it cannot be a value."""
    return [
        {name: of_cell(value) for name, value in zip(frame.columns, row, strict=True)}
        for row in frame.itertuples(index=False, name=None)
    ]


def of_cell(value: Any) -> Any:
    import numpy as np
    import pandas as pd

    if isinstance(value, pd.Timestamp):
        return ("stamp", value.value // 1000 if value.unit == "ns" else int(value.as_unit("us").asm8.astype("int64")))
    if value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, np.ndarray):
        return [of_cell(item) for item in value]
    if isinstance(value, np.generic):
        return (
            of_cell(value.item())
            if not isinstance(value, np.datetime64)
            else ("stamp", int(value.astype("datetime64[us]").astype("int64")))
        )
    if isinstance(value, dict):
        return {name: of_cell(item) for name, item in value.items()}
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return ("stamp", (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    return value


# --- Delta Lake


@reader("parquet")
def deltalake(job: Job) -> Any:
    from deltalake import DeltaTable

    return of_arrow(DeltaTable(job["root"]).to_pyarrow_table())


@reader("parquet")
def deltalake_to_pandas(job: Job) -> Any:
    from deltalake import DeltaTable

    return of_frame(DeltaTable(job["root"]).to_pandas())


@reader("parquet")
def pandas_folder(job: Job) -> Any:
    import pandas as pd

    return of_frame(pd.read_parquet(job["root"]))


@reader("parquet")
def pyarrow_folder(job: Job) -> Any:
    import pyarrow.dataset as ds

    return of_arrow(ds.dataset(job["root"], format="parquet", partitioning="hive").to_table())


@reader("parquet")
def polars_delta(job: Job) -> Any:
    import polars as pl

    return of_arrow(pl.read_delta(job["root"]).to_arrow())


@reader("parquet")
def polars_glob(job: Job) -> Any:
    import polars as pl

    return of_arrow(pl.scan_parquet(job["glob"], missing_columns="insert", extra_columns="ignore").collect().to_arrow())


@reader("parquet")
def duckdb_glob(job: Job) -> Any:
    return of_duckdb("SELECT * FROM read_parquet(?, union_by_name = true)", job["glob"])


@reader("parquet")
def daft_delta(job: Job) -> Any:
    import daft

    return of_arrow(daft.read_deltalake(job["root"]).to_arrow())


@reader("parquet")
def chdb_delta(job: Job) -> Any:
    return of_chdb(f"SELECT * FROM deltaLakeLocal('{job['root']}')")


@reader("parquet")
def datafusion_delta(job: Job) -> Any:
    from datafusion import SessionContext
    from deltalake import DeltaTable

    context = SessionContext()
    context.register_table("t", DeltaTable(job["root"]))
    return of_arrow(context.sql("SELECT * FROM t").to_arrow_table())


@reader("parquet")
def spark_folder(job: Job) -> Any:
    return of_spark(spark().read.option("mergeSchema", "true").parquet(job["root"]))


# --- Iceberg


def iceberg(job: Job) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **job["catalog"]).load_table("lake.out")


@reader("iceberg")
def pyiceberg(job: Job) -> Any:
    return of_arrow(iceberg(job).scan().to_arrow())


@reader("iceberg")
def pyiceberg_to_pandas(job: Job) -> Any:
    return of_frame(iceberg(job).scan().to_pandas())


@reader("iceberg")
def polars_iceberg(job: Job) -> Any:
    import polars as pl

    return of_arrow(pl.scan_iceberg(iceberg(job)).collect().to_arrow())


@reader("iceberg")
def daft_iceberg(job: Job) -> Any:
    import daft

    return of_arrow(daft.read_iceberg(iceberg(job)).to_arrow())


@reader("iceberg")
def chdb_iceberg(job: Job) -> Any:
    return of_chdb(f"SELECT * FROM icebergLocal('{job['root']}')")


# --- JSON lines


def files(job: Job) -> list[str]:
    """What the glob that a user would type names. `Path.rglob` raises where a folder goes away meanwhile, as staged ones do."""
    return sorted(glob.glob(job["glob"], recursive=True))  # noqa: PTH207


@reader("json")
def python_json(job: Job) -> Any:
    return [json.loads(line) for name in files(job) for line in Path(name).read_text(encoding="utf-8").split("\n")[:-1]]


@reader("json")
def pandas_json(job: Job) -> Any:
    import pandas as pd

    found = []
    for name in files(job):
        found += of_frame(pd.read_json(name, lines=True))
    return found


@reader("json")
def pyarrow_json(job: Job) -> Any:
    import pyarrow.json as pj

    return [row for name in files(job) for row in of_arrow(pj.read_json(name))]


@reader("json")
def polars_json_glob(job: Job) -> Any:
    import polars as pl

    return of_arrow(pl.scan_ndjson(job["glob"], infer_schema_length=None).collect().to_arrow())


@reader("json")
def duckdb_json(job: Job) -> Any:
    return of_duckdb("SELECT * FROM read_json(?, union_by_name = true, hive_partitioning = false)", job["glob"])


@reader("json")
def duckdb_json_objects(job: Job) -> Any:
    return [json.loads(row["json"]) for row in of_duckdb("SELECT * FROM read_ndjson_objects(?)", job["glob"])]


@reader("json")
def chdb_json(job: Job) -> Any:
    return of_chdb(f"SELECT * FROM file('{job['glob']}', JSONEachRow)", "use_hive_partitioning = 0")


@reader("json")
def chdb_json_text(job: Job) -> Any:
    return [
        json.loads(row["json"][1])
        for row in of_chdb(f"SELECT * FROM file('{job['glob']}', JSONAsString, 'json String')")
    ]


@reader("json")
def daft_json(job: Job) -> Any:
    import daft

    return of_arrow(daft.read_json(job["glob"]).to_arrow())


@reader("json")
def spark_json(job: Job) -> Any:
    return of_spark(spark().read.json(job["root"]))


@reader("json")
def spark_text(job: Job) -> Any:
    return [json.loads(row["value"]) for row in of_spark(spark().read.option("lineSep", "\n").text(job["root"]))]


# --- CSV


@reader("csv")
def python_csv(job: Job) -> Any:
    found: list[Any] = []
    csv.field_size_limit(1 << 30)
    for name in files(job):
        with Path(name).open(encoding="utf-8", newline="") as file:
            found += csv.DictReader(file, delimiter=job["delimiter"], strict=True)
    return found


@reader("csv")
def pandas_text(job: Job) -> Any:
    return _pandas_csv(job, dtype=str, keep_default_na=False)


@reader("csv")
def pandas_csv(job: Job) -> Any:
    return _pandas_csv(job)


def _pandas_csv(job: Job, **how: Any) -> Any:
    import pandas as pd

    return [row for name in files(job) for row in of_frame(pd.read_csv(name, sep=job["delimiter"], **how))]


@reader("csv")
def pyarrow_csv(job: Job) -> Any:
    import pyarrow.csv as pc

    found = []
    for name in files(job):
        how = pc.ParseOptions(delimiter=job["delimiter"], newlines_in_values=True)
        found += of_arrow(pc.read_csv(name, parse_options=how))
    return found


@reader("csv")
def polars_csv(job: Job) -> Any:
    import polars as pl

    return [
        row
        for name in files(job)
        for row in of_arrow(pl.read_csv(name, separator=job["delimiter"], infer_schema=False).to_arrow())
    ]


@reader("csv")
def polars_csv_glob(job: Job) -> Any:
    import polars as pl

    return of_arrow(pl.scan_csv(job["glob"], separator=job["delimiter"], infer_schema=False).collect().to_arrow())


@reader("csv")
def duckdb_csv(job: Job) -> Any:
    return of_duckdb("SELECT * FROM read_csv(?, union_by_name = true, hive_partitioning = false)", job["glob"])


@reader("csv")
def duckdb_csv_text(job: Job) -> Any:
    how = f"header = true, all_varchar = true, union_by_name = true, hive_partitioning = false, delim = '{job['delimiter']}'"
    how += """, quote = '"', escape = '"', new_line = '\\r\\n'"""
    return of_duckdb(f"SELECT * FROM read_csv(?, {how})", job["glob"])


@reader("csv")
def chdb_csv(job: Job) -> Any:
    import chdb

    how = f"format_csv_delimiter = '{job['delimiter']}', use_hive_partitioning = 0"
    found = chdb.query(f"SELECT * FROM file('{job['glob']}', CSVWithNames) SETTINGS {how}", "JSONCompactStrings")
    told = json.loads(found.bytes())
    names = [column["name"] for column in told["meta"]]
    return [dict(zip(names, row, strict=True)) for row in told["data"]]


@reader("csv")
def daft_csv(job: Job) -> Any:
    import daft

    return of_arrow(daft.read_csv(job["glob"], delimiter=job["delimiter"]).to_arrow())


@reader("csv")
def spark_csv(job: Job) -> Any:
    how = {"header": "true", "multiLine": "true", "escape": '"', "sep": job["delimiter"]}
    return of_spark(spark().read.options(**how).csv(job["root"]))


# --- engines


def of_duckdb(query: str, place: str) -> Any:
    import duckdb

    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        return of_arrow(connection.execute(query, [place]).to_arrow_table())
    finally:
        connection.close()


def of_chdb(query: str, *settings: str) -> Any:
    import chdb
    import pyarrow as pa

    # Its texts are any bytes, so as texts of Arrow they may be none.
    how = ", ".join(["output_format_arrow_string_as_string = 0", *settings])
    found = chdb.query(f"{query} SETTINGS {how}", "Arrow")
    data = found.bytes()
    return _as_raw(of_arrow(pa.ipc.open_file(pa.BufferReader(data)).read_all())) if data else []


def _as_raw(value: Any) -> Any:
    if isinstance(value, bytes):
        return ("raw", value)
    if isinstance(value, list):
        return [_as_raw(item) for item in value]
    if isinstance(value, dict):
        return {name.decode() if isinstance(name, bytes) else name: _as_raw(item) for name, item in value.items()}
    return value


_SPARK: list[Any] = []


def spark() -> Any:
    if not _SPARK:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        session = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "1g").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        _SPARK.append(session)
    return _SPARK[0]


def of_spark(frame: Any) -> Any:
    return of_arrow(frame.toArrow())


def answer(job: Job) -> dict[str, Any]:
    """By reader its rows, or why it gives none."""
    found: dict[str, Any] = {}
    for name in job["readers"]:
        try:
            found[name] = READERS[name](job)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            causes = [line for line in str(error).splitlines()[1:] if line.startswith("Caused by")]
            found[name] = f"{type(error).__name__}: {str(error)[:300]} {' '.join(causes)[:600]}"
    return found


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        with Path(job["out"]).open("wb") as out:
            pickle.dump(answer(job), out)
        sys.stdout.write("\nanswered\n")
        sys.stdout.flush()
    for session in _SPARK:
        session.stop()


if __name__ == "__main__":
    main()
