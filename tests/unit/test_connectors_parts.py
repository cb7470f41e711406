# ruff: noqa: N802 -- a test carries its rule's name
"""Parts of sinks and sources by themselves: handles, markers, tables, cells, scripts."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.opening import open_splits
from tidemark.services.sink.connectors.csvlines import csv_bytes
from tidemark.services.sink.connectors.manifests import (
    Manifest,
    decode_manifest,
    encode_manifest,
    epoch_of,
    manifest_name,
)
from tidemark.services.sink.connectors.staging import InlinePart, Ledger, Part, StagedFile, decode_handle, encode_handle
from tidemark.services.sink.connectors.tables import table_of, table_of_documents
from tidemark.services.source.connectors.script import DocumentsConnector, ScriptConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.csv_cells import text_of
from tidemark.shared.language.stages.sources.script import (
    DataStep,
    IdleStep,
    ProcessingTimeStep,
    ScriptStep,
    WatermarkStep,
)
from tidemark.shared.language.values import encode_docs
from tidemark.shared.model.ids import Epoch, Offset, SplitId
from tidemark.shared.model.values import Binary, Date, Document, Long, ObjectId, long
from tidemark.shared.operators.base import RAW, REST, TS
from tidemark.shared.operators.batches import rest_of
from tidemark.shared.ports.sink import TargetRefused

CLOCK = SystemClock()


@given(
    st.lists(
        st.one_of(
            st.builds(InlinePart, st.integers(0, 2**40), st.binary()),
            st.builds(
                StagedFile,
                st.text(),
                st.integers(0, 2**62),
                st.integers(0, 2**62),
                st.text(),
                st.dictionaries(st.text(), st.none() | st.text()),
            ),
        )
    )
)
def test_a_handle_comes_back_as_it_was(parts: list[Part]) -> None:
    """Encoding and decoding a handle changes nothing; no parts are no bytes."""
    assert decode_handle(encode_handle(tuple(parts))) == tuple(parts)
    assert encode_handle(()) == b""
    assert decode_handle(b"") == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_C5_a_ledgers_handle_has_all_that_no_commit_covers(story: list[tuple[int, bool]]) -> None:
    """Whatever is added, staged, committed or aborted: each handle holds exactly the parts since the last commit, in order."""
    ledger = Ledger()
    committed = Epoch(0)
    uncovered: list[Part] = []
    number = 0
    for epoch, (adds, commits) in enumerate(story, 1):
        for _ in range(adds):
            number += 1
            uncovered.append(InlinePart(number, b""))
            ledger.add(uncovered[-1])
        assert list(ledger.stage(Epoch(epoch), committed)) == uncovered
        if commits:
            committed, uncovered = Epoch(epoch), []


def test_epochs_are_staged_in_ascending_order() -> None:
    """An epoch below the last staged one is our own mistake; the same one may be repeated."""
    ledger = Ledger(newest=Epoch(4))
    ledger.stage(Epoch(5), Epoch(4))
    ledger.stage(Epoch(5), Epoch(4))
    with pytest.raises(ValueError, match="epoch 3 after epoch 5"):
        ledger.stage(Epoch(3), Epoch(4))


def manifest(**changes: object) -> Manifest:
    given = {
        "identity": "j.v.0",
        "job": "j",
        "vertex": "v",
        "index": 0,
        "epoch": 7,
        "predecessor": 6,
        "format": "json",
        "rows": 0,
        "files": (),
    }
    return Manifest(**{**given, **changes})  # type: ignore[arg-type]


def test_a_manifest_says_what_its_name_says() -> None:
    """A manifest comes back as it was; damaged, renamed and later ones are refused by name."""
    name = manifest_name("j.v.0", Epoch(7))
    assert epoch_of(name) == 7
    assert decode_manifest(name, encode_manifest(manifest())) == manifest()
    for data, finding in (
        (b"{", "expected a manifest of files"),
        (encode_manifest(manifest(epoch=8)), "says that it is epoch 8"),
        (encode_manifest(manifest(version=2)), "of version 1, found 2"),
    ):
        with pytest.raises(TargetRefused, match=finding):
            decode_manifest(name, data)
    with pytest.raises(TargetRefused, match="expected 20 digits"):
        epoch_of("_manifests/j.v.0/notes.txt")


def test_documents_become_columns_of_the_types_on_which_they_agree() -> None:
    """Each kind of value has its Arrow type; mixtures and the rarer kinds are text, JSON where they are none."""
    documents = [
        {
            "i": 1,
            "f": 1,
            "s": "a",
            "d": Date(5),
            "b": Binary(b"x"),
            "o": ObjectId(b"a" * 12),
            "n": Decimal("0.10"),
            "m": 1,
            "e": {},
            "z": None,
        },
        {"i": Long(2), "f": 0.5, "m": "1"},
    ]
    table = table_of_documents(documents)
    assert {field.name: str(field.type) for field in table.schema} == {
        "i": "int64", "f": "double", "s": "string", "d": "timestamp[ms, tz=UTC]", "b": "binary", "o": "string", "n": "string",
        "m": "string", "e": "string", "z": "null",
    }  # fmt: skip
    assert table.column("m").to_pylist() == ["1", "1"]
    assert table.column("n").to_pylist() == ["0.10", None]
    assert table.column("f").to_pylist() == [1.0, 0.5]


def test_numbers_are_not_rounded_to_share_a_column() -> None:
    """Whole numbers that a double cannot hold keep their digits, as text beside doubles."""
    documents: list[Document] = [{"x": Long(2**60 + 1)}, {"x": 0.5}]
    at_once = table_of(pa.RecordBatch.from_pydict({REST: rest_of(documents)}))
    for table in (table_of_documents(documents), at_once):
        assert table.column("x").to_pylist() == [str(2**60 + 1), "0.5"]


def test_declared_columns_stay_and_undeclared_ones_are_added() -> None:
    """Typed columns as they are, REST's and RAW's fields beside them, nothing of the engine's."""
    typed = {TS: pa.array([1, 2], pa.int64()), "n": pa.array([1, None], pa.int32())}
    rest = pa.RecordBatch.from_pydict({**typed, REST: rest_of([{"x": "a"}, {"n": None}])})
    assert table_of(rest).to_pylist() == [{"n": 1, "x": "a"}, {"n": None, "x": None}]
    raw = pa.RecordBatch.from_pydict({**typed, RAW: pa.array([b'{"n": 1, "x": 2}', b"{}"], pa.binary())})
    assert table_of(raw).to_pylist() == [{"n": 1, "x": 2}, {"n": None, "x": None}]
    assert table_of(rest).schema.field("n").type == pa.int32()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "true"), ("a", "a"), (Date(0), "1970-01-01T00:00:00Z"), (long(5), "5"), (0.1, "0.1"),
        (Date(-1), "1969-12-31T23:59:59.999Z"), (Date(-62_167_219_200_001), "-62167219200001"),
        (Binary(b"\x01"), "01"), (ObjectId(b"a" * 12), "61" * 12), ([1], "[1]"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_a_cells_text(value: object, text: str) -> None:
    """The one text of each kind of value in CSV cells and folder names."""
    assert text_of(value) == text


SCRIPT: tuple[ScriptStep, ...] = (
    WatermarkStep(1, None),
    DataStep({"n": 0}, 0),
    DataStep({"n": 1}, 0),
    DataStep({"n": 2}, 1),
    WatermarkStep(2, 1),
    ProcessingTimeStep(3),
    DataStep({"n": 3}, 1),
    IdleStep(0),
)


async def test_d2_a_scripts_steps_come_in_order_behind_the_rows_before_them() -> None:
    """Rows of one partition a batch, control steps with the rows that they follow, leading ones alone."""
    source = ScriptConnector(SCRIPT, CLOCK)
    await open_splits(source)
    seen = []
    while batches := await source.fetch(1 << 20, 0):
        seen += [(b.split, b.positions.tolist(), b.steps) for b in batches]
    assert seen == [
        ("script-0", [], (WatermarkStep(1, None),)),
        ("script-0", [1, 2], ()),
        ("script-1", [3], (WatermarkStep(2, 1), ProcessingTimeStep(3))),
        ("script-1", [6], (IdleStep(0),)),
    ]
    assert all(status.finished for status in source.status())


async def test_a_script_resumes_behind_the_control_steps_that_it_gave() -> None:
    """A control step is given once, also over a restart."""
    first = ScriptConnector(SCRIPT, CLOCK)
    await open_splits(first)
    for _ in range(3):
        await first.fetch(1 << 20, 0)
    second = ScriptConnector(SCRIPT, CLOCK)
    await second.open({s.split: s.next_position for s in first.status()})
    (batch,) = await second.fetch(1 << 20, 0)
    assert (batch.positions.tolist(), batch.steps) == ([6], (IdleStep(0),))
    assert await second.fetch(1 << 20, 0) == []


async def test_a_script_without_partitions_has_one_and_refuses_others() -> None:
    """Partition 0 by default (D3); opening one that the script does not name is our own mistake."""
    source = DocumentsConnector([], CLOCK)
    assert await source.splits() == {"script-0": 0}
    with pytest.raises(ValueError, match="no partition script-5"):
        await source.open({SplitId("script-5"): Offset(0)})


def test_decimals_are_bare_in_cells() -> None:
    """As every reader of CSV has them."""
    documents: list[Document] = [{"m": Decimal("2.62")}, {"m": Decimal("-1E+3")}, {"m": Decimal("NaN")}]
    cells = pa.chunked_array([pa.array(encode_docs(documents), pa.binary())])
    assert csv_bytes(cells) == b"m\r\n2.62\r\n-1E+3\r\nNaN\r\n"
    assert [text_of(document["m"]) for document in documents] == ["2.62", "-1E+3", "NaN"]
