"""Tables that are damaged, or made to do harm: what reads them ends in a sentence, and never with rows that are not theirs."""

import random
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from fsspec.implementations.local import LocalFileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StructType
from pyroaring import BitMap

from tests.contract.sources_worlds import catalog_in, table_at
from tests.golden.test_tables_delta import read
from tests.harness.goldenlake import lake_table
from tidemark.services.source.connectors.deltatable import DeltaVersions
from tidemark.services.source.connectors.icebergdeletes import ValueDeletes
from tidemark.services.source.connectors.tableversions import VersionRefused, reading
from tidemark.shared.adapters.deletionvectors import places_in, unframed
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import SourceMissing

MAGIC = 1681511377


def vector(bitmaps: dict[int, bytes]) -> bytes:
    """A deletion vector: bitmaps by the upper half of their numbers."""
    inner = struct.pack("<IQ", MAGIC, len(bitmaps))
    return inner + b"".join(struct.pack("<I", high) + bitmap for high, bitmap in bitmaps.items())


def framed(inner: bytes) -> bytes:
    """As it lies in a file."""
    return struct.pack(">I", len(inner)) + inner + struct.pack(">I", zlib.crc32(inner))


def numbers(draw: random.Random) -> BitMap:
    """Containers of every kind."""
    found = BitMap()
    for _ in range(draw.randrange(6)):
        begin = draw.choice([0, 65_536 * draw.randrange(9), draw.randrange(2**32 - 100_000)])
        some = draw.choice([1, 4_095, 4_096, 4_097])
        near = draw.choice([range(begin, begin + draw.choice([1, 5_000, 65_537, 90_000])), None])
        found |= BitMap(near or draw.sample(range(begin, begin + 65_536), some))
    if draw.random() < 0.7:
        found.run_optimize()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_vector_has_the_numbers_that_were_written(seed: int) -> None:
    """By the reference library; what is damaged is refused, or has some numbers: never more work than it has bytes."""
    draw = random.Random(seed)
    for _ in range(10):
        bitmaps = {high: numbers(draw) for high in sorted(draw.sample(range(5), draw.randrange(3)))}
        inner = vector({high: bitmap.serialize() for high, bitmap in bitmaps.items()})
        expected = [(high << 32) + low for high, bitmap in bitmaps.items() for low in bitmap]
        assert np.concatenate([[], *places_in(unframed(framed(inner)))]).tolist() == expected
        damaged = bytearray(inner)
        for _ in range(3):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with suppress(ValueError):
            assert all(len(places) <= 65_536 for places in places_in(bytes(damaged)))


@pytest.mark.parametrize("entry", [b'{"add":', b"\xff\n", b"[1]\n", b'{"add":{}}\n', b'{"remove":7}\n', b"null\n"])
def test_a_damaged_entry_of_a_log_is_named(tmp_path: Path, entry: bytes) -> None:
    """Of Delta Lake."""
    for _ in range(2):
        write_deltalake(tmp_path / "t", pa.table({"n": [1]}), mode="append")
    versions = table_at(tmp_path, "delta")
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_bytes(entry)
    with pytest.raises(VersionRefused, match="version 1 cannot be read: its entry of the log is damaged"):
        versions.added(versions.next(0) or 0)


