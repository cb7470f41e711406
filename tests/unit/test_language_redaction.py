"""Secrets are not shown, and all else is."""

from typing import Any

import pytest

from shared.language.redaction import redacted, redacted_document, redacted_line, redacted_text


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
