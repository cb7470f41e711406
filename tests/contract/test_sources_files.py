# ruff: noqa: N802 -- a test carries its rule's name
"""The file source's own promises: incomplete records, sequences of files, what it refuses."""

import bz2
import datetime as dt
import errno
import gzip
import os
import random
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from tests.contract.sources_worlds import Beside, StillClock
from tests.harness.opening import open_splits
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.source.connectors.files import SEQUENCE, FileConnector, FileSourceSettings
from tidemark.services.source.filesources import file_source
from tidemark.shared.adapters.filesystems import opened
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import FileSource
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.values import Binary, Date
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.ports.source import SourcePort, SourceReplaced
from tidemark.shared.process.allowed import Allowed, NotAllowed
from tidemark.shared.process.connections import Connections


def source_of(root: Path, format_: str, *, ordered: bool = False, follow: bool = False, **types: str) -> FileConnector:
    settings = FileSourceSettings(
        glob=f"{root}/*.{format_}",
        format=format_,  # type: ignore[arg-type]
        ordered=ordered,
        follow=follow,
        types=types,
        poll_ms=1,
    )
    return FileConnector(settings, LocalFileSystem(), InlineSpawner(), StillClock(), lambda _: None)


async def read(source: SourcePort, fetches: int = 5) -> list[object]:
    batches = [batch for _ in range(fetches) for batch in await source.fetch(1 << 20, 1)]
    return [parse_json(value) for batch in batches for value in batch.values.to_pylist()]


async def start(source: FileConnector) -> FileConnector:
    await open_splits(source)
    return source


async def test_a_line_without_its_end_waits_in_a_file_that_grows(tmp_path: Path) -> None:
    """Half a line is no record while the file grows; it is read whole once its end is there."""
    path = tmp_path / "a.json"
    path.write_text('{"n": 1}\n{"n": ')
    source = await start(source_of(tmp_path, "json", follow=True))
    assert await read(source) == [{"n": 1}]
    assert source.status()[0].at_end
    with path.open("a") as file:
        file.write("2}\n")
    assert await read(source) == [{"n": 2}]


class Ailing(LocalFileSystem):  # type: ignore[misc]
    """One of whose files cannot be read for a while: a share that stutters."""

    cachable = False
    away = ""
    refused = 0

    def open(self, path: str, *args: Any, **named: Any) -> Any:
        if self.away and path.endswith(self.away):
            self.refused += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().open(path, *args, **named)


@pytest.mark.parametrize("glob", ["*/*.json", "**/*.json", "a/b.json"])
async def test_a_folder_that_cannot_be_read_is_an_outage_and_not_empty(tmp_path: Path, glob: str) -> None:
    """At any depth: else its files would count as none, or as gone, and be read again when they are back."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.json").write_text('{"n": 1}\n')
    filesystem, root = opened(str(tmp_path), {})
    settings = FileSourceSettings(glob=f"{root}/{glob}", format="json", ordered=False, types={})
    source = FileConnector(settings, filesystem, InlineSpawner(), StillClock(), lambda _: None)
    assert list(await source.splits()) == [f"{root}/a/b.json"]
    lists, asks = filesystem.ls, filesystem.info

    def fails(path: str, *_: Any, **named: Any) -> Any:
        if str(getattr(path, "path", path)).startswith(f"{root}/a") and isinstance(path, str):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return (lists if "detail" in named else asks)(path, *_, **named)

    filesystem.ls = filesystem.info = fails
    with pytest.raises(LogUnavailable, match="Stale file handle"):
        await source.splits()


@pytest.mark.parametrize("ordered", [False, True])
async def test_links_to_files_are_read_and_lead_nowhere_else(tmp_path: Path, ordered: bool) -> None:
    """As a mounted folder has them, whose files are links; a link that leads nowhere is no file."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "b.json").write_text('{"n": 1}\n')
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.json").symlink_to("../v1/b.json")
    (tmp_path / "in" / "c.json").symlink_to("../v1/nothing.json")
    (tmp_path / "in" / "d.json").mkdir()
    os.mkfifo(tmp_path / "in" / "e.json")
    (tmp_path / "in" / "f.json").symlink_to("f.json")
    source = await start(source_of(tmp_path / "in", "json", ordered=ordered))
    assert await read(source) == [{"n": 1}]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("format_", ["json", "csv"])
