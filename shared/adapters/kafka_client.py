"""The shared part of all Kafka adapters: errors in the port's words, required topics, outages, discarding producers.

The client library is aiokafka, whose private parts are touched here and in `kafka_raw` only where it has no
public way: it tries again without end while a broker is away, its `stop` waits for that, and its log says so
a hundred times a second.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Final

import aiokafka.client
from aiokafka import errors
from aiokafka.protocol.metadata import MetadataRequest

from tidemark.shared.adapters.kafka_codes import PRODUCER_FENCED
from tidemark.shared.adapters.kafka_silent import know
from tidemark.shared.ports.log import Fenced, LogError, LogUnavailable, RecordTooLarge, TopicPartition

_FENCED: Final = (
    errors.ProducerFenced,
    errors.InvalidProducerEpoch,
    errors.TransactionCoordinatorFenced,
    errors.for_code(PRODUCER_FENCED),
)
_PASSING: Final = (
    OSError,
    TimeoutError,
    errors.KafkaConnectionError,
    errors.KafkaTimeoutError,
    errors.KafkaUnavailableError,
    errors.BrokerNotAvailableError,
    errors.ReplicaNotAvailableError,
    errors.NotControllerError,
    errors.CorruptRecordException,
    # Kafka calls these retriable, the library does not: 13 is a lost connection by now.
    errors.StaleLeaderEpochCodeError,
    errors.FetchSessionIdNotFound,
    errors.InvalidFetchSessionEpoch,
    errors.ListenerNotFound,
    # Of a record with a time of this machine's clock: it passes when the clocks agree.
    errors.InvalidTimestampError,
    # These end a producer, but a new one goes on.
    errors.OutOfOrderSequenceNumber,
    errors.UnknownProducerId,
    errors.InvalidProducerIdMapping,
    errors.InvalidTxnState,
    errors.ConcurrentTransactions,
    errors.ProducerClosed,
    # The broker itself failed at it, as on a full disk.
    errors.UnknownError,
    # States that the library does not expect are plain assertions and missing attributes. They come while brokers come and go: a cluster
    # without a controller, a node that is no longer known.
    AssertionError,
    AttributeError,
    TypeError,
)
_TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
aiokafka.client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)
"""What the library asks by itself about topics that its clients use: where brokers make topics that are asked for, one that was deleted
while a client had it came back, and nobody deleted it again."""
_BROKERS_MAX: Final = 1_000
"""Addresses of which it is known why nobody is reached there; beyond it they are learnt anew."""
_unreached: Final[dict[tuple[str, int], str]] = {}
"""By host and port, why the last connection failed: the library only logs it."""
_connect = aiokafka.client.create_conn


async def _noting(host: str, port: int, **given: Any) -> Any:
    """The library's way to a connection; why there is none is kept."""
    try:
        found = await _connect(host, port, **given)
    except (OSError, errors.KafkaError, TimeoutError) as error:
        if len(_unreached) >= _BROKERS_MAX:
            _unreached.clear()
        _unreached[host, port] = str(error) or type(error).__name__
        raise
    _unreached.pop((host, port), None)
    know(found, host, port)
    return found


