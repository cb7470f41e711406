"""Tables on a local disk, mapped: a task's state can be larger than memory, and the system pages it as it has room.

A file has no name once it is mapped: it is freed with its last reader, also where the process is killed. It is a copy of state that
snapshots hold.
"""

import mmap
import tempfile
from pathlib import Path

import pyarrow as pa

from tidemark.shared.operators.base import ScratchUnavailable


def in_temporary_files(rows: pa.RecordBatchReader) -> pa.Table:
    """`shelved` in the system's folder for temporary files."""
    return shelved(Path(tempfile.gettempdir()), rows)


def shelved(root: Path, rows: pa.RecordBatchReader) -> pa.Table:
    """The same rows, in a file below `root`. ScratchUnavailable where that has no room or cannot be written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            with pa.ipc.new_file(pa.PythonFile(file, mode="w"), rows.schema) as writer:
                for batch in rows:
                    writer.write_batch(batch)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ScratchUnavailable(
            f"state beyond memory, in {root}: {error}; see that the disk has room and can be written to, or run more tasks; ids_bytes_max"
            " (record ids) and join_bytes_max (rows of a $join) in TIDEMARK_RUNTIME say what stays in memory"
        ) from error
    return pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