@pytest.mark.parametrize("glob", ["ow[n]/token*", "*/token", "**/*oken*", "in/*", "in/link", "?wn/token"])
async def test_no_pattern_and_no_link_leads_into_a_closed_folder(
    tmp_path: Path, glob: str, format_: str, ordered: bool
) -> None:
    """What a document's path says may be read; what it leads to is the installation's own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "token").write_text("secret\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("../own/token")
    source = {"path": f"{tmp_path}/{glob}", "format": format_, "ordered": ordered}
    processor = parse({"pipeline": [{"$source": source}, {"$emit": {"path": "out", "format": "json"}}]})
    stage = processor.source
    assert isinstance(stage, FileSource)
    connections = Connections("x", allowed=Allowed(closed=(str(tmp_path / "own"),)))

    async def looked_at() -> None:
        made = await file_source(connections, Beside(), processor, stage)
        await open_splits(made)
        await made.fetch(1 << 20, 1)

    with pytest.raises(NotAllowed, match="closed to documents"):
        await looked_at()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_name_that_is_no_text_is_an_error(tmp_path: Path, ordered: bool) -> None:
    """Named as it is there."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.json")).write_text('{"n": 1}\n')
    with pytest.raises(LogError, match=r"a\\udcff\.json': expected a name in UTF-8"):
        await start(source_of(tmp_path, "json", ordered=ordered))


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_is_read_in_front_of_an_outage_comes_once(tmp_path: Path, ordered: bool) -> None:
    """The connection breaks at another file of the same fetch: the rows read before it are neither lost nor read again."""
    for name in "abcd":
        (tmp_path / f"{name}.json").write_text(f'{{"n": "{name}1"}}\n{{"n": "{name}2"}}\n')
    filesystem = Ailing()
    settings = FileSourceSettings(glob=f"{tmp_path}/*.json", format="json", ordered=ordered, types={}, poll_ms=1)
    source = await start(FileConnector(settings, filesystem, InlineSpawner(), StillClock(), lambda _: None))
    found, chooser = list[Any](), random.Random(1)
    for fetch in range(40):
        filesystem.away = "" if fetch > 30 else f"{chooser.choice('abcd')}.json"
        with suppress(LogUnavailable):
            found += await read(source, 1)
    assert filesystem.refused
    assert sorted(each["n"] for each in found) == [f"{name}{row}" for name in "abcd" for row in (1, 2)]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_source_without_a_file_to_begin_with_waits_for_one(tmp_path: Path, ordered: bool) -> None:
    """It would end at once, with nothing read. One that follows its files begins, and one that has begun may end without them."""
    source = source_of(tmp_path, "json", ordered=ordered)
    with pytest.raises(
        LogUnavailable,
        match=re.escape(f"$source.path: expected at least one file that matches {tmp_path}/*.json, found none"),
    ):
        await start(source)
    (tmp_path / "a.json").write_text('{"n": 1}')
    assert await read(await start(source)) == [{"n": 1}]
    (tmp_path / "a.json").unlink()
    await source_of(tmp_path, "json", ordered=ordered).found(set(), first=False)
    await source_of(tmp_path, "json", ordered=ordered, follow=True).found(set(), first=True)


@pytest.mark.parametrize(("format_", "text"), [("json", '{"n": 1}\n\n{"n": 2}'), ("csv", "n\r\n1\r\n2")])
async def test_the_last_line_of_a_finished_file_needs_no_end(tmp_path: Path, format_: str, text: str) -> None:
    """A file that does not grow ends with its last line, ended or not; empty lines are passed."""
    (tmp_path / f"a.{format_}").write_bytes(text.encode())
    source = await start(source_of(tmp_path, format_, n="int"))
    assert await read(source) == [{"n": 1}, {"n": 2}]
    assert source.status()[0].finished


