"""Keys of records in dead letters: encoded many at a time, they are the bytes that each had, or missing."""

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.base import POS, REST, SRCKEY, TS
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
