"""Rows that wait for the watermark come out key by key, in one order, whatever the order and the batches in which they came."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.property.language_strategies import DOCUMENTS, INTS, TEXTS
from tidemark.shared.language.values import canonical_key, decode_doc, decode_own_doc, encode_doc
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import Row, batch_of_rows
from tidemark.shared.operators.computation_calls import Columns
from tidemark.shared.operators.computation_rows import Stored, WaitingRows

ROWS = st.builds(
    lambda key, at, part, position, n: Row(canonical_key(key), key, encode_doc({"n": n}), at, (part, position)),
    st.integers(0, 4), st.integers(0, 20), st.integers(-1, 2), st.integers(0, 3), st.integers(0, 2),
)  # fmt: skip


def all_of(keys: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    return np.ones(len(keys), dtype=np.bool_)


@dataclass
class Model:
    """A list for each key, sorted each time."""

    rows: list[tuple[bytes, Stored]] = field(default_factory=list)

    def take(self, below_ms: int) -> dict[bytes, list[Stored]]:
        """The rows below a time."""
        taken = sorted(row for row in self.rows if row[1][0] < below_ms)
        self.rows = [row for row in self.rows if row[1][0] >= below_ms]
        return {key: [stored for k, stored in taken if k == key] for key, _ in taken}


@given(st.lists(st.one_of(st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 22)), max_size=40), st.integers(0, 5))
def test_rows_come_out_key_by_key_in_the_order_of_time_place_and_document(
    steps: list[list[Row] | int], kept: int
) -> None:
    """CR1, CR2: also those of some keys that are put back, and all of them through a snapshot."""
    waiting, model = WaitingRows(), Model()
    for step in steps:
        if isinstance(step, list):
            waiting.add(batch_of_rows(step))
            model.rows += [(row.key, (row.timestamp_ms, row.order, row.packed)) for row in step]
        else:
            wanted = model.take(step)
            for rows in list(waiting.take(step).by_key()):
                if int(rows.key[-1]) == kept:
                    waiting.put_back(rows)
                    model.rows += [(rows.key, stored) for stored in wanted.pop(rows.key)]
                    continue
                stored = rows.stored()
                assert rows.pass_below(MAX_TIME) == (len(rows), stored[-1][0])
                last = rows.last(len(rows))
                assert stored == rows.of.stored(last.start, last.stop) == wanted.pop(rows.key)
                waiting.applied(rows)
            assert not wanted
        times = sorted(stored[0] for _, stored in model.rows)
        assert len(waiting) == len(times)
        some = {key for key, _ in model.rows[::2]}
        there = waiting.stored(lambda keys: np.array([key in some for key in keys.to_pylist()], dtype=np.bool_))  # noqa: B023 - used at once
        assert there == {key: rows for key, rows in Model(list(model.rows)).take(MAX_TIME).items() if key in some}
        assert [waiting.nth_ms(n) for n in range(len(times) + 1)] == [*times, MAX_TIME]
        assert waiting.first_ms() == [*times, MAX_TIME][0]
        assert {key: waiting.of_key(key) for key, _ in model.rows} == {
            key: sum(k == key for k, _ in model.rows) for key, _ in model.rows
        }
    restored = WaitingRows()
    restored.restore(waiting.stored(all_of).items())
    assert restored.stored(all_of) == waiting.stored(all_of) == Model(list(model.rows)).take(MAX_TIME)


@given(st.lists(st.tuples(DOCUMENTS, st.none() | TEXTS | st.just("\ud800"), st.none() | INTS), min_size=1, max_size=5))
def test_columns_of_process_batch_are_the_fields_of_the_documents(
    given_rows: list[tuple[Document, str | None, int | None]],
) -> None:
    """Whatever stands beside them: dates, binaries, half a pair of surrogates."""
    packed = [encode_doc({**document, "text": text, "in.n": n}) for document, text, n in given_rows]
    schema = pa.schema([("in.n", pa.int32()), ("missing", pa.string())])
    found = Columns(schema).of(packed, range(len(packed)))
    assert found.to_pylist() == [
        {"in.n": n, "missing": None, "timestamp": at} for at, (_, _, n) in enumerate(given_rows)
    ]
    for document in packed:
        assert decode_own_doc(document)["text"] == decode_doc(document)["text"]