async def test_a_line_longer_than_a_fetch_is_read_whole(tmp_path: Path) -> None:
    """`max_bytes` below the length of a line still gives the line."""
    (tmp_path / "a.json").write_text('{"s": "' + "x" * 5000 + '"}\n{"s": "y"}\n')
    source = await start(source_of(tmp_path, "json"))
    values = [v for _ in range(4) for batch in await source.fetch(100, 1) for v in batch.values.to_pylist()]
    assert [len(value) for value in values] == [5009, 10]


async def test_csv_fields_take_their_declared_types_and_quotes_may_span_lines(tmp_path: Path) -> None:
    """Declared types convert; empty is missing; what does not convert stays text; a quoted field has line ends and delimiters."""
    (tmp_path / "a.csv").write_text('i,d,b,s\n1,0.5,TRUE,"a\nb,""c"""\nx,,false,\n', newline="")
    source = await start(source_of(tmp_path, "csv", i="int", d="double", b="bool"))
    assert await read(source) == [{"i": 1, "d": 0.5, "b": True, "s": 'a\nb,"c"'}, {"i": "x", "b": False}]


async def unread(source: SourcePort) -> list[tuple[int, object, str]]:
    """What was read: the byte at which each record begins, and its document, or its bytes with why they are none."""
    found: list[tuple[int, object, str]] = []
    batches = [batch for _ in range(5) for batch in await source.fetch(1 << 20, 1)]
    for batch in sorted(batches, key=lambda batch: batch.file):
        for row, value in enumerate(batch.values.to_pylist()):
            why = batch.unread.get(row, "")
            orders = batch.positions if batch.orders is None else batch.orders
            begins = int(orders[row]) - batch.file_begin
            found.append((begins, value if why else parse_json(value), why))
    return found


async def test_an_open_quote_waits_in_a_file_that_grows_and_costs_one_line_in_one_that_does_not(tmp_path: Path) -> None:
    """A CSV record that is not closed is no record; where nothing can close it, its line is bad, and the lines behind it are read."""
    path = tmp_path / "a.csv"
    path.write_text('s\na\n"b\n')
    growing = await start(source_of(tmp_path, "csv", follow=True))
    assert await read(growing) == [{"s": "a"}]
    whole = await unread(await start(source_of(tmp_path, "csv")))
    assert whole == [(2, {"s": "a"}, ""), (4, b'"b', "its quotes are no CSV: unexpected end of data")]
    with path.open("a") as file:
        file.write('c"\n')
    assert await read(growing) == [{"s": "b\nc"}]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("bad", "finding"),
    [
        (b"1,2,3", "it has 3 fields, but the header names 2"),
        (b'"1\n2",3,4', "it has 3 fields, but the header names 2"),
        (b"caf\xe9,1", "it is not UTF-8: byte 0xe9 at its byte 3"),
        (b'"a\nb\xff",1', "it is not UTF-8: byte 0xff at its byte 4"),
        (b'"a"b,1', "its quotes are no CSV: ',' expected after '\"'"),
    ],
)
async def test_a_damaged_csv_record_stands_by_itself(
    tmp_path: Path, bad: bytes, finding: str, *, ordered: bool
) -> None:
    """It comes out as its bytes, with its byte and the reason, and what stands around it is read; from any position alike."""
    (tmp_path / "0.csv").write_bytes(b"n,m\n8,8\n")
    content = b"n,m\n7,7\n" + bad + b"\r\n9,9\n"
    (tmp_path / "a.csv").write_bytes(content)
    source = await start(source_of(tmp_path, "csv", ordered=ordered))
    found = await unread(source)
    good = {"n": "9", "m": "9"}
    assert found[-3:] == [(4, {"n": "7", "m": "7"}, ""), (8, bad, finding), (content.index(b"9,9"), good, "")]
    again = source_of(tmp_path, "csv")
    await again.open({SplitId(str(tmp_path / "a.csv")): Offset(8)})
    assert await unread(again) == found[-2:]


