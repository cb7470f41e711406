# ruff: noqa: N802 -- a test carries its rule's name
"""Delta tables of others that are made to do harm, as targets: no process ends, nothing elsewhere is read, nothing is tried for ever."""

import json
import random
import re
import shutil
import struct
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap
from structlog.testing import capture_logs

from tests.contract.test_tables_damaged import MAGIC, framed, vector
from tests.contract.test_tables_hostile import FILE, ID, PLACES, VECTORS, changed, entries
from tests.golden.test_tables_delta import HERE, table_of
from tests.harness.share import share
from tidemark.services.sink.connectors.delta import DeltaReleases
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.manifests import Manifest
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

HOSTILE = struct.pack("<IQI", MAGIC, 2**60, 0)
"""A vector of so many bitmaps that no memory holds a list of them: the library begins with one."""


def releases(root: Path) -> DeltaReleases:
    """Into the table of a folder."""
    return DeltaReleases(LocalDestination(root, "hostile"))


def publish(sink: DeltaReleases, epoch: int) -> None:
    """A release without rows."""
    before = None if epoch == 1 else Epoch(epoch - 1)
    sink.publish(
        Manifest(
            job="j",
            vertex="v",
            identity="j.v.1",
            index=1,
            epoch=Epoch(epoch),
            predecessor=before,
            format="parquet",
            rows=0,
            files=(),
        )
    )


def table_with_vector(root: Path, data: bytes, cardinality: int, **other: Any) -> Path:
    """Two small files, the first with a vector."""
    table = root / "open" / "t"
    for number in (1, 4):
        write_deltalake(table, pa.table({"n": [number, number + 1, number + 2]}), mode="append")
    entry = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    told = {"storageType": "u", "pathOrInlineDv": ID, "offset": 1, "sizeInBytes": len(data), "cardinality": cardinality}
    for line in lines:
        line.get("add", {})["deletionVector"] = told | other
        if "protocol" in line:
            line["protocol"] = VECTORS
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (table / FILE).write_bytes(b"\x01" + framed(data))
    return table


def compacted(sink: DeltaReleases) -> str:
    """Why it was not; "" where it was."""
    with capture_logs() as logs:
        sink.compact()
    (found,) = [line for line in logs if line["event"] in ("sink.compacted", "sink.not_compacted")]
    return str(found.get("reason", ""))


def test_a_table_with_a_vector_is_compacted(tmp_path: Path) -> None:
    """Its rows are what they were."""
    table = table_with_vector(tmp_path, vector({0: BitMap([1]).serialize()}), 1)
    sink = releases(table)
    publish(sink, 1)
    assert compacted(sink) == ""
    (left,) = pa.table(DeltaTable(table).get_add_actions()).to_pylist()
    assert sorted(pq.read_table(table / left["path"]).column("n").to_pylist()) == [1, 3, 4, 5, 6]
    publish(sink, 2)


@pytest.mark.parametrize(
    ("data", "cardinality", "other", "says"),
    [
        (HOSTILE, 1, {}, "ends .* too early"),
        (vector({2**30: BitMap([7]).serialize()}), 1, {}, "has row 4611686018427387911 of a file with 3"),
        (vector({0: BitMap([1]).serialize()}), 2, {}, "is told to have 2"),
        (vector({0: BitMap([1]).serialize()}), 1, {"sizeInBytes": 2**31 - 1}, "has 2147483647 bytes"),
        *((b"", 1, {"storageType": "p", "pathOrInlineDv": form}, "out of its folder") for form in PLACES),
    ],
)
def test_a_table_with_a_hostile_vector_is_not_compacted(
    tmp_path: Path, data: bytes, cardinality: int, other: dict[str, Any], says: str
) -> None:
    """The library would take what memory it tells, and end the process. Releases go on."""
    sink = releases(table_with_vector(tmp_path, data, cardinality, **other))
    publish(sink, 1)
    assert re.search(says, compacted(sink))
    publish(sink, 2)


@pytest.mark.parametrize("form", PLACES)
def test_a_file_elsewhere_is_no_reason_to_end(tmp_path: Path, form: str) -> None:
    """It is not compacted, and releases go on."""
    table = table_with_vector(tmp_path, b"", 0)
    entry = table / "_delta_log" / f"{1:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("add", {})["path"] = form.format(tmp_path)
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sink = releases(table)
    publish(sink, 1)
    assert "out of its folder" in compacted(sink)
    publish(sink, 2)


