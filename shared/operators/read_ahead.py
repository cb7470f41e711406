"""Fields that a source reads in the pass that decodes its records: the paths that the operators behind it ask for.

A record stays JSON until a stage reads a path. Without this, each stage that reads undeclared fields would parse the text again. The
columns lie beside RAW, a path each; each is good as long as RAW is there: it says where in the text a value stands.
"""

import json
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.compiled.documents import buffers, cells_of
from tidemark.shared.language.fields import Path
from tidemark.shared.operators.base import RAW

READ: Final = "__read."
"""Prefix of the columns: the path follows as JSON, for a name may have points."""


def _name(path: Path) -> str:
    return READ + json.dumps(path)


def read_columns(cells: dict[Path, Tagged], values: pa.BinaryArray) -> dict[str, pa.Array]:
    """Columns of the paths read from these texts; places count from the begin of each."""
    _, bounds = buffers(values)
    return {
        _name(path): pa.StructArray.from_arrays(
            [pa.array(c.tags), pa.array(c.numbers), pa.array(c.begins - bounds[:-1]), pa.array(c.ends - bounds[:-1])],
            names=["tag", "number", "begin", "end"],
        )
        for path, c in cells.items()
    }


def read_before(batch: pa.RecordBatch, paths: Iterable[Path]) -> dict[Path, Tagged]:
    """The cells of the columns beside RAW."""
    text, bounds = buffers(batch.column(RAW))
    found = {}
    for path in paths:
        at = batch.schema.get_field_index(_name(path))
        if at >= 0 and not batch.column(at).null_count:
            parts = [pc.struct_field(batch.column(at), i).to_numpy(zero_copy_only=False) for i in range(4)]
            begins, ends = ((part + bounds[:-1]).astype(np.int32) for part in parts[2:])
            found[path] = cells_of(parts[0], parts[1], begins, ends, text)
    return found


def without_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as it leaves its task."""
    gone = [name for name in batch.schema.names if name.startswith(READ)]
    return batch.drop_columns(gone) if gone else batch