async def test_an_open_quote_in_the_middle_takes_no_other_line_with_it(tmp_path: Path) -> None:
    """However much stands behind it, and however little is fetched at once: one line is bad, all others are read."""
    lines = [f"{n},x" for n in range(2_000)]
    lines[1_000] = '1000,"x'
    (tmp_path / "a.csv").write_text("\n".join(["n,m", *lines, ""]))
    source = await start(source_of(tmp_path, "csv"))
    batches = [batch for _ in range(400) for batch in await source.fetch(100, 1)]
    assert source.status()[0].finished
    assert [why for batch in batches for why in batch.unread.values()] == [
        "its quotes are no CSV: unexpected end of data"
    ]
    values = [value for batch in batches for value in batch.values.to_pylist()]
    assert values[1_000] == b'1000,"x'
    assert len(values) == len(lines)


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (b"n\xff\n1\n", "a.csv: byte 0: not CSV in UTF-8"),
        (gzip.compress(b"n\n1\n", mtime=0), "expected text in UTF-8, found a file that is compressed with gzip"),
    ],
)
async def test_a_file_that_is_no_csv_is_named(tmp_path: Path, content: bytes, finding: str) -> None:
    """What is wrong with the whole file is no matter of one record: nothing of it is read, and nothing is passed over."""
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(LogError, match=finding):
        await read(await start(source_of(tmp_path, "csv")))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress(b'{"n": 1}\n', mtime=0), "compressed with gzip; unpack"),
        (bz2.compress(b'{"n": 1}\n'), "compressed with bzip2; unpack"),
        ('{"n": 1}\r\n'.encode("utf-16"), "text in UTF-16; unpack or convert it"),
    ],
    ids=["gzip", "bzip2", "UTF-16"],
)
async def test_a_file_of_another_kind_is_no_json_lines(tmp_path: Path, data: bytes, kind: str) -> None:
    """Read as lines it would be dead letters without a meaning, and count as read."""
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(LogError, match=rf"a\.json: expected text in UTF-8, found a file that is {kind}"):
        await read(await start(source_of(tmp_path, "json")))