@pytest.mark.parametrize("form", [*PLACES, "../../../../closed/x", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/closed/x"])
def test_S6_no_part_of_a_checkpoint_lies_elsewhere(tmp_path: Path, form: str) -> None:
    """The library would read it wherever it is."""
    with zipfile.ZipFile(HERE / "v2checkpoint.zip") as packed:
        packed.extractall(tmp_path)
    log = tmp_path / "table" / "_delta_log"
    (checkpoint,) = log.glob("00000000000000000006.checkpoint.*.json")
    lines = [json.loads(line) for line in checkpoint.read_text().splitlines()]
    for line in lines:
        line.get("sidecar", {})["path"] = form.format(tmp_path)
    checkpoint.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TargetRefused, match="out of its folder"):
        publish(releases(tmp_path / "table"), 1)


@pytest.mark.parametrize("told", [{"version": n} for n in (3, 10**18, 10**25, -(10**18), "6", None)] + [[], 7, None])
def test_a_hint_that_lies_stops_no_release(tmp_path: Path, told: Any) -> None:
    """What it names is not there, or is no name; the library looks at the log itself."""
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    sink = releases(tmp_path)
    publish(sink, 1)
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text(json.dumps(told))
    with suppress(TargetRefused):  # the library may not read it
        publish(sink, 2)
        assert releases(tmp_path).marker("j.v.1") == 2


@pytest.mark.parametrize("name", share(["dv_parts", "v2checkpoint", "map_id", "partition_types", "widening"], 5))
def test_S6_whatever_stands_in_the_log_of_a_target_ends_in_a_sentence(tmp_path: Path, name: str) -> None:
    """No error of another kind, nothing that is tried for ever; an audit is told, too."""
    table_of(name, tmp_path)
    kept, root = (tmp_path / "table").rename(tmp_path / "kept"), tmp_path / "table"
    draw, ended = random.Random(f"target {name}"), Counter[str]()
    for _ in range(100):
        shutil.copytree(kept, root)
        entry = draw.choice(sorted(entries(root)))
        lines = [json.loads(line) for line in entry.read_bytes().splitlines()]
        at = draw.randrange(len(lines))
        lines[at] = changed(lines[at], draw)
        entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for what in ("agree", "publish", "compact", "read"):
            sink = releases(root)
            try:
                match what:
                    case "agree":
                        sink.agree(pa.schema([("another", pa.int64())]))
                    case "publish":
                        publish(sink, 1)
                    case "compact":
                        compacted(sink)
                    case "read":
                        sink.read()
                ended["done"] += 1
            except TargetRefused as error:
                ended["refused, with a trace" if "<unknown>" in str(error) else "refused"] += 1
            except TargetUnavailable as error:
                ended[f"tried again: {error}"] += 1
        shutil.rmtree(root)
    assert ended.pop("done") > 10
    assert ended.pop("refused") > 10
    assert not ended


def _with_checkpoints(root: Path) -> Path:
    """A table with rows 0 to 6, and checkpoints at versions 2 and 5; its log."""
    for number in range(7):
        write_deltalake(root, pa.table({"n": [number]}), mode="append")
        if number in (2, 5):
            DeltaTable(root).create_checkpoint()
    return root / "_delta_log"


def _checkpoint(version: int, middle: str = "", form: str = "parquet") -> str:
    return f"{version:020d}.checkpoint.{middle}{form}"


_UUID = "80a083e8-7026-4e79-81be-64bd76c43a11."


@pytest.mark.parametrize(
    ("names", "data"),
    [
        ([_checkpoint(2)], b"PAR1xx"),
        ([_checkpoint(2)], b""),
        ([_checkpoint(6)], b""),
        ([_checkpoint(6, "0000000001.0000000002.")], b"PAR1"),
        ([_checkpoint(6, f"000000000{part}.0000000002.") for part in (2, 3)], b"PAR1"),
        ([_checkpoint(6, "0000000000.0000000000.")], b"PAR1"),
        ([_checkpoint(6, "0000000001.0000000001.", "json")], b"{"),
        ([_checkpoint(6, "", "json")], b"{"),
        ([_checkpoint(6, "a" * 35 + ".")], b"PAR1"),
        ([f"{10**20 - 1}.checkpoint.parquet"], b"PAR1"),
        (["\u0660" * 19 + "\u0666.checkpoint.parquet"], b"PAR1"),
    ],
)
def test_a_damaged_checkpoint_that_nobody_reads_stops_no_release(tmp_path: Path, names: list[str], data: bytes) -> None:
    """One behind the newest, one without all of its parts, what is none by its name: the library goes on, and so do we."""
    log = _with_checkpoints(tmp_path)
    for name in names:
        (log / name).write_bytes(data)
    sink = releases(tmp_path)
    publish(sink, 1)
    publish(sink, 2)
    assert releases(tmp_path).marker("j.v.1") == 2
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 7


@pytest.mark.parametrize(
    "names",
    [
        [_checkpoint(5)],
        [_checkpoint(6)],
        [_checkpoint(6, f"000000000{part}.0000000002.") for part in (1, 2, 3)],
        [_checkpoint(6, _UUID)],
        [_checkpoint(6, _UUID, "json")],
        [_checkpoint(6, "z" * 36 + ".", "json")],
        [_checkpoint(2**63, "")],
    ],
)
def test_S6_the_newest_checkpoint_that_is_damaged_is_named(tmp_path: Path, names: list[str]) -> None:
    """The library would not open the table."""
    log = _with_checkpoints(tmp_path)
    for name in names:
        (log / name).write_bytes(b"PAR1")
    with pytest.raises(TargetRefused, match="is damaged"):
        publish(releases(tmp_path), 1)


@pytest.mark.parametrize("version", [2, 5, 6])
@pytest.mark.parametrize("middle", [_UUID, "z" * 36 + "."])
@pytest.mark.parametrize("tail", ["", "{"])
def test_S6_no_checkpoint_of_any_name_leads_elsewhere(tmp_path: Path, version: int, middle: str, tail: str) -> None:
    """Also one that is damaged behind that, and whatever stands for its UUID."""
    log = _with_checkpoints(tmp_path / "table")
    lines = [{"sidecar": {"path": f"file://{tmp_path}/x", "sizeInBytes": 1, "modificationTime": 1}}]
    (log / _checkpoint(version, middle, "json")).write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    with pytest.raises(TargetRefused, match=r"out of its folder|is damaged"):
        publish(releases(tmp_path / "table"), 1)
