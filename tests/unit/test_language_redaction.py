"""Secrets are not shown, and all else is."""

import dataclasses
import json
import traceback
from typing import Any

import pytest

from tidemark.shared.adapters.kafka_settings import KafkaSettings, settings_from
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.redaction import (
    PUBLIC,
    redacted,
    redacted_command,
    redacted_document,
    redacted_line,
    redacted_text,
)
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogRecord
from tidemark.shared.process.settings import ProcessSettingsError, settings_of
from tidemark.shared.runtime.registry import KnownConnections
from tidemark.shared.runtime.settings import RuntimeSettings


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"sasl_password": "x"}, {"sasl_password": "***"}),
        ({"sasl_password": "${KAFKA_PASSWORD}"}, {"sasl_password": "${KAFKA_PASSWORD}"}),
        ({"key": "AKIA", "secret": "x", "endpoint": "e"}, {"key": "***", "secret": "***", "endpoint": "e"}),
        ({"headers": {"authToken": "x"}}, {"headers": {"authToken": "***"}}),
        ({"url": "postgresql://u:p@h/db?password=x"}, {"url": "postgresql://u:***@h/db?password=***"}),
        ({"url": "postgresql://u:${PW}@h/db"}, {"url": "postgresql://u:${PW}@h/db"}),
        ({"tokens": ["a", "b"]}, {"tokens": ["***", "***"]}),
        ({"secretNumber": 7, "keyFormat": "json", "topic": "t"}, {"secretNumber": "***", "keyFormat": "json", "topic": "t"}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_hidden(value: Any, shown: Any) -> None:
    """A secret is known by its setting's name or its place in an address; a reference to one is no secret."""
    assert redacted(value) == shown


CONNECTIONS: list[tuple[Any, Any]] = [
    ({"type": "kafka", "bootstrapServers": "h:1,h:2", "config": {"security_protocol": "SASL_SSL", "fetch_wait_ms": 7}},) * 2,
    ({"type": "files", "path": "s3://b/p", "config": {"endpoint_url": "http://h:9", "anon": True}},) * 2,
    ({"type": "sql", "url": "postgresql://h:1/db?sslmode=require"},) * 2,
    ({"config": {"passphrase": "x", "pwd": "x"}}, {"config": {"passphrase": "***", "pwd": "***"}}),
    ({"config": {"auth": ["u", "x"]}}, {"config": {"auth": ["***", "***"]}}),
    ({"config": {"headers": {"Authorization": "x", "type": "x"}}}, {"config": {"headers": {"Authorization": "***", "type": "***"}}}),
    ({"config": {"client_kwargs": {"region_name": "r", "x": 7}}}, {"config": {"client_kwargs": {"region_name": "r", "x": "***"}}}),
    ({"config": {"anything": "${NAME}"}}, {"config": {"anything": "${NAME}"}}),
    ({"url": "postgresql://u:x@h/d?sslmode=require&sslpassword=x"}, {"url": "postgresql://u:***@h/d?sslmode=require&sslpassword=***"}),
    ({"url": "postgresql://u:x/y@z@h/d"}, {"url": "postgresql://u:***@h/d"}),
    ({"url": "postgresql://u:${PW}@h/d?sslpassword=${SP}"}, {"url": "postgresql://u:${PW}@h/d?sslpassword=${SP}"}),
    ({"url": "mongodb://u:x,y@h1:1,h2:2/?replicaSet=r&tlsCertificateKeyFilePassword=x"},
     {"url": "mongodb://u:***@h1:1,h2:2/?replicaSet=r&tlsCertificateKeyFilePassword=***"}),
    ({"url": "postgresql://u:x,y@h/d"}, {"url": "postgresql://u:***@h/d"}),
    ({"path": "https://x@h/p#x"}, {"path": "https://***@h/p#***"}),
    ({"path": "https://h/p;sig=x?y"}, {"path": "https://h/p;sig=***?***"}),
    ({"url": "postgresql://h/d?password=x@y"}, {"url": "postgresql://***"}),
    ({"url": "postgresql://u:x?y@h/d"}, {"url": "postgresql://***"}),
    ({"bootstrapServers": "u:x@h:1"}, {"bootstrapServers": "u:***@h:1"}),
    ({"bootstrapServers": {"type": "x"}, "config": "x"}, {"bootstrapServers": {"type": "***"}, "config": "***"}),
    ("x", "***"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "shown"), CONNECTIONS, ids=str)
def test_of_a_connection_only_what_is_known_to_be_public_is_shown(value: Any, shown: Any) -> None:
    """By a list of settings, and of parameters of an address: whatever else a setting is called, its value is hidden."""
    assert redacted_document({"connections": {"c": value}}) == {"connections": {"c": shown}}
    assert json.loads(redacted_text(json.dumps(value))) == shown
    command = json.dumps({"command": "connect", "name": "c", "connection": value}).encode()
    assert json.loads(redacted_command(command))["connection"] == shown
    registry = KnownConnections()
    registry.take(LogRecord("connections", 0, Offset(0), 0, b"c", json.dumps(value).encode()))
    assert registry.values == ({"c": shown} if isinstance(shown, dict) else {})


def test_every_setting_of_a_client_is_shown_or_hidden_on_purpose() -> None:
    """A new setting of the Kafka client is hidden until it stands in the list."""
    fields = {field.name for field in dataclasses.fields(KafkaSettings)} - {"bootstrap"}
    assert fields - PUBLIC == {"sasl_password", "sasl_token_provider", "ssl_key_password"}


def test_lines_and_texts() -> None:
    """A log's line hides what an address carries; a text that is no JSON is hidden whole."""
    assert redacted_line("no route to redis://u:pw@h:1 today") == "no route to redis://u:***@h:1 today"
    assert redacted_text('{"password":"x"}') == '{"password":"***"}'
    assert redacted_text("password=x") == "***"


def test_a_pipeline_is_shown_as_it_is() -> None:
    """A field of the user's that is named like a secret is no setting."""
    document = {"connections": {"k": {"config": {"password": "x"}}}, "pipeline": [{"$match": {"password": "x"}}]}
    assert redacted_document(document) == {
        "connections": {"k": {"config": {"password": "***"}}},
        "pipeline": [{"$match": {"password": "x"}}],
    }


SECRET = "hunter2"
CONFIG = {"connections": {"k": {"type": "kafka", "bootstrapServers": "h:1", "config": {"sasl_password": SECRET}}}}


@pytest.mark.parametrize(
    "command",
    [
        {"command": "create", "name": "p", "document": CONFIG},
        {"command": "modify", "name": "p", "document": json.dumps(CONFIG)},
        {"command": "create", "name": "p", "document": "connections: {k: {config: {password: hunter2}}}"},
        {"command": "create", "name": "p", "document": "connections: {k: {password: hunter2"},
        {"command": "connect", "name": "t", "connection": {"type": "sql", "url": f"postgresql://u:{SECRET}@h/d"}},
        {"command": "connect", "name": "t", "password": SECRET},
        [SECRET],
    ],
    ids=str,
)
def test_a_command_that_is_put_aside_tells_no_secret(command: Any) -> None:
    """Wherever it stands, and also where the command is wrong."""
    assert SECRET.encode() not in redacted_command(json.dumps(command).encode())


def test_a_command_that_is_cut_is_hidden_and_one_without_secrets_is_kept() -> None:
    """What does not decode may hold anything; what hides nothing has the bytes that came."""
    assert redacted_command(b'{"password": "hunter2') == b"***"
    assert redacted_command(b"\xff") == b"***"
    plain = b'{ "command": "create", "name": "p", "document": {"pipeline": [{"$match": {"password": 1}}]} }'
    assert redacted_command(plain) == plain


@pytest.mark.parametrize("wrong", [SECRET, [SECRET], {"a": SECRET}], ids=str)
@pytest.mark.parametrize(
    "setting", ["sasl_mechanism", "security_protocol", "compression", "request_timeout_ms", "ssl_check_hostname"]
)
def test_a_secret_in_the_wrong_setting_of_a_client_is_not_shown(setting: str, wrong: Any) -> None:
    """The setting and what was expected are named, and what was found by its kind."""
    with pytest.raises(
        ValueError, match=rf"^connections\.k\.config\.{setting}: expected .*, found .* that is not shown here$"
    ) as raised:
        settings_from({setting: wrong}, "connections.k.config", bootstrap="h:1")
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("found", [SECRET, [SECRET], {SECRET: 1}], ids=str)
def test_a_secret_as_the_type_of_a_connection_is_not_shown(found: Any) -> None:
    """The types that there are are named."""
    with pytest.raises(InvalidDocument) as raised:
        parse({"connections": {"k": {"type": found}}, "pipeline": [{"$source": {"documents": []}}]})
    assert SECRET not in str(raised.value)
    assert "connections.k.type: unknown value; it is not shown here" in str(raised.value)
    assert "kafka, files, sql, mongodb, gateway" in str(raised.value)


def test_a_secret_in_the_wrong_setting_of_a_process_is_not_shown() -> None:
    """As in a connection: the place is named."""
    with pytest.raises(ProcessSettingsError) as raised:
        settings_of({"engine": SECRET}, RuntimeSettings, "TIDEMARK_RUNTIME")
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert "TIDEMARK_RUNTIME: unknown value, which is not shown here" in str(raised.value)


@pytest.mark.parametrize("part", ["b", "a.", "a:", "://", "a://", "a://u:", "?a", "?key", "&", "key", "@", "$"])
def test_a_long_line_is_read_as_its_parts_are(part: str) -> None:
    """Half a million characters of any form are redacted, and an address behind them, too: time does not grow with their square."""
    line = part * (500_000 // len(part)) + " kafka://me:s3cr3t@host"
    assert "s3cr3t" not in redacted_line(line)


def test_what_is_too_deep_to_be_read_is_hidden() -> None:
    """A command or connection beyond any reader's depth is hidden whole."""
    for deep in (b"[" * 25_000, b'{"connection":' * 25_000):
        assert redacted_command(deep) == b"***"
        assert redacted_text(deep.decode()) == "***"
    assert b"s3cr3t" not in redacted_command(b'{"connection":' * 900 + b'"s3cr3t"' + b"}" * 900)
