"""Tables of Delta Lake whose lives are drawn: vectors, mapped names, columns that come, go and become wider, checkpoints, clean-ups.

The oracle is a plain model of the rows; beside it the library's own scan counts them, where it takes the table.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from fsspec.implementations.local import LocalFileSystem

from tests.harness.drawndelta import DrawnDelta
from tests.harness.share import share
from tidemark.services.source.connectors.deltatable import DeltaVersions
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.services.source.connectors.tableversions import TableFile, VersionRefused

SEEDS = range(48)
LIVES = ["append", "append", "delete", "delete", "change", "change", "compact", "checkpoint", "clean"]


def drawn(place: Path, seed: int) -> DrawnDelta:
    """The table of a seed, with its first rows."""
    draw = random.Random(f"delta {seed}")
    table = DrawnDelta(place, draw.choice(["none", "name", "id"]), draw.random() < 0.5, draw.random() < 0.7, draw)
    table.append()
    return table


def texts(documents: Iterable[Any]) -> Counter[str]:
    """Documents, each as a text that is the same for the same one."""
    return Counter(json.dumps(document, sort_keys=True) for document in documents)


def read(files: Iterable[TableFile]) -> Counter[str]:
    """The rows of files; each has as many as it says."""
    found: list[Any] = []
    for file in files:
        rows = [json.loads(text) for batch in file.read() for text in texts_of(batch)]
        assert file.count() == len(rows)
        found += rows
    return texts(found)


@pytest.mark.parametrize("seed", share(SEEDS, 4))
def test_a_drawn_table_has_the_rows_of_its_model(tmp_path: Path, seed: int) -> None:
    """In each of its versions, when it is the present one; and a version that follows gives what it adds, or is refused."""
    table = drawn(tmp_path / "t", seed)
    place = str(tmp_path / "t")
    versions = DeltaVersions(LocalFileSystem(), place, lambda _: None)
    for _ in range(10):
        before, count = table.version, len(table.rows())
        takes_away = getattr(table, table.draw.choice(LIVES))()
        assert versions.newest() == table.version
        assert read(versions.files(table.version)) == texts(table.rows())
        if table.vectors:
            assert sum(batch.num_rows for batch in map(pa.record_batch, DeltaTable(place).scan())) == len(table.rows())
        if table.version == before:
            assert versions.next(before) is None
        elif takes_away:
            with pytest.raises(VersionRefused, match="takes away or changes rows that were read"):
                versions.next(before)
        else:
            assert versions.next(before) == table.version
            assert read(versions.added(table.version)) == texts(
                table.rows()[count:] if len(table.rows()) > count else []
            )
