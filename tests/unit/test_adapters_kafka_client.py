"""Settings that hide secrets and refuse contradictions, errors in the port's words, the lid on the library's log."""

import asyncio
import contextlib
import logging
from types import SimpleNamespace

import pytest
from aiokafka import errors

from tidemark.shared.adapters import kafka_client, kafka_codes, kafka_reader
from tidemark.shared.adapters.kafka_client import LogLid, translated
from tidemark.shared.adapters.kafka_log import KafkaGroups, KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import Fenced, LogError, LogUnavailable, RecordTooLarge


def test_secrets_do_not_show() -> None:
    """Passwords and tokens are in no repr, so in no log and no error."""
    settings = KafkaSettings(
        bootstrap="a:1,b:2",
        security_protocol="SASL_SSL",
        sasl_username="user",
        sasl_password="hunter2",
        sasl_token_provider="token7",
        ssl_key_password="hunter3",
    )
    assert "user" in repr(settings)
    assert not any(secret in repr(settings) + str(settings) for secret in ("hunter2", "hunter3", "token7"))
    assert settings.connection("x")["sasl_plain_password"] == "hunter2"
    assert settings.connection("x")["bootstrap_servers"] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"bootstrap": ""}, "bootstrap"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_username"),
        ({"message_bytes_max": 10_000_000}, "partition_fetch_bytes_max"),
        ({"delivery_timeout_ms": 10}, "delivery_timeout_ms"),
    ],
)
def test_contradictions_are_named(wrong: dict[str, object], named: str) -> None:
    """Settings that cannot work together are refused, by name."""
    with pytest.raises(ValueError, match=named):
        KafkaSettings(**{"bootstrap": "a:1", **wrong})  # type: ignore[arg-type]


async def test_missing_certificates_are_named_at_the_start() -> None:
    """Files that the settings name and that are not there are reported before anything is connected."""
    settings = KafkaSettings(bootstrap="a:1", security_protocol="SSL", ssl_ca_file="/no/such/ca.pem")
    with pytest.raises(LogError, match=r"ssl_ca_file /no/such/ca\.pem: expected a file of certificates"):
        KafkaLog(settings)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ProducerFenced(), Fenced),
        (errors.InvalidProducerEpoch(), Fenced),
        (errors.KafkaConnectionError("away"), LogUnavailable),
        (errors.NotLeaderForPartitionError(), LogUnavailable),
        (errors.OutOfOrderSequenceNumber(), LogUnavailable),
        (TimeoutError(), LogUnavailable),
        (ConnectionResetError(), LogUnavailable),
        (errors.MessageSizeTooLargeError("big"), RecordTooLarge),
        (errors.TopicAuthorizationFailedError("t"), LogError),
        (errors.KafkaError("Unable to get cluster metadata over all known brokers"), LogUnavailable),
        (errors.UnknownError(), LogUnavailable),
        (AssertionError("state"), LogUnavailable),
        (AttributeError("'NoneType' object has no attribute 'nodeId'"), LogUnavailable),
        (errors.for_code(78)(), LogUnavailable),
        (errors.for_code(87)("no key"), LogError),
        (errors.for_code(90)(), Fenced),
    ],
)
def test_errors_in_the_ports_words(error: Exception, kind: type[LogError]) -> None:
    """What passes by waiting, what does not, and what is a fence, are told apart; the place and the finding stay."""
    found = translated(error, "writing to t")
    assert type(found) is kind
    assert str(found).startswith("writing to t: ")
    assert str(found).count(type(error).__name__) == 1


RETRIABLE = (2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, *kafka_codes.RETRIABLE)
"""All codes that Kafka 4.1 calls retriable."""


def test_time_mends_what_kafka_says_that_it_mends() -> None:
    """Whether the library knows the code or not; and nothing else that the library does not know."""
    found = {code: type(translated(errors.for_code(code)(), "asking")) for code in (*RETRIABLE, *kafka_codes.REFUSED)}
    assert {code for code, kind in found.items() if kind is LogUnavailable} == set(RETRIABLE)


def test_the_lid_lets_one_pass_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one message the first passes, then one an interval with the number held back; others pass beside it."""
    now = [0.0]
    monkeypatch.setattr("tidemark.shared.adapters.kafka_client.time.monotonic", lambda: now[0])
    lid = LogLid(interval_s=10)

    def say(text: str) -> str | None:
        record = logging.LogRecord("aiokafka", logging.ERROR, "f", 1, text, (1,), None)
        return record.getMessage() if lid.filter(record) else None

    assert say("node %d away") == "node 1 away"
    assert [say("node %d away") for _ in range(5)] == [None] * 5
    assert say("other %d") == "other 1"
    now[0] = 10.5
    assert say("node %d away") == "node 1 away (and 5 more since the last)"
    assert say("node %d away") is None


class _Deaf:
    """A fetching routine that takes its first cancellation for somebody else's, as the library's does at an assignment."""

    def __init__(self) -> None:
        self.cancelled = 0
        self._fetch_task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for _ in range(2):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1

    async def close(self) -> None:
        """As the library: cancel once, and wait."""
        await asyncio.sleep(0)
        self._fetch_task.cancel()
        await self._fetch_task


@pytest.mark.parametrize("what", ["reader", "groups"])
async def test_close_ends_though_a_cancellation_is_lost(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Closing a reader, or what notes a group's offsets, just after an assignment does not wait for ever."""
    monkeypatch.setattr(kafka_client, "_CANCEL_AGAIN_S", 0.01)
    settings = KafkaSettings(bootstrap="127.0.0.1:1")
    reader, groups = kafka_reader.KafkaReader(settings, committed_only=True), KafkaGroups(settings)
    groups._consumers["lag"] = reader.consumer
    reader.consumer._fetcher = deaf = _Deaf()
    closing = asyncio.create_task((reader if what == "reader" else groups).close())
    ended, _ = await asyncio.wait({closing}, timeout=20)  # `wait_for` would cancel once more, and so end it
    assert ended == {closing}
    assert deaf.cancelled == 2


async def test_who_is_cancelled_while_a_library_closes_ends() -> None:
    """Its closing suppresses the cancellation of what it waits for; its caller's is not lost with it, and it comes to its end."""
    closing, ended = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def close() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        ended.set()

    client = SimpleNamespace(_conns={}, close=close)
    producer = SimpleNamespace(client=client, _sender=SimpleNamespace(sender_task=None))
    caller = asyncio.create_task(kafka_client.discard(producer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    closing.set_result(None)
    await asyncio.wait_for(ended.wait(), 20)
