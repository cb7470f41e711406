"""Rows that wait for the watermark come out key by key, in one order, whatever the order and the batches in which they came."""

from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.property.language_strategies import DOCUMENTS, INTS, TEXTS
from tidemark.shared.language.values import canonical_key, decode_doc, decode_own_doc, encode_doc
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import Row, batch_of_rows
from tidemark.shared.operators.computation_calls import Columns
from tidemark.shared.operators.computation_rows import KEY as NAME
from tidemark.shared.operators.computation_rows import (
    ORDINAL,
    PACKED,
    POSITION,
    TIME,
    OrderKey,
    RowsToApply,
    WaitingRows,
)

ROWS = st.builds(
    lambda key, at, part, position, n: Row(canonical_key(key), key, encode_doc({"n": n}), at, (part, position)),
    st.integers(0, 4), st.integers(0, 20), st.integers(-1, 2), st.integers(0, 3), st.integers(0, 2),
)  # fmt: skip


Stored = tuple[int, OrderKey, bytes]


def stored_in(rows: RowsToApply, places: range) -> list[Stored]:
    """(time, order key, document) of rows by their places."""
    return [(rows.times[at], rows.order(at), rows.packed[at]) for at in places]


def of_keys(rows: pa.RecordBatch) -> dict[bytes, list[Stored]]:
    """The same by key, sorted."""
    found: dict[bytes, list[Stored]] = {}
    for row in rows.to_pylist():
        found.setdefault(row[NAME], []).append((row[TIME], (row[ORDINAL], row[POSITION]), row[PACKED]))
    return {key: sorted(rows) for key, rows in found.items()}


def by_key(rows: list[tuple[bytes, Stored, int]]) -> dict[bytes, list[Stored]]:
    """Rows of each key, sorted."""
    return {key: sorted(stored for k, stored, _ in rows if k == key) for key, _, _ in rows}


@dataclass
class Model:
    """A list for each key, sorted each time."""

    rows: list[tuple[bytes, Stored, int]] = field(default_factory=list)
    """Each with the number with which it came."""

    def take(self, below_ms: int) -> dict[bytes, list[Stored]]:
        """The rows below a time."""
        taken = [row for row in self.rows if row[1][0] < below_ms]
        self.rows = [row for row in self.rows if row[1][0] >= below_ms]
        return by_key(taken)


@given(st.lists(st.one_of(st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 22)), max_size=40), st.integers(0, 5))
def test_rows_come_out_key_by_key_in_the_order_of_time_place_and_document(
    steps: list[list[Row] | int], kept: int
) -> None:
    """CR1, CR2: also those of some keys that are put back, and all of them through a snapshot."""
    waiting, model = WaitingRows(), Model()
    for step in steps:
        if isinstance(step, list):
            first = waiting.arrived
            waiting.add(batch_of_rows(step))
            model.rows += [(row.key, (row.timestamp_ms, row.order, row.packed), n) for n, row in enumerate(step, first)]
        else:
            before = list(model.rows)
            wanted = model.take(step)
            for rows in list(waiting.take(step).by_key()):
                if int(rows.key[-1]) == kept:
                    waiting.put_back(rows)
                    model.rows += [row for row in before if row[0] == rows.key and row[1][0] < step]
                    del wanted[rows.key]
                    continue
                begin = rows.at
                stored = stored_in(rows.of, range(begin, begin + len(rows)))
                assert rows.pass_below(MAX_TIME) == (len(rows), stored[-1][0])
                assert rows.last(len(rows)) == range(begin, begin + len(rows))
                assert stored == wanted.pop(rows.key)
                waiting.applied(rows)
            assert not wanted
        times = sorted(stored[0] for _, stored, _ in model.rows)
        assert len(waiting) == len(times)
        for number in (0, waiting.arrived // 2, waiting.arrived):
            assert of_keys(waiting.since(number)) == by_key([row for row in model.rows if row[2] >= number])
        assert [waiting.nth_ms(n) for n in range(len(times) + 1)] == [*times, MAX_TIME]
        assert waiting.first_ms() == [*times, MAX_TIME][0]
        names = [key for key, _, _ in model.rows]
        assert {key: waiting.of_key(key) for key in names} == {key: names.count(key) for key in names}
    restored = WaitingRows()
    restored.add(waiting.since(0))
    assert of_keys(restored.since(0)) == of_keys(waiting.since(0)) == by_key(model.rows)


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
