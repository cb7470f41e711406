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
_RATIOS: Final = {"UNCOMPRESSED": 1, "SNAPPY": 22, "LZ4": 256, "GZIP": 1033}
"""To how many bytes one may unpack, by the formats: 3 become 64; one more of a length is 255; 258 for two bits. Of others too many."""
_PADDING: Final = 100
"""Arrow reads so much more of some writers' chunks."""


class Pieces:
    """Of one file, open at any place, with the footer `known`."""

    def __init__(self, file: Any, known: pq.FileMetaData) -> None:
        self._file = file
        self._known = known
        columns = range(known.num_columns)
        self._texts = [at for at in columns if known.schema.column(at).physical_type == _TEXT]
        self._readers: dict[tuple[str, ...], pq.ParquetFile] = {}
        """By the columns whose dictionaries they give."""

    def rows(self, group: int, most: int) -> int:
        """Of a row group as many rows as take some `BYTES`, however long its texts may be, at least 1; at most `most`. Raises as Arrow."""
        known = self._known.row_group(group)
        columns = [known.column(at) for at in self._texts]
        unseen = BYTES // max(1, sum(map(_bound, columns)))
        if unseen >= min(most, known.num_rows):
            return max(1, min(most, unseen))
        fronts = any(_FRONT in column.encodings for column in columns)
        paths = tuple(column.path_in_schema for column in columns if _FRONT not in column.encodings)
        longest = sum(self._longest(group, path, paths) for path in paths)
        return max(1, min(most, _FRONT_ROWS if fronts else most, BYTES // max(longest, 1)))

    def _longest(self, group: int, path: str, paths: tuple[str, ...]) -> int:
        """Bytes of a column's longest text."""
        reader = self._readers.get(paths)
        if reader is None:
            # Arrow gives dictionaries as they are; of a column without one, a dictionary of the rows that are read.
            reader = self._readers[paths] = pq.ParquetFile(
                self._file, metadata=self._known, read_dictionary=paths, buffer_size=_BUFFER_BYTES, pre_buffer=False
            )
        batches = reader.iter_batches(_LOOK_ROWS, row_groups=[group], columns=[path], use_threads=False)
        return next(filter(None, (sum(map(_longest, batch.columns)) for batch in batches)), 0)


def _bound(column: Any) -> int:
    """Bytes that a chunk of a column cannot have more of, unpacked, whatever else its file says: no text in it is longer."""
    return int(max(0, column.total_compressed_size + _PADDING) * _RATIOS.get(column.compression, BYTES))


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
