"""Settings of the control service (TIDEMARK_EXTRA, JSON)."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from tidemark.shared.model.message_sizes import sized
from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.planning import Engine
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, fitting, settings_of
from tidemark.shared.process.users import read_rights

LOOPBACK = "127.0.0.1"
SIGNATURES: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Algorithms that may be allowed: of private keys alone. With a shared secret, whoever checks a token could make one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """The OpenID provider whose tokens name users (`oidc.py`)."""

    issuer: str = knob("")
    """Its address, exactly as its tokens' `iss` and its discovery document have it; "": there is none."""
    audience: str = knob("")
    """Must be in a token's `aud`: tokens for other systems do not count here."""
    user_claim: str = knob("sub")
    """Names the user. A provider never gives a `sub` to another; it may do so with others, such as `email`."""
    rights_claim: str | tuple[str, ...] = knob("")
    """Has rights as a file of users has them, in a text or a list of texts; "": none has. Several names: a claim within a claim."""
    groups_claim: str | tuple[str, ...] = knob("")
    """As `rights_claim`; has groups, of which `groups` gives the rights."""
    groups: dict[str, str] | None = knob(None)
    """Rights by group; others give none."""
    algorithms: tuple[str, ...] = knob(("RS256", "ES256", "EdDSA", "Ed25519"))
    """By which a token may be signed."""
    leeway_s: int = knob(60)
    """By how much the provider's clock and this one may differ."""
    client_id: str = knob("")
    """The console's name at the provider; "": the console has no login page, and takes tokens alone."""
    client_secret_file: str = knob("")
    """Holds that client's secret; "": it has none (a public client)."""
    device_client_id: str = knob("")
    """The command line's name at the provider, a public client with the device grant; "": `tidemark login` is not possible."""
    public_url: str = knob("")
    """Where browsers reach the console, as `https://tidemark.example.org`: the provider sends them back there."""
    scopes: tuple[str, ...] = knob(("openid", "profile", "email"))
    """What a login asks for; many providers give a refresh token only for `offline_access`."""
    session_s_max: int = knob(12 * 3_600)
    """From a login to the next, however often its token was renewed."""
    login_s_max: int = 600
    """For a user to log in at the provider, from the begin of a login."""
    renew_s: int = 60
    """A session's token is renewed so long before its end, or in the last quarter of a shorter life."""
    renewed_ms: int = 60_000
    """Requests that were sent with the cookie of before are answered so long: a page sends several at once."""
    sessions_max: int = 10_000
    """Renewed, and ended ones, that are remembered; beyond it the oldest are forgotten."""
    refresh_ms: int = 300_000
    """Between two fetches of its keys: a key that it has withdrawn counts no longer than this."""
    retry_ms: int = 10_000
    """As `refresh_ms`, while it is away."""
    fetch_ms_min: int = 10_000
    """Between two fetches for tokens whose key is not known: such tokens cost nothing to make."""
    kept_ms: int = 24 * 3_600_000
    """How long its keys count while it is away."""
    answer_timeout_ms: int = 5_000
    """For one answer of its."""
    answer_bytes_max: int = 512 * 1024
    """Of one answer: keys with long chains of certificates have tens of kilobytes."""
    keys_max: int = 100
    """Keys that are taken of its set; the others are left alone."""
    token_bytes_max: int = 16 * 1024
    """Of a token; it travels in a header of each request."""
    name_characters_max: int = 256
    """Of a user's name: OpenID gives `sub` 255."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that cannot work."""
        if not self.issuer:
            return
        check_positive(self, "oidc", but=frozenset({"leeway_s"}))
        if not safe_address(self.issuer) or "?" in self.issuer:
            raise ValueError(
                "oidc.issuer: expected https://… without user, ? and # (or http://… on this machine's loopback address), found"
                f" {self.issuer!r}"
            )
        if not self.audience:
            raise ValueError(
                "oidc.audience: expected the audience of tokens for this installation: without it, those for others would count"
            )
        if not self.rights_claim and not (self.groups_claim and self.groups):
            raise ValueError(
                "oidc: expected rights_claim, or groups_claim with groups: without them no token gives a right"
            )
        if unknown := [each for each in self.algorithms if each not in SIGNATURES] or not self.algorithms:
            raise ValueError(
                f"oidc.algorithms: expected some of {', '.join(SIGNATURES)}, found {unknown if self.algorithms else 'none'}"
            )
        for group, rights in (self.groups or {}).items():
            try:
                read_rights(rights)
            except ValueError as error:
                raise ValueError(f"oidc.groups, {group}: expected {error}") from None
        self._check_login()

    def _check_login(self) -> None:
        if not self.client_id:
            return
        if not safe_address(self.public_url) or urlsplit(self.public_url).path or "?" in self.public_url:
            raise ValueError(
                "oidc.public_url: expected where browsers reach the console, https://… without a path (or http://… on this machine's"
                f" loopback address), found {self.public_url!r}"
            )
        if "openid" not in self.scopes:
            raise ValueError(f"oidc.scopes: expected openid among them, found {', '.join(self.scopes) or 'none'}")

    @property
    def audiences(self) -> list[str]:
        """One of them must be in a token's `aud`: of tokens for the installation, and of those that a login gives."""
        return [each for each in dict.fromkeys((self.audience, self.client_id, self.device_client_id)) if each]


def safe_address(url: str, as_safe_as: str = "http:") -> bool:
    """Whether what comes from there is surely the server's: https, or http on this machine's loopback, unless the other is https."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # ValueError for what is none
        local = host == "localhost" or ((host[:1].isdigit() or ":" in host) and ip_address(host).is_loopback)
    except ValueError:
        return False
    plain = local and parts.scheme == "http" and as_safe_as.startswith("http:")
    return bool(host) and parts.username is None and not parts.fragment and (parts.scheme == "https" or plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """The settings of one control service."""

    host: str = knob(LOOPBACK)
    """Where it listens: the loopback address unless told otherwise."""
    port: int = knob(8470)
    """0: any that is free."""
    token_file: str = knob("")
    """Holds the token; made, for its owner alone, where it is not there. "": the token is TIDEMARK_TOKEN's."""
    users_file: str = knob("")
    """Names other users, with a role and their token's digest each (`shared/process/users.py`); "": there are none."""
    oidc: OidcSettings = field(default_factory=OidcSettings)
    address_file: str = knob("")
    """Where to write, as JSON, at which URL it is reached; "": nowhere."""
    logs: str = knob("")
    """The folder of the services' log files, JSON lines; "": they are not here."""
    body_bytes_max: int = sized(900_000)
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
    """How long a request waits for the coordinator's answer."""
    shown_ms_max: int = 2_000
    """How long a request waits until this service has read all that was told before it; on a loaded machine that takes a second."""
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
    """Between two audits of each processor, where there are later checkpoints; 0: none by itself. Each goes on where the last one ended."""
    work_s_max: int = knob(3_600)
    """Until an audit or a redrive is ended; the first audit reads the whole history of a job."""
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
    found = fitting(settings_of(table, ControlSettings, "TIDEMARK_EXTRA", others=True), settings)
    if found.silent_ms_max < 3 * settings.runtime.heartbeat_interval_ms:
        message = (
            f"TIDEMARK_EXTRA.silent_ms_max={found.silent_ms_max} must be at least three times heartbeat_interval_ms="
            f"{settings.runtime.heartbeat_interval_ms} of TIDEMARK_RUNTIME: workers that live would come and go"
        )
        raise ProcessSettingsError(message)
    return found
