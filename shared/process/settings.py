"""A process' settings, from the environment. Errors name the variable."""

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import msgspec

from tidemark.shared.adapters.kafka_settings import KafkaSettings, settings_from
from tidemark.shared.adapters.store_settings import BlobSettings, StoreSettings
from tidemark.shared.model.ids import WorkerIncarnation
from tidemark.shared.model.message_sizes import fitted
from tidemark.shared.model.settings import knob, knobs_of, no_such_setting
from tidemark.shared.runtime.settings import RuntimeSettings

T = TypeVar("T")

_PREFIX = "TIDEMARK_"
_ENUM = re.compile(r"Invalid enum value ('.*'|[^ ]+)")
_PORT_MAX = 65_535
"""Ports that there are."""
_KEPT_BYTES = 128 << 20
"""Of `kept_bytes`: a sink of large documents has that much of parts and requests at a time."""
_KEPT_BYTES_MAX = 2**31 - 1
"""The range of `kept_bytes`: the largest value that the C library takes."""
_HEAPS = 2
_HEAPS_MAX = 1024
"""The range of `heaps`."""


class ProcessSettingsError(ValueError):
    """A variable is missing or wrong: gives its name, the expected value and the one found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Of a process (TIDEMARK_TRACES, JSON)."""

    url: str = knob("")
    """Where a collector takes OTLP over HTTP: `http://collector:4318/v1/traces`. "": no traces."""
    headers: tuple[str, ...] = knob((), shown=False)
    """Sent with each request, such as `Authorization: Bearer …`."""
    interval_ms: int = 1_000
    """Between two requests."""
    waiting_max: int = 8_192
    """Spans that wait for the next request."""
    request_timeout_ms: int = 5_000
    """How long the collector may take to answer."""
    remembered_max: int = 100_000
    """Phases of tasks, that begin spans."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Of one process. Secrets do not show in its repr."""

    kafka: str
    """TIDEMARK_KAFKA: the cluster of Tidemark's own topics, `host:port,…`."""
    blobs: str
    """TIDEMARK_BLOBS: where state and segments lie: a directory or `s3://…`; "" where it is not needed."""
    store: str = field(repr=False)
    """TIDEMARK_STORE: the coordinator's database, `sqlite:///…` or `postgresql://…`; "" where it is not needed."""
    place: str
    """TIDEMARK_PLACE: this worker's seat, kept over restarts: `operator-0`."""
    incarnation: WorkerIncarnation = field(default_factory=lambda: WorkerIncarnation(uuid.uuid4().hex))
    """TIDEMARK_INCARNATION: names this process alone, if its starter tells the coordinator of its end; made up where not set."""
    prefix: str = "tidemark"
    """TIDEMARK_PREFIX: of topics."""
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """TIDEMARK_KAFKA_CONFIG: JSON; fields of `KafkaSettings`, e.g. `{"security_protocol": "SASL_SSL", …}`."""
    store_config: StoreSettings = field(default_factory=StoreSettings)
    """TIDEMARK_STORE_CONFIG: JSON; fields of `StoreSettings`."""
    blobs_config: BlobSettings = field(default_factory=BlobSettings)
    """TIDEMARK_BLOBS_CONFIG: JSON; fields of `BlobSettings`."""
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    """TIDEMARK_RUNTIME: JSON; fields of `RuntimeSettings`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """TIDEMARK_EXTRA: JSON; settings of the service itself."""
    traces: TraceSettings = field(default_factory=TraceSettings)
    """TIDEMARK_TRACES: JSON; the collector of epochs' traces (`tracing.py`)."""
    kill_at: str = ""
    """TIDEMARK_KILL_AT: for tests of faults, see killing.py."""
    log_format: str = "json"
    """TIDEMARK_LOG: json or text."""
    health_port: int | None = None
    """TIDEMARK_HEALTH_PORT: of liveness, readiness and metrics; 0: any that is free; not set: none (`health.py`)."""
    health_host: str = "127.0.0.1"
    """TIDEMARK_HEALTH_HOST: where that listens."""
    tls_certificate: str = ""
    """TIDEMARK_TLS_CERTIFICATE: PEM file with the certificate, those behind it, and the key if that has no file of its own; everything
    that listens does so with TLS then (`listening.py`). "": nothing does."""
    tls_key: str = ""
    """TIDEMARK_TLS_KEY: PEM file with its key."""
    kept_bytes: int = _KEPT_BYTES
    """TIDEMARK_KEPT_BYTES: freed memory that the process keeps for its next allocations, at most, a heap (`allocator.py`)."""
    heaps: int = _HEAPS
    """TIDEMARK_HEAPS: heaps that all threads of the process share."""


