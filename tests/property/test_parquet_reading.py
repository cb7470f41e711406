"""Parquet files are read in pieces: of any size, by readers that begin anywhere, from files of any groups of rows."""

from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.services.source.connectors.filereaders import FileReader, reader_of

ROWS = 40_000
VALUES = [b'{"n":%d}' % n for n in range(ROWS)]


def written(group: int) -> bytes:
    """A file with groups of so many rows."""
    out = BytesIO()
    pq.write_table(pa.table({"n": range(ROWS)}), out, row_group_size=group)
    return out.getvalue()


FILES = {group: written(group) for group in (7_000, 16_384, 20_000, ROWS)}


class Opened:
    """Opens a file, and remembers the handles."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.handles: list[BytesIO] = []

    def __call__(self) -> Any:
        self.handles.append(BytesIO(self._data))
        return self.handles[-1]

    @property
    def kept(self) -> int:
        """Handles that are still open."""
        return sum(not handle.closed for handle in self.handles)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(FILES)), st.integers(1, 400_000), st.sampled_from(["on", "on", "anew", "back"])),
        max_size=12,
    ),
    st.integers(0, ROWS),
)
def test_each_read_gives_the_rows_behind_its_position(reads: list[tuple[int, int, str]], begin: int) -> None:
    """Whichever files are read in between, and also by a reader that another one's position is given to, or an earlier one."""
    reader: FileReader = reader_of("parquet", {})
    at = dict.fromkeys(FILES, begin)
    opened = {group: Opened(data) for group, data in FILES.items()}
    for group, max_bytes, how in reads:
        if how == "anew":
            reader.close()
            reader = reader_of("parquet", {})
        position = at[group] // 2 if how == "back" else at[group]
        found = reader.read(opened[group], str(group), position, max_bytes, grows=False)
        assert found.values == VALUES[position : found.next_position]
        assert found.positions == list(range(position, found.next_position))
        assert found.values or position == ROWS
        assert not found.at_end or found.next_position == ROWS
        at[group] = found.next_position
    reader.close()
    assert sum(each.kept for each in opened.values()) == 0


def test_a_group_is_unpacked_once_however_often_it_is_read() -> None:
    """A reader that begins a group anew at each read unpacks what it has read before, each time."""
    reader, opened, position, reads = reader_of("parquet", {}), Opened(FILES[ROWS]), 0, 0
    while True:
        found = reader.read(opened, "f", position, 1, grows=False)
        position, reads = found.next_position, reads + 1
        if found.at_end:
            break
    assert (position, reads > len(opened.handles), opened.kept) == (ROWS, True, 0)
    assert len(opened.handles) == 3  # the first rows, the rest, and whether there are more


@pytest.mark.parametrize("files", [3, 40])
def test_few_files_are_kept_open(tmp_path: Path, files: int) -> None:
    """Each of them holds its group's packed bytes."""
    reader, opened = reader_of("parquet", {}), [Opened(FILES[ROWS]) for _ in range(files)]
    for position in (0, 16_384):
        for number, each in enumerate(opened):
            reader.read(each, str(number), position, 1, grows=False)
    assert sum(each.kept for each in opened) == min(files, 17)
    reader.close()
    assert sum(each.kept for each in opened) == 0
    path = tmp_path / "none.parquet"
    with pytest.raises(FileNotFoundError):
        reader.read(partial(path.open, "rb"), str(path), 0, 1, grows=False)


def test_rows_of_a_file_that_is_written_again_with_more_are_read() -> None:
    """While its rows are read, too: it is the same file."""
    reader = reader_of("parquet", {})
    longer = BytesIO()
    pq.write_table(pa.table({"n": range(ROWS + 5)}), longer)
    position, reads, at_end = 0, 0, False
    while not at_end:
        data = FILES[ROWS] if reads < 2 else longer.getvalue()
        rows = reader.read(partial(BytesIO, data), "f", position, 1, grows=False)
        position, reads, at_end = rows.next_position, reads + 1, rows.at_end
    assert position == ROWS + 5
