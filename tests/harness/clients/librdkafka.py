"""`python librdkafka.py produce|consume`: librdkafka as a producer and a reader, by the script that the Go clients read."""

import base64
import json
import sys
from typing import Any

import confluent_kafka


def raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def coded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def time_of(record: Any) -> int:
    kind, time_ms = record.timestamp()
    return -1 if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else time_ms


def settings_of(said: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": said["bootstrap"],
        "compression.type": said.get("codec", "none"),
        "linger.ms": 20,
        "message.max.bytes": 16 << 20,
        **said.get("more", {}),
    }
    if said.get("level") is not None:
        settings["compression.level"] = said["level"]
    if said.get("batch_records"):
        settings["batch.num.messages"] = said["batch_records"]
    if said.get("batch_bytes"):
        settings["batch.size"] = said["batch_bytes"]
    if said.get("transactional"):
        settings |= {"transactional.id": said["transactional"], "transaction.timeout.ms": said["timeout_ms"]}
    elif said.get("idempotent"):
        settings["enable.idempotence"] = True
    else:
        settings["acks"] = said.get("acks", "all")
    if said.get("protocol"):
        settings |= {"api.version.request": False, "broker.version.fallback": said["protocol"]}
    return settings


def produce(said: dict[str, Any], records: list[dict[str, Any]]) -> None:
    producer = confluent_kafka.Producer(settings_of(said))
    if said.get("transactional"):
        producer.init_transactions()

    def answered(error: Any, _message: Any) -> None:
        if error is not None:
            sys.stderr.write(f"{error}\n")

    for one in records:
        match one.get("do"):
            case "begin":
                producer.begin_transaction()
            case "commit":
                producer.commit_transaction()
            case "abort":
                producer.abort_transaction()
            case "flush":
                producer.flush()
            case _:
                more = {} if one.get("t") is None else {"timestamp": one["t"]}
                headers = [((raw(h["n"]) or b"").decode(), raw(h["v"])) for h in one.get("h") or ()]
                if headers:
                    more["headers"] = headers
                producer.produce(
                    said["topic"], raw(one.get("v")), raw(one.get("k")), one["p"], on_delivery=answered, **more
                )
                producer.poll(0)
    producer.flush()


def consume(said: dict[str, Any], _records: list[dict[str, Any]]) -> None:
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": said["bootstrap"],
        "group.id": "reader",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.message.max.bytes": 32 << 20,
        "check.crcs": True,
    })  # fmt: skip
    ends = dict(enumerate(said["ends"]))
    consumer.assign([confluent_kafka.TopicPartition(said["topic"], p, 0) for p in ends])
    left = set(ends)
    while left:
        r = consumer.poll(20)
        if r is None:
            break
        if r.error():
            if r.error().code() == confluent_kafka.KafkaError._PARTITION_EOF and r.offset() >= ends[r.partition()]:
                left.discard(r.partition())
            continue
        headers = [{"n": coded(n.encode()), "v": coded(v)} for n, v in r.headers() or ()]
        one = {
            "p": r.partition(),
            "o": r.offset(),
            "t": time_of(r),
            "k": coded(r.key()),
            "v": coded(r.value()),
            "h": headers,
        }
        sys.stdout.write(json.dumps(one) + "\n")
    consumer.close()


if __name__ == "__main__":
    script = [json.loads(line) for line in sys.stdin]
    {"produce": produce, "consume": consume}[sys.argv[1]](script[0], script[1:])
