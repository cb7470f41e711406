"""Tables that are made to do harm: small metadata may not take memory, read elsewhere, or end a source without a sentence."""

import json
import random
import resource
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from fsspec.implementations.local import LocalFileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyroaring import BitMap

from tests.contract.sources_worlds import catalog_in, table_at
from tests.contract.test_tables_damaged import MAGIC, framed, vector
from tests.golden.test_tables_delta import HERE, table_of
from tests.harness.drawndelta import z85
from tests.harness.goldenlake import lake_table
from tests.harness.share import share
from tidemark.services.source.connectors.deltatable import DeltaVersions
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.services.source.connectors.tableversions import TableVersions, VersionRefused, reading
from tidemark.shared.model.failures import is_lasting
from tidemark.shared.ports.log import LogError
from tidemark.shared.process.allowed import Allowed, NotAllowed

VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
MAPPED = {"schema.name-mapping.default": json.dumps([{"field-id": 1, "names": ["n"]}])}
ID = "0" * 20
FILE = "deletion_vector_00000000-0000-0000-0000-000000000000.bin"


def versions_in(root: Path) -> DeltaVersions:
    """The table `t` of a folder that documents may reach; beside it is one that they may not."""
    allowed = Allowed(folders=(str(root / "open"),))
    place = str(root / "open" / "t")
    return DeltaVersions(LocalFileSystem(), place, lambda path: allowed.check_place(path, "$source"))


def rows_of(versions: TableVersions, version: int = 0) -> list[bytes]:
    """Of a version; each file has as many as it says."""
    found = []
    for file in versions.files(version):
        with reading(versions.place, version, file.name):
            texts = [text for batch in file.read() for text in texts_of(batch)]
            assert file.count() == len(texts)
        found += texts
    return found


def written(root: Path, change: Callable[[dict[str, Any]], object], **actions: Mapping[str, Any]) -> Path:
    """A table with three rows, whose `add` is changed, and whose other actions are others."""
    table = root / "open" / "t"
    write_deltalake(table, pa.table({"n": [1, 2, 3]}))
    entry = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.update({name: dict(told) for name, told in actions.items() if name in line})
        if "add" in line:
            change(line["add"])
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return table


def with_vector(root: Path, told: Mapping[str, Any]) -> Path:
    """Such a table, whose file has a vector."""
    return written(root, lambda add: add.update(deletionVector=told), protocol=VECTORS)


def highest(high: int, low: int) -> bytes:
    """A vector of one row."""
    return vector({high: BitMap([low]).serialize()})


