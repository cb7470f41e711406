"""Dead letters made many at a time: each is what it would be alone, and has the key that its record had, or none."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.shared.language.values import decode_doc, encode_value
from tidemark.shared.model.values import Binary, Date, long
from tidemark.shared.operators.base import PART, POS, REST, SRCKEY, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Cause, Failures, RowFailure, dead_letters

LONGER = st.sampled_from([253, 254, 255, 256, 65_533, 65_534, 65_535]).map(lambda size: b"k" * size)
"""Around the lengths at which the encoding of a length changes."""


@given(keys=st.lists(st.none() | st.binary(max_size=20) | LONGER, min_size=1, max_size=8))
@example(keys=[None, None])
@example(keys=[b"k" * 253, b"k" * 254, b"k" * 65_533, b"k" * 65_534])
@example(keys=[b"", None, b"\x00"])
def test_a_letter_has_the_key_of_its_record(keys: list[bytes | None]) -> None:
    """As the codec writes each alone, whatever lengths stand beside each other."""
    places = pa.array(range(len(keys)), pa.int64())
    batch = batch_of([{}] * len(keys), {TS: places, POS: places, SRCKEY: pa.array(keys, pa.binary())})
    failures = [RowFailure(row, "why", "Code") for row in range(len(keys))]
    (out,) = dead_letters(batch, failures, "$source", TaskContext("p", topic="t", letter_bytes_max=1_000_000))
    letters = documents_of(out.batch)
    assert [letter["_stream_meta"]["source"].get("key") for letter in letters] == [
        None if key is None else Binary(key) for key in keys
    ]
    assert out.batch.column(REST).to_pylist() == [encode_value(letter) for letter in letters]


ROWS = st.tuples(
    st.fixed_dictionaries({}, optional={"v": st.text(max_size=3) | st.sampled_from(["x" * 300, "x" * 500]), "n": st.integers(0, 9)}),
    st.none() | st.sampled_from([b"", b"k", b"k" * 200]),
    st.sampled_from(["why", "because", "r" * 600]),
    st.sampled_from(["", "v"]),
    st.none() | st.integers(-1, 2),
    st.none() | st.binary(max_size=3).map(Binary) | st.just(Binary(b"d" * 500)),
)  # fmt: skip


@given(rows=st.lists(ROWS, min_size=1, max_size=6))
@example(rows=[({"v": "x" * 500}, None, "why", "", 0, None), ({}, b"", "why", "v", None, None)])
@example(rows=[({}, b"k", "why", "", 1, None), ({"n": 1}, b"k", "r" * 600, "", 1, Binary(b"d" * 500))])
def test_a_letter_is_among_others_what_it_is_alone(
    rows: list[tuple[dict[str, Any], bytes | None, str, str, int | None, Binary | None]],
) -> None:
    """Whatever they lack, and whichever of them have to be cut."""
    documents, keys, reasons, paths, parts, given_documents = zip(*rows, strict=True)
    batch = batch_of(
        documents,
        {
            TS: pa.array(range(len(rows)), pa.int64()),
            POS: pa.array(range(len(rows)), pa.int64()),
            PART: pa.array(parts, pa.int32()),
            SRCKEY: pa.array(keys, pa.binary()),
        },
    )
    context = TaskContext("p", topic="t", letter_bytes_max=400)

    def letters(at: int, count: int) -> list[bytes]:
        failures = [
            RowFailure(row - at, reasons[row], "Code", paths[row], document=given_documents[row])
            for row in range(at, at + count)
        ]
        (out,) = dead_letters(batch.slice(at, count), failures, "$match", context)
        cells: list[bytes] = out.batch.column(REST).to_pylist()
        return cells

    together = letters(0, len(rows))
    assert together == [cell for at in range(len(rows)) for cell in letters(at, 1)]
    assert together == [encode_value(letter) for letter in map(decode_doc, together)]


CAUSES = st.sampled_from([
    Cause("why", "Code"), Cause("why", "Code", "v"), Cause("r" * 600, "Code"), Cause("\ud800", "Other", "\u00e9"), Cause("", ""),
])  # fmt: skip


def plain_letter(
    row: int, cause: Cause, given_document: Binary | None, missed: tuple[int, ...], part: int | None
) -> dict[str, Any]:
    """A letter as a document, made by itself."""
    source: dict[str, Any] = {} if part is None or part < 0 else {"partition": part, "topic": "t", "offset": long(row)}
    letter: dict[str, Any] = {
        "processorName": "p",
        "instanceName": "i",
        "dlqTime": Date(row * 1_000),
        "operatorName": "$match",
        "errInfo": cause._asdict(),
        "doc": {"n": row} if given_document is None else given_document,
    }
    if missed:
        letter["missedWindowStartTimes"] = [Date(time) for time in missed]
    return {**letter, "_stream_meta": {"source": source}}


FAILED = st.tuples(
    st.integers(0, 5), CAUSES, st.none() | st.binary(max_size=3).map(Binary), st.lists(st.integers(-5, 5), max_size=2).map(tuple),
)  # fmt: skip


@given(
    failed=st.lists(FAILED, min_size=1, max_size=9),
    parts=st.lists(st.none() | st.integers(-1, 2), min_size=6, max_size=6),
)
@example(failed=[(3, Cause("b", "B"), None, ()), (1, Cause("a", "A"), Binary(b""), (0,))], parts=[0, 1, 2, None, -1, 0])
def test_letters_made_as_columns_are_those_made_as_documents(
    failed: list[tuple[int, Cause, Binary | None, tuple[int, ...]]], parts: list[int | None]
) -> None:
    """Byte for byte, in the order of the rows, one row several times, with causes and documents of their own or shared."""
    rows = pa.array(range(6), pa.int64())
    times = pa.array([row * 1_000 for row in range(6)], pa.int64())
    batch = batch_of([{"n": row} for row in range(6)], {TS: times, POS: rows, PART: pa.array(parts, pa.int32())})
    failures = [RowFailure(row, *cause, missed, given_document) for row, cause, given_document, missed in failed]
    (out,) = dead_letters(batch, failures, "$match", TaskContext("p", "i", "t"))
    ordered = sorted(failed, key=lambda each: each[0])
    wanted = [plain_letter(row, cause, document, missed, parts[row]) for row, cause, document, missed in ordered]
    assert out.batch.column(REST).to_pylist() == [encode_value(letter) for letter in wanted]
    assert out.batch.column(POS).to_pylist() == [row for row, *_ in ordered]


@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=9), data=st.data())
def test_columns_of_failures_say_what_failures_one_by_one_say(rows: list[int], data: st.DataObject) -> None:
    """However often a cause is named, and in whatever order the rows stand."""
    causes = data.draw(st.lists(CAUSES, min_size=1, max_size=4))
    places = data.draw(st.lists(st.integers(0, len(causes) - 1), min_size=len(rows), max_size=len(rows)))
    columns = Failures(np.array(rows), causes, np.array(places))
    batch = batch_of([{"n": row} for row in range(6)], {TS: pa.array(range(6), pa.int64())})
    one_by_one = [RowFailure(row, *causes[place]) for row, place in zip(rows, places, strict=True)]
    assert list(columns) == one_by_one
    letters = [dead_letters(batch, each, "$match", TaskContext("p"))[0].batch for each in (columns, one_by_one)]
    assert letters[0] == letters[1]