@pytest.mark.parametrize("end", ["puffin", "avro", "parquet", "metadata.json"])
def test_damaged_files_of_iceberg_end_in_a_sentence(tmp_path: Path, end: str) -> None:
    """Whatever bytes of them are others, and wherever they end."""
    versions, rows = lake_table("vectors", tmp_path)
    newest, expected = list(rows.items())[-1]
    files = [file for file in (tmp_path / "n").glob(f"**/*.{end}") if file.is_file()]
    draw = random.Random(7)
    for _ in range(60):
        file = draw.choice(files)
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        file.write_bytes(damaged[: draw.choice([draw.randrange(len(damaged)), len(damaged)])])
        with suppress(VersionRefused, SourceMissing), reading("t", newest, "f"):
            found = read(versions.files(newest)) if end != "parquet" else expected
            assert found == expected or end in ("avro", "metadata.json")
        file.write_bytes(whole)
        versions._known = None  # what is listed is kept
    versions.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_damaged_file_of_rows_is_not_tried_again(tmp_path: Path, kind: str) -> None:
    """Arrow's errors for what it cannot parse are of the kind of those for what cannot be reached."""
    rows = pa.table({"n": range(2_000), "s": [str(n) for n in range(2_000)]})
    if kind == "delta":
        write_deltalake(tmp_path / "t", rows)
    else:
        catalog = load_catalog(**catalog_in(tmp_path))
        catalog.create_namespace("n")
        catalog.create_table("n.t", rows.schema).append(rows)
        catalog.close()
    (file,) = [each for each in tmp_path.glob("**/*.parquet") if each.is_file()]
    whole, draw, refused = file.read_bytes(), random.Random(kind), 0
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 40])):
            damaged[-draw.randrange(1, draw.choice([footer, 8, len(whole)]) + 1)] = draw.randrange(256)
        file.write_bytes(damaged[: draw.choice([draw.randrange(len(damaged)), *[len(damaged)] * 3])])
        versions = table_at(tmp_path, kind)
        version = versions.newest()
        (found,) = versions.files(version)
        try:
            with reading(versions.place, version, found.name):
                found.count()
                list(found.read())
        except VersionRefused as error:
            refused += 1
            assert f"version {version} cannot be read: {found.name}: not a file" in str(error)  # noqa: PT017 - others are kept
        versions.close()
    assert refused > 50


class Away(LocalFileSystem):  # type: ignore[misc]
    """Whose files cannot be read behind their first bytes."""

    cachable = False

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """A file."""
        file = super().open(path, mode, **options)
        if not path.endswith(".parquet"):
            return file

        def reset(_: int) -> bytes:
            raise ConnectionResetError("reset by peer")

        file.read = reset
        return file


def test_a_file_of_rows_that_cannot_be_read_now_is_tried_again(tmp_path: Path) -> None:
    """Whatever Arrow makes of the error."""
    write_deltalake(tmp_path / "t", pa.table({"n": range(10)}))
    versions = DeltaVersions(Away(), str(tmp_path / "t"), lambda _: None)
    (found,) = versions.files(versions.newest())
    for ask in (found.count, lambda: list(found.read())):
        with pytest.raises(LogUnavailable, match="reset by peer; it is tried again"), reading("t", 0, found.name):
            ask()


INSIDE = Schema(
    NestedField(
        1,
        "s",
        StructType(NestedField(2, "a", LongType()), NestedField(3, "b", LongType()), NestedField(4, "c", LongType())),
    )
)


def test_rows_are_deleted_by_single_values_alone() -> None:
    """Metadata may name any column."""
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path="d", partition=Record(), equality_ids=[1]
    )
    file.spec_id = 0
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, sequence_number=2, data_file=file)
    deletes = ValueDeletes([entry], [0], [INSIDE], lambda _, __: [])
    with pytest.raises(ValueError, match=r"rows are deleted by column 1, struct<.*>; expected one of single values"):
        list(deletes.deleted(deletes.of(file, 1), 1, lambda _: []))


def test_rows_are_deleted_by_several_fields_of_one_object() -> None:
    """Each of them is a column of its own where deletes are looked for."""
    deleted = [{"a": 1, "b": 2}, {"a": None, "b": 3}]
    rows = [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": None, "b": 3}, None]

    def cells(schema: Schema, objects: list[Any]) -> Iterator[pa.RecordBatch]:
        kinds = [pa.struct([(inner.name, pa.int64()) for inner in field.field_type.fields]) for field in schema.fields]
        cut = [pa.array([o and {f.name: o.get(f.name) for f in kind} for o in objects], kind) for kind in kinds]
        yield pa.RecordBatch.from_arrays(cut, names=[field.name for field in schema.fields])

    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path="d",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=2,
        file_size_in_bytes=1,
        equality_ids=[2, 3],
    )
    file.spec_id = 0
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, sequence_number=2, data_file=file)
    deletes = ValueDeletes([entry], [0], [INSIDE], lambda _, schema: cells(schema, deleted))
    places = deletes.deleted(deletes.of(file, 1), 1, lambda schema: cells(schema, rows))
    assert np.concatenate(list(places)).tolist() == [0, 2]