HARMFUL = {
    "rows from 2^32 on": (highest(1, 0), 1, "has row 4294967296 of a file with 3"),
    "a row just below": (highest(0, 2**32 - 1), 1, "has row 4294967295 of a file with 3"),
    "rows from 2^62 on": (highest(2**30, 7), 1, "has row 4611686018427387911 of a file with 3"),
    "rows from 2^63 on": (highest(2**32 - 1, 1), 1, "behind the 2147483648 times"),
    "the row behind the last": (highest(0, 3), 1, "has row 3 of a file with 3"),
    "fewer rows than told": (highest(0, 1), 2, "has 1 rows, and is told to have 2"),
    "more rows than told": (highest(0, 1), 0, "has 1 rows, and is told to have 0"),
    "a row twice": (vector({0: struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 1, 1)}), 2, "not in order"),
    "parts in another order": (
        struct.pack("<IQ", MAGIC, 2) + highest(0, 2)[12:] + highest(0, 1)[12:],
        2,
        "has rows that are not in order",
    ),
    "runs without an end": (
        vector({0: struct.pack("<IBHHHHHHH", 12347, 1, 0, 65535, 2, 0, 65535, 0, 65535)}),
        131072,
        "runs that overlap",
    ),
    "nothing": (b"", 1, "ends 4 bytes too early"),
}  # fmt: skip


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", HARMFUL)
def test_a_vector_takes_no_more_than_its_file_has(tmp_path: Path, name: str, *, inline: bool) -> None:
    """Whatever its highest row: a byte for each would be 4 GiB, and the process would end."""
    data, cardinality, says = HARMFUL[name]
    told = {"sizeInBytes": len(data), "cardinality": cardinality}
    if inline:
        table = with_vector(tmp_path, {"storageType": "i", "pathOrInlineDv": z85(data + bytes(-len(data) % 4)), **told})
    else:
        table = with_vector(tmp_path, {"storageType": "u", "pathOrInlineDv": ID, "offset": 1, **told})
    (table / FILE).write_bytes(b"\x01" + framed(data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(VersionRefused, match=says) as refused:
        rows_of(versions_in(tmp_path))
    assert ".parquet: not a file of the table's rows" in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"sizeInBytes": 2**31 - 1}, "has 2147483647 bytes, and one of a file with 3 rows has"),
        ({"sizeInBytes": 1000}, "has no deletion vector of 1000 bytes"),
        ({"sizeInBytes": -1}, "expected a number from 0"),
        ({"sizeInBytes": 10**30}, "expected a number from 0"),
        ({"sizeInBytes": 1e3}, "expected a number from 0"),
        ({"sizeInBytes": 8}, "ends 22 bytes too early"),
        ({"offset": 10**9}, "behind byte 1000000000"),
        ({"offset": -1}, "expected a number from 0"),
        ({"offset": 0}, "ends|checksum"),
        ({"cardinality": None}, "expected a number from 0"),
        ({"storageType": "z"}, "is stored as 'z'"),
        ({"pathOrInlineDv": "0" * 19}, "is stored as 'u'"),
        ({"pathOrInlineDv": "\x7f" * 20}, "no letter of Z85"),
        ({"pathOrInlineDv": "#" * 20}, "stand for no bytes"),
        ({"storageType": "i"}, "has 16 in the log"),
    ],
)
def test_what_a_log_tells_of_a_vector_is_checked(tmp_path: Path, told: dict[str, Any], says: str) -> None:
    """Numbers of other sizes, other letters; a vector as it should be is read."""
    data = highest(0, 1)
    whole = {"storageType": "u", "pathOrInlineDv": ID, "offset": 1, "sizeInBytes": len(data), "cardinality": 1}
    table = with_vector(tmp_path, whole)
    (table / FILE).write_bytes(b"\x01" + framed(data))
    assert rows_of(versions_in(tmp_path)) == [b'{"n":1}', b'{"n":3}']
    with_vector(tmp_path / "other", whole | told)
    (tmp_path / "other" / "open" / "t" / FILE).write_bytes(b"\x01" + framed(data))
    with pytest.raises(VersionRefused, match=says):
        rows_of(versions_in(tmp_path / "other"))


# --- elsewhere


PLACES = [
    "{0}/closed/x",
    "file://{0}/closed/x",
    "FILE:{0}/closed/x",
    "../../closed/x",
    "a/../../../closed/x",
    "s3://b/x",
    "//h/x",
]


@pytest.mark.parametrize("form", [*PLACES, "%2e%2e/%2E./closed/x", "%2Ftmp/x"])
def test_no_file_of_rows_lies_elsewhere(tmp_path: Path, form: str) -> None:
    """However it is written."""
    (tmp_path / "closed").mkdir()
    pq.write_table(pa.table({"n": [42]}), tmp_path / "closed" / "x")
    written(tmp_path, lambda add: add.update(path=form.format(tmp_path)))
    with pytest.raises(VersionRefused, match="its rows lie outside of its folder"):
        rows_of(versions_in(tmp_path))


@pytest.mark.parametrize(
    "told",
    [
        *({"storageType": "p", "pathOrInlineDv": form} for form in PLACES),
        {"storageType": "u", "pathOrInlineDv": f"../../closed{ID}"},
        {"storageType": "u", "pathOrInlineDv": f"/tmp{ID}"},
        {"storageType": "u", "pathOrInlineDv": f"file:///tmp{ID}"},
    ],
)
def test_no_vector_lies_elsewhere(tmp_path: Path, told: dict[str, Any]) -> None:
    """A file of documents' would be read, of whatever name."""
    data = highest(0, 1)
    (tmp_path / "closed").mkdir()
    for name in ("x", FILE):
        (tmp_path / "closed" / name).write_bytes(b"\x01" + framed(data))
    told = told | {"pathOrInlineDv": told["pathOrInlineDv"].format(tmp_path)}
    with_vector(tmp_path, {**told, "offset": 1, "sizeInBytes": len(data), "cardinality": 1})
    with pytest.raises(VersionRefused, match="its rows lie outside of its folder"):
        rows_of(versions_in(tmp_path))