aiokafka.client.create_conn = _noting
_ASK_THE_BROKER: Final = "see the broker's log and the settings"
_OTHER_VERSION: Final = "this broker's Kafka has not this request, or not in this form; docs/kafka.md names versions"
_GRANT: Final = "give this user what docs/kafka.md names"
_REMEDIES: Final[dict[type[BaseException], str]] = {
    errors.InvalidTimestampError: (
        "the clock of this machine and the broker's are further apart than the topic allows (message.timestamp.after.max.ms, an hour by"
        " default, or message.timestamp.before.max.ms), or the record's own time is: set the clock that is wrong, or the topic's bounds;"
        " then this goes on by itself"
    ),
    errors.InvalidTransactionTimeout: (
        "the cluster's transaction.max.timeout.ms is below transaction_timeout_ms of the connection: lower that (with request_timeout_ms,"
        " which is at most as much), or raise the cluster's"
    ),
    errors.TopicAuthorizationFailedError: f"{_GRANT}: rights to topics",
    errors.GroupAuthorizationFailedError: f"{_GRANT}: READ of the group",
    errors.TransactionalIdAuthorizationFailed: f"{_GRANT}: WRITE of transactional ids that begin with tidemark.",
    errors.ClusterAuthorizationFailedError: f"{_GRANT}: IDEMPOTENT_WRITE of the cluster (brokers before 2.8), CREATE where topics are made",
    errors.IncompatibleBrokerVersion: _OTHER_VERSION,
    errors.UnsupportedVersionError: _OTHER_VERSION,
    NotImplementedError: _OTHER_VERSION,
}
"""Where the library's name for an error does not say what to do."""
_apart: Final[set["asyncio.Task[None]"]] = set()
"""Closings under way: nothing else may refer to their tasks."""
_UNKNOWN: Final = errors.UnknownTopicOrPartitionError.errno
_UPDATE_METADATA: Final = 6
"""Key of the request by which a controller tells a broker of topics, where the cluster has ZooKeeper."""
_POLL_S: Final = 0.02
"""Between two looks, within `topic_wait_ms`."""
_CANCEL_AGAIN_S: Final = 0.5
"""Between two cancellations of such a task."""
_DISCARD_S: Final = 1.0
"""Time for a thrown-away producer's tasks to end; a task that remains ends at its next request."""


def translated(error: BaseException, doing: str) -> LogError:
    """The port's error for one of the library, the broker or the network; `doing` names the attempted call, and where."""
    if isinstance(error, LogError):
        return error
    name = type(error).__name__
    text = str(error)
    # Most of the library's errors name themselves.
    found = text if name in text else f"{name}: {text}" if text else name
    if isinstance(error, _FENCED):
        return Fenced(f"{doing}: a newer writer has taken this identity ({found}); stop")
    if isinstance(error, _TOO_LARGE):
        return RecordTooLarge(
            f"{doing}: refused ({found}); max.message.bytes of the topic, or message.max.bytes of the brokers, is below message_bytes_max"
            " here: lower this one, or raise theirs"
        )
    remedy = next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), "")
    # The plain class is the library's word for an error that it did not expect: no broker's refusal.
    if isinstance(error, _PASSING) or type(error) is errors.KafkaError or getattr(error, "retriable", False):
        return LogUnavailable(f"{doing}: the broker cannot do it now ({found}); {remedy or 'try again'}")
    return LogError(f"{doing}: refused ({found}); {remedy or _ASK_THE_BROKER}")


KAFKA_ERRORS: Final = (
    errors.KafkaError,
    NotImplementedError,
    errors.IllegalOperation,
    errors.ConsumerStoppedError,
    OSError,
    TimeoutError,
    AssertionError,
    AttributeError,
    TypeError,
)
"""Errors that a call of the library raises."""


async def some_node(client: Any, topics: Iterable[str]) -> Any:
    """A broker to ask about topics. LogUnavailable, the library's errors.

    A broker that is not ready names none. A client that began there knows none for ever, so it begins once more.
    """
    node = client.get_random_node()
    if node is None:
        await client.bootstrap()
        node = client.get_random_node()
    if node is None:
        raise LogUnavailable(f"topics {', '.join(topics)}: no broker is known; try again")
    return node


async def require_topics(client: Any, topics: Iterable[str], wait_ms: int) -> dict[str, int]:
    """Numbers of partitions of topics, asked of a broker without making the topics.

    Raises:
        LogError: one does not exist, also after waiting so long, or may not be used.
        LogUnavailable: no broker answers, or none can tell.
    """
    wanted = sorted(set(topics))
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        node = await some_node(client, wanted)
        answer = await client.send(node, MetadataRequest(wanted, allow_auto_topic_creation=False))
        told = {t["topic"]: t for t in answer.to_object()["topics"]}
        missing = {
            t: told[t]["error_code"] if t in told else _UNKNOWN
            for t in wanted
            if t not in told or told[t]["error_code"]
        }
        if not missing:
            return {topic: len(told[topic]["partitions"]) for topic in wanted}
        if time.monotonic() >= deadline:
            asked = ", ".join(sorted(f"{broker.host}:{broker.port}" for broker in client.cluster.brokers()))
            topic, code = next(iter(missing.items()))
            if code != _UNKNOWN:
                raise translated(errors.for_code(code)(), f"topic {topic} on the cluster of {asked}")
            raise LogError(f"topic {topic} does not exist on the cluster of {asked}; create it first")
        await asyncio.sleep(_POLL_S)


