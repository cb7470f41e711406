"""Dead letters made many at a time: each is what it would be alone, and has the key that its record had, or none."""

from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.shared.language.values import decode_doc, encode_value
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.base import PART, POS, REST, SRCKEY, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Failure, dead_letters

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
    failures = [Failure(row, "why", "Code") for row in range(len(keys))]
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
            Failure(row - at, reasons[row], "Code", paths[row], document=given_documents[row])
            for row in range(at, at + count)
        ]
        (out,) = dead_letters(batch.slice(at, count), failures, "$match", context)
        cells: list[bytes] = out.batch.column(REST).to_pylist()
        return cells

    together = letters(0, len(rows))
    assert together == [cell for at in range(len(rows)) for cell in letters(at, 1)]
    assert together == [encode_value(letter) for letter in map(decode_doc, together)]
