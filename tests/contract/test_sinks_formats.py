# ruff: noqa: N802 -- a test carries its rule's name
"""What a file sink writes and what its reader says of it: formats, folders, types, discrepancies (protocol, S4, S6)."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.contract.sinks_targets import FilesWorld, expression
from tidemark.services.library.release_world import IDENTITY, Task, World, row_of
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.manifests import volume_name
from tidemark.services.sink.connectors.released import (
    Discrepancy,
    read_released,
    read_released_rows,
    released_manifests,
)
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.stages import DateFormat, FileFormat, KafkaEmit, OutputFormat
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.batches import batch_of as documents_batch


def visible_files(target: FilesWorld) -> set[str]:
    """As readers see them: nothing in a folder that begins with `_`."""
    names = {p.relative_to(target.root).as_posix() for p in target.root.rglob("*") if p.is_file()}
    return {name for name in names if not name.startswith("_")}


async def test_partition_by_makes_a_folder_for_each_value_and_refuses_what_is_none(tmp_path: Path) -> None:
    """`field=value` folders, escaped; null and missing have Hive's folder; nested and overlong values are refused before staging."""
    target = FilesWorld(tmp_path, "json", partition_by=("k.x",))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    documents: list[Document] = [
        {"id": 0, "k": {"x": "a/b"}},
        {"id": 1},
        {"id": 2, "k": {"x": [1]}},
        {"id": 3, "k": {"x": "y" * 300}},
    ]
    rejected = await sink.accept(documents_batch(documents))
    assert [r.row for r in rejected] == [2, 3]
    assert "found one of type array" in rejected[0].reason
    assert "at most 240 bytes" in rejected[1].reason
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    folders = {name.split("/")[-2] for name in visible_files(target)}
    assert folders == {"k.x=a%2Fb", "k.x=__HIVE_DEFAULT_PARTITION__"}
    (manifest,) = released_manifests(LocalDestination(target.root, "r"))[1:]
    assert {file.partition["k.x"] for file in manifest.files} == {"a/b", None}
    assert sorted(await target.visible()) == [0, 1]


async def test_an_expression_gives_each_document_its_folder_and_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    """Below the destination, names encoded, `partitionBy` inside; nothing leaves it, is hidden, or is in the way of what the sink keeps."""
    target = FilesWorld(tmp_path, "json", partition_by=("p",))
    target.encoding = replace(target.encoding, folder=expression({"$concat": ["days/", "$day"]}))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    days = ["one", "a b", "ü", "../../up", "_staged", "", 5, "x" * 300, "/".join("abcdefghijklmnopqrstuvwxyz")]
    rejected = await sink.accept(documents_batch([{"id": n, "p": 1, "day": day} for n, day in enumerate(days)]))
    assert [r.row for r in rejected] == [3, 4, 6, 7, 8]
    assert all(r.reason.startswith("path: ") for r in rejected)
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    folders = {name.rpartition("/")[0] for name in visible_files(target)}
    assert folders == {"days/one/p=1", "days/a b/p=1", "days/ü/p=1", "days/p=1"}
    assert sorted(await target.visible()) == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("output_format", "date_format", "text"),
    [
        (
            "relaxedJson",
            "default",
            '{"d":{"$date":"2024-01-01T00:00:00Z"},"n":{"$numberDecimal":"1.5"},"x":{"$numberDouble":"NaN"}}',
        ),
        (
            "relaxedJson",
            "ISO8601",
            '{"d":"2024-01-01T00:00:00Z","n":{"$numberDecimal":"1.5"},"x":{"$numberDouble":"NaN"}}',
        ),
        ("basicJson", "default", '{"d":1704067200000,"n":"1.5","x":"NaN"}'),
        ("basicJson", "ISO8601", '{"d":"2024-01-01T00:00:00Z","n":"1.5","x":"NaN"}'),
        (
            "canonicalJson",
            "ISO8601",
            '{"d":"2024-01-01T00:00:00Z","n":{"$numberDecimal":"1.5"},"x":{"$numberDouble":"NaN"}}',
        ),
    ],
)
async def test_documents_are_written_as_the_stage_says(
    tmp_path: Path, output_format: OutputFormat, date_format: DateFormat, text: str
) -> None:
    """`outputFormat` and `dateFormat` of files, as of topics, by rows of any types."""
    target = FilesWorld(tmp_path, "json")
    target.encoding = replace(target.encoding, output_format=output_format, date_format=date_format)
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    document: Document = {"d": Date(1704067200000), "n": Decimal("1.5"), "x": float("nan")}
    assert not await sink.accept(documents_batch([document]))
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    (name,) = visible_files(target)
    assert json.loads((target.root / name).read_text()) == json.loads(text)
    stage = KafkaEmit(
        path="$emit", connection_name="c", topic=Literal("t"), output_format=output_format, date_format=date_format
    )
    ((_, run),), _ = RecordMaker(stage, Takes()).runs(documents_batch([document]))
    assert json.loads(run.columns[0].value or b"") == json.loads(text)


@pytest.mark.parametrize(("format_", "refused"), [("csv", [0, 2]), ("parquet", [0, 2]), ("json", [])])
async def test_S6_a_row_without_a_field_is_refused_where_no_reader_would_see_it(
    tmp_path: Path, format_: FileFormat, refused: list[int]
) -> None:
    """An empty line of a CSV is no row, and Parquet has none without columns; whatever else the batch brings."""
    target = FilesWorld(tmp_path, format_)
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    rejected = await sink.accept(documents_batch([{}, {"id": 1}, {}]))
    assert [r.row for r in rejected] == refused
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    assert len(read_released_rows(str(target.root))) == 3 - len(refused)