async def require_partitions(client: Any, partitions: Iterable[TopicPartition], wait_ms: int) -> None:
    """As `require_topics`, and the topics have these partitions."""
    asked = tuple(partitions)
    counts = await require_topics(client, {partition.topic for partition in asked}, wait_ms)
    for partition in asked:
        if not 0 <= partition.partition < counts[partition.topic]:
            raise LogError(f"{partition} does not exist: the topic has {counts[partition.topic]} partitions")


def find_moved_brokers(client: Any) -> None:
    """Let a client that reaches none of the brokers it knows begin at its bootstrap addresses again.

    The library asks only those that it knows: were all of them moved during an outage, it would look for them for ever.
    """
    original = client._metadata_update

    async def update(cluster: Any, topics: Any) -> bool:
        if await original(cluster, topics):
            return True
        try:
            await client.bootstrap()
        except errors.KafkaConnectionError:
            return False
        return bool(await original(cluster, topics))

    client._metadata_update = update


def distrust_starting_brokers(client: Any) -> None:
    """Take what a broker of ZooKeeper's answers about topics, before its controller has told it of any, for no answer.

    When it begins to listen it knows no brokers, not even itself; then these, and still no topic at all. Without ZooKeeper a broker
    listens when it knows its cluster.
    """
    original = client.send

    async def send(node: Any, request: Any, **named: Any) -> Any:
        answer = await original(node, request, **named)
        if request.API_KEY != MetadataRequest.API_KEY:
            return answer
        if not answer.brokers:
            raise errors.BrokerNotAvailableError("it has just started, and knows nothing of its cluster yet")
        if any(topic[0] != _UNKNOWN for topic in answer.topics) or not _has_zookeeper(client, node):
            return answer
        if not (await original(node, MetadataRequest())).topics:
            raise errors.BrokerNotAvailableError("it knows no topic at all: it has just started, or there is none yet")
        return await original(node, request, **named)  # it may have come to know them since

    client.send = send


def name_unreached_brokers(client: Any) -> None:
    """Say of a broker to which there is no connection where it is said to be, and why there is none; the library tells its number alone."""
    original = client.send

    async def send(node: Any, request: Any, **named: Any) -> Any:
        try:
            return await original(node, request, **named)
        except errors.NodeNotReadyError as error:
            broker = client.cluster.broker_metadata(node)
            if broker is None:
                raise
            why = _unreached.get((broker.host, broker.port), "its connection ended")
            raise errors.NodeNotReadyError(
                f"broker {node} is not reached at {broker.host}:{broker.port}, its advertised.listeners: {why}"
            ) from error

    client.send = send


def _has_zookeeper(client: Any, node: Any) -> bool:
    """Whether a broker that was asked takes a controller's requests on the listener of clients."""
    return any(of == node and _UPDATE_METADATA in connection._versions for (of, _), connection in client._conns.items())


class Heard:
    """Whether a client's requests are answered: the library's fetching only logs that they are not."""

    def __init__(self, client: Any) -> None:
        self.failing_since: float | None = None
        self.error: BaseException | None = None
        self.answered_at = time.monotonic()
        original = client.send

        async def send(*args: Any, **named: Any) -> Any:
            try:
                answer = await original(*args, **named)
            except (errors.KafkaError, OSError, TimeoutError) as error:
                self.error = error
                self.failing_since = self.failing_since or time.monotonic()
                raise
            self.failing_since = None
            self.answered_at = time.monotonic()
            return answer

        client.send = send

    def check(self, outage_after_ms: int, doing: str) -> None:
        """Raise LogUnavailable if there have been only errors for so long."""
        if self.failing_since is not None and self.error is not None:
            failing_s = time.monotonic() - self.failing_since
            if failing_s * 1000 >= outage_after_ms:
                raise translated(self.error, f"{doing}, after {failing_s:.1f} s of errors") from self.error


