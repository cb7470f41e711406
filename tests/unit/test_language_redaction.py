"""Secrets are not shown, and all else is."""

import json
import traceback
from typing import Any

import pytest

from shared.adapters.kafka_settings import settings_from
from shared.language.documents import InvalidDocument, parse
from shared.language.redaction import redacted, redacted_command, redacted_document, redacted_line, redacted_text
from shared.process.settings import ProcessSettingsError, settings_of
from shared.runtime.settings import RuntimeSettings


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
    assert "kafka, files, sql, gateway" in str(raised.value)


def test_a_secret_in_the_wrong_setting_of_a_process_is_not_shown() -> None:
    """As in a connection: the place is named."""
    with pytest.raises(ProcessSettingsError) as raised:
        settings_of({"engine": SECRET}, RuntimeSettings, "TIDEMARK_RUNTIME")
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert "TIDEMARK_RUNTIME: unknown value, which is not shown here" in str(raised.value)
