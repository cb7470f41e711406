"""What can be set about the gateway (TIDEMARK_EXTRA, JSON)."""

from dataclasses import dataclass

import msgspec

from shared.process.settings import ProcessSettings, ProcessSettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Of one gateway."""

    host: str = "127.0.0.1"
    """Where it listens: the loopback address unless told otherwise."""
    port: int = 8471
    """0: any that is free."""
    token_file: str = ""
    """Holds the token; made, for its owner alone, where it is not there. "": the token is TIDEMARK_TOKEN's."""
    topics: tuple[str, ...] = ()
    """What may be written to; (): every topic of the cluster but Tidemark's own and the broker's."""
    batch_bytes_max: int = 4 * 1024 * 1024
    """Of a request."""
    record_bytes_max: int = 900_000
    """Of a record; below the topics' `max.message.bytes`."""
    records_max: int = 50_000
    """In a batch."""
    in_flight_bytes_max: int = 32 * 1024 * 1024
    """Of all batches that are being read or wait for the broker: more are answered 429."""
    writers: int = 4
    """Batches that are written at the same time, each in a transaction of its own."""
    topics_age_ms_max: int = 10_000
    """A topic that is not known is asked for again after so long."""
    look_ms: int = 5_000
    """Between two questions whether the brokers answer, for readiness."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        for name in ("batch_bytes_max", "record_bytes_max", "records_max", "in_flight_bytes_max", "writers", "look_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"gateway setting {name}: expected a positive number, found {getattr(self, name)}")
        if self.in_flight_bytes_max < self.batch_bytes_max:
            raise ValueError(
                f"gateway settings: in_flight_bytes_max ({self.in_flight_bytes_max}) is below batch_bytes_max"
                f" ({self.batch_bytes_max}): a full batch would never be taken"
            )


def gateway_settings(settings: ProcessSettings) -> GatewaySettings:
    """From the process' settings. ProcessSettingsError."""
    try:
        return msgspec.convert(settings.extra, GatewaySettings)
    except (msgspec.ValidationError, ValueError) as error:
        message = f"TIDEMARK_EXTRA: {error}"
        raise ProcessSettingsError(message) from error
