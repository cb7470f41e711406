"""Arrow tables as bytes for snapshots: one IPC stream, compressed with LZ4."""

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode_table(table: pa.Table | None) -> bytes | None:
    """The bytes of a table, with metadata; None for None."""
    if table is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_table(data: bytes | None) -> pa.Table | None:
    """The table of these bytes."""
    if data is None:
        return None
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