@pytest.mark.parametrize("form", [*PLACES, "../../../../closed/x", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/closed/x"])
def test_no_part_of_a_checkpoint_lies_elsewhere(tmp_path: Path, form: str) -> None:
    """It may be a file with columns of these names that others wrote."""
    with zipfile.ZipFile(HERE / "v2checkpoint.zip") as packed:
        packed.extractall(tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "table").rename(tmp_path / "open" / "t")
    log = tmp_path / "open" / "t" / "_delta_log"
    (side,) = log.glob("_sidecars/00000000000000000006.*")
    side.rename(tmp_path / "closed" / "x")
    (checkpoint,) = log.glob("00000000000000000006.checkpoint.*.json")
    lines = [json.loads(line) for line in checkpoint.read_text().splitlines()]
    for line in lines:
        line.get("sidecar", {})["path"] = form.format(tmp_path)
    checkpoint.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(VersionRefused, match="its rows lie outside of its folder"):
        rows_of(versions_in(tmp_path), 8)


@pytest.mark.parametrize("what", ["*.parquet", FILE, "_delta_log/0*0.json", "_delta_log"])
def test_a_link_leads_nowhere_else(tmp_path: Path, what: str) -> None:
    """The file behind it is judged, be it rows, a vector or the log."""
    data = highest(0, 1)
    told = {"storageType": "u", "pathOrInlineDv": ID, "offset": 1, "sizeInBytes": len(data), "cardinality": 1}
    table = with_vector(tmp_path, told)
    (table / FILE).write_bytes(b"\x01" + framed(data))
    (tmp_path / "closed").mkdir()
    (moved,) = table.glob(what)
    moved.rename(tmp_path / "closed" / "x")
    moved.symlink_to(tmp_path / "closed" / "x")
    with pytest.raises(NotAllowed, match="expected a path below"):
        rows_of(versions_in(tmp_path))


# --- whatever stands in a log


STRANGE: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 10**30, 1e300, float("inf"), "", "x", "\x00", "../x", "/x", "file:///x", "%", "\ud800",
    "9" * 5000, [], {}, [None], {"a": None}, "long", "decimal(99,99)", "decimal(1,50)", {"type": "map"}, "{", "[]", "7", "null",
    {"type": "struct", "fields": [{}]},
]  # fmt: skip


def deep(levels: int) -> Any:
    """An array of arrays, as a type of a column."""
    found: Any = "long"
    for _ in range(levels):
        found = {"type": "array", "elementType": found, "containsNull": True}
    return found


def changed(told: Any, draw: random.Random) -> Any:
    """With another value at a drawn place, texts of JSON looked into."""
    if isinstance(told, str) and told.startswith("{") and draw.random() < 0.9:
        return json.dumps(changed(json.loads(told), draw))
    if isinstance(told, dict) and told and draw.random() < 0.9:
        name = draw.choice(list(told))
        if draw.random() < 0.1:
            return {key: value for key, value in told.items() if key != name}
        return told | {name: changed(told[name], draw)}
    if isinstance(told, list) and told and draw.random() < 0.9:
        at = draw.randrange(len(told))
        return [*told[:at], changed(told[at], draw), *told[at + draw.randrange(2) :]]
    return draw.choice([*STRANGE, deep(draw.choice([1, 99, 101, 150]))])


def entries(root: Path) -> Iterator[Path]:
    """Of a log: texts."""
    yield from (path for path in (root / "_delta_log").rglob("*") if path.suffix in (".json", "") and path.is_file())


@pytest.mark.parametrize("name", share(["map_id", "dv_parts", "v2checkpoint", "partition_types", "widening"], 3))
def test_whatever_stands_in_a_log_ends_in_a_sentence(tmp_path: Path, name: str) -> None:
    """No error of another kind, nothing that is tried for ever."""
    table_of(name, tmp_path)
    draw, root, ended = random.Random(name), tmp_path / "table", Counter[str]()
    for _ in range(150):
        entry = draw.choice(sorted(entries(root)))
        whole = entry.read_bytes()
        lines = [json.loads(line) for line in whole.splitlines()]
        at = draw.randrange(len(lines))
        lines[at] = changed(lines[at], draw)
        entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
        versions = DeltaVersions(LocalFileSystem(), str(root), lambda _: None)
        try:
            version = versions.newest()
            versions.identity()
            rows_of(versions, version)
            ended["read"] += 1
            for before in range(version):
                versions.next(before)
                versions.added(before + 1)
        except LogError as error:
            ended["refused" if is_lasting(error) else "tried again"] += 1
        entry.write_bytes(whole)
    assert ended["read"] > 10
    assert ended["refused"] > 10
    assert not ended["tried again"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", share(["by_value", "transforms", "types", "vectors_upgraded", "rolled_back"], 3))
def test_whatever_stands_in_the_metadata_of_iceberg_ends_in_a_sentence(tmp_path: Path, name: str) -> None:
    """As in a log of Delta Lake."""
    versions, rows = lake_table(name, tmp_path)
    table = versions._open()
    path = Path(table.metadata_location.removeprefix("file://"))
    whole, draw, ended = path.read_bytes(), random.Random(name), Counter[str]()
    for _ in range(100):
        path.write_text(json.dumps(changed(json.loads(whole), draw)))
        versions._known = None  # what is listed is kept
        try:
            versions.identity()
            rows_of(versions, versions.newest())
            ended["read"] += 1
            for before in rows:
                following = versions.next(before)
                assert following is None or versions.added(following) is not None
        except LogError as error:
            ended["refused" if is_lasting(error) else "tried again"] += 1
    versions.close()
    assert ended["read"] > 10
    assert ended["refused"] > 10
    assert not ended["tried again"]


def appended(root: Path, path: Path, told: int) -> TableVersions:
    """A table of Iceberg with a file that is told to have so many rows."""
    catalog = load_catalog(**catalog_in(root))
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", pa.schema([("n", pa.int64())]), properties=MAPPED)
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=str(path), file_format=FileFormat.PARQUET, partition=Record(),
        record_count=told, file_size_in_bytes=-told, column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
        lower_bounds={}, upper_bounds={}, split_offsets=[],
    )  # fmt: skip
    file.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    catalog.close()
    return table_at(root, "iceberg")


@pytest.mark.parametrize("told", [-1, 0, 2, 4, 2**62])
def test_a_file_of_iceberg_has_the_rows_that_are_told(tmp_path: Path, told: int) -> None:
    """Positions count them without opening the file: others would pass over rows, or give some twice."""
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "x.parquet")
    versions = appended(tmp_path, tmp_path / "x.parquet", told)
    with pytest.raises(VersionRefused, match=f"x.parquet: .*: it has 3 rows, and is told to have {told}"):
        rows_of(versions, versions.newest())
    versions.close()


