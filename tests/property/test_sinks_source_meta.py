"""What `$meta` tells of a row's source is the same in a sink's expressions as in a stage in front of it."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.sinks_targets import expression
from tidemark.services.sink.connectors.filerows import Encoding, RowBuffer
from tidemark.services.sink.connectors.kafkacells import key_bytes
from tidemark.services.sink.connectors.kafkarecords import RecordMaker
from tidemark.services.sink.connectors.kafkaruns import TopicRun
from tidemark.services.sink.connectors.mergechanges import StagedChange, changes
from tidemark.shared.language.stages import KafkaEmit, KeyFormat, Merge
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import PART, POS, SRCKEY, TS
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.context import topics_told
from tidemark.shared.operators.frame import evaluated

KEYS = st.none() | st.sampled_from([b"", b"a", b'{"a": 1}', b"7", b"\xff", b"\x00" * 8])
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**40), KEYS), min_size=1, max_size=6)
FORMATS: list[KeyFormat] = ["binData", "string", "json", "long"]
PLACE: Any = {
    "$concat": [
        {"$ifNull": [{"$meta": "stream.source.topic"}, "none"]},
        "-",
        {"$toString": {"$meta": "stream.source.partition"}},
        "-",
        {"$type": {"$meta": "stream.source.key"}},
    ]
}


def keys_of(run: TopicRun) -> list[Any]:
    """Of each of its records."""
    assert run.columns.keys is not None
    return list(run.columns.keys.to_pylist())


@given(rows=ROWS, names=st.lists(st.sampled_from("abc"), max_size=3, unique=True), key_format=st.sampled_from(FORMATS))
def test_a_sink_sees_the_source_of_a_row_as_a_stage_does(
    rows: list[tuple[int, int, bytes | None]], names: list[str], key_format: KeyFormat
) -> None:
    """Topic, partition and key: of a record's topic and key, of a file's folder, of a table's name."""
    parts, places, keys = zip(*rows, strict=True)
    columns = {
        TS: pa.array(places, pa.int64()),
        POS: pa.array(places, pa.int64()),
        PART: pa.array(parts, pa.int32()),
        SRCKEY: pa.array(keys, pa.binary()),
    }
    documents: list[Document] = [{"n": row} for row in range(len(rows))]
    batch, told = batch_of(documents, columns), topics_told(names, key_format)
    place, whole = expression(PLACE), expression({"$meta": "stream.source"})
    wanted, sources = evaluated(place, batch, told).values(), evaluated(whole, batch, told).values()

    emit = KafkaEmit(path="$emit", connection_name="c", topic=place, key=whole, key_format="json")
    made, rejected = RecordMaker(emit, source_topics=told).runs(batch)
    assert not rejected
    found = {row: (run.topic, keys_of(run)[n]) for at, run in made for n, row in enumerate(at.tolist())}
    assert found == {row: (wanted[row], key_bytes(sources[row], "json")) for row in range(len(rows))}

    buffer = RowBuffer(Encoding("json", folder=place, source_topics=told))
    assert not buffer.add(batch)
    assert {file.folder for file in buffer.files()} == set(wanted)

    merge = Merge(path="$merge", connection_name="c", table=place, on=("n",))
    assert [each.table if isinstance(each, StagedChange) else each for each in changes(merge, batch, told)] == wanted
