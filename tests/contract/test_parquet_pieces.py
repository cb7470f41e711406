"""A few bytes of a Parquet file may stand for a text of many in each row: no batch has more bytes than it should."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.services.source.connectors import filereaders
from tidemark.services.source.connectors.filereaders import FileRecords, ParquetRows
from tidemark.services.source.connectors.tablerows import PARQUET, Columns, DataFile, by_name
from tidemark.shared.adapters.parquetpieces import BYTES, Pieces, _bound

LONG = "x" * (1 << 20)
COLUMNS: dict[str, Any] = {
    "texts": [LONG] * 600,
    "null first": [None] * 100 + [LONG] * 500,
    "in objects": [None] + [{"a": LONG}] * 599,
    "in lists": [[]] + [[LONG]] * 599,
    "in maps": pa.array([[]] + [[("k", LONG)]] * 599, pa.map_(pa.string(), pa.string())),
}


def together(path: Path) -> int:
    """Rows of its first group."""
    with path.open("rb") as file:
        return Pieces(file, pq.read_metadata(path)).rows(0, 16_384)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_text_in_a_dictionary_is_not_unpacked_for_many_rows(tmp_path: Path, name: str, *, kept: bool) -> None:
    """`kept`: the type of Arrow is in the file; 1 MiB in it stands for 600."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": range(600), "t": COLUMNS[name]}), path, store_schema=kept)
    assert path.stat().st_size < 1 << 20
    rows = together(path)
    assert BYTES // len(LONG) - rows in (0, 1)  # a key has a byte
    batches = pq.ParquetFile(path).iter_batches(rows)
    assert max(batch.nbytes for batch in batches) < 2 * BYTES


def test_texts_that_begin_alike_are_read_few_at_a_time(tmp_path: Path) -> None:
    """They are as long as they like, and take no bytes; those of other columns are counted, too."""
    path, texts = tmp_path / "x.parquet", [f"{LONG}{number}" for number in range(300)]
    pq.write_table(pa.table({"t": texts}), path, use_dictionary=False, column_encoding={"t": "DELTA_BYTE_ARRAY"})
    assert together(path) == 256


def test_short_texts_are_read_as_ever(tmp_path: Path) -> None:
    """Whatever lies beside them."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": range(600), "t": ["abc"] * 600, "l": [["x"]] * 600, "no": [None] * 600}), path)
    assert together(path) >= 600


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4", "zstd", "brotli"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_no_text_is_longer_than_its_chunk_can_be(tmp_path: Path, codec: str, *, dictionary: bool) -> None:
    """What packs best there is: a letter, again and again."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"t": ["x" * (1 << 24)]}), path, compression=codec, use_dictionary=dictionary)
    assert _bound(pq.read_metadata(path).row_group(0).column(0)) >= 1 << 24
    assert 1 <= together(path) <= 4


def test_small_groups_are_not_looked_into(tmp_path: Path) -> None:
    """A table may have very many; what is unpacked of some hundred bytes is little, however they were packed."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": range(100), "t": [f"some text {n}" for n in range(100)]}), path)
    assert Pieces(None, pq.read_metadata(path)).rows(0, 16_384) >= 100


def test_a_read_of_a_file_gives_few_of_them(tmp_path: Path) -> None:
    """All rows come, in order, in pieces; not one of 600 MiB."""
    path, reader, position = tmp_path / "x.parquet", ParquetRows(), 0
    pq.write_table(pa.table({"t": [LONG] * 200}), path)
    while position < 200:
        found = reader.read(lambda: path.open("rb"), "x", position, 1 << 20, grows=False)
        assert sum(map(len, found.values)) < 2 * BYTES
        position = found.next_position
    reader.close()


def test_a_file_of_a_table_gives_few_of_them(tmp_path: Path) -> None:
    """Of each of its row groups."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"t": ["a"] * 200 + [LONG] * 200}), path, row_group_size=200, store_schema=False)
    columns = Columns(pa.schema([("t", pa.string())]), lambda column, among: by_name(column.name, among))
    sizes = [(batch.num_rows, batch.nbytes) for batch in DataFile(lambda: path.open("rb"), PARQUET, columns).rows()]
    assert sum(rows for rows, _ in sizes) == 400
    assert sizes[0][0] == 200
    assert max(size for _, size in sizes) < 2 * BYTES


def test_a_thread_that_counts_may_take_what_another_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group that was read in part is let go for newer ones, while a count of the same file goes on in it."""
    reader = ParquetRows()

    class Meanwhile(io.FileIO):
        def close(self) -> None:
            super().close()
            if places and self.name == tmp_path / "b":
                read("a", places.pop("a"))

    def read(name: str, position: int) -> FileRecords:
        return reader.read(lambda: Meanwhile(tmp_path / name), name, position, 1, grows=True)

    for name in "abc":
        pq.write_table(pa.table({"n": range(100_000)}), tmp_path / name)
    places: dict[str, int] = {}
    begun = {name: read(name, 1).next_position for name in "ab"}
    places.update(begun)
    monkeypatch.setattr(filereaders, "_BEGUN_BYTES", 0)
    assert read("c", 1).positions[0] == 1
    assert "a" not in places, "nothing was let go"
    reader.close()
