"""What can be set about the control service (TIDEMARK_EXTRA, JSON)."""

from dataclasses import dataclass

import msgspec

from shared.planning import Engine
from shared.process.settings import ProcessSettings, ProcessSettingsError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Of one control service."""

    host: str = LOOPBACK
    """Where it listens: the loopback address unless told otherwise."""
    port: int = 8470
    """0: any that is free."""
    token_file: str = ""
    """Holds the token; made, for its owner alone, where it is not there. "": the token is TIDEMARK_TOKEN's."""
    address_file: str = ""
    """Where to write, as JSON, at which URL it is reached; "": nowhere."""
    logs: str = ""
    """The folder of the services' log files, JSON lines; "": they are not here."""
    body_bytes_max: int = 1024 * 1024
    """Of a request."""
    commands_max: int = 32
    """Commands that wait for the coordinator at the same time; more are answered 429."""
    command_timeout_ms: int = 30_000
    """For the coordinator's answer."""
    sample_max: int = 100
    log_lines_max: int = 1_000
    log_bytes_max: int = 1024 * 1024
    """Read of each log file, from its end."""
    agents: bool = True
    """Take commands from a topic and tell events to another (`agents.py`)."""
    late_fraction_max: float = 0.01
    """An alert is raised when a larger part of a processor's input came late, and there were at least `late_records_min`."""
    late_records_min: int = 1_000
    events_max: int = 10_000
    """Events that wait for the broker; beyond it the oldest are let go, with a word in the log."""
    engine: Engine = "spark"
    """What documents are validated for."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        for name in (
            "body_bytes_max",
            "commands_max",
            "command_timeout_ms",
            "sample_max",
            "log_lines_max",
            "events_max",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"control setting {name}: expected a positive number, found {getattr(self, name)}")
        if not 0 <= self.port < 65_536:  # noqa: PLR2004 - the range of ports
            raise ValueError(f"control setting port: expected 0 to 65535, found {self.port}")


def control_settings(settings: ProcessSettings) -> ControlSettings:
    """From the process' settings. ProcessSettingsError."""
    try:
        return msgspec.convert({"engine": settings.runtime.engine, **settings.extra}, ControlSettings)
    except (msgspec.ValidationError, ValueError) as error:
        message = f"TIDEMARK_EXTRA: {error}"
        raise ProcessSettingsError(message) from error