def test_a_folder_is_no_file_of_iceberg(tmp_path: Path) -> None:
    """It never becomes one."""
    versions = appended(tmp_path, tmp_path, 3)
    with pytest.raises(VersionRefused, match="names what is no file, and can be none"):
        rows_of(versions, versions.newest())
    versions.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_footer_counts_the_rows_that_are_there(tmp_path: Path, seed: int) -> None:
    """Of Parquet: groups that are told to have other numbers of rows give no other rows, and never more than there are."""
    draw = random.Random(seed)
    table = written(tmp_path, lambda _: None)
    (file,) = table.glob("*.parquet")
    pq.write_table(pa.table({"n": range(100)}), file, row_group_size=50)
    whole, refused = file.read_bytes(), 0
    footer = int.from_bytes(whole[-8:-4], "little")
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[-9 - draw.randrange(footer)] = draw.choice([0, 2, 0x64, 0x66, 0x7F, 0xC8, 0xFE, 0xFF])
        file.write_bytes(damaged)
        versions = versions_in(tmp_path)
        try:
            assert len(rows_of(versions)) in (0, 100)
        except VersionRefused:
            refused += 1
    assert refused > 20


def test_types_and_texts_may_not_be_endless(tmp_path: Path) -> None:
    """Columns in columns, an array in a text, a line."""
    for number, (text, says) in enumerate(
        [
            (json.dumps({"fields": [{"name": "n", "type": deep(101), "nullable": True}]}), "more than 100 deep"),
            ('{"a":' * 50_000, "damaged: RecursionError"),
            ("[" * 50_000, "damaged: RecursionError"),
            ("x" * (1 << 24), "has a line of more than 16777216 bytes"),
        ]
    ):
        root = tmp_path / str(number)
        told = {"id": "x", "schemaString": text, "partitionColumns": [], "configuration": {}}
        written(root, lambda _: None, metaData=told)
        with pytest.raises(VersionRefused, match=says):
            rows_of(versions_in(root))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("integer", "2147483648"), ("long", "1e3"), ("date", "2024-13-01"), ("timestamp", "now"), ("decimal(3,1)", "123.4"), ("boolean", "2"),
     ("byte", "x"), ("double", "1,5"), ({"type": "struct", "fields": []}, "x"), ("void", "x")],
)  # fmt: skip
def test_a_value_that_divides_is_one_of_its_column(tmp_path: Path, kind: Any, text: str) -> None:
    """Else the column, the value and the type are named."""
    schema = {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("n", "long"), ("p", kind))],
    }
    told = {"id": "x", "schemaString": json.dumps(schema), "partitionColumns": ["p"], "configuration": {}}
    written(tmp_path, lambda add: add.update(partitionValues={"p": text}), metaData=told)
    with pytest.raises(VersionRefused, match=f"column p divides the table, and is '{text}'"):
        rows_of(versions_in(tmp_path))