def read_settings(environment: Mapping[str, str] | None = None) -> ProcessSettings:
    """The settings of this process. Raises ProcessSettingsError, SettingsError."""
    env = os.environ if environment is None else environment

    def text(name: str, default: str | None = None) -> str:
        value = env.get(_PREFIX + name, default)
        if value is None:
            message = f"{_PREFIX}{name} is not set; README.md of shared/process says what it holds"
            raise ProcessSettingsError(message)
        return value

    def number(name: str, default: int, what: str, least: int, most: int) -> int:
        value = text(name, str(default))
        if not (value.isdecimal() and least <= int(value) <= most):
            message = f"{_PREFIX}{name}: expected {what} from {least} to {most}, found {value!r}"
            raise ProcessSettingsError(message)
        return int(value)

    def table(name: str) -> dict[str, Any]:
        return read_table(env, name)

    runtime = read_runtime(env)
    log_format = text("LOG", "json")
    if log_format not in ("json", "text"):
        message = f"{_PREFIX}LOG: expected json or text, found {log_format!r}"
        raise ProcessSettingsError(message)
    found = ProcessSettings(
        kept_bytes=number("KEPT_BYTES", _KEPT_BYTES, "bytes", 1, _KEPT_BYTES_MAX),
        heaps=number("HEAPS", _HEAPS, "a number", 1, _HEAPS_MAX),
        health_port=number("HEALTH_PORT", 0, "a port", 0, _PORT_MAX) if text("HEALTH_PORT", "") else None,
        health_host=text("HEALTH_HOST", "127.0.0.1"),
        tls_certificate=text("TLS_CERTIFICATE", ""),
        tls_key=text("TLS_KEY", ""),
        kafka=text("KAFKA"),
        blobs=text("BLOBS", ""),
        store=text("STORE", ""),
        place=text("PLACE"),
        incarnation=WorkerIncarnation(text("INCARNATION", "") or uuid.uuid4().hex),
        prefix=text("PREFIX", "tidemark"),
        kafka_config=table("KAFKA_CONFIG"),
        store_config=settings_of(table("STORE_CONFIG"), StoreSettings, f"{_PREFIX}STORE_CONFIG"),
        blobs_config=settings_of(table("BLOBS_CONFIG"), BlobSettings, f"{_PREFIX}BLOBS_CONFIG"),
        runtime=runtime,
        extra=table("EXTRA"),
        traces=settings_of(table("TRACES"), TraceSettings, f"{_PREFIX}TRACES"),
        kill_at=text("KILL_AT", ""),
        log_format=log_format,
    )
    found = replace(found, runtime=fitting(runtime, found))
    found.runtime.check()
    return found


def fitting(settings: T, of: ProcessSettings) -> T:
    """Settings with sizes of messages that the cluster of Tidemark's own topics takes. ProcessSettingsError."""
    try:
        return fitted(settings, kafka_settings(of).message_bytes_max)
    except ValueError as error:
        raise ProcessSettingsError(f"TIDEMARK_KAFKA_CONFIG.message_bytes_max: {error}") from error


def kafka_settings(settings: ProcessSettings) -> KafkaSettings:
    """Of the cluster of Tidemark's own topics. ProcessSettingsError."""
    try:
        return settings_from(
            settings.kafka_config, "TIDEMARK_KAFKA_CONFIG", bootstrap=settings.kafka, client=settings.place
        )
    except ValueError as error:
        raise ProcessSettingsError(str(error)) from error


def read_runtime(environment: Mapping[str, str]) -> RuntimeSettings:
    """TIDEMARK_RUNTIME alone, its relations checked. Raises ProcessSettingsError, SettingsError."""
    runtime = settings_of(read_table(environment, "RUNTIME"), RuntimeSettings, f"{_PREFIX}RUNTIME")
    runtime.check()
    return runtime


def read_table(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """A variable that holds a JSON object, named without its prefix; {} where it is not set. ProcessSettingsError."""
    raw = environment.get(_PREFIX + name) or "{}"
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        # The value found is not shown: it may hold a password.
        message = f"{_PREFIX}{name}: expected a JSON object; found {len(raw)} characters that are none ({error})"
        raise ProcessSettingsError(message) from error


def settings_of(table: Mapping[str, object], kind: type[T], place: str, *, others: bool = False) -> T:
    """A dataclass of settings from a table of the user's. ProcessSettingsError names the unknown or wrong setting and its place.

    others: an unknown setting at the top may be another service's, for all may be given one table.
    """
    _check_known(table, kind, place, others=others)
    try:
        return msgspec.convert(table, kind)
    except (msgspec.ValidationError, ValueError) as error:
        # A secret may stand in the wrong place: the value found is not shown.
        message = f"{place}: {_ENUM.sub('unknown value, which is not shown here', str(error))}"
        raise ProcessSettingsError(message) from None


def _check_known(table: Mapping[str, object], kind: Any, place: str, *, others: bool) -> None:
    known = knobs_of(kind)
    fixed = {each.name for each in fields(kind)} - known.keys()
    for name, value in table.items():
        if name not in known and (name in fixed or not others):
            raise ProcessSettingsError(no_such_setting(place, name, known))
        if is_dataclass(known.get(name)) and isinstance(value, dict):
            _check_known(value, known[name], f"{place}.{name}", others=False)
