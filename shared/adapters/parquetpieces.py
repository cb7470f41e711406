"""How many rows of a Parquet file may be read together: a few bytes of a file may stand for a text of many, in each row.

A column's chunk has its texts once, in a dictionary, or without the begin that a text has in common with the one before it.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BYTES: Final = 1 << 26
"""Of texts that are unpacked together."""
_BUFFER_BYTES: Final = 1 << 16
"""Read together of each column, to see its dictionary; a column's chunk may be of any size."""
_LOOK_ROWS: Final = 64
"""Read together until one has a text: the first may have none."""
_FRONT_ROWS: Final = 256
"""At most, where texts leave out what they have in common: the longest one is known when all are unpacked."""
_FRONT: Final = "DELTA_BYTE_ARRAY"
_TEXT: Final = "BYTE_ARRAY"


def rows_together(file: Any, known: pq.FileMetaData, group: int, most: int) -> int:
    """Of a row group as many rows as take some `BYTES`, however long the texts in its dictionaries, at least 1; at most `most`.

    `file`: open, at any place, with the footer `known`. Raises as Arrow.
    """
    texts = [at for at in range(known.num_columns) if known.schema.column(at).physical_type == _TEXT]
    columns = [known.row_group(group).column(at) for at in texts]
    fronts = any(_FRONT in column.encodings for column in columns)
    paths = [column.path_in_schema for column in columns if _FRONT not in column.encodings]
    # Arrow gives dictionaries as they are; of a column without one, a dictionary of the rows that are read.
    parquet = pq.ParquetFile(file, metadata=known, read_dictionary=paths, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    longest = 0
    for path in paths:
        batches = parquet.iter_batches(_LOOK_ROWS, row_groups=[group], columns=[path], use_threads=False)
        longest += next(filter(None, (sum(map(_longest, batch.columns)) for batch in batches)), 0)
    return max(1, min(most, _FRONT_ROWS if fronts else most, BYTES // max(longest, 1)))


def _longest(column: Any) -> int:
    """Bytes of the longest texts of a column, all of its fields together."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(map(_longest, column.flatten()))
    if pa.types.is_map(kind):
        return _longest(column.keys) + _longest(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _longest(column.values)
    return 0