async def test_records_of_a_sequence_are_ordered_as_if_it_were_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders are bytes over all files, the same after a restart; and no record costs more because there are many files."""
    checks: list[int] = []
    crc32 = zlib.crc32

    def counted(data: bytes, value: int = 0) -> int:
        checks.append(1)
        return crc32(data, value)

    monkeypatch.setattr(zlib, "crc32", counted)
    for number in range(50):
        (tmp_path / f"{number:03}.json").write_text(f'{{"n": {number}}}\n' * 100)
    source = await start(source_of(tmp_path, "json", ordered=True))
    begun = [batch for _ in range(20) for batch in await source.fetch(1 << 20, 1)]
    again = source_of(tmp_path, "json", ordered=True)
    await again.open({SEQUENCE: source.status()[0].next_position})
    batches = begun + [batch for _ in range(40) for batch in await again.fetch(1 << 20, 1)]
    orders = [order for batch in batches if batch.orders is not None for order in batch.orders.tolist()]
    assert orders == [
        line.start() for line in re.finditer(b"{", b"".join(p.read_bytes() for p in sorted(tmp_path.iterdir())))
    ]
    assert len(checks) < 10 * len(batches)


async def test_a_file_of_many_costs_no_look_at_all_of_them(tmp_path: Path) -> None:
    """A folder of many files takes long to list. One that is followed is read on meanwhile, and what comes is found in the end."""
    clock, listed = StillClock(), []

    class Slow(LocalFileSystem):  # type: ignore[misc]
        cachable = False

        def glob(self, *args: Any, **named: Any) -> Any:
            listed.append(clock.time_ms)
            clock.time_ms += 1_000
            return super().glob(*args, **named)

    settings = FileSourceSettings(
        glob=f"{tmp_path}/*.json", format="json", ordered=True, follow=True, types={}, poll_ms=1
    )
    for number in range(100):
        (tmp_path / f"{number:03}.json").write_text(f'{{"n": {number}}}\n')
    source = await start(FileConnector(settings, Slow(), InlineSpawner(), clock, lambda _: None))
    before = len(listed)
    found = await read(source, 100)
    assert found == [{"n": number} for number in range(100)]
    assert len(listed) - before < 3
    (tmp_path / "100.json").write_text('{"n": 100}\n')
    for _ in range(100):
        clock.time_ms += 100
        found += await read(source, 1)
    assert found[100:] == [{"n": 100}]
    assert len(listed) - before < 5


async def test_I2_a_position_within_a_fetch_of_many_files_knows_its_own(tmp_path: Path) -> None:
    """A checkpoint may lie at any record of a fetch: it has the file that is read there and some before, and a restore looks at them."""
    files = [tmp_path / f"{number:03}.json" for number in range(100)]
    for number, file in enumerate(files):
        file.write_text(f'{{"n": {number}}}\n')
    source = await start(source_of(tmp_path, "json", ordered=True))
    batches = await source.fetch(1 << 20, 1)
    assert len(batches) == len(files)
    for number in (0, 3, 40, 41, 99):
        position = Offset(int(batches[number].positions[0]))
        known = source.origins(SEQUENCE, position)
        assert list(known) == [file.name for file in files[max(0, number - 15) : number + 1]]
        whole = files[number].read_text()
        files[number].write_text('{"n": "another"}\n')
        again = source_of(tmp_path, "json", ordered=True)
        again.know({SEQUENCE: known})
        with pytest.raises(SourceReplaced, match=files[number].name):
            await again.open({SEQUENCE: position})
        files[number].write_text(whole)


async def test_parquet_values_become_the_languages(tmp_path: Path) -> None:
    """Dates, timestamps of any unit, binary, nested values and nulls come out as extended JSON says them."""
    moment = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
    rows = [
        {"t": moment, "d": dt.date(2013, 1, 2), "b": b"\x01", "l": [{"x": 1, "y": None}], "n": None, "f": 1.0},
        {"t": None, "d": None, "b": None, "l": None, "n": None, "f": 2.5},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    first, second = await read(await start(source_of(tmp_path, "parquet")))
    assert second == {"f": 2.5}
    assert isinstance(first, dict)
    assert first["t"] == Date(1357016400000)
    assert first["d"] == Date(1357084800000)
    assert (bytes(first["b"]), first["l"], first["f"]) == (b"\x01", [{"x": 1}], 1.0)
    assert "n" not in first


PARQUET_CELLS = [
    (pa.array([253402300800000], pa.timestamp("ms")), Date(253402300800000)),
    (pa.array([-(10**11)], pa.timestamp("s", "UTC")), Date(-(10**14))),
    (pa.array([10_000_000], pa.date32()), Date(864_000_000_000_000)),
    (pa.array([[{"t": 10**14}]], pa.list_(pa.struct({"t": pa.timestamp("ms")}))), [{"t": Date(10**14)}]),
    (pa.array([-1], pa.timestamp("us")), Date(-1)),
    (pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())), {"a": 1, "b": None}),
    (pa.array([[(1, b"x")]], pa.map_(pa.int64(), pa.binary())), [{"k": 1, "v": Binary(b"x")}]),
    (pa.array([b"0123456789abcdef"], pa.uuid()), Binary(b"0123456789abcdef", 4)),
]


@pytest.mark.parametrize(("cells", "value"), PARQUET_CELLS, ids=[str(cells.type) for cells, _ in PARQUET_CELLS])
async def test_parquet_cells_that_python_has_no_like_of_are_read(
    tmp_path: Path, cells: pa.Array, value: object
) -> None:
    """Times before year 1 and after 9999, maps and UUIDs are values: no row ends the source."""
    pq.write_table(pa.table({"v": cells}), tmp_path / "a.parquet")
    assert await read(await start(source_of(tmp_path, "parquet"))) == [{"v": value}]


async def test_times_of_96_bits_are_read_in_all_years(tmp_path: Path) -> None:
    """As Spark writes them by default: the first and the last day of a calendar are no days of other centuries."""
    days = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2020, 1, 1)]  # noqa: DTZ001
    pq.write_table(
        pa.table({"v": pa.array(days, pa.timestamp("us")), "n": [{"at": day} for day in days]}),
        tmp_path / "a.parquet",
        use_deprecated_int96_timestamps=True,
    )
    expected = [Date(-62135596800000), Date(253402300799999), Date(1577836800000)]
    assert await read(await start(source_of(tmp_path, "parquet"))) == [{"v": day, "n": {"at": day}} for day in expected]


async def test_fields_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Of two columns with one name only the last would be read, without a word."""
    (tmp_path / "a.csv").write_text("n,n,,\n1,2,,\n")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["n", "n"]), tmp_path / "a.parquet")
    for format_ in ("csv", "parquet"):
        with pytest.raises(
            LogError, match=f"a.{format_}: expected fields of different names, found 'n' more than once"
        ):
            await read(await start(source_of(tmp_path, format_)))


