"""How to reach a Kafka cluster, and the limits of the records that this process holds of it. Secrets never show in a repr."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from tidemark.shared.model.failures import LogError, WrongSetup
from tidemark.shared.model.message_sizes import MESSAGE_BYTES
from tidemark.shared.model.settings import check_positive, knob, knobs_of, no_such_setting

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_FOLLOWED_PART: Final = 3
"""Of a request's time, what a fetch may wait at the broker."""
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"]


_NO_CERTIFICATES: Final = "expected a file of certificates (PEM) on this machine, found none that can be read"
_NO_KEY: Final = "expected a certificate and its key (PEM) that this password opens, found none that can be used"


class Unusable(LogError, WrongSetup):
    """A file of certificates is not there, or is none."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A cluster's address, its security, and bounds.

    Raises ValueError, naming the setting, where settings contradict each other.
    """

    bootstrap: str
    """`host:port`, several separated by commas."""
    security_protocol: SecurityProtocol = knob("PLAINTEXT")
    sasl_mechanism: SaslMechanism = knob("PLAIN")
    sasl_username: str | None = knob(None)
    sasl_password: str | None = knob(None, shown=False)
    sasl_token_provider: Any = field(default=None, repr=False)
    """For OAUTHBEARER: an `aiokafka.abc.AbstractTokenProvider`."""
    ssl_ca_file: str | None = knob(None)
    """Certificates that sign the brokers'; None: the system's."""
    ssl_certificate_file: str | None = knob(None)
    ssl_key_file: str | None = knob(None)
    ssl_key_password: str | None = knob(None, shown=False)
    ssl_check_hostname: bool = knob(True)

    client: str = "tidemark"
    """Prefix of client ids, which the brokers' logs and quotas show."""
    replication: int = knob(0)
    """Replicas of topics that are made here; 0: three, or as many as the cluster has brokers, also those that are away."""
    request_timeout_ms: int = knob(15_000)
    """How long one request waits for its answer."""
    delivery_timeout_ms: int = knob(60_000)
    """For a record's acknowledgement, a transaction's end, or the opening of an identity: then LogUnavailable."""
    transaction_timeout_ms: int = knob(60_000)
    """After this the broker aborts an open transaction; at most its `transaction.max.timeout.ms`."""
    topic_wait_ms: int = 2_000
    """For a new topic to be known, before it counts as missing."""
    outage_after_ms: int = 1_000
    """A reader that got only errors for so long raises LogUnavailable instead of giving nothing."""
    fetch_wait_ms: int = 500
    """The broker holds a fetch so long when there is nothing; a seek or resume may wait for it."""
    follow_wait_ms: int = 5_000
    """The same for a reader that is never told to seek or resume; at most a third of `request_timeout_ms`."""
    fetch_bytes_max: int = knob(32 << 20)
    """Of one answer."""
    partition_fetch_bytes_max: int = knob(4 << 20)
    """Of one partition in an answer; at least the largest record batch."""
    message_bytes_max: int = knob(MESSAGE_BYTES)
    """Of one record, and of one batch: at most the topics' `max.message.bytes`. Sizes of messages follow from it (`message_sizes.py`)."""
    batches_in_flight_max: int = 64
    """Batches of a transaction that wait for their acknowledgement."""
    emit_headers_max: int = 1_000
    """Of a record that `$emit` writes; a row with more is refused."""
    emit_topics_max: int = knob(10_000)
    """Different topics that an expression of `$emit` may name in a task; rows for others are refused."""
    emit_topic_partitions: int = knob(1)
    """A topic that `$emit` names and that does not exist is made with so many; 0: its rows are refused instead."""
    records_in_flight_max: int = 100_000
    """Records of a writer that are not acknowledged; the next waits."""
    groups_max: int = 64
    """Consumer groups to which offsets are noted, a connection each; beyond it the oldest is closed."""
    log_kinds_max: int = 1_000
    """Messages of the client library that are told apart, so that each is logged once in a while; beyond it counting begins anew."""
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = knob(None)

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ValueError("kafka settings: bootstrap is empty; expected host:port")
        password = self.sasl_mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        if self.security_protocol.startswith("SASL") and password and not (self.sasl_username and self.sasl_password):
            raise ValueError(
                f"kafka settings: {self.security_protocol} with {self.sasl_mechanism} needs sasl_username and"
                " sasl_password"
            )
        check_positive(
            self,
            "kafka",
            but=frozenset(
                {
                    "replication",
                    "emit_topic_partitions",
                    "topic_wait_ms",
                    "fetch_wait_ms",
                    "outage_after_ms",
                }
            ),
        )
        if self.partition_fetch_bytes_max < self.message_bytes_max:
            raise ValueError(
                f"kafka settings: partition_fetch_bytes_max {self.partition_fetch_bytes_max} is below"
                f" message_bytes_max {self.message_bytes_max}: such a record could never be read"
            )
        if self.transaction_timeout_ms < self.request_timeout_ms:
            raise ValueError(
                f"kafka settings: transaction_timeout_ms {self.transaction_timeout_ms} is below request_timeout_ms"
                f" {self.request_timeout_ms}: a slow answer would end every transaction"
            )
        if self.fetch_bytes_max < self.partition_fetch_bytes_max:
            raise ValueError(
                f"kafka settings: fetch_bytes_max {self.fetch_bytes_max} is below partition_fetch_bytes_max"
                f" {self.partition_fetch_bytes_max}: no answer could hold what one partition may bring"
            )
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise ValueError(
                f"kafka settings: delivery_timeout_ms {self.delivery_timeout_ms} is below request_timeout_ms"
                f" {self.request_timeout_ms}: no request would be tried again"
            )

    def following_wait_ms(self) -> int:
        """How long the broker holds a fetch of a reader that follows: an answer must come long before it is given up."""
        return min(self.follow_wait_ms, self.request_timeout_ms // _FOLLOWED_PART)

    def ssl_context(self) -> ssl.SSLContext | None:
        """For SSL and SASL_SSL; None for the others. Unusable where a file cannot be read, or is not what it should be."""
        if self.security_protocol not in ("SSL", "SASL_SSL"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca_file)
        except OSError as error:
            raise Unusable(f"kafka setting ssl_ca_file {self.ssl_ca_file}: {_NO_CERTIFICATES} ({error})") from error
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_certificate_file is not None:
            files = f"ssl_certificate_file {self.ssl_certificate_file} and ssl_key_file {self.ssl_key_file}"
            try:
                context.load_cert_chain(self.ssl_certificate_file, self.ssl_key_file, self.ssl_key_password or "")
            except OSError as error:
                raise Unusable(f"kafka settings {files}: {_NO_KEY} ({error})") from error
        return context

    def connection(self, client: str) -> dict[str, Any]:
        """The arguments that every aiokafka client takes; `client` is appended to the client id."""
        return {
            "bootstrap_servers": [host.strip() for host in self.bootstrap.split(",")],
            "client_id": f"{self.client}-{client}",
            "request_timeout_ms": self.request_timeout_ms,
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context(),
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
            "sasl_oauth_token_provider": self.sasl_token_provider,
        }


def settings_from(config: Mapping[str, object], place: str, **given: str) -> KafkaSettings:
    """Settings from a table of the user's at `place`. ValueError names the setting that is unknown or wrong; no value is shown."""
    known = knobs_of(KafkaSettings)
    for name in config:
        if name not in known:
            raise ValueError(no_such_setting(place, name, known))
    try:
        return msgspec.convert({**config, **given}, KafkaSettings)
    except msgspec.ValidationError as error:
        raise ValueError(_said(error, {**config, **given}, place)) from None


def _said(error: msgspec.ValidationError, config: Mapping[str, object], place: str) -> str:
    """The first setting that does not fit, else how they contradict each other. A value may be a secret: only its kind is told."""
    hints = get_type_hints(KafkaSettings)
    kinds = {str: "a text", bool: "true or false", int: "a whole number", type(None): "null"}
    for name, value in config.items():
        try:
            msgspec.convert(value, hints[name])
        except msgspec.ValidationError:
            parts = [part for part in (hints[name], *get_args(hints[name])) if get_origin(part) is Literal]
            words = ", ".join(str(word) for part in parts for word in get_args(part))
            alone = kinds.get(next((kind for kind in (*get_args(hints[name]), hints[name]) if kind in kinds), str))
            found = kinds.get(type(value), "another kind of value")
            return f"{place}.{name}: expected {f'one of {words}' if words else alone}, found {found} that is not shown here"
    return f"{place}: {error}"
