"""Tables on a local disk, mapped: a task's state can be larger than memory, and the system pages it as it has room.

A file has no name once it is mapped: it is freed with its last reader, also where the process is killed. It is a copy of state that
snapshots hold.
"""

import mmap
import tempfile
from pathlib import Path

import pyarrow as pa

from tidemark.shared.operators.base import ScratchUnavailable


def shelved(root: Path, table: pa.Table) -> pa.Table:
    """The same table, its columns in a file below `root`. ScratchUnavailable where that has no room or cannot be written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            with pa.ipc.new_file(pa.PythonFile(file, mode="w"), table.schema) as writer:
                writer.write_table(table)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ScratchUnavailable(
            f"record ids in {root}: {error}; see that the disk has room and can be written to, raise ids_bytes_max in TIDEMARK_RUNTIME,"
            " or run more tasks"
        ) from error
    return pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