def test_a_name_that_no_file_can_have_is_not_looked_for_again(tmp_path: Path) -> None:
    """Of rows, and of a part of a checkpoint: the system refuses it each time."""
    written(tmp_path, lambda add: add.update(path="9" * 5000))
    with pytest.raises(VersionRefused, match="names what is no file, and can be none"):
        rows_of(versions_in(tmp_path))
    _, rows = table_of("v2checkpoint", tmp_path)
    root = tmp_path / "table"
    for checkpoint in (root / "_delta_log").glob("*.checkpoint.*.json"):
        checkpoint.write_text(json.dumps({"sidecar": {"path": "9" * 5000}}))
    versions = DeltaVersions(LocalFileSystem(), str(root), lambda _: None)
    with pytest.raises(VersionRefused, match="names what is no file, and can be none"):
        rows_of(versions, max(rows))


def test_hints_that_lie_are_passed_over(tmp_path: Path) -> None:
    """The checkpoint that a log says to be its last one spares a listing, and no more."""
    _, rows = table_of("v2checkpoint", tmp_path)
    hint = tmp_path / "table" / "_delta_log" / "_last_checkpoint"
    lies: list[Any] = [{"version": n} for n in (3, 7, 10**25, -1, "6", None, 1e400)]
    lies += [{"version": 6, "parts": n} for n in (2, 10**12, -1)] + [
        {"version": 6, "v2Checkpoint": {"path": "../x"}},
        [],
        7,
    ]
    for told in lies:
        hint.write_text(json.dumps(told))
        versions = DeltaVersions(LocalFileSystem(), str(tmp_path / "table"), lambda _: None)
        assert versions.newest() == max(rows)
        for version in rows:
            assert Counter(rows_of(versions, version)) == rows[version], told


@pytest.mark.parametrize("hinted", [True, False])
def test_what_is_behind_a_damaged_checkpoint_suffices(tmp_path: Path, *, hinted: bool) -> None:
    """An older one with the entries since, or all entries; without them the damage is told."""
    for number in range(7):
        write_deltalake(tmp_path, pa.table({"n": [number]}), mode="append")
        if number in (2, 5):
            DeltaTable(tmp_path).create_checkpoint()
    log = tmp_path / "_delta_log"
    if not hinted:
        (log / "_last_checkpoint").unlink()

    def found() -> int:
        return len(rows_of(DeltaVersions(LocalFileSystem(), str(tmp_path), lambda _: None), 6))

    (log / f"{5:020d}.checkpoint.parquet").write_bytes(b"PAR1xx")
    assert found() == 7
    (log / f"{0:020d}.json").unlink()
    assert found() == 7
    (log / f"{2:020d}.checkpoint.parquet").write_bytes(b"PAR1xx")
    with pytest.raises(VersionRefused, match="is damaged"):
        found()


def test_a_vector_beside_a_wider_column(tmp_path: Path) -> None:
    """The file has the narrow type, and rows are counted as they lie there."""
    for first in (1, 4):
        narrow = pa.table({"n": pa.array([first, first + 1, first + 2], pa.int32())})
        write_deltalake(tmp_path, narrow, mode="append")
    data = vector({0: BitMap([1]).serialize()})
    told = {"storageType": "u", "pathOrInlineDv": ID, "offset": 1, "sizeInBytes": len(data), "cardinality": 1}
    (tmp_path / FILE).write_bytes(b"\x01" + framed(data))
    features = ["deletionVectors", "typeWidening"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    entry = tmp_path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("add", {})["deletionVector"] = told
        if "protocol" in line:
            line["protocol"] = protocol
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            changed_to = {"toType": "long", "fromType": "integer"}
            schema["fields"][0] |= {"type": "long", "metadata": {"delta.typeChanges": [changed_to]}}
            line["metaData"]["schemaString"] = json.dumps(schema)
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    versions = DeltaVersions(LocalFileSystem(), str(tmp_path), lambda _: None)
    assert sorted(rows_of(versions, 1)) == [b'{"n":1}', b'{"n":3}', b'{"n":4}', b'{"n":5}', b'{"n":6}']