def seal(producer: Any, error: LogError) -> None:
    """Let a producer send nothing more from here on; everything that waits for it gets the error."""

    async def refuse(*_: Any, **__: Any) -> Any:
        # A cancelled task is the one end that the library's loops do not try again after, nor log.
        raise asyncio.CancelledError

    producer.client.send = refuse
    producer.client.ready = refuse
    accumulator = producer._message_accumulator
    batches = [b for waiting in accumulator._batches.values() for b in waiting]
    batches += accumulator._pending_batches
    accumulator.fail_all(errors.ProducerClosed(str(error)))
    for batch in batches:
        # Seen here, so that nobody is warned of an error that nobody waits for.
        if batch.future.done() and not batch.future.cancelled():
            batch.future.exception()
        if batch._drain_waiter.done() and not batch._drain_waiter.cancelled():
            batch._drain_waiter.exception()
    task = producer._sender.sender_task
    if task is not None:
        # The library's own work at its end is done above; without a transaction its callback fails.
        task.remove_done_callback(producer._sender._fail_all)
        task.cancel()


async def apart(closing: Coroutine[Any, Any, None]) -> None:
    """Wait for a library's closing in a task of its own.

    It suppresses the cancellation of the tasks that it waits for, and would suppress its caller's: a task that was told to end would go on.
    """
    task = asyncio.create_task(closing)
    _apart.add(task)

    def ended(task: "asyncio.Task[None]") -> None:
        _apart.discard(task)
        if not task.cancelled():
            task.exception()  # seen here, for a caller that has gone on

    task.add_done_callback(ended)
    await asyncio.wait({task})
    task.result()


async def discard(producer: Any) -> None:
    """Throw a sealed producer away, in bounded time, in any state of it and of the broker."""
    producer._closed = True  # `stop` would wait for what cannot be sent
    client = producer.client
    for connection in list(client._conns.values()):
        connection.close()
    task = producer._sender.sender_task
    for _ in range(2):
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_DISCARD_S)
    if task is not None and task.done() and not task.cancelled():
        task.exception()
    await apart(client.close())


async def stop_consumer(consumer: Any) -> None:
    """Stop a consumer, in any state of it."""
    stopping = asyncio.ensure_future(consumer.stop())
    while not (await asyncio.wait({stopping}, timeout=_CANCEL_AGAIN_S))[0]:
        # Where an assignment has just changed, the library's fetching routine takes its own cancellation for that
        # of a request that it awaits, and goes on: `stop` would wait for ever.
        fetching = getattr(consumer._fetcher, "_fetch_task", None)
        if fetching is not None:
            fetching.cancel()
    if stopping.cancelled() or stopping.exception() is not None:
        # A fetch that was waiting to be tried again ends the library's `stop` half way: the rest by hand.
        consumer._closed = True
        await apart(consumer._client.close())


class LogLid(logging.Filter):
    """Lets each message of a logger pass once in a while, and says how many were held back.

    The library logs about a hundred errors a second while a broker is away.
    """

    def __init__(self, interval_s: float = 10.0, kinds_max: int = 1_000) -> None:
        super().__init__()
        self.kinds_max = kinds_max
        self._interval_s = interval_s
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass the first, then one an interval, with the number held back."""
        kind = (record.name, record.levelno, str(record.msg))
        if kind not in self._seen and len(self._seen) >= self.kinds_max:
            self._seen.clear()
        now = time.monotonic()
        passed_at, held = self._seen.get(kind, (None, 0))
        if passed_at is not None and now - passed_at < self._interval_s:
            self._seen[kind] = (passed_at, held + 1)
            return False
        self._seen[kind] = (now, 0)
        if held:
            record.msg = f"{record.msg} (and {held} more since the last)"
        return True


_LID: Final = LogLid()


def quiet_library_log(kinds_max: int) -> None:
    """Put the lid on every logger of the library; again is harmless, the last bound counts. A parent's filter does not see its children."""
    _LID.kinds_max = kinds_max
    for name in list(logging.root.manager.loggerDict):
        if name == "aiokafka" or name.startswith("aiokafka."):
            logging.getLogger(name).addFilter(_LID)
