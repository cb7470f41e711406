"""Settings of the control service (TIDEMARK_EXTRA, JSON)."""

from dataclasses import dataclass

from tidemark.shared.model.knobs import knob
from tidemark.shared.model.positive import check_positive
from tidemark.shared.planning import Engine
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, kafka_settings, settings_of
from tidemark.shared.runtime.settings import HEADER_BYTES_MAX

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Of one control service."""

    host: str = knob(LOOPBACK)
    """Where it listens: the loopback address unless told otherwise."""
    port: int = knob(8470)
    """0: any that is free."""
    token_file: str = knob("")
    """Holds the token; made, for its owner alone, where it is not there. "": the token is TIDEMARK_TOKEN's."""
    users_file: str = knob("")
    """Names other users, with a role and their token's digest each (`shared/process/users.py`); "": there are none."""
    address_file: str = knob("")
    """Where to write, as JSON, at which URL it is reached; "": nowhere."""
    logs: str = knob("")
    """The folder of the services' log files, JSON lines; "": they are not here."""
    body_bytes_max: int = knob(900_000)
    """Of a request: a document travels to the coordinator in one record of the brokers."""
    requests_max: int = 256
    """Requests that are being answered; more are answered 429."""
    user_requests_max: int = 64
    """Of one user, live events among them; more are answered 429, and others go on."""
    connections_max: int = 1_000
    """Open connections; one more is closed at once."""
    request_wait_ms: int = 30_000
    """For a connection to bring its first request; then it is closed."""
    body_timeout_ms: int = 30_000
    """For a request's body to come; then it is answered 408, and its room is another's."""
    request_characters_max: int = 128
    """Of the id that a command may bring."""
    silent_ms_max: int = knob(10_000)
    """A worker that has said nothing for so long is not shown, and after six times as long forgotten."""
    workers_max: int = 10_000
    """Places of workers that are remembered; beyond it those that were heard first are forgotten."""
    stop_timeout_ms: int = 5_000
    """For requests under way, and for the agents, to end when the service stops."""
    commands_max: int = 32
    """Commands that wait for the coordinator at the same time; more are answered 429."""
    command_timeout_ms: int = knob(30_000)
    """For the coordinator's answer."""
    sample_max: int = 100
    log_lines_max: int = 1_000
    log_bytes_max: int = 1024 * 1024
    """Read of each log file, from its end."""
    agents: bool = knob(True)
    """Take commands from a topic and tell events to another (`agents.py`)."""
    commands_valid_ms_max: int = 300_000
    """How far ahead a command by topic may say that it expires: as long as the coordinator surely knows its answer (`topics_kept_ms`)."""
    agents_waiting_max: int = 4_096
    """Commands of the topic that are read and wait; then no more are read."""
    agents_tries_max: int = 60
    """How often such a command is tried while brokers or coordinator are away, before it goes to the dead letters."""
    agents_session_timeout_s: int = 10
    """The brokers give an agent that is silent for so long up; another takes its commands."""
    retry_ms: int = 1_000
    """Between two tries to reach a system that is away."""
    look_ms: int = 1_000
    """How often late data are looked for."""
    events_kept_ms: int = 7 * 24 * 3_600_000
    """How long events stay in their topic."""
    late_fraction_max: float = knob(0.01)
    """An alert is raised when a larger part of a processor's input came late, and there were at least `late_records_min`."""
    late_records_min: int = knob(1_000)
    events_max: int = 10_000
    """Events that wait for the broker; beyond it the oldest are let go, with a word in the log."""
    scale_after_ms: int = knob(15_000)
    """How long a generation runs before its load counts: rates are taken over ten looks, and a restored task works through what waits."""
    scale_lag_ms: int = knob(2_000)
    """Of the oldest work that waits, from which a processor is behind."""
    scale_up_ms: int = knob(5_000)
    """So long behind and busy, and a service gets more tasks within the bounds of the document (`options.tasks`)."""
    scale_down_ms: int = knob(60_000)
    """So long with fewer tasks enough, and it gets fewer."""
    audit_interval_ms: int = knob(0)
    """Between two audits of each processor, where there are later checkpoints; 0: none by itself. An audit computes all of a job again."""
    work_s_max: int = knob(3_600)
    """Until an audit or a redrive is ended; it reads the whole history of a job."""
    work_silent_ms: int = 60_000
    """An audit or a redrive of which nobody says for so long that it runs is begun again."""
    engine: Engine = knob("spark")
    """The engine that documents are validated for."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that cannot work."""
        check_positive(self, "control", but=frozenset({"port", "audit_interval_ms"}))
        if self.connections_max < self.requests_max:
            raise ValueError(
                f"control settings: connections_max ({self.connections_max}) is below requests_max ({self.requests_max}): so many requests"
                " could never come"
            )
        if not 0 <= self.port < 65_536:  # noqa: PLR2004 - the range of ports
            raise ValueError(f"control setting port: expected 0 to 65535, found {self.port}")


def control_settings(settings: ProcessSettings) -> ControlSettings:
    """From the process' settings. ProcessSettingsError."""
    table = {"engine": settings.runtime.engine, **settings.extra}
    found = settings_of(table, ControlSettings, "TIDEMARK_EXTRA", others=True)
    message_bytes_max = min(kafka_settings(settings).message_bytes_max, settings.runtime.wire.message_bytes_max)
    if found.body_bytes_max + HEADER_BYTES_MAX > message_bytes_max:
        message = (
            f"TIDEMARK_EXTRA.body_bytes_max: its {found.body_bytes_max} bytes and a header of up to {HEADER_BYTES_MAX} must not be above"
            f" {message_bytes_max}, the lower one of message_bytes_max of TIDEMARK_KAFKA_CONFIG and wire.message_bytes_max of"
            " TIDEMARK_RUNTIME: a document travels in one message"
        )
        raise ProcessSettingsError(message)
    if found.silent_ms_max < 3 * settings.runtime.heartbeat_interval_ms:
        message = (
            f"TIDEMARK_EXTRA.silent_ms_max={found.silent_ms_max} must be at least three times heartbeat_interval_ms="
            f"{settings.runtime.heartbeat_interval_ms} of TIDEMARK_RUNTIME: workers that live would come and go"
        )
        raise ProcessSettingsError(message)
    return found
