"""Executors write segments themselves and hand back their names and numbers: no row of data goes through the driver.

A name has the attempt in it, so that a task that Spark runs twice leaves two files; the driver lists one of them (P2).
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

STATE: Final = "state"
"""`kind` of a segment that goes back into the state; else it is the port of an output."""
WRITTEN: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("content", pa.string()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("digest", pa.string()),
        ("low_ms", pa.int64()),
        ("high_ms", pa.int64()),
        ("failed", pa.int64()),
    ]
)
"""One row for each segment that an executor wrote."""
_WRITE_TRIES: Final = 5
"""The coordinator may remove a folder, as empty, between its being made and being used."""
WRITTEN_DDL: Final = (
    "kind string, content string, name string, rows bigint, size_bytes bigint, digest string,"
    " low_ms bigint, high_ms bigint, failed bigint"
)


Written = tuple[str, str, str, int, int, str, int, int, int]
"""The same row in Python."""


def write_segment(root: str, name: str, batch: pa.RecordBatch | pa.Table) -> tuple[int, str]:
    """Write a Parquet file at root/name, durable on return; its size and SHA-256."""
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="snappy")
    data = sink.getvalue().to_pybytes()
    if "://" in root:
        with fsspec.open(f"{root}/{name}", "wb") as out:
            out.write(data)
    else:
        _write_durably(Path(root), Path(root) / name, data)
    return len(data), hashlib.sha256(data).hexdigest()


def _write_durably(root: Path, path: Path, data: bytes) -> None:
    """The file, its name in its folder, and each folder's name in the one above, up to the root, survive a loss of power."""
    for attempt in range(_WRITE_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        except FileNotFoundError:
            if attempt + 1 == _WRITE_TRIES:
                raise
        else:
            break
    for folder in path.parents:
        _force(folder)
        if folder == root:
            return


def _force(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_segment(root: str, name: str) -> bytes:
    """The bytes of root/name."""
    if "://" in root:
        with fsspec.open(f"{root}/{name}", "rb") as file:
            data: bytes = file.read()
        return data
    return (Path(root) / name).read_bytes()


def written_rows(rows: list[Written]) -> Iterator[pa.RecordBatch]:
    """The rows as one batch of WRITTEN; nothing for none."""
    if rows:
        columns = list(zip(*rows, strict=True))
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, type=f.type) for c, f in zip(columns, WRITTEN, strict=True)], schema=WRITTEN
        )
