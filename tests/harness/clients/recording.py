"""Answers of brokers with what clients wrote, recorded beside what another client reads of them: `tests/golden/kafka/answers.jsonl`.

A recording has the bytes of each answer for a partition as the broker sent them, and the records as Kafka's own client gives them.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from tests.harness.clients.drawing import coded, raw
from tests.harness.clients.running import Row
from tidemark.shared.adapters import kafka_raw
from tidemark.shared.adapters.kafka_batches import BatchRecords, PartitionAnswer
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import TopicPartition

FILE: Final = Path(__file__).resolve().parents[2] / "golden" / "kafka" / "answers.jsonl"
_FETCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a broker, about one partition."""

    partition: int
    position: int
    aborted: tuple[tuple[int, int], ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """What a client wrote."""

    name: str
    answers: tuple[Answer, ...]
    rows: tuple[Row, ...]
    """Without headers, which sources do not read."""

    def text(self) -> str:
        """As a line."""
        answers = [[a.partition, a.position, a.aborted, coded(a.data)] for a in self.answers]
        rows = [[r.partition, r.offset, r.time_ms, coded(r.key), coded(r.value)] for r in self.rows]
        return json.dumps({"name": self.name, "answers": answers, "rows": rows}, separators=(",", ":"))


def recordings(file: Path = FILE) -> list[Recording]:
    """All that are kept."""
    found = []
    for line in file.read_text().splitlines():
        one: dict[str, Any] = json.loads(line)
        answers = [
            Answer(p, at, tuple((a, b) for a, b in aborted), base64.b64decode(d))
            for p, at, aborted, d in one["answers"]
        ]
        rows = [Row(p, o, t, raw(k), raw(v)) for p, o, t, k, v in one["rows"]]
        found.append(Recording(one["name"], tuple(answers), tuple(rows)))
    return found


def rows_of(partition: int, records: BatchRecords | Any) -> Iterator[Row]:
    """Columns as rows."""
    keys = [None] * len(records.offsets) if records.keys is None else records.keys.to_pylist()
    columns = records.offsets.tolist(), records.timestamps.tolist(), keys, records.values.to_pylist()
    for offset, time_ms, key, value in zip(*columns, strict=True):
        yield Row(partition, offset, time_ms, key, value)


def replayed(recording: Recording, max_bytes: int) -> list[Row]:
    """The records as a source has them."""
    found: list[Row] = []
    for answer in recording.answers:
        reading = PartitionAnswer(answer.data, 0, answer.position, answer.aborted, committed_only=True)
        while reading.more:
            records, _ = reading.take(max_bytes, with_keys=True)
            if records is not None:
                found += rows_of(answer.partition, records)
    return sorted(found, key=lambda row: (row.partition, row.offset))


@contextmanager
def heard() -> Iterator[list[Answer]]:
    """The answers that readers have meanwhile."""
    answers: list[Answer] = []
    before = kafka_raw.answer_of

    def answer_of(theirs: Any) -> PartitionAnswer:
        data, begin = theirs._records.__reduce__()[2]
        aborted = tuple((int(p), int(o)) for p, o in theirs._aborted_transactions or ())
        answers.append(Answer(theirs._tp.partition, theirs.next_fetch_offset, aborted, bytes(data[begin:])))
        return before(theirs)

    with patch.object(kafka_raw, "answer_of", answer_of):
        yield answers


async def read(bootstrap: str, topic: str, ends: list[int]) -> list[Row]:
    """The topic as a source reads it, to these ends."""
    reader = RawReader(KafkaSettings(bootstrap=bootstrap))
    await reader.start()
    found: list[Row] = []
    places = [TopicPartition(topic, partition) for partition in range(len(ends))]
    try:
        begins = [Offset(0)] * len(ends)
        await reader.assign(dict(zip(places, begins, strict=True)))
        while any(reader.position(place) < end for place, end in zip(places, ends, strict=True)):
            for some in await reader.fetch(_FETCH_BYTES, 500):
                assert some.offsets.dtype == np.int64
                found += rows_of(some.partition, some)
    finally:
        await reader.close()
    return sorted(found, key=lambda row: (row.partition, row.offset))
