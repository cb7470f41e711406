"""The parts of documents and settings that may be shown.

Of a connection, the parts known to be public: settings by a list of names, and of an address no password and no parameter that is not
listed. Elsewhere (log lines) everything but secrets: a value is a secret by the name of its setting (password, secret, token, key, …)
or, in an address, by its place (`user:password@host`). A reference `${NAME}` is shown: it says where the secret is, not what it is.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidemark.shared.language.documents.connections import REFERENCE
from tidemark.shared.language.documents.load import load
from tidemark.shared.language.problems import InvalidDocument

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|authorization|(^|_)auth$|api_?key|access_?key|private|sasl_plain|jaas|(^|_)key$|(^|_)pass$",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,31}://)(?P<user>[^:@/\s]*):(?P<secret>[^@/\s]+)@", re.IGNORECASE
)
# The scheme has a bound: without it the time would grow with the square of a line's length.
_QUERY: Final = re.compile(
    r"(?P<name>[?&;][a-z_]*(?:password|passwd|pwd|passphrase|token|secret|key)=)[^&;\s]+", re.IGNORECASE
)

PUBLIC: Final = frozenset(
    [
        "type",
        "bootstrapServers",
        "url",
        "schemaRegistryUrls",
        "provider",
        "path",
        "security_protocol",
        "sasl_mechanism",
        "sasl_username",
        "ssl_ca_file",
        "ssl_certificate_file",
        "ssl_key_file",
        "ssl_check_hostname",
        "client",
        "replication",
        "request_timeout_ms",
        "delivery_timeout_ms",
        "transaction_timeout_ms",
        "topic_wait_ms",
        "outage_after_ms",
        "fetch_wait_ms",
        "follow_wait_ms",
        "fetch_bytes_max",
        "partition_fetch_bytes_max",
        "message_bytes_max",
        "batches_in_flight_max",
        "emit_headers_max",
        "emit_topics_max",
        "emit_topic_partitions",
        "records_in_flight_max",
        "groups_max",
        "log_kinds_max",
        "compression",
        "endpoint",
        "endpoint_url",
        "region",
        "region_name",
        "anon",
        "use_ssl",
        "pool_size",
        "max_overflow",
        "pool_timeout",
        "pool_recycle",
        "schema",
        "sslmode",
        "connect_timeout",
        "application_name",
        "authSource",
        "directConnection",
        "replicaSet",
        "tls",
    ]
)
"""Settings whose values are shown. All others are hidden."""
_TRANSPARENT: Final = frozenset({"config", "client_kwargs"})
"""Tables of settings."""
_PARAMETER: Final = re.compile(r"[?;#&]([^?;#&=]*)(=?)([^?;#&]*)")


def shown_connection(value: object) -> Any:
    """The public part of a connection: names of settings, and the values of those that are `PUBLIC`."""
    if not isinstance(value, Mapping):
        return _hidden(value)
    return {key: _shown_setting(str(key), item) for key, item in value.items()}


def connection_digest(shown: object) -> str:
    """What a connection is known by to one who changes it: SHA-256 of its public part, hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()


def _shown_setting(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return shown_connection(value) if name in _TRANSPARENT else _hidden(value)
    if name not in PUBLIC:
        return _hidden(value)
    if isinstance(value, list):
        return [_shown_setting(name, item) for item in value]
    # A password, or a list of hosts, may have commas.
    several = value.split(",") if isinstance(value, str) and name == "bootstrapServers" else [value]
    return ",".join(map(_address, several)) if isinstance(value, str) else value


def _hidden(value: object) -> Any:
    """Its form alone; a reference and nothing are no secret."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    is_open = value is None or value == "" or (isinstance(value, str) and REFERENCE.fullmatch(value))
    return value if is_open else HIDDEN


def _address(text: str) -> str:
    """Without password, and with no parameter's value that is not public; a user name without a password may be a token."""
    scheme, separator, rest = text.rpartition("://") if "://" in text else ("", "", text)
    begins = _PARAMETER.search(rest) if separator else None
    if begins and "@" in rest[begins.start() :]:
        return f"{scheme}{separator}{HIDDEN}"  # of a password or of a parameter: it cannot be told
    before, at, host = rest.rpartition("@")
    user, colon, password = before.partition(":")
    who = f"{user}:{_hidden(password)}" if colon else _hidden(before)
    if separator:
        host = _PARAMETER.sub(_parameter, host)
    return f"{scheme}{separator}{who if at else ''}{at}{host}"


def _parameter(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    if not equals:
        return found[0][0] + str(_hidden(name))
    return f"{found[0][0]}{name}={value if name in PUBLIC else _hidden(value)}"


def redacted(value: object, name: str = "") -> Any:
    """A tree with its secrets hidden; `name` is the setting that holds it. Nothing is changed in place."""
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, name) for item in value]
    if isinstance(value, str):
        return _text(value, name)
    return HIDDEN if value is not None and _SECRET.search(name) and not isinstance(value, bool) else value


def _text(value: str, name: str) -> str:
    if _SECRET.search(name) and value:
        return value if REFERENCE.fullmatch(value) else HIDDEN
    return redacted_line(value)


def redacted_line(line: str) -> str:
    """A line of text, such as a log's, with the secrets of addresses hidden."""

    def hide(found: re.Match[str]) -> str:
        secret = found["secret"]
        return f"{found['scheme']}{found['user']}:{secret if REFERENCE.fullmatch(secret) else HIDDEN}@"

    return _QUERY.sub(lambda found: found["name"] + HIDDEN, _ADDRESS.sub(hide, line))


def redacted_text(text: str) -> str:
    """A connection's JSON text as it may be shown; one that is no JSON is hidden whole."""
    try:
        return msgspec.json.encode(shown_connection(msgspec.json.decode(text))).decode()
    except (msgspec.DecodeError, RecursionError):
        return HIDDEN


def redacted_document(tree: object) -> Any:
    """A processor's document: the public parts of its connections; the pipeline, which holds no secret, as it is."""
    if not isinstance(tree, Mapping):
        return tree
    return {key: _connections(value) if key == "connections" else value for key, value in tree.items()}


def _connections(value: object) -> Any:
    if not isinstance(value, Mapping):
        return _hidden(value)
    return {name: shown_connection(item) for name, item in value.items()}


def redacted_command(data: bytes) -> bytes:
    """A command's JSON with its secrets hidden: the same bytes where there are none, all of it hidden if it is no JSON, or too deep."""
    try:
        tree = msgspec.json.decode(data)
        if not isinstance(tree, Mapping):
            return HIDDEN.encode()
        shown = {key: _shown_field(str(key), value) for key, value in tree.items()}
        return data if shown == tree else msgspec.json.encode(shown)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return HIDDEN.encode()


def _shown_field(name: str, value: object) -> Any:
    if name == "connection":
        return shown_connection(value)
    return _document(value) if name == "document" else redacted(value, name)


def _document(value: object) -> Any:
    """An object, or the text of one; a text stays as it is if it hides nothing."""
    if not isinstance(value, str):
        return redacted_document(value)
    try:
        tree, _ = load(value)
    except InvalidDocument:
        return HIDDEN
    shown = redacted_document(tree)
    return value if shown == tree else shown
