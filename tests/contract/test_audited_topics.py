"""An audit has the records of a topic that a source has, whatever lies there."""

from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer

from tidemark.services.audit.history import Commit
from tidemark.services.audit.sources import TopicsRead
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import KafkaSource
from tidemark.shared.model.checkpoint import MirrorRow, SplitStand
from tidemark.shared.model.ids import FIRST_OFFSET, NO_EPOCH, Epoch, Generation, JobId, Offset, SplitId, VertexId

pytestmark = pytest.mark.kafka


async def test_a_batch_that_unpacks_to_much_is_audited_record_by_record(
    kafka_broker: str, unique_name: Callable[[str], str]
) -> None:
    """A source gives it out in parts; who reads record by record gets one that stands in its place, which is no input of a job."""
    topic, texts = unique_name("much"), [b"before", *[b"x" * 900_000] * 60, b"behind"]
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker))
    await log.create_topic(topic, 1)
    much = 2_000_000_000
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_broker, compression_type="gzip", max_request_size=much, max_batch_size=much
    )
    await producer.start()
    for some in (texts[:1], texts[1:-1], texts[-1:]):
        batch = producer.create_batch()
        for text in some:
            batch.append(key=None, value=text, timestamp=None)
        await (await producer.send_batch(batch, topic, partition=0))
    await producer.stop()
    stage = parse({"pipeline": [{"$source": {"connectionName": "c", "topic": topic}}]}).source
    assert isinstance(stage, KafkaSource)
    split = SplitId(f"{topic}-0")
    stands = {split: SplitStand(split, Offset(len(texts)), FIRST_OFFSET, "finished")}
    row = MirrorRow(JobId("j"), Epoch(1), NO_EPOCH, Generation(1), ())
    read = TopicsRead(VertexId("source"), stage, log, None, {}, several=False)
    (found,) = await read.records([Commit(row, stands, "here")], None)
    assert [value for batch in found.batches for value in batch.values.to_pylist()] == texts
    assert [at for batch in found.batches for at in batch.positions.tolist()] == list(range(len(texts)))
    await log.close()
