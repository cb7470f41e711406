"""Settings of the gateway (TIDEMARK_EXTRA, JSON)."""

from dataclasses import dataclass

from tidemark.shared.model.message_sizes import sized
from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.process.settings import ProcessSettings, fitting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings of one gateway."""

    host: str = knob("127.0.0.1")
    """Where it listens: the loopback address unless told otherwise."""
    port: int = knob(8471)
    """0: any that is free."""
    token_file: str = knob("")
    """Holds the token; made, for its owner alone, where it is not there. "": the token is TIDEMARK_TOKEN's."""
    topics: tuple[str, ...] = knob(())
    """Topics that may be written to; (): every topic of the cluster but Tidemark's own and the broker's."""
    batch_bytes_max: int = knob(4 * 1024 * 1024)
    """The size of a request's body."""
    record_bytes_max: int = sized(900_000)
    """Of a record; below the topics' `max.message.bytes`."""
    records_max: int = 50_000
    """Records in a batch."""
    in_flight_bytes_max: int = knob(32 * 1024 * 1024)
    """Of all batches that are being read or wait for the broker: more are answered 429."""
    requests_max: int = 256
    """Requests that are being answered: more are answered 429, however small they are."""
    batch_id_characters_max: int = 200
    """The length of the header `Idempotency-Key`."""
    body_timeout_ms: int = 30_000
    """For a request's body to come; then it is answered 408, and its room is another's."""
    stop_timeout_ms: int = 10_000
    """For batches under way to be answered when the service stops."""
    writers: int = 4
    """Batches that are written at the same time, each in a transaction of its own."""
    topics_age_ms_max: int = 10_000
    """The list of topics and their partitions is asked for again after so long."""
    look_ms: int = 5_000
    """Between two questions whether the brokers answer, for readiness."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that cannot work."""
        check_positive(self, "gateway", but=frozenset({"port", "topics_age_ms_max"}))
        if self.record_bytes_max > self.batch_bytes_max:
            raise ValueError(
                f"gateway settings: record_bytes_max ({self.record_bytes_max}) is above batch_bytes_max"
                f" ({self.batch_bytes_max}): no batch could hold such a record"
            )
        if self.writers > self.requests_max:
            raise ValueError(
                f"gateway settings: writers ({self.writers}) is above requests_max ({self.requests_max}): some would never work"
            )
        if self.in_flight_bytes_max < self.batch_bytes_max:
            raise ValueError(
                f"gateway settings: in_flight_bytes_max ({self.in_flight_bytes_max}) is below batch_bytes_max"
                f" ({self.batch_bytes_max}): a full batch would never be taken"
            )


def gateway_settings(settings: ProcessSettings) -> GatewaySettings:
    """From the process' settings. ProcessSettingsError."""
    return fitting(settings_of(settings.extra, GatewaySettings, "TIDEMARK_EXTRA", others=True), settings)