async def test_csv_numbers_are_those_that_people_write(tmp_path: Path) -> None:
    """What only Python takes for a number stays a text, for the schema to refuse."""
    (tmp_path / "a.csv").write_text("n,d\n1_000,1_0.5\n\u0661,\u0661\n")
    rows = await read(await start(source_of(tmp_path, "csv", n="int", d="double")))
    assert rows == [{"n": "1_000", "d": "1_0.5"}, {"n": "\u0661", "d": "\u0661"}]


@pytest.mark.parametrize("format_", ["json", "csv"])
async def test_a_file_that_another_took_the_place_of_is_an_error(tmp_path: Path, format_: str) -> None:
    """Where no line begins at the next position, it is not the file that was read."""
    path = tmp_path / f"a.{format_}"
    path.write_text("n\n1\n" if format_ == "csv" else '{"n":1}\n')
    source = await start(source_of(tmp_path, format_, follow=True))
    assert len(await read(source)) == 1
    path.write_text("name,other\na,b\nc,d\n" if format_ == "csv" else '{"name":"a longer one"}\n')
    with pytest.raises(LogError, match="is to be read next, but no line begins there: the file was replaced"):
        await read(source)


async def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    """A half-written Parquet file is an error that says how files must appear."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1 half")
    with pytest.raises(LogError, match=r"a\.parquet: not a Parquet file"):
        await read(await start(source_of(tmp_path, "parquet")))


async def test_a_file_that_was_cut_or_deleted_is_an_error(tmp_path: Path) -> None:
    """A position behind the end of its file, or a file that is gone, is refused with its name."""
    path = tmp_path / "a.json"
    path.write_text('{"n": 1}\n')
    source = source_of(tmp_path, "json")
    await source.open({SplitId(str(path)): Offset(100)})
    with pytest.raises(LogError, match=r"position 100 is to be read next, but the file has 9 bytes"):
        await read(source)
    path.unlink()
    with pytest.raises(LogError, match="deleted before it was read"):
        await read(source)


async def test_ordered_files_that_grow_go_on_with_the_next_name(tmp_path: Path) -> None:
    """With `ordered` and `follow`, the last file grows, and a later name is read behind it, all as one split with growing positions."""
    (tmp_path / "a.json").write_text('{"n": 1}\n')
    source = await start(source_of(tmp_path, "json", ordered=True, follow=True))
    assert await read(source) == [{"n": 1}]
    with (tmp_path / "a.json").open("a") as file:
        file.write('{"n": 2}\n')
    (tmp_path / "b.json").write_text('{"n": 3}\n')
    assert await read(source) == [{"n": 2}, {"n": 3}]
    again = source_of(tmp_path, "json", ordered=True, follow=True)
    await again.open({SEQUENCE: source.status()[0].next_position})
    (tmp_path / "c.json").write_text('{"n": 4}\n')
    assert await read(again) == [{"n": 4}]


@pytest.mark.parametrize("restart", [False, True])
async def test_ordered_files_refuse_a_name_that_sorts_before(tmp_path: Path, restart: bool) -> None:
    """A file that would have come earlier is an error, while running and after a restart: nothing is skipped or repeated."""
    for name in ("b", "d"):
        (tmp_path / f"{name}.json").write_text('{"n": 1}\n')
    source = await start(source_of(tmp_path, "json", ordered=True, follow=True))
    await read(source)
    (tmp_path / "a.json").write_text('{"n": 0}\n')
    if restart:
        position = source.status()[0].next_position
        source = source_of(tmp_path, "json", ordered=True, follow=True)
        await source.open({SEQUENCE: position})
    with pytest.raises(LogError, match="sorts before it came or went"):
        await read(source)


async def test_files_are_bounded_in_number(tmp_path: Path) -> None:
    """More files than `files_max` is an error that names both numbers."""
    for name in range(3):
        (tmp_path / f"{name}.json").write_text("")
    settings = FileSourceSettings(glob=f"{tmp_path}/*.json", format="json", ordered=False, types={}, files_max=2)
    with pytest.raises(LogError, match="3 files match, but files_max is 2"):
        await FileConnector(settings, LocalFileSystem(), InlineSpawner(), StillClock(), lambda _: None).splits()


def write_numbers(path: Path, numbers: range) -> None:
    """A file of any format, put into its place whole."""
    made = path.with_name("made")
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), made)
    else:
        lines = ["n", *map(str, numbers)] if path.suffix == ".csv" else [f'{{"n": {n}}}' for n in numbers]
        made.write_text("".join(line + "\n" for line in lines))
    made.replace(path)


@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
@pytest.mark.parametrize("replaced", ["a", "b", "c"])
async def test_I2_whichever_file_of_a_sequence_was_replaced_is_named(
    tmp_path: Path, format_: str, replaced: str
) -> None:
    """The one that the position names, and those that it has passed, as the snapshot knows them; to be added to is no other file."""
    source = source_of(tmp_path, format_, ordered=True, follow=True, n="int")
    for begin, name in enumerate("abc"):
        write_numbers(tmp_path / f"{name}.{format_}", range(begin * 100, begin * 100 + 5))
    await start(source)
    assert len(await read(source)) == 15
    stands, knows = (
        {SEQUENCE: source.status()[0].next_position},
        {SEQUENCE: source.origins(SEQUENCE, source.status()[0].next_position)},
    )
    write_numbers(tmp_path / f"c.{format_}", range(200, 210))

    async def again() -> FileConnector:
        made = source_of(tmp_path, format_, ordered=True, follow=True, n="int")
        made.know(knows)
        await made.open(stands)
        return made

    assert len(await read(await again())) == 5
    write_numbers(tmp_path / f"{replaced}.{format_}", range(900, 920))
    with pytest.raises(SourceReplaced, match=rf"{replaced}\.{format_}: its first 5 records .* start without state"):
        await again()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
async def test_I2_a_file_that_is_replaced_while_it_is_read_is_named(
    tmp_path: Path, format_: str, ordered: bool
) -> None:
    """However soon: nothing of the other file is given, though it is longer than what was read of the old one."""
    path = tmp_path / f"a.{format_}"
    write_numbers(path, range(100, 105))
    source = await start(source_of(tmp_path, format_, ordered=ordered, follow=True, n="int"))
    assert len(await read(source)) == 5
    write_numbers(path, range(900, 950))
    with pytest.raises(SourceReplaced, match=rf"a\.{format_}: its first 5 records .* start without state"):
        await read(source, 1)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
async def test_I2_a_file_that_was_replaced_is_named(tmp_path: Path, format_: str, ordered: bool) -> None:
    """Another file of the same name is not read from the old one's position; one that was added to is the same."""
    path = tmp_path / f"a.{format_}"

    def source() -> FileConnector:
        return source_of(tmp_path, format_, ordered=ordered, follow=True, n="int")

    write_numbers(path, range(100, 105))
    known = await open_splits(source())
    write_numbers(path, range(100, 300))
    await source().check(known)
    write_numbers(path, range(500, 900))
    with pytest.raises(SourceReplaced, match=rf"a\.{format_}: its first 5 records .* start without state"):
        await source().check(known)