async def release_documents(root: Path, format_: FileFormat, *groups: list[Document]) -> FilesWorld:
    """Each group is a batch of one epoch."""
    target = FilesWorld(root, format_)
    target.settings = FileSinkSettings()
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    for group in groups:
        assert not await sink.accept(documents_batch(group))
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    return target


async def test_parquet_columns_take_the_types_on_which_the_values_agree(tmp_path: Path) -> None:
    """Undeclared fields get a type from their values; what has no common one is extended JSON text; columns may be added."""
    target = await release_documents(
        tmp_path,
        "parquet",
        [{"n": 1, "t": Date(0), "mix": 1, "l": [1, 2], "s": {"a": 1}}, {"n": 2**60 + 1, "mix": "x", "s": {"b": "y"}}],
        [{"n": 5, "new": True, "mix": 2.5}],
    )
    rows = read_released_rows(str(target.root))
    assert [row["n"] for row in rows] == [1, 2**60 + 1, 5]
    assert [row["new"] for row in rows] == [None, None, True]
    assert rows[2]["mix"] == "2.5"
    assert [row.get("mix") for row in rows[:2]] == ["1", "x"]
    assert rows[0]["t"].timestamp() == 0
    assert (rows[0]["l"], rows[0]["s"], rows[1]["s"]) == ([1, 2], {"a": 1, "b": None}, {"a": None, "b": "y"})


async def test_declared_columns_keep_their_types(tmp_path: Path) -> None:
    """Typed columns go to Parquet as they are, without the engine's columns."""
    target = FilesWorld(tmp_path, "parquet")
    task = Task(World(target))
    await task.start()
    await task.epoch()
    table = read_released(str(target.root))
    assert table.schema.names == ["id", "name", "even"]
    assert table.schema.types == [pa.int64(), pa.string(), pa.bool_()]


async def test_json_lines_are_relaxed_extended_json_and_csv_is_plain_text(tmp_path: Path) -> None:
    """A document a line; in CSV dates and numbers bare, nested values as JSON, null empty, quotes where needed."""
    documents: list[Document] = [{"d": Date(1000), "n": 1, "s": 'a,"b', "o": {"x": 1}, "z": None}, {"b": True}]
    lines = await release_documents(tmp_path / "j", "json", documents)
    (name,) = visible_files(lines)
    assert json.loads((lines.root / name).read_text().splitlines()[0])["d"] == {"$date": "1970-01-01T00:00:01Z"}
    cells = await release_documents(tmp_path / "c", "csv", documents)
    assert read_released_rows(str(cells.root)) == [
        {"d": "1970-01-01T00:00:01Z", "n": "1", "s": 'a,"b', "o": '{"x":1}', "z": "", "b": ""},
        {"d": "", "n": "", "s": "", "o": "", "z": "", "b": "true"},
    ]


async def test_files_of_csv_have_the_columns_that_the_document_names(tmp_path: Path) -> None:
    """Readers that take one header for all files, as Spark does, find each value in its column; another field is refused."""
    target = FilesWorld(tmp_path, "csv")
    target.encoding = replace(target.encoding, options={"fields": ("id", "b", "a"), "delimiter": ";"})
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    groups: list[list[Document]] = [
        [{"id": 1, "a": "x"}],
        [{"b": None, "id": 2}, {"id": 3, "c": 1, "a": 2}],
        [{"b": 4}],
    ]
    for number, group in enumerate(groups):
        rejected = await sink.accept(documents_batch(group))
        assert [each.row for each in rejected] == ([1] if number == 1 else [])
        assert all("'c' is no column of the CSV" in each.reason for each in rejected)
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    texts = sorted((target.root / name).read_text() for name in visible_files(target))
    assert texts == ["id;b;a\n" + rest for rest in ("1;;x\n", "2;;\n", ";4;\n")]


async def test_a_row_without_fields_is_refused_by_parquet(tmp_path: Path) -> None:
    """Parquet cannot hold it, so it is found before staging."""
    sink = FilesWorld(tmp_path, "parquet").sink()
    await sink.open(IDENTITY, Epoch(0))
    assert len(await sink.accept(documents_batch([{}]))) == 1


async def released_world(tmp_path: Path) -> FilesWorld:
    target = FilesWorld(tmp_path, "json")
    task = Task(World(target))
    await task.start()
    await task.epoch()
    await task.epoch()
    return target


async def test_the_reader_names_the_first_discrepancy(tmp_path: Path) -> None:
    """A changed, a missing file, and a missing manifest are each found and named."""
    target = await released_world(tmp_path)
    first, second = sorted(visible_files(target))
    content = (target.root / second).read_bytes()
    (target.root / second).write_bytes(content.replace(b"n4", b"n5"))
    with pytest.raises(Discrepancy, match=f"{second}: manifest 2 of .* with digest"):
        read_released_rows(str(target.root))
    (target.root / second).write_bytes(content)
    assert len(read_released_rows(str(target.root))) == 6
    (target.root / first).unlink()
    with pytest.raises(Discrepancy, match=f"{first}: manifest 1 of .* not there"):
        read_released_rows(str(target.root))
    (target.root / volume_name(str(IDENTITY), 0)).unlink()
    with pytest.raises(Discrepancy, match=r"manifest 1 of .* follows 0, but the manifest before it is None"):
        read_released_rows(str(target.root))
